"""Reads a workload file into requests of token ids, the same for every engine and every run."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import yaml

from .request import Request

WORKLOADS = Path(__file__).parent / "workloads"


@dataclass(frozen=True)
class Workload:
    name: str
    metric: str  # output_tokens_per_s or prompt_tokens_per_s
    requests: list[Request]

    @property
    def num_metric_tokens(self) -> int:
        if self.metric == "prompt_tokens_per_s":
            return sum(len(request.prompt) for request in self.requests)
        return sum(request.output for request in self.requests)


def read(name: str, vocab_size: int, seed: int) -> Workload:
    """The workload `name`. Another seed gives different token ids of the same lengths, so that no
    run finds the prompts of an earlier run in a cache."""
    spec = yaml.safe_load((WORKLOADS / f"{name}.yaml").read_text())
    lengths = random.Random(f"lengths of {name}")
    ids = random.Random(f"{name} {seed}")

    def length(bounds: int | list[int]) -> int:
        return bounds if isinstance(bounds, int) else lengths.randint(*bounds)

    def tokens(count: int) -> list[int]:
        return [ids.randrange(vocab_size) for _ in range(count)]

    requests = []
    for group in spec["requests"]:
        prefix = tokens(group.get("shared_prefix", 0))
        for _ in range(group["count"]):
            requests.append(Request(prefix + tokens(length(group["prompt"])), length(group["output"])))
    return Workload(name, spec["metric"], requests)
