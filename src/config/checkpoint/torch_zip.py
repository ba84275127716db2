"""Torch's checkpoint files (.bin, .pt, .pth): a zip archive of raw storages and one pickle that says what they are.

The archive's members are stored, not compressed, so a tensor is a place in the file. The pickle is read as data
(torch_pickle.py). The format from before torch 1.6, a bare pickle, is refused.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import IO, BinaryIO, cast
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from ...input_file import open_file
from ..errors import ModelFilesError
from .lfs_pointer import refuse_lfs_pointer
from .stored import DTYPE_BYTES, StoredTensor, contiguous_strides
from .torch_pickle import ForbiddenPickle, StorageView, UnreadablePickle, read_tensor_table

MapLocation = str | Mapping[str, str]  # "cpu": everything; else saved device -> cpu, and nothing else is taken
_MAX_TABLE_BYTES = 64 << 20
_MAX_DIRECTORY_BYTES = 8 << 20  # about 100 for each tensor; in memory its entries take ten times as much
_LOCAL_HEADER_BYTES = 30  # of a zip member, before its name


def read_torch_file(path: Path, map_location: MapLocation = "cpu") -> dict[str, StoredTensor]:
    """Every tensor of a file. Raises ModelFilesError, naming the file, for all that is not a plain table of tensors."""
    try:
        with BufferedReader(open_file(path)) as stream:
            size = os.fstat(stream.fileno()).st_size
            if stream.read(4) != b"PK\x03\x04":
                refuse_lfs_pointer(path)
                raise ModelFilesError(
                    f"{path}: not in torch's zip format (torch 1.6 and newer); the older one is a bare pickle, which "
                    "can run code and is never opened; save it again, or convert it to safetensors",
                    code="M305",
                )
            with ZipFile(cast("IO[bytes]", _DirectoryReader(stream))) as archive:
                return _Archive(path, size, stream, archive).tensors(map_location)
    except OSError as error:
        raise ModelFilesError.unreadable(path, error) from error
    except (BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error) as error:
        raise ModelFilesError(f"{path}: cut short or damaged: {error}", code="M303") from error
    except ForbiddenPickle as error:
        raise ModelFilesError(
            f"{path}: {error}; nothing of it was run. Take safetensors from somebody you trust", code="M305"
        ) from error
    except UnreadablePickle as error:
        raise ModelFilesError(f"{path}: {error}", code="M303") from error


class _DirectoryReader:
    """What ZipFile needs of a file to read its directory, which it reads at once and converts to objects."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.seek, self.tell, self.seekable = stream.seek, stream.tell, stream.seekable

    def read(self, size: int = -1) -> bytes:
        """Raises ValueError for more than a directory may have."""
        content = self._stream.read(min(size, _MAX_DIRECTORY_BYTES + 1) if size >= 0 else _MAX_DIRECTORY_BYTES + 1)
        if len(content) > _MAX_DIRECTORY_BYTES:
            raise ValueError(f"its directory has more than {_MAX_DIRECTORY_BYTES} bytes")
        return content


class _Archive:
    def __init__(self, path: Path, size: int, stream: BinaryIO, archive: ZipFile) -> None:
        self.path = path
        self.size = size
        self.stream = stream
        self.members = {member.filename: member for member in archive.infolist()}
        tables = [name for name in self.members if name.endswith("/data.pkl")]
        if len(tables) != 1:
            raise ModelFilesError(f"{path}: no checkpoint of torch: it holds {len(tables)} data.pkl", code="M303")
        self.root = tables[0].removesuffix("data.pkl")

    def tensors(self, map_location: MapLocation) -> dict[str, StoredTensor]:
        if self._content("byteorder", 16) not in (None, b"little"):
            raise ModelFilesError(f"{self.path}: written on a big-endian machine", code="M304")
        table = self._content("data.pkl", _MAX_TABLE_BYTES)
        assert table is not None, "the archive was found by this member"
        places: dict[str, int] = {}
        return {name: self._stored(name, view, places, map_location) for name, view in read_tensor_table(table).items()}

    def _stored(self, name: str, view: StorageView, places: dict[str, int], map_location: MapLocation) -> StoredTensor:
        storage, width = view.storage, DTYPE_BYTES[view.storage.dtype]
        if not (storage.location == "cpu" or map_location == "cpu" or storage.location in map_location):
            raise ModelFilesError(
                f"{self.path}: tensor `{name}` was saved from {storage.location}, which "
                "`load.pt_load_map_location` leaves out; this build has only cpu to put it on",
                code="M304",
            )
        if storage.key not in places:
            member = self.members.get(f"{self.root}data/{storage.key}")
            if member is None:
                raise ModelFilesError(f"{self.path}: the numbers of tensor `{name}` are missing", code="M303")
            if member.file_size != storage.num_elements * width:
                raise ModelFilesError(
                    f"{self.path}: the numbers of tensor `{name}` are {member.file_size} bytes, not "
                    f"{storage.num_elements * width}",
                    code="M303",
                )
            places[storage.key] = self._place(member)
        strides = None if view.strides == contiguous_strides(view.shape) else view.strides
        return StoredTensor(self.path, storage.dtype, view.shape, places[storage.key] + view.offset * width, strides)

    def _content(self, name: str, at_most: int) -> bytes | None:
        """A small member's bytes; None if there is none."""
        member = self.members.get(self.root + name)
        if member is None:
            return None
        if member.file_size > at_most:
            raise ModelFilesError(f"{self.path}: its {name} has {member.file_size} bytes", code="M303")
        self.stream.seek(self._place(member))
        return self.stream.read(member.file_size)

    def _place(self, member: ZipInfo) -> int:
        """Offset of a member's bytes, read from its own header: the directory at the end gives only the header's
        offset."""
        if member.compress_type != ZIP_STORED or member.flag_bits & 1 or member.compress_size != member.file_size:
            raise ModelFilesError(f"{self.path}: `{member.filename}` is compressed or encrypted", code="M304")
        self.stream.seek(member.header_offset)
        header = self.stream.read(_LOCAL_HEADER_BYTES)
        if len(header) < _LOCAL_HEADER_BYTES or header[:4] != b"PK\x03\x04":
            raise ModelFilesError(f"{self.path}: `{member.filename}` is not where the archive says", code="M303")
        names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        start = member.header_offset + _LOCAL_HEADER_BYTES + names
        if start + member.file_size > self.size:
            raise ModelFilesError(f"{self.path}: cut short: `{member.filename}` ends after the file", code="M303")
        return start
