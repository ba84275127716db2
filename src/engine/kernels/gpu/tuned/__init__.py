"""How kernels are launched, as data: a file per kind of device, and `default.json`, which fits any.

A file is named as `torch.cuda.get_device_name` names the device, in lower case and with underscores. `measured` says
when and with what its numbers were found fastest. Null: nobody has timed them; they follow from what the compiler tells
of registers and shared memory. Read once; nothing is searched while serving.
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
        raise ValueError(f"{number} is no power of two")
    return number


PowerOfTwo = Annotated[PositiveInt, AfterValidator(_power_of_two)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Measured(_Part):
    date: str
    torch: str
    triton: str


class LinearLaunch(_Part):
    """outputs, depth: what a program takes at once. Programs should be a few for each multiprocessor."""

    max_outputs: PositiveInt | None  # of the layer that it is for; None for any
    outputs: PowerOfTwo
    depth: PowerOfTwo
    norm_depth: PowerOfTwo  # with a norm x goes through registers, and deeper tiles take too many
    warps: PowerOfTwo
    stages: PositiveInt


class AttentionLaunch(_Part):
    """Of loops over tiles. Where a tile lies is read first, which the compiler counts as a stage as well: with n stages
    there is room for n // 2 tiles, and with 3 no tile would be on its way while another is multiplied."""

    programs_per_multiprocessor: PositiveInt
    warps: PowerOfTwo
    stages: PositiveInt


class Tuned(_Part):
    device: str
    measured: Measured | None
    linear: tuple[LinearLaunch, ...]
    decode_attention: AttentionLaunch
    prefill_attention: AttentionLaunch

    @property
    def summary(self) -> str:
        """For the start-up table."""
        when = f"measured on {self.measured.date}" if self.measured is not None else "from the compiler, not measured"
        return f"those for {self.device} device: {when}" if self.device == "any" else f"those for {self.device}: {when}"

    def linear_of(self, outputs: int) -> LinearLaunch:
        return next(each for each in self.linear if each.max_outputs is None or outputs <= each.max_outputs)


@cache
def tuned() -> Tuned:
    """For the current device; `interpreter.json` where there is none, with few programs, each of which is slow."""
    name = "interpreter" if is_interpreted() else driver.active.get_device_interface().get_device_name()
    file = _FOLDER / f"{re.sub('[^a-z0-9]+', '_', name.lower())}.json"
    return read_tuned(file if file.exists() else _FOLDER / "default.json")


def read_tuned(file: Path) -> Tuned:
    """Raises ValueError, with every mistake, if the file is not as it should be."""
    try:
        found = Tuned.model_validate_json(file.read_bytes())
    except ValidationError as error:
        wrong = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ValueError(f"{file}: {'; '.join(wrong)}") from None
    most = [each.max_outputs for each in found.linear]
    if most != [*sorted({each for each in most if each is not None}), None]:
        raise ValueError(f"{file}: linear: max_outputs must grow, and the last, and no other, must be null")
    return found
