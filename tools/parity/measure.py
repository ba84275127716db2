"""One family against transformers: logits, and greedy tokens through the real scheduler."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tests.models.checkpoints import build, reference_greedy, reference_logits, save
from tests.models.engine import Engine, resolved
from tests.models.test_generation import FEW_BLOCKS, ONE_GROUP, make_prompts
from tests.models.test_logits import TOKENS, our_logits
from tests.models.test_transformers_families import largest_difference
from transformers import PreTrainedModel

from stoker.config.errors import ModelFilesError
from stoker.engine.layers.step_input import StepInput
from stoker.engine.runner.kv_cache import KVCache

NUM_PROMPTS = 20


@dataclass(frozen=True, slots=True)
class ThroughLibrary:
    """largest_change: of a log-probability, in float32."""

    largest_change: float
    equal_prompts: int


@dataclass(frozen=True, slots=True)
class Parity:
    """largest_change: of a logit, in float32. bfloat16_error: root mean square error against float32, relative to that
    of transformers in bfloat16. notices_mutation: with the mutation tokens differ. through_library: the same
    model on the modules of transformers, whose results are compared with a plain run of it; None if that is refused."""

    largest_change: float
    largest_change_in_torch: float
    bfloat16_error: float
    equal_prompts: int
    num_mixed_steps: int
    prefix_hits: int
    num_preemptions: int
    notices_mutation: bool
    through_library: ThroughLibrary | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(family: str) -> Parity:
    """Prompts of 1 to 26 tokens in steps of at most 11, with shared prefixes, in a cache too small for all of them."""
    model = build(family)
    exact = reference_logits(model, TOKENS)
    theirs = reference_logits(build(family).bfloat16(), TOKENS) - exact
    with tempfile.TemporaryDirectory() as place:
        folder, place_ = save(model, Path(place, "model")), Path(place)
        changes = [(our_logits(folder, place_, kernels) - exact).abs().max().item() for kernels in ("auto", "torch")]
        ours = our_logits(folder, place_, dtype=torch.bfloat16) - exact
        prompts = make_prompts(NUM_PROMPTS)
        expected = [reference_greedy(model, prompt, 24) for prompt in prompts]
        engine = Engine(resolved(folder, place_, cache=FEW_BLOCKS, scheduler=ONE_GROUP))
        found = engine.generate(prompts)
        with wrong_cache():
            mutated = Engine(resolved(folder, place_, cache=FEW_BLOCKS, scheduler=ONE_GROUP)).generate(prompts)
        through_library = _through_library(model, folder, place_, prompts, expected)
    stats = engine.scheduler.stats()
    return Parity(
        largest_change=changes[0],
        largest_change_in_torch=changes[1],
        bfloat16_error=(ours.pow(2).mean().sqrt() / theirs.pow(2).mean().sqrt()).item(),
        equal_prompts=_num_equal(found, expected),
        num_mixed_steps=engine.num_mixed_steps,
        prefix_hits=stats.prefix_hits,
        num_preemptions=stats.num_preemptions,
        notices_mutation=mutated != expected,
        through_library=through_library,
    )


def _through_library(
    model: PreTrainedModel, folder: Path, place: Path, prompts: list[list[int]], expected: list[list[int]]
) -> ThroughLibrary | None:
    try:
        engine = Engine(
            resolved(folder, place, model={"model_impl": "transformers"}, cache=FEW_BLOCKS, scheduler=ONE_GROUP)
        )
    except ModelFilesError:
        return None
    found = engine.generate(prompts)
    return ThroughLibrary(largest_difference(engine, model, prompts[:4]), _num_equal(found, expected))


def _num_equal(found: list[list[int]], expected: list[list[int]]) -> int:
    return sum(tokens == wanted for tokens, wanted in zip(found, expected, strict=True))


@contextmanager
def wrong_cache() -> Iterator[None]:
    """Keys and values are written where they belong, and read in the wrong order. Without any, states are not reset."""
    by_layer = KVCache.by_layer

    def mutated(cache: KVCache, steps: list[StepInput]) -> list[StepInput]:
        if not cache.num_bytes:
            return by_layer(cache, [replace(step, context_lens=step.context_lens + 1) for step in steps])
        return by_layer(cache, [replace(step, block_tables=step.block_tables.flip(-1).contiguous()) for step in steps])

    with patch.object(KVCache, "by_layer", mutated):
        yield
