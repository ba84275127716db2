"""Statistics of a measurement: distributions of times, rates, and their display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

PERCENTILES = (50, 90, 99)


@dataclass(slots=True)
class Sample:
    """One request. Times are in seconds since it was due."""

    num_input: int
    num_output: int
    first_token_s: float
    end_s: float
    gaps_s: list[float] = field(default_factory=list)  # between tokens; if empty, the mean is used

    @property
    def inter_token_s(self) -> list[float]:
        if self.gaps_s or self.num_output < 2:
            return self.gaps_s
        return [(self.end_s - self.first_token_s) / (self.num_output - 1)]


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Mean, percentiles (interpolated), minimum and maximum. None without values."""
    if not values:
        return None
    ranked = sorted(values)
    found = {"mean": sum(ranked) / len(ranked)}
    for percent in PERCENTILES:
        place = percent / 100 * (len(ranked) - 1)
        below = int(place)
        above = min(below + 1, len(ranked) - 1)
        found[f"p{percent}"] = ranked[below] + (ranked[above] - ranked[below]) * (place - below)
    return {**found, "min": ranked[0], "max": ranked[-1]}


def figures(samples: Sequence[Sample], seconds: float) -> dict[str, Any]:
    """seconds: from the first request to the last answer."""
    num_input, num_output = sum(s.num_input for s in samples), sum(s.num_output for s in samples)
    return {
        "requests": len(samples),
        "seconds": seconds,
        "input_tokens": num_input,
        "output_tokens": num_output,
        "requests_per_s": len(samples) / seconds,
        "output_tokens_per_s": num_output / seconds,
        "total_tokens_per_s": (num_input + num_output) / seconds,
        "first_token_s": spread([s.first_token_s for s in samples]),
        "inter_token_s": spread([gap for s in samples for gap in s.inter_token_s]),
        "end_to_end_s": spread([s.end_s for s in samples]),
    }


def lines(results: dict[str, Any]) -> list[str]:
    """Results as text: distributions as a table in milliseconds, single numbers one per line."""
    shown = [
        f"  {_words(name):<22}{_number(value)}" for name, value in results.items() if isinstance(value, int | float)
    ]
    spreads = {name: value for name, value in results.items() if isinstance(value, dict) and "mean" in value}
    if spreads:
        heads = list(next(iter(spreads.values())))
        shown += ["", "  " + f"{'milliseconds':<22}" + "".join(f"{head:>11}" for head in heads)]
        for name, values in spreads.items():
            shown.append(f"  {_words(name):<22}" + "".join(f"{1000 * value:>11.2f}" for value in values.values()))
    return shown


def _words(name: str) -> str:
    if name.endswith("_per_s"):
        return name.removesuffix("_per_s").replace("_", " ") + " per s"
    return name.removesuffix("_s").replace("_", " ")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.2f}"
