"""Headers of GGUF files: typed values by key, names, types and places of the tensors, then their bytes.

A header comes from anywhere. No count in it is believed: everything must lie within the file before it is read, arrays
stay the bytes that they are in the file, and the tensors must follow each other as ggml requires.
Format: github.com/ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import math
import os
import re
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

from ...input_file import open_file
from ..errors import ModelFilesError
from .lfs_pointer import refuse_lfs_pointer
from .stored import BLOCKS, DTYPE_BYTES, StoredTensor, bytes_of

_MAX_HEADER_BYTES = 256 << 20  # 25 MB for a vocabulary of 262 144 tokens
_MAX_KEY_BYTES = 1 << 16
_MAX_NAME_BYTES = 256  # of a tensor; ggml allows 64
_MAX_TEXT_BYTES = 16 << 20
_MAX_DIMENSIONS = 4
_MAX_ELEMENTS = 1 << 60
_MAX_FLOATS = 1 << 16  # of a tensor that describes the model
_LEAST_KEY_BYTES, _LEAST_TENSOR_BYTES = 8 + 4 + 1, 8 + 4 + 4 + 8
_NUM_TENSORS_AT = 8  # bytes, after magic and version
_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_NAMES = (  # of ggml's types, in the order of their numbers; "" for one that was given up
    *("F32", "F16", "Q4_0", "Q4_1", "", "", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64"),
    *("F64", "IQ1_M", "BF16", "", "", "", "TQ1_0", "TQ2_0", "", "", "", "MXFP4", "NVFP4", "Q1_0"),
)
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class Texts:
    """An array of strings, decoded when they are iterated over."""

    def __init__(self, content: bytes, count: int, place: str) -> None:
        self._content = content
        self._count = count
        self._place = place

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        """Raises ModelFilesError for a string that is not UTF-8."""
        content, at = self._content, 0
        length_at = struct.Struct("<Q").unpack_from
        try:
            for _ in range(self._count):
                end = at + 8 + length_at(content, at)[0]
                yield content[at + 8 : end].decode()
                at = end
        except UnicodeDecodeError:
            raise ModelFilesError(f"{self._place} has a string that is not UTF-8", code="M303") from None


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """values: key -> number, bool, string, `Texts`, or array of numbers."""

    path: Path
    values: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    def floats(self, name: str) -> list[float] | None:
        """The elements of a small tensor in float32, which describes the model; None if there is no such tensor."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return None
        if tensor.dtype != "F32" or tensor.num_elements > _MAX_FLOATS:
            what = f"{tensor.num_elements} elements in {tensor.dtype}"
            raise ModelFilesError(
                f"{self.path}: tensor `{name}` has {what}; at most {_MAX_FLOATS} in F32 are read", code="M304"
            )
        try:
            with open_file(self.path) as stream:
                stream.seek(tensor.offset)
                content = stream.read(tensor.num_bytes)
        except OSError as error:
            raise ModelFilesError.unreadable(self.path, error) from error
        if len(content) != tensor.num_bytes:
            raise ModelFilesError(f"{self.path}: cut short while reading tensor `{name}`", code="M303")
        return list(_numbers("f", content))


def read_gguf(path: Path) -> GgufHeader:
    """The header of one file. Raises ModelFilesError, naming the file and, where there is one, the key or tensor."""
    try:
        status = os.stat(path)
        return _read(path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise ModelFilesError.unreadable(path, error) from error


@lru_cache(maxsize=4)  # it is read for the configuration, the tokenizer, the chat template and the weights
def _read(path: Path, _changed: int, _size: int) -> GgufHeader:
    with open_file(path) as stream:
        return _Reader(path, stream).header()


def without_tensors(path: Path) -> bytes:
    """A GGUF file with the same values and no tensors. Raises as `read_gguf`."""
    try:
        with open_file(path) as stream:
            return _Reader(path, stream).keys()
    except OSError as error:
        raise ModelFilesError.unreadable(path, error) from error


def parts(path: Path) -> list[Path]:
    """All files of a model, the first one first, of which one is given. Raises ModelFilesError for a missing one."""
    match = _SPLIT.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count:
        raise ModelFilesError(f"{path}: part {int(match['number'])} of {count}", code="M303")
    files: list[Path] = []
    for number in range(1, count + 1):
        files.append(path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf"))
        if not os.path.lexists(files[-1]):
            raise ModelFilesError(f"{files[-1]}: missing, though {path.name} is one of {count} parts", code="M302")
    return files


def is_first_part(name: str) -> bool:
    """Whether a file is the whole model, or the first of its parts."""
    match = _SPLIT.fullmatch(name)
    return match is None or int(match["number"]) == 1


class _Reader:
    """Reads forwards, and never more than the file has."""

    def __init__(self, path: Path, stream: FileIO) -> None:
        self._path = path
        self._stream = stream
        self._size = os.fstat(stream.fileno()).st_size
        self._buffer = bytearray()
        self._at = self._keys_end = 0

    def keys(self) -> bytes:
        """The file up to its keys, with the number of tensors set to 0."""
        self.header()
        content = bytearray(self._buffer[: self._keys_end])
        struct.pack_into("<Q", content, _NUM_TENSORS_AT, 0)
        return bytes(content)

    def header(self) -> GgufHeader:
        magic = self._bytes(4, "the header")
        version = self._number("I", "the header")
        if magic != b"GGUF":
            refuse_lfs_pointer(self._path)
            self._fail("not a GGUF file")
        if version & 0xFFFF == 0:
            self._fail("a file of a big-endian machine, which this build does not read", "M304")
        if version not in (2, 3):
            self._fail(f"version {version} of the format; supported: 2 and 3", "M304")
        num_tensors = self._count("Q", _LEAST_TENSOR_BYTES, "tensors")
        num_keys = self._count("Q", _LEAST_KEY_BYTES, "keys")
        values: dict[str, Any] = {}
        for index in range(num_keys):
            key = self._text(_MAX_KEY_BYTES, f"key {index + 1} of {num_keys}")
            if key in values:
                self._fail(f"key `{key[:80]}` is there twice")
            values[key] = self._value(self._number("I", f"key `{key[:80]}`"), f"key `{key[:80]}`")
        self._keys_end = self._at
        alignment = values.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            self._fail(f"`general.alignment` is {str(alignment)[:40]}; it must be a power of two from 8 to 1048576")
        entries = [self._entry(f"tensor {index + 1} of {num_tensors}") for index in range(num_tensors)]
        return GgufHeader(self._path, values, self._placed(entries, alignment))

    def _entry(self, what: str) -> tuple[str, str, tuple[int, ...], int]:
        """Name, dtype, shape and offset of a tensor."""
        name = self._text(_MAX_NAME_BYTES, what)
        what = f"tensor `{name}`"
        num_dimensions = self._number("I", what)
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            self._fail(f"{what} has {num_dimensions} dimensions; supported: 1 to {_MAX_DIMENSIONS}")
        shape = tuple(self._number("Q", what) for _ in range(num_dimensions))[::-1]  # the fastest is the first there
        kind, offset = self._number("I", what), self._number("Q", what)
        if not 0 < math.prod(shape) < _MAX_ELEMENTS:
            self._fail(f"{what} has the impossible shape {list(shape)}")
        dtype = _NAMES[kind] if kind < len(_NAMES) else ""
        if dtype not in BLOCKS and dtype not in DTYPE_BYTES:
            self._fail(f"{what} has type {dtype or kind}, which this build does not read", "M304")
        per_block = BLOCKS[dtype][0] if dtype in BLOCKS else 1
        if shape[-1] % per_block:
            self._fail(f"{what} has rows of {shape[-1]} elements, not a multiple of the {per_block} of a {dtype} block")
        return name, dtype, shape, offset

    def _placed(self, entries: list[tuple[str, str, tuple[int, ...], int]], alignment: int) -> dict[str, StoredTensor]:
        """The tensors, if each begins where the one before it ends, and all lie in the file."""
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, StoredTensor] = {}
        position = 0
        for name, dtype, shape, offset in entries:
            if name in tensors:
                self._fail(f"tensor `{name}` is there twice")
            if offset != position:
                self._fail(f"tensor `{name}` starts at byte {offset} of the tensors, not {position}")
            end = offset + bytes_of(dtype, math.prod(shape))
            if start + end > self._size:
                self._fail(f"tensor `{name}` ends at byte {start + end}, the file at {self._size}: it was cut")
            tensors[name] = StoredTensor(self._path, dtype, shape, start + offset)
            position = -(-end // alignment) * alignment
        return tensors

    def _value(self, kind: int, what: str) -> Any:
        if kind == _STRING:
            return self._text(_MAX_TEXT_BYTES, what)
        if kind == _ARRAY:
            return self._array(what)
        if kind not in _NUMBERS:
            self._fail(f"{what} has the unknown type {kind}")
        value = self._number(_NUMBERS[kind], what)
        if kind == _BOOL and value > 1:
            self._fail(f"{what} is {value}; a flag is 0 or 1")
        if _NUMBERS[kind] == "f":
            return _shortest(value)
        return bool(value) if kind == _BOOL else value

    def _array(self, what: str) -> Texts | array[Any]:
        kind = self._number("I", what)
        if kind == _STRING:
            count, start = self._count("Q", 8, f"strings in {what}"), self._at
            at, length_at = start, struct.Struct("<Q").unpack_from
            for _ in range(count):  # half a million in some files
                if at + 8 > len(self._buffer):
                    self._reach(at + 8, what)
                at += 8 + length_at(self._buffer, at)[0]
                if at > len(self._buffer):
                    self._reach(at, what)
            self._at = at
            return Texts(bytes(self._buffer[start:at]), count, f"{self._path}: {what}")
        if kind not in _NUMBERS:
            self._fail(f"{what} is an array of type {kind}, which this build does not read")
        code = _NUMBERS[kind]
        size = struct.calcsize(f"<{code}")
        return _numbers(code, self._bytes(self._count("Q", size, f"elements in {what}") * size, what))

    def _count(self, code: str, least_bytes: int, what: str) -> int:
        """A number of things, each of which needs at least `least_bytes`."""
        count: int = self._number(code, what)
        if count * least_bytes > self._size - self._at:
            self._fail(f"{count} {what}, for which the file of {self._size} bytes is too short")
        return count

    def _text(self, at_most: int, what: str) -> str:
        length = self._number("Q", what)
        if length > at_most:
            self._fail(f"a string of {length} bytes in {what}; at most {at_most}")
        try:
            return self._bytes(length, what).decode()
        except UnicodeDecodeError:
            self._fail(f"{what} is not UTF-8")

    def _number(self, code: str, what: str) -> Any:
        size = struct.calcsize(f"<{code}")
        at = self._at
        self._skip(size, what)
        return struct.unpack_from(f"<{code}", self._buffer, at)[0]

    def _bytes(self, count: int, what: str) -> bytes:
        at = self._at
        self._skip(count, what)
        return bytes(self._buffer[at : self._at])

    def _skip(self, count: int, what: str) -> None:
        self._reach(self._at + count, what)
        self._at += count

    def _reach(self, end: int, what: str) -> None:
        """Reads the file as far as this byte."""
        if end > self._size:
            self._fail(f"cut short in {what}: byte {end} is needed, the file has {self._size}")
        if end > _MAX_HEADER_BYTES:
            self._fail(f"a header of more than {_MAX_HEADER_BYTES >> 20} MiB, in {what}")
        while len(self._buffer) < end:
            part = self._stream.read(min(max(end - len(self._buffer), 1 << 16), 1 << 20))
            if not part:
                self._fail(f"cut short in {what} while it was read")
            self._buffer += part

    def _fail(self, problem: str, code: str = "M303") -> NoReturn:
        raise ModelFilesError(f"{self._path}: {problem}", code=code)


def _numbers(code: str, content: bytes) -> array[Any]:
    numbers = array(code, content)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _shortest(value: float) -> float:
    """The number with the fewest digits that is this one in float32: 1e-6 was written, not 9.999999974752427e-07."""
    if not math.isfinite(value):
        return value
    near = (float(f"{value:.{digits}g}") for digits in range(6, 9))
    return next((number for number in near if struct.pack("<f", number) == struct.pack("<f", value)), value)
