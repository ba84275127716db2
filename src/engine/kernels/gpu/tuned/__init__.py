"""Launch configurations of kernels, as data: a file per kind of device, and `default.json` for all others.

The name of a file comes from `torch.cuda.get_device_name`, in lower case and with underscores. `measured` has the date
and the versions with which its values were timed; those of gemv were the fastest of a search. Null: they were not
timed on this device. Read once; nothing is searched while serving.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, PositiveInt, ValidationError
from triton.runtime import driver

from ..launch import is_interpreted

_FOLDER = Path(__file__).parent


def _power_of_two(number: int) -> int:
    if number & (number - 1):
        raise ValueError(f"{number} is not a power of two")
    return number


PowerOfTwo = Annotated[PositiveInt, AfterValidator(_power_of_two)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Measured(_Part):
    date: str
    torch: str
    triton: str


class GemvLaunch(_Part):
    """outputs, depth: the tile of a program, of one token. There should be a few programs for each multiprocessor."""

    max_outputs: PositiveInt | None  # largest layer that this is for; None for any
    outputs: PowerOfTwo
    depth: PowerOfTwo
    warps: PowerOfTwo
    stages: PositiveInt


class AttentionLaunch(_Part):
    """Launch options of loops over tiles.

    The compiler counts the load of a tile's page id as a stage too: n stages hold n // 2 tiles, and with 3 no tile is
    loaded while another is multiplied.
    """

    programs_per_multiprocessor: PositiveInt
    warps: PowerOfTwo
    stages: PositiveInt


class Tuned(_Part):
    device: str
    measured: Measured | None
    gemv: tuple[GemvLaunch, ...]
    decode_attention: AttentionLaunch
    prefill_attention: AttentionLaunch

    @property
    def summary(self) -> str:
        """Text for the start-up table."""
        when = f"measured on {self.measured.date}" if self.measured is not None else "not measured"
        return f"those for {self.device} device: {when}" if self.device == "any" else f"those for {self.device}: {when}"

    def gemv_of(self, outputs: int) -> GemvLaunch:
        return next(each for each in self.gemv if each.max_outputs is None or outputs <= each.max_outputs)


@cache
def tuned() -> Tuned:
    """Options for the current device; `interpreter.json` without one: few programs, since each is slow there."""
    name = "interpreter" if is_interpreted() else driver.active.get_device_interface().get_device_name()
    file = _FOLDER / f"{re.sub('[^a-z0-9]+', '_', name.lower())}.json"
    return read_tuned(file if file.exists() else _FOLDER / "default.json")


def read_tuned(file: Path) -> Tuned:
    """Raises ValueError, with all errors, if the file is not valid."""
    try:
        found = Tuned.model_validate_json(file.read_bytes())
    except ValidationError as error:
        wrong = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ValueError(f"{file}: {'; '.join(wrong)}") from None
    most = [each.max_outputs for each in found.gemv]
    if most != [*sorted({each for each in most if each is not None}), None]:
        raise ValueError(f"{file}: gemv: max_outputs must be ascending, and null in the last entry only")
    return found
