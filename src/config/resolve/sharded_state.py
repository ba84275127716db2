"""sharded_state.json: what `engine save-sharded --as-loaded` has written, and which options and kernels it is for.

The weights beside it are in the layout of the kernels that packed them (engine/runner/sharded_state.py), so that a
start reads them without converting. What a plan needs of the original checkpoint is in this file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from ...model.record import Record
from ...model.spec import WeightNames
from ...model.through_transformers import Implementation
from ..checkpoint.model_files import read_json
from ..errors import ModelFilesError
from .stored_as import OwnCodes, StoredAs

STATE_JSON = "sharded_state.json"
VOCABULARY_GGUF = "vocabulary.gguf"  # header of the original GGUF file, without tensors
FORMAT_VERSION = 1  # of the files and of the layouts of packed weights: a change of either is a new version


class StateShape(Record):
    """What decides the bytes of packed weights. A state loads only where all of it is the same."""

    kernels: str  # KernelSet.layout
    dtype: Literal["float32", "bfloat16", "float16"]
    quantization: str | None
    activation_quantization: str | None
    batch_invariant: bool
    enforce_eager: bool
    implementation: Implementation
    weight_names: WeightNames
    hf_overrides: dict[str, Any]

    @property
    def shown(self) -> str:
        held = f"{self.dtype}, {self.quantization}" if self.quantization else self.dtype
        return f"{held}, as the {self.kernels} kernels hold weights"


_NAMES = {
    "kernels": "kernels",
    "implementation": "model.model_impl",
    "weight_names": "model.config_format",
}  # for messages; of other fields it is the option of section `model`


class ShardedState(Record):
    """The whole file."""

    format_version: int
    written_by: str  # version of this program
    num_ranks: int
    shape: StateShape
    stored_as: tuple[StoredAs, ...] = ()  # of the original checkpoint, as the fields of ModelFiles
    own_codes: tuple[OwnCodes, ...] = ()
    num_stored: int | None = Field(None, ge=1)
    gguf_config: dict[str, Any] | None = None  # config.json of a GGUF file, some of which is in its tensors


def read_sharded_state(folder: Path) -> ShardedState | None:
    """Read packed weights; None if the folder has none. Raises ModelFilesError for a file that it did not write."""
    path = folder / STATE_JSON
    if not os.path.lexists(path):
        return None
    content = read_json(path)
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        raise ModelFilesError(
            f"{path}: version {version} of the format, and this build reads version {FORMAT_VERSION}; {again(folder)}",
            code="M304",
        )
    try:
        state = ShardedState.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ModelFilesError(f"{path}: `{place}`: {first['msg']}", code="M303") from None
    if state.num_ranks != 1:
        raise ModelFilesError(
            f"{path}: of {state.num_ranks} ranks; this build runs on one; {again(folder)}", code="M304"
        )
    return state


def has_vocabulary(folder: Path) -> bool:
    """Whether a folder is a sharded state of a GGUF file."""
    return all(os.path.lexists(folder / name) for name in (STATE_JSON, VOCABULARY_GGUF))


def check_same(folder: Path, written: StateShape, wanted: StateShape) -> None:
    """Raises ModelFilesError, naming what differs, for a state that is not for this start."""
    differing = [
        f"{_NAMES.get(name, f'model.{name}')} {_shown(getattr(written, name))}, not {_shown(getattr(wanted, name))}"
        for name in StateShape.model_fields
        if getattr(written, name) != getattr(wanted, name)
    ]
    if differing:
        raise ModelFilesError(
            f"{folder}: a sharded state of {'; '.join(differing)}, as this start has. Start it as it was written, or "
            f"{again(folder)}",
            code="M304",
        )


def again(folder: Path) -> str:
    return (
        f"write it again from the original checkpoint: engine save-sharded DEPLOYMENT --as-loaded -o {folder} --force"
    )


def _shown(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
