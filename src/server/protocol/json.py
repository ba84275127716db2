"""Reading strict JSON, writing plain JSON.

`json.loads` accepts NaN, lone surrogates, other encodings, duplicate keys and any depth. With each of these, two
parsers of one request can see different content, or one of them can crash; here each is an error.

The parser holds the GIL for the whole of one call: long bodies are parsed in another process (isolation.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ...text.json_text import MAX_DEPTH, SURROGATE, has_surrogate, is_too_deep
from .errors import ApiError, bad_request, from_validation

Body = TypeVar("Body", bound=BaseModel)

MAX_ITEMS = 1 << 17  # objects, lists and keys in one body; each costs some microseconds to process
MAX_VALUES = 1 << 20  # values in one body, where the route does not allow more
# What the server keeps of a body, texts and token ids of the prompt apart. Each value costs a microsecond in each of
# several copies on the event loop. A body that is short enough to be read there has no more values.
MAX_KEPT_VALUES = 1 << 15
MAX_KEPT_BYTES = 2 << 20
_CHUNK_ITEMS = 256  # items of a list encoded in one call: under a millisecond
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
# Up to 64 strings and what is between them: few, so that one call of the pattern is short.
_SECTION = re.compile(rb'(?:[^"]{0,16384}+"[^"\\]*+(?:\\.[^"\\]*+)*+"){0,64}+[^"]{0,16384}+', re.DOTALL)


def parse(body: bytes, max_values: int = MAX_VALUES) -> dict[str, Any]:
    """The object in `body`, which has at most `max_values` values.

    Raises ApiError: invalid_json, json_too_deep, json_too_large, invalid_unicode.
    """
    _check_size(body, max_values)  # before values are made
    try:
        # A byte order mark, which some programs write, is not content.
        value = json.loads(body.decode("utf-8-sig"), object_pairs_hook=_object, parse_constant=_no_constant)
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
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and is_too_deep(value):
        raise _too_deep()
    if b"\\u" in body:  # only escapes can produce surrogates
        _check_surrogates(value)
    return value


def read(model: type[Body], body: bytes, max_values: int = MAX_VALUES) -> Body:
    """Parse a body as a protocol model. Raises ApiError for the first error in it."""
    try:
        return model.model_validate(parse(body, max_values))
    except ValidationError as error:
        raise from_validation(error) from None


def dump(value: Any) -> bytes:
    """Compact UTF-8. Raises ValueError for NaN and infinities, which are not JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def dump_long(value: dict[str, Any] | list[Any]) -> bytes:
    """Encode as `dump` does, in a thread. Long lists, at any depth, are encoded in chunks: the event loop runs between.

    The encoder holds the GIL for the whole of one call.
    """
    return b"".join(_pieces(value))


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        for index, (name, field) in enumerate(value.items()):
            yield b"%b%b:" % (b"," if index else b"{", dump(str(name)))
            yield from _pieces(field)
        yield b"}" if value else b"{}"
    elif isinstance(value, list) and len(value) > _CHUNK_ITEMS:
        for start in range(0, len(value), _CHUNK_ITEMS):
            yield (b"," if start else b"[") + dump(value[start : start + _CHUNK_ITEMS])[1:-1]
        yield b"]"
    elif isinstance(value, list) and value and isinstance(value[0], dict):  # such as choices: few, each may be long
        for index, item in enumerate(value):
            yield b"," if index else b"["
            yield from _pieces(item)
        yield b"]"
    else:
        yield dump(value)


def _check_size(body: bytes, max_values: int) -> None:
    """Counts in the bytes. If that exceeds a limit, counts again without string contents, section by section."""
    if _count_items(body) <= MAX_ITEMS and body.count(b",") < max_values:
        return
    num_items = num_values = position = 0
    while (end := _SECTION.match(body, position).end()) > position:  # type: ignore[union-attr]  # the pattern also matches the empty string
        section = _STRING.sub(b"", body[position:end])
        num_items += _count_items(section)
        num_values += section.count(b",")  # one less than the values
        if num_items > MAX_ITEMS:
            raise bad_request(f"the body contains more than {MAX_ITEMS} objects, lists and keys", code="json_too_large")
        if num_values >= max_values:
            raise bad_request(f"the body contains more than {max_values} values", code="json_too_large")
        position = end


def _count_items(content: bytes) -> int:
    return content.count(b"[") + content.count(b"{") + content.count(b":")


def num_values(value: Any) -> int:
    """How many values, keys, lists and objects this one has, with itself."""
    num, unread = 0, [value]
    while unread:
        found = unread.pop()
        num += 1
        if isinstance(found, dict):
            num += len(found)
            unread += found.values()
        elif isinstance(found, list | tuple):
            unread += found
    return num


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
                if has_surrogate(value):
                    place = SURROGATE.sub("\ufffd", name[:100])
                    raise bad_request(
                        f"`{place}` contains half of a surrogate pair", code="invalid_unicode", param=place
                    )
            elif isinstance(value, dict):
                unchecked += [*value.keys(), *value.values()]
            elif isinstance(value, list):
                unchecked += value
