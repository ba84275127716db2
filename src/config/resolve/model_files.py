"""Where a model's files are, and what the headers of its weight files say. No weights are read.

A model is `builtin:tiny`, a directory, or a hub id whose snapshot lies in the hub's cache. Only safetensors files
are ever opened: the other formats can run code.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import ModelFilesError, ModelNotLocal

BUILTIN = "builtin:"
INDEX = "model.safetensors.index.json"
DTYPE_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_MAX_HEADER_BYTES = 100_000_000  # as the safetensors library
_MAX_JSON_BYTES = 64 << 20


def locate(name: str, revision: str | None = None, cache: str | None = None, wanted: str = "config.json") -> Path:
    """The directory that holds a model or a tokenizer.

    Args:
        name: `builtin:tiny`, a directory, or a hub id such as Qwen/Qwen3-0.6B.
        revision: branch, tag or commit of a hub id; the main branch if None.
        cache: hub cache to look in; None for HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub.
        wanted: the file that makes the directory what is looked for.

    Raises ModelFilesError for a path that is no model directory, ModelNotLocal for a hub id that is not there.
    """
    if name.startswith(BUILTIN):
        folder = Path(str(files(__name__.partition(".")[0]) / "builtin" / name.removeprefix(BUILTIN)))
        if ".." in folder.parts or not (folder / wanted).is_file():
            raise ModelFilesError(f"{name}: no such built-in model; there is builtin:tiny", code="M301")
        return folder
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / wanted).is_file():
            raise ModelFilesError(f"{path}: holds no {wanted}", code="M301")
        return path
    if path.exists():
        raise ModelFilesError(f"{name}: a file; expected a directory with {wanted}", code="M301")
    if not is_hub_id(name):
        raise ModelFilesError(f"{name}: no such directory", code="M301")
    hub = Path(cache).expanduser() if cache else _hub_cache()
    repository = hub / f"models--{name.replace('/', '--')}"
    commit = revision or "main"
    with contextlib.suppress(OSError):  # no such branch or tag here: it is a commit, or not here
        commit = (repository / "refs" / commit).read_text().strip()
    snapshot = repository / "snapshots" / commit
    if (snapshot / wanted).is_file():
        return snapshot
    raise ModelNotLocal(name, str(hub))


def is_hub_id(name: str) -> bool:
    """Whether a name has the shape `owner/name` or `name` of a hub repository, not that of a path or a built-in."""
    parts = name.split("/")
    return (
        not name.startswith((BUILTIN, ".", "/", "~"))
        and len(parts) <= 2
        and all(part and part.replace("-", "").replace("_", "").replace(".", "").isalnum() for part in parts)
    )


def _hub_cache() -> Path:
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of at most 64 MiB. ModelFilesError names the file and, for a syntax error, the place."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ModelFilesError(f"{path}: larger than {_MAX_JSON_BYTES} bytes", code="M303")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFilesError(f"{path}: cannot be read: {error.strerror}", code="M302") from error
    except json.JSONDecodeError as error:
        raise ModelFilesError(f"{path}:{error.lineno}:{error.colno}: no JSON: {error.msg}", code="M303") from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ModelFilesError(f"{path}: no JSON: {error}", code="M303") from error
    if not isinstance(value, dict):
        raise ModelFilesError(f"{path}: must hold a JSON object", code="M303")
    return value


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """What the headers of all weight files say together."""

    names: tuple[str, ...]  # relative to the model's directory
    dtypes: Mapping[str, int]  # dtype as safetensors writes it -> number of parameters
    num_parameters: int  # with lm_head.weight left out where `tied`
    tensor_names: frozenset[str]


def read_weight_files(folder: Path, tied: bool) -> WeightFiles:
    """Reads and checks every header.

    Args:
        tied: the output layer is the embedding, so an `lm_head.weight` in the files is a copy and is not counted.

    Raises ModelFilesError for a missing or cut file, a header that lies, or a directory without safetensors.
    """
    names, index = _weight_file_names(folder)
    dtypes: dict[str, int] = {}
    found: dict[str, str] = {}
    for name in names:
        for tensor, (dtype, count) in _read_header(folder / name).items():
            found[tensor] = name
            if not (tied and tensor == "lm_head.weight"):
                dtypes[dtype] = dtypes.get(dtype, 0) + count
    for tensor, name in index.items():
        if found.get(tensor) != name:
            raise ModelFilesError(f"{folder / INDEX}: tensor `{tensor}` is not in {name}", code="M303")
    return WeightFiles(names, dtypes, sum(dtypes.values()), frozenset(found))


def _weight_file_names(folder: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    if (folder / INDEX).is_file():
        table = read_json(folder / INDEX).get("weight_map")
        if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
            raise ModelFilesError(f"{folder / INDEX}: `weight_map` must map tensors to files", code="M303")
        names = tuple(sorted(set(table.values())))
        for name in names:
            if Path(name).name != name:
                raise ModelFilesError(f"{folder / INDEX}: `{name}` is no plain file name", code="M303")
            if not (folder / name).is_file():
                raise ModelFilesError(f"{folder / name}: missing, though {INDEX} names it", code="M302")
        return names, table
    if (folder / "model.safetensors").is_file():
        return ("model.safetensors",), {}
    names = tuple(sorted(path.name for path in folder.glob("*.safetensors")))
    if len(names) == 1:
        return names, {}
    if names:
        raise ModelFilesError(f"{folder}: {len(names)} safetensors files, but no {INDEX}", code="M302")
    unsafe = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    if unsafe:
        raise ModelFilesError(
            f"{folder}: holds {unsafe[0]}, a pickle, which can run code and is never opened; "
            "convert the checkpoint to safetensors",
            code="M305",
        )
    raise ModelFilesError(
        f"{folder}: no weight files (*.safetensors); `load.load_format: dummy` runs without any", code="M302"
    )


def _read_header(path: Path) -> dict[str, tuple[str, int]]:
    """Tensor name -> dtype and number of elements, after the header and the file's length have been compared."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > size - 8:
                expected = f"at least {8 + length}" if size >= 8 and length <= _MAX_HEADER_BYTES else "a header"
                raise ModelFilesError(
                    f"{path}: cut short or no safetensors file: expected {expected}, found {size} bytes", code="M303"
                )
            if length > _MAX_HEADER_BYTES:
                raise ModelFilesError(f"{path}: header of {length} bytes; at most {_MAX_HEADER_BYTES}", code="M303")
            header = json.loads(stream.read(length))
    except OSError as error:
        raise ModelFilesError(f"{path}: cannot be read: {error.strerror}", code="M302") from error
    except (ValueError, RecursionError) as error:
        raise ModelFilesError(f"{path}: no safetensors file: its header is no JSON", code="M303") from error
    if not isinstance(header, dict):
        raise ModelFilesError(f"{path}: no safetensors file: its header is no JSON object", code="M303")
    header.pop("__metadata__", None)
    tensors: dict[str, tuple[str, int]] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        dtype, count, start, end = _read_entry(path, name, entry)
        tensors[name] = dtype, count
        spans.append((start, end, name))
    position = 0
    for start, end, name in sorted(spans):
        if start != position:
            raise ModelFilesError(f"{path}: tensor `{name}` starts at byte {start}, not {position}", code="M303")
        position = end
    if 8 + length + position != size:
        raise ModelFilesError(f"{path}: expected {8 + length + position} bytes, found {size}", code="M303")
    return tensors


def _read_entry(path: Path, name: str, entry: Any) -> tuple[str, int, int, int]:
    """dtype, number of elements, first byte, byte after the last; the bytes must be those of dtype and shape."""
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, start, end]
        is_sound = all(isinstance(number, int) and number >= 0 for number in numbers) and isinstance(dtype, str)
    except (TypeError, KeyError, ValueError):
        is_sound = False
    if not is_sound:
        raise ModelFilesError(f"{path}: the header entry of tensor `{name}` cannot be understood", code="M303")
    count = math.prod(shape)
    if dtype not in DTYPE_BYTES:
        raise ModelFilesError(f"{path}: tensor `{name}` has dtype {dtype}, which this build does not read", code="M304")
    if end - start != count * DTYPE_BYTES[dtype]:
        raise ModelFilesError(
            f"{path}: tensor `{name}` has {end - start} bytes, its shape {shape} in {dtype} needs "
            f"{count * DTYPE_BYTES[dtype]}",
            code="M303",
        )
    return dtype, count, start, end
