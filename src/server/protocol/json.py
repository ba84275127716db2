"""Reading strict JSON, writing plain JSON.

`json.loads` accepts NaN, lone surrogates, other encodings, duplicate keys and any depth. With each of these, two
parsers of one request can see different content, or one of them can crash; here each is an error.
"""

from __future__ import annotations

import json
import re
from typing import Any

from .errors import ApiError, bad_request

MAX_DEPTH = 64
MAX_ITEMS = 1 << 17  # objects, lists and keys in one body; each costs some microseconds to process
_CHUNK_ITEMS = 4096  # items of a list encoded in one call: under a millisecond
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SECTION = re.compile(rb'(?:[^"]*+"[^"\\]*+(?:\\.[^"\\]*+)*+"){0,2000}+[^"]*+', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse(body: bytes) -> dict[str, Any]:
    """The object in `body`. Raises ApiError: invalid_json, json_too_deep, json_too_large, invalid_unicode."""
    if _has_too_many_items(body):  # checked before they are parsed
        raise bad_request(f"the body contains more than {MAX_ITEMS} objects, lists and keys", code="json_too_large")
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is not UTF-8 (at byte {error.start})", code="invalid_unicode") from None
    except json.JSONDecodeError as error:
        what = "the body is empty" if not body.strip() else f"the body is not JSON: {error.msg}"
        raise bad_request(f"{what} (line {error.lineno}, column {error.colno})", code="invalid_json") from None
    except ValueError:  # the interpreter's limit on digits
        raise bad_request("the body contains a number with thousands of digits", code="invalid_json") from None
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(value, dict):
        raise bad_request("the body must be a JSON object", code="invalid_json")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    if b"\\u" in body:  # only escapes can produce surrogates
        _check_surrogates(value)
    return value


def dump(value: Any) -> bytes:
    """Compact UTF-8. Raises ValueError for NaN and infinities, which are not JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def dump_long(value: dict[str, Any]) -> bytes:
    """As `dump`, to be called in a thread: long lists are encoded in chunks, between which the event loop can run.

    The encoder holds the GIL for the whole of one call.
    """
    fields: list[bytes] = []
    for name, field in value.items():
        written = (
            dump(field)
            if not isinstance(field, list)
            else b"[%b]"
            % b",".join(dump(field[start : start + _CHUNK_ITEMS])[1:-1] for start in range(0, len(field), _CHUNK_ITEMS))
        )
        fields.append(dump(name) + b":" + written)
    return b"{%b}" % b",".join(fields)


def _has_too_many_items(body: bytes) -> bool:
    """Counts in the bytes. If that exceeds the limit, counts again without string contents, section by section."""
    if _count_items(body) <= MAX_ITEMS:
        return False
    count = position = 0
    while (end := _SECTION.match(body, position).end()) > position:  # type: ignore[union-attr]  # the pattern also matches the empty string
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
        raise bad_request(f"duplicate key {twice[:100]!r} in one object", code="invalid_json")
    return value


def _no_constant(name: str) -> Any:
    raise bad_request(f"{name} is not a JSON number", code="invalid_json")


def _check_surrogates(body: dict[str, Any]) -> None:
    for name, field in body.items():
        unchecked: list[Any] = [name, field]
        while unchecked:
            value = unchecked.pop()
            if isinstance(value, str):
                if _SURROGATE.search(value):
                    place = _SURROGATE.sub("\ufffd", name)
                    raise bad_request(
                        f"`{place}` contains half of a surrogate pair", code="invalid_unicode", param=place
                    )
            elif isinstance(value, dict):
                unchecked += [*value.keys(), *value.values()]
            elif isinstance(value, list):
                unchecked += value
