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
from tests.models.checkpoints import VOCAB, build, reference_greedy, reference_logits, save
from tests.models.engine import Engine, resolved
from tests.models.test_generation import FEW_BLOCKS, ONE_GROUP, make_prompts
from tests.models.test_logits import TOKENS, our_logits
from tests.models.test_transformers_families import largest_difference
from transformers import PreTrainedModel

from stoker.config.errors import ModelFilesError
from stoker.engine.layers.step_input import StepInput
from stoker.engine.runner.kv_cache import KVCache

NUM_PROMPTS = 20
NUM_ROUNDED = 6  # prompts that are computed in bfloat16
# More prompts of families with outliers in a fifth of all tokens, where chance decides a median over six prompts
MORE_ROUNDED = {"dots3": 36}
OUTLIER = 5


@dataclass(frozen=True, slots=True)
class InBfloat16:
    """error: median over tokens of the root mean square error of their logits against float32, relative to that of
    transformers in bfloat16. outliers, library_outliers: tokens whose error is OUTLIER times the library's median."""

    error: float
    outliers: int
    library_outliers: int


@dataclass(frozen=True, slots=True)
class ThroughLibrary:
    """largest_change: of a log-probability, in float32."""

    largest_change: float
    equal_prompts: int


@dataclass(frozen=True, slots=True)
class Parity:
    """largest_change: of a logit, in float32. notices_mutation: with the mutation tokens differ. through_library: the
    same model on the modules of transformers, whose results are compared with a plain run of it; None if that is
    refused."""

    largest_change: float
    largest_change_in_torch: float
    bfloat16: InBfloat16
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
    with tempfile.TemporaryDirectory() as place:
        folder, place_ = save(model, Path(place, "model")), Path(place)
        changes = [(our_logits(folder, place_, kernels) - exact).abs().max().item() for kernels in ("auto", "torch")]
        in_bfloat16 = compare_in_bfloat16(family, model, folder, place_)
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
        bfloat16=in_bfloat16,
        equal_prompts=_num_equal(found, expected),
        num_mixed_steps=engine.num_mixed_steps,
        prefix_hits=stats.prefix_hits,
        num_preemptions=stats.num_preemptions,
        notices_mutation=mutated != expected,
        through_library=through_library,
    )


def compare_in_bfloat16(family: str, model: PreTrainedModel, folder: Path, place: Path) -> InBfloat16:
    """Compare with the float32 `model`, which `folder` has. place: for the deployment."""
    rounded = build(family).bfloat16()
    errors: list[torch.Tensor] = []
    library_errors: list[torch.Tensor] = []
    for seed in range(MORE_ROUNDED.get(family, NUM_ROUNDED)):
        tokens = torch.randint(3, VOCAB, (len(TOKENS),), generator=torch.Generator().manual_seed(seed)).tolist()
        exact = reference_logits(model, tokens)
        errors.append(_by_token(our_logits(folder, place, dtype=torch.bfloat16, tokens=tokens) - exact))
        library_errors.append(_by_token(reference_logits(rounded, tokens) - exact))
    found, expected = torch.cat(errors), torch.cat(library_errors)
    median = expected.median()
    outliers, library_outliers = (int((each > OUTLIER * median).sum()) for each in (found, expected))
    return InBfloat16((found.median() / median).item(), outliers, library_outliers)


def _by_token(difference: torch.Tensor) -> torch.Tensor:
    return difference.pow(2).mean(-1).sqrt()


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
