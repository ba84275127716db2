"""Finds a model's files: `builtin:tiny`, a directory, a GGUF file, or a hub id with a snapshot in the cache."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...input_file import FileTooLarge, open_file, read_file
from ..errors import ModelFilesError, ModelNotLocal
from .bounded_json import decode
from .lfs_pointer import refuse_lfs_pointer

BUILTIN = "builtin:"
CONFIG_JSON = "config.json"
GGUF_MAGIC = b"GGUF"
PARAMS_JSON = "params.json"  # of Mistral AI's own format
INDEX = "model.safetensors.index.json"
MAX_JSON_BYTES = 16 << 20  # the largest in use are tokenizer_config.json files of 1 MB
MAX_INDEX_BYTES = 64 << 20  # 9 MB for a model of 92 000 tensors
MAX_TEMPLATE_BYTES = 1 << 20
_MAX_REF_BYTES = 1 << 10


def locate(name: str, revision: str | None = None, cache: str | None = None, *wanted: str) -> Path:
    """The directory that holds a model or a tokenizer.

    Args:
        name: `builtin:tiny`, a directory, a GGUF file in it, or a hub id such as Qwen/Qwen3-0.6B.
        revision: branch, tag or commit of a hub id; the main branch if None.
        cache: hub cache to look in; None for HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub.
        wanted: files, or patterns, of which one makes the directory what is looked for; config.json if none is named.

    Raises ModelFilesError for a path that is no model directory, ModelNotLocal for a hub id that is not there.
    """
    wanted = wanted or (CONFIG_JSON,)
    if name.startswith(BUILTIN):
        folder = Path(str(files(__name__.partition(".")[0]) / "builtin" / name.removeprefix(BUILTIN)))
        if ".." in folder.parts or not _holds(folder, wanted, os.path.isfile):
            raise ModelFilesError(f"{name}: no such built-in model; there is builtin:tiny", code="M301")
        return folder
    path = Path(os.path.expanduser(name))
    if os.path.isdir(path):
        if not _holds(path, wanted, os.path.lexists):  # what is there and no file is reported when it is read
            raise ModelFilesError(f"{path}: holds no {' or '.join(wanted)}", code="M301")
        return path
    if is_gguf(path) and os.path.isfile(path) and is_like(f"{path.stem}.gguf", wanted):
        return path.parent
    if os.path.exists(path):
        raise ModelFilesError(f"{name}: a file; expected a directory with {' or '.join(wanted)}", code="M301")
    if not is_hub_id(name):
        what = "file" if is_gguf(name) else "directory"
        raise ModelFilesError(f"{name}: no such {what}", code="M301")
    hub = Path(os.path.expanduser(cache)) if cache else _hub_cache()
    name = split_quantisation(name)[0]
    repository = hub / f"models--{name.replace('/', '--')}"
    commit = revision or "main"
    with contextlib.suppress(OSError, ValueError):  # no such branch or tag: it is a commit, or not here, or has a NUL
        commit = read_file(repository / "refs" / commit, _MAX_REF_BYTES).decode().strip()
    snapshot = repository / "snapshots" / commit
    if _holds(snapshot, wanted, os.path.isfile):  # of a download that was cut there may be links only
        return snapshot
    raise ModelNotLocal(name, str(hub))


def _holds(folder: Path, wanted: tuple[str, ...], is_there: Callable[[Path], bool]) -> bool:
    with contextlib.suppress(OSError, ValueError):  # such as a name that is longer than any file's, or has a NUL
        return any(is_there(folder / name) and is_like(name, wanted) for name in os.listdir(folder))
    return False


def is_plain_name(name: str) -> bool:
    """Whether a name can only be that of an entry of the folder itself."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def is_like(name: str, patterns: Iterable[str]) -> bool:
    """Whether a file's name matches any of these glob patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def split_quantisation(name: str) -> tuple[str, str | None]:
    """The repository in `owner/name:Q4_K_M`, and the quantisation of the GGUF file in it."""
    repository, _, quantisation = name.partition(":")
    if "/" not in repository or not quantisation or not quantisation.replace("_", "").replace("-", "").isalnum():
        return name, None
    return repository, quantisation


def is_hub_id(name: str) -> bool:
    """Whether a name has the shape of a hub repository, `owner/name`, `owner/name:quantisation` or `name`.

    Paths, GGUF files and built-in models are not.
    """
    parts = split_quantisation(name)[0].split("/")
    return (
        not name.startswith((BUILTIN, ".", "/", "~"))
        and not is_gguf(name)
        and len(parts) <= 2
        and all(part and part.replace("-", "").replace("_", "").replace(".", "").isalnum() for part in parts)
    )


def _hub_cache() -> Path:
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(os.path.expanduser(cache))
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.path.expanduser(home)) / "hub"


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Whether a file has the name of a GGUF file, or begins like one and has a name without a suffix, as in the
    storage of Ollama."""
    name = os.fspath(path)
    if name.lower().endswith(".gguf"):
        return True
    expanded = os.path.expanduser(name)
    if "." in os.path.basename(name) or not os.path.isfile(expanded):
        return False
    with contextlib.suppress(OSError, ValueError), open_file(expanded) as stream:
        return stream.read(4) == GGUF_MAGIC
    return False


def read_json(path: Path, at_most: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """A JSON object. ModelFilesError names the file and, for a syntax error, the place."""
    value = _read(path, at_most)
    if not isinstance(value, dict):
        raise ModelFilesError(f"{path}: must hold a JSON object", code="M303")
    return value


def read_json_list(path: Path) -> list[Any]:
    """A JSON list, with the same errors."""
    value = _read(path, MAX_JSON_BYTES)
    if not isinstance(value, list):
        raise ModelFilesError(f"{path}: must hold a JSON list", code="M303")
    return value


def _read(path: Path, at_most: int) -> Any:
    try:
        return decode(read_file(path, at_most))
    except FileTooLarge as error:
        raise ModelFilesError(f"{path}: {error.strerror}", code="M303") from error
    except OSError as error:
        raise ModelFilesError.unreadable(path, error) from error
    except json.JSONDecodeError as error:
        refuse_lfs_pointer(path)
        raise ModelFilesError(f"{path}:{error.lineno}:{error.colno}: invalid JSON: {error.msg}", code="M303") from error
    except ValueError as error:
        raise ModelFilesError(f"{path}: invalid JSON: {error}", code="M303") from error


def read_json_if_any(path: Path, at_most: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The same; empty if there is no such file. A link that leads nowhere is an error."""
    return read_json(path, at_most) if os.path.lexists(path) else {}
