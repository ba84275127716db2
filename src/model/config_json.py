"""Values of config.json: of the right type and no larger than any model has them.

A number that is absurdly large must be found first, because tables of that size are built later.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

LIMITS = {  # about ten times the largest model of 2026
    "num_hidden_layers": 4096,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "hidden_size_per_layer_input": 1 << 16,
    "vocab_size_per_layer_input": 1 << 24,
    "num_attention_heads": 1 << 14,
    "num_key_value_heads": 1 << 14,
    "head_dim": 1 << 13,
    "vocab_size": 1 << 24,
    "max_position_embeddings": 1 << 30,
    "hc_mult": 16,
    "hc_sinkhorn_iters": 1000,
}
LARGEST = (1 << 31) - 1  # of any other whole number
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def shown(value: Any) -> str:
    """A value for a message, shortened."""
    return _SHORT.repr(value)


class ModelConfigError(ValueError):
    """config.json is malformed (code M306), or says what this build does not run (M304)."""

    def __init__(self, message: str, code: str = "M306") -> None:
        super().__init__(message)
        self.code = code


class ConfigJson:
    """config.json with the defaults of the model's family. Errors contain the key. `read`: keys that were asked for.

    own_keys: the name that most families give a key -> this family's. Either may be in the file.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        own_keys: Mapping[str, str] | None = None,
    ) -> None:
        self.values = values
        self.defaults = defaults or {}
        self.own_keys = own_keys or {}
        self.read: set[str] = set()

    def part(self, values: Mapping[str, Any]) -> ConfigJson:
        """An object in the file."""
        return ConfigJson(values)

    def get(self, key: str) -> Any:
        """Value as written, also if that is null; else the default, else None."""
        written = self.written(key)
        self.read |= {key, written}
        return self.values[written] if written in self.values else self.defaults.get(key)

    def written(self, key: str) -> str:
        """The name of the key in this file."""
        return key if key in self.values else self.own_keys.get(key, key)

    def count(self, key: str, default: int | None = None) -> int:
        value, most = self.get(key), LIMITS.get(key, LARGEST)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ModelConfigError(
                f"`{self.written(key)}` is {shown(value)}; it must be a whole number from 1 to {most}"
            )
        return value

    def layer_types(self, num_layers: int, known: Sequence[str]) -> list[str] | None:
        """The kind of each layer, if it is a known one; None if the file does not say."""
        names = self.get("layer_types")
        if names is None:
            return None
        if not isinstance(names, list) or len(names) != num_layers:
            raise ModelConfigError(f"`layer_types` must name {num_layers} layers")
        if unknown := [name for name in names if name not in known]:
            raise ModelConfigError(f"`layer_types` has {shown(unknown[0])}; known: {', '.join(known)}", "M304")
        return names

    def periodic_layers(self, key: str, num_layers: int) -> range:
        """The layers from `<key>_offset` on, one in every `<key>_period`."""
        period, offset = self.count(f"{key}_period"), self.get(f"{key}_offset")
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < period:
            raise ModelConfigError(f"`{key}_offset` is {shown(offset)}; it must be a number of layers below {period}")
        return range(offset, num_layers, period)

    def optional_int(self, key: str) -> int | None:
        value = self.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or abs(value) > LARGEST):
            raise ModelConfigError(f"`{self.written(key)}` is {shown(value)}; it must be a token id")
        return value

    def name(self, key: str) -> str:
        """A value that names something, checked where names are known; one of another type as it is shown."""
        value = self.get(key)
        return value if isinstance(value, str) else shown(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise ModelConfigError(f"`{self.written(key)}` is {shown(value)}; it must be true or false")
        return value

    def number(self, key: str, least: float, most: float, default: float | None = None) -> float:
        """A number from `least` to `most`; above 0 if `least` is 0."""
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, int | float) and not isinstance(value, bool):
            number = _float(value)
            if least <= number <= most and number > 0:
                return number
        bounds = f"above 0 and at most {most:g}" if least == 0 else f"from {least:g} to {most:g}"
        raise ModelConfigError(f"`{self.written(key)}` is {shown(value)}; it must be a number {bounds}")


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf  # outside of every range
