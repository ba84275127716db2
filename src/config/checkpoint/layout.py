"""Finds the weight files of a directory, by load format, and what all of them hold together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import ModelFilesError
from .gguf import parts, read_gguf
from .left_out import Part
from .model_files import INDEX, MAX_INDEX_BYTES, is_gguf, is_like, is_plain_name, read_json
from .safetensors import read_header
from .settings import SHARD_PATTERN
from .stored import StoredTensor
from .torch_zip import MapLocation, read_torch_file

Format = Literal["safetensors", "pt", "npcache", "sharded_state", "mistral", "gguf", "dummy"]
Kind = Literal["safetensors", "pt", "mistral"]
_CONSOLIDATED = ("consolidated*.safetensors",)
FILES: dict[Kind, tuple[str, ...]] = {
    "safetensors": ("*.safetensors",),
    "pt": ("*.bin", "*.pt", "*.pth"),
    "mistral": _CONSOLIDATED,
}
OF_OTHERS: dict[Kind, tuple[str, ...]] = {
    "safetensors": _CONSOLIDATED
}  # which are no files of this kind: the same weights in another format
WHOLE: dict[Kind, str] = {
    "safetensors": "model.safetensors",
    "pt": "pytorch_model.bin",
    "mistral": "consolidated.safetensors",
}
INDEXES: dict[Kind, str] = {
    "safetensors": INDEX,
    "pt": "pytorch_model.bin.index.json",
    "mistral": "consolidated.safetensors.index.json",
}
KINDS: dict[str, tuple[Kind, ...]] = {  # load format -> kinds of files; those of the first that the directory has
    "auto": ("safetensors", "pt"),
    "safetensors": ("safetensors",),
    "pt": ("pt",),
    "npcache": ("pt",),
    "sharded_state": ("safetensors",),
    "mistral": ("mistral",),
    "gguf": (),
    "dummy": (),
}
CONSOLIDATED_FORMATS = ("auto", "safetensors", "mistral", "dummy")  # load formats of weights that params.json describes
READ_EAGERLY = ("safetensors", "sharded_state", "mistral")  # load formats that load.safetensors_load_strategy is for
_OF_TRAINING = ("training_args.bin", "optimizer.*", "scheduler.*", "scaler.*", "rng_state*")
HEAD_FILES = ("sparse_linear.pt", "colbert_linear.pt")  # of heads of BGE-M3
_INSTEAD = "`load.load_format: dummy` runs without any"


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The files of one checkpoint and the tensors in them.

    left_out: bytes of tensors that the model does not use, by part.
    """

    format: Format
    names: tuple[str, ...]  # relative to the model's directory
    tensors: Mapping[str, StoredTensor]
    left_out: Mapping[Part, int] = field(default_factory=dict)

    def count(self) -> dict[str, int]:
        """dtype -> number of elements."""
        dtypes: dict[str, int] = {}
        for tensor in self.tensors.values():
            dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + tensor.num_elements
        return dtypes


def read_weight_files(
    folder: Path,
    load_format: Format | Literal["auto"] = "auto",
    ignored: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    map_location: MapLocation = "cpu",
    heads: Sequence[str] = (),
) -> WeightFiles:
    """Finds the files and reads and checks every header.

    Args:
        load_format: `auto` takes safetensors, or torch's files where there are none.
        ignored: glob patterns of files that are treated as if they were not there.
        settings: `load.model_loader_extra_config`.
        map_location: which devices torch's files may have been saved from.
        heads: further files, relative to the folder, with the tensors of heads.

    Raises ModelFilesError for a missing or cut file, a header that lies, or a directory without such files.
    """
    if load_format == "sharded_state":
        names = _shards(folder, str((settings or {}).get("pattern", SHARD_PATTERN)), ignored)
        return WeightFiles(load_format, names, read_tensors(folder, names, map_location))
    kinds = KINDS[load_format]
    for kind in kinds:
        names, index = _names(folder, kind, ignored)
        if names:
            tensors = read_tensors(folder, names, map_location)
            _check_index(folder / INDEXES[kind], index, tensors, ignored)
            tensors |= read_tensors(folder, heads, map_location)
            return WeightFiles("npcache" if load_format == "npcache" else kind, (*names, *heads), tensors)
    wanted = ", ".join(pattern for kind in kinds for pattern in FILES[kind])
    others = "safetensors" in kinds and has_files(folder, "mistral", ignored)
    hint = "`model.config_format: mistral` serves its consolidated files" if others else _INSTEAD
    raise ModelFilesError(f"{folder}: no weight files ({wanted}); {hint}", code="M302")


def read_gguf_files(path: Path) -> WeightFiles:
    """Read a GGUF file, and the other parts of its model. Raises ModelFilesError."""
    names = tuple(part.name for part in parts(path))
    return WeightFiles("gguf", names, read_tensors(path.parent, names))


def has_files(folder: Path, kind: Kind, ignored: Sequence[str] = ()) -> bool:
    """Whether a directory has any weight file of a kind of `FILES`; links of a download that was cut do not count."""
    return any(os.path.isfile(folder / name) for name in listed(folder, kind, ignored))


def read_tensors(folder: Path, names: Iterable[str], map_location: MapLocation = "cpu") -> dict[str, StoredTensor]:
    """The tensors of these files, from their headers.

    Those of a file in a folder of the directory, or of a head, have its name before theirs: `2_Dense.linear.weight`.
    """
    tensors: dict[str, StoredTensor] = {}
    for name in names:
        path = folder / name
        found: Mapping[str, StoredTensor]
        if is_gguf(path):
            found = read_gguf(path).tensors
        else:
            found = read_header(path) if name.endswith(".safetensors") else read_torch_file(path, map_location)
        found = {f"{_before(name)}{tensor}": stored for tensor, stored in found.items()}
        if twice := next((tensor for tensor in found if tensor in tensors), None):
            raise ModelFilesError(f"{path}: tensor `{twice}` is in {tensors[twice].file.name} too", code="M303")
        tensors |= found
    return tensors


def _before(name: str) -> str:
    """What the names of a file's tensors have before them."""
    folder, _, file = name.rpartition("/")
    if folder:
        return f"{folder}."
    return f"{file.removesuffix('.pt')}." if file in HEAD_FILES else ""


def _names(folder: Path, kind: Kind, ignored: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Files of a kind and the index's table of tensors; nothing if there are none."""
    path = folder / INDEXES[kind]
    if os.path.lexists(path) and not is_like(path.name, ignored):
        table = read_json(path, MAX_INDEX_BYTES).get("weight_map")
        if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
            raise ModelFilesError(f"{path}: `weight_map` must map tensors to files", code="M303")
        named = sorted(set(table.values()))
        names = tuple(name for name in named if not is_like(name, ignored))
        for name in names:
            if not is_plain_name(name):
                raise ModelFilesError(f"{path}: {name!r} is no plain file name", code="M303")
            if not os.path.lexists(folder / name):
                raise ModelFilesError(f"{folder / name}: missing, though {path.name} names it", code="M302")
        return names, table if names else {}
    names = listed(folder, kind, ignored)
    if WHOLE[kind] in names:
        return (WHOLE[kind],), {}
    if len(names) > 1:
        hint = "; `load.load_format: sharded_state` reads files by rank" if is_like(names[0], ("*-rank-*",)) else ""
        raise ModelFilesError(f"{folder}: {len(names)} {kind} files, but no {path.name}{hint}", code="M302")
    return names, {}


def listed(folder: Path, kind: Kind, ignored: Sequence[str] = ()) -> tuple[str, ...]:
    """Whatever has the name of a weight file, directories aside. Reading reports what is no regular file."""
    found = (name for name in os.listdir(folder) if is_like(name, FILES[kind]) and not os.path.isdir(folder / name))
    return tuple(
        sorted(name for name in found if not is_like(name, (*ignored, *_OF_TRAINING, *OF_OTHERS.get(kind, ()))))
    )


def _check_index(
    path: Path, index: Mapping[str, str], tensors: Mapping[str, StoredTensor], ignored: Sequence[str]
) -> None:
    for tensor, name in index.items():
        if is_like(name, ignored):
            raise ModelFilesError(
                f"{path}: tensor `{tensor}` is in {name}, which `load.ignore_patterns` leaves out", code="M302"
            )
        if tensor not in tensors or tensors[tensor].file.name != name:
            raise ModelFilesError(f"{path}: tensor `{tensor}` is not in {name}", code="M303")


def _shards(folder: Path, pattern: str, ignored: Sequence[str]) -> tuple[str, ...]:
    """The parts of rank 0, which here is the only one."""
    if any(folder.glob(pattern.format(rank=1, part="*"))):
        raise ModelFilesError(
            f"{folder}: saved by several ranks; this build runs on one, and one rank's files are a part of the model. "
            "Save it again with tensor_parallel_size 1, or take the original checkpoint",
            code="M304",
        )
    names: list[str] = []
    while os.path.lexists(folder / (name := pattern.format(rank=0, part=len(names)))) and not is_like(name, ignored):
        names.append(name)
    if not names:
        raise ModelFilesError(
            f"{folder}: no weight files ({pattern.format(rank=0, part=0)} and so on); {_INSTEAD}", code="M302"
        )
    num_parts = sum(1 for _ in folder.glob(pattern.format(rank=0, part="*")))
    if num_parts != len(names):
        raise ModelFilesError(f"{folder / name}: missing, though there are {num_parts} parts of rank 0", code="M302")
    return tuple(names)
