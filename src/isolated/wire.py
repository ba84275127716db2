"""What a process and its isolated processes send each other: msgpack, in frames."""

from __future__ import annotations

import array
from io import BufferedRWPair
from typing import Any

import msgpack

from ..frames import LENGTH_BYTES, framed, length_of

_LARGE_INTEGER, _INTEGERS = 0, 1  # extensions: beyond 64 bits, in decimal; a list of 32 bits each


def pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, default=_pack_other, unicode_errors="surrogatepass")
    return packed


def unpack(data: bytes | bytearray) -> Any:
    return msgpack.unpackb(data, ext_hook=_unpack_other, unicode_errors="surrogatepass", strict_map_key=False)


def packed_ids(token_ids: list[int]) -> Any:
    """A value for `pack`: the list as one block, which is encoded and decoded at once."""
    try:
        return msgpack.ExtType(_INTEGERS, array.array("i", token_ids).tobytes())
    except OverflowError:  # no token has this id: an error of the request
        return token_ids


def read(stream: BufferedRWPair, max_bytes: int) -> bytes:
    """The next message; empty at the end of the stream."""
    return stream.read(length_of(stream.read(LENGTH_BYTES), max_bytes))


def write(stream: BufferedRWPair, data: bytes) -> None:
    stream.write(framed(data))
    stream.flush()


def _pack_other(value: Any) -> Any:
    """Integers beyond 64 bits, which JSON may contain."""
    if isinstance(value, int):
        return msgpack.ExtType(_LARGE_INTEGER, str(value).encode())
    raise TypeError(f"a {type(value).__name__} is not a JSON value")


def _unpack_other(code: int, data: bytes) -> Any:
    return int(data) if code == _LARGE_INTEGER else array.array("i", data).tolist()
