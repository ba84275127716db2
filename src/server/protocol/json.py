"""Strict JSON in, plain JSON out.

`json.loads` takes NaN, lone surrogates, other encodings, duplicate keys and any depth. Each of these has been a way to
make two readers of one request see different things, or to break one of them; here each is an error.
"""

from __future__ import annotations

import json
import re
from typing import Any

from .errors import ApiError, bad_request

MAX_DEPTH = 64
MAX_ITEMS = 1 << 17  # objects, lists and keys in one body; each costs some microseconds by the time it is a prompt
_PIECE = 4096  # items of a list that are written at a stretch; under a millisecond
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_STRETCH = re.compile(rb'(?:[^"]*+"[^"\\]*+(?:\\.[^"\\]*+)*+"){0,2000}+[^"]*+', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse(body: bytes) -> dict[str, Any]:
    """The object in `body`. Raises ApiError: invalid_json, json_too_deep, json_too_large, invalid_unicode."""
    if _has_too_many_items(body):  # before a million of them are made
        raise bad_request(f"the body holds more than {MAX_ITEMS} objects, lists and keys", code="json_too_large")
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is not UTF-8 (at byte {error.start})", code="invalid_unicode") from None
    except json.JSONDecodeError as error:
        what = "the body is empty" if not body.strip() else f"the body is not JSON: {error.msg}"
        raise bad_request(f"{what} (line {error.lineno}, column {error.colno})", code="invalid_json") from None
    except ValueError:  # the interpreter's own bound on digits
        raise bad_request("the body holds a number of thousands of digits", code="invalid_json") from None
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(value, dict):
        raise bad_request("the body must be a JSON object", code="invalid_json")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    if b"\\u" in body:  # decoded UTF-8 cannot hold surrogates, escapes can
        _check_surrogates(value)
    return value


def dump(value: Any) -> bytes:
    """Compact UTF-8. NaN and infinities are an error of ours, never on the wire."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def dump_long(value: dict[str, Any]) -> bytes:
    """As `dump`, for a thread: long lists are written in pieces, between which the event loop gets its turn.

    The encoder holds the interpreter from its first item to its last.
    """
    fields: list[bytes] = []
    for name, field in value.items():
        written = (
            dump(field)
            if not isinstance(field, list)
            else b"[%b]"
            % b",".join(dump(field[start : start + _PIECE])[1:-1] for start in range(0, len(field), _PIECE))
        )
        fields.append(dump(name) + b":" + written)
    return b"{%b}" % b",".join(fields)


def _has_too_many_items(body: bytes) -> bool:
    """Counted in the bytes. Marks within texts are left out only where that decides, and then a stretch at a time."""
    if _count_items(body) <= MAX_ITEMS:
        return False
    count = position = 0
    while (end := _STRETCH.match(body, position).end()) > position:  # type: ignore[union-attr]  # it matches nothing too
        count += _count_items(_STRING.sub(b"", body[position:end]))
        if count > MAX_ITEMS:
            return True
        position = end
    return False


def _count_items(content: bytes) -> int:
    return content.count(b"[") + content.count(b"{") + content.count(b":")


def _check_depth(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ApiError:
    return bad_request(f"the body is nested more than {MAX_DEPTH} levels deep", code="json_too_deep")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise bad_request(f"the key {twice[:100]!r} stands twice in one object", code="invalid_json")
    return value


def _no_constant(name: str) -> Any:
    raise bad_request(f"{name} is no JSON number", code="invalid_json")


def _check_surrogates(body: dict[str, Any]) -> None:
    for name, field in body.items():
        todo: list[Any] = [name, field]
        while todo:
            value = todo.pop()
            if isinstance(value, str):
                if _SURROGATE.search(value):
                    place = _SURROGATE.sub("\ufffd", name)
                    raise bad_request(f"`{place}` holds half of a surrogate pair", code="invalid_unicode", param=place)
            elif isinstance(value, dict):
                todo += [*value.keys(), *value.values()]
            elif isinstance(value, list):
                todo += value
