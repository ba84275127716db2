"""Adapters against PEFT: the engine computes what weights with merged adapters do, for each row of a mixed batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .adapters import Adapter, AdapterEngine, adapter
from .checkpoints import reference_greedy
from .conftest import Saved

# PEFT reads an attribute of models that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12, 13], [3], [40, 41, 42, 43], [*range(20, 50)], [5, 6, 7, 8, 9, 10, 11, 12, 14]]
FAMILIES = ["llama", "qwen3", "gemma2", "phi3", "qwen3_next"]
SOME_LAYERS = {"layers_to_transform": [1]}


def expected_of(base: Any, adapters: list[Adapter | None], prompts: list[list[int]]) -> list[list[int]]:
    return [
        reference_greedy(base if own is None else own.merged, prompt, 24)
        for own, prompt in zip(adapters, prompts, strict=True)
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_row_of_a_batch_has_its_own_adapter(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved(family)
    first = adapter(base, tmp_path / "first", 1)
    second = adapter(base, tmp_path / "second", 2, r=5, lora_alpha=7, use_rslora=True)
    third = adapter(base, tmp_path / "third", 3, r=1, lora_alpha=2, target_modules=["o_proj"], **SOME_LAYERS)
    engine = AdapterEngine(folder, tmp_path)
    for rows in ([first] * 5, [first, None, second, third, None], [None] * 5, [second, third, first, None, second]):
        found = engine.answers(PROMPTS, [None if each is None else each.ref for each in rows])
        assert found == expected_of(base, rows, PROMPTS)
    assert engine.num_mixed_steps > 0
