"""Finds the model's GGUF file in a folder or a repository, and reads its header."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...model.config_json import ModelConfigError, shown
from ...model.gguf import FACTORS, config_of
from ..errors import ModelFilesError
from .gguf import GgufHeader, is_first_part, parts, read_gguf
from .model_files import is_gguf, is_like

NO_MODELS = ("*mmproj*", "*imatrix*")  # encoders of images, and statistics
_TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_SAMPLING = {  # of the header -> of generation_config.json
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def found_in(folder: Path) -> list[Path]:
    """The models in a folder and in its folders; of one in several parts, the first part."""
    files = [Path(place) / name for place, names in _listed(folder) for name in names]
    return sorted(
        path for path in files if is_gguf(path) and is_first_part(path.name) and not is_like(path.name, NO_MODELS)
    )


def _listed(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for place, folders, names in os.walk(folder):
        if Path(place) != folder:
            folders.clear()
        yield place, [name for name in names if os.path.isfile(os.path.join(place, name))]


def patterns(quantisation: str) -> tuple[str, ...]:
    """Glob patterns of the files in a repository that have the word, in upper or lower case, in name or folder."""
    word = "".join(f"[{letter.lower()}{letter.upper()}]" if letter.isalpha() else letter for letter in quantisation)
    ends = ".gguf", "-?????-of-?????.gguf", "/*.gguf"
    return tuple(f"{start}{word}{end}" for start in ("", "*[-._/]") for end in ends)


def has_quantisation(folder: Path, quantisation: str) -> bool:
    """Whether all parts of a model of the quantisation are there."""
    for path in found_in(folder):
        if is_like(str(path.relative_to(folder)), patterns(quantisation)):
            with contextlib.suppress(ModelFilesError):
                if all(map(os.path.isfile, parts(path))):
                    return True
    return False


def choose(folder: Path, quantisation: str | None = None) -> Path:
    """The only file, or the file of a quantisation. Raises ModelFilesError unless there is exactly one."""
    files = found_in(folder)
    wanted = ("*",) if quantisation is None else patterns(quantisation)
    chosen = [path for path in files if is_like(str(path.relative_to(folder)), wanted)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(str(path.relative_to(folder)) for path in (chosen or files)[:8])
    if not files:
        raise ModelFilesError(f"{folder}: no GGUF files", code="M302")
    if not chosen:
        raise ModelFilesError(f"{folder}: no GGUF file of {quantisation}; it has {names}", code="M302")
    raise ModelFilesError(
        f"{folder}: {len(chosen)} GGUF models ({names}); name the file as `model.model`, or for a repository the "
        "quantisation: owner/name:Q4_K_M",
        code="M302",
    )


def read_config(path: Path) -> dict[str, Any]:
    """config.json of the model in a file, or in all of its parts. Raises ModelConfigError, ModelFilesError."""
    headers = [read_gguf(part) for part in parts(path)]
    first = headers[0]
    _check_parts(first, headers)
    factors = {name: found for name in FACTORS for header in headers if (found := header.floats(name)) is not None}
    shapes = {name: tensor.shape for header in headers for name, tensor in header.tensors.items()}
    return config_of(first.values, shapes, factors)


def read_generation_config(path: Path) -> dict[str, Any]:
    """generation_config.json of the model in a file."""
    values = read_gguf(path).values
    named = {name: values.get(f"general.sampling.{key}") for key, name in _SAMPLING.items()}
    return {name: value for name, value in named.items() if value is not None}


def named_tokens(header: GgufHeader) -> dict[str, str]:
    """Special tokens as tokenizer_config.json names them. Raises ModelFilesError for an id that no token has."""
    tokens = list(header.values.get("tokenizer.ggml.tokens", ()))
    found: dict[str, str] = {}
    for name, key in _TOKENS.items():
        token_id = header.values.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is None:
            continue
        if type(token_id) is not int or not 0 <= token_id < len(tokens):
            said = f"`tokenizer.ggml.{key}_token_id` is {shown(token_id)}; the vocabulary has {len(tokens)} tokens"
            raise ModelFilesError(f"{header.path}: {said}", code="M306")
        found[name] = tokens[token_id]
    return found


def _check_parts(first: GgufHeader, headers: list[GgufHeader]) -> None:
    for index, header in enumerate(headers):
        for key, expected in {"split.no": index, "split.count": len(headers)}.items():
            if (found := header.values.get(key, expected)) != expected and len(headers) > 1:
                raise ModelFilesError(f"{header.path}: `{key}` is {found}, its name says {expected}", code="M303")
    if len(headers) == 1 and first.values.get("split.count", 1) not in (0, 1):
        raise ModelConfigError(f"is one of {first.values['split.count']} parts; name it as they were: -00001-of-0000N")
    num_tensors = sum(len(header.tensors) for header in headers)
    if len(headers) > 1 and (said := first.values.get("split.tensors.count", num_tensors)) != num_tensors:
        raise ModelFilesError(
            f"{first.path}: `split.tensors.count` is {said}, its parts have {num_tensors}", code="M303"
        )
