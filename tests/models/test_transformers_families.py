"""Models through the transformers library generate what the library itself generates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.slow_cases import slow_but
from tools import transformers_families
from tools.transformers_families import FAMILIES, config_of
from transformers import AutoModelForCausalLM, PreTrainedModel

from stoker.config import Resolved
from stoker.engine.api import EngineRequest, RequestInputs
from stoker.engine.runner import inputs
from stoker.model.read import read_config
from stoker.model.support import support_problem
from stoker.model.transformers_table import TESTED

from .checkpoints import reference_greedy, reference_logits, save
from .engine import GREEDY, Engine, resolved
from .test_generation import FEW_BLOCKS, ONE_GROUP, make_prompts

QUICK = ("gemma2", "deepseek_v3")
BY_SPEED = slow_but(FAMILIES, *QUICK)


_SEEDS = {"gpt_oss": 2}  # with 1 two experts of a token are 3e-7 apart, and rounding decides


def random_model(model_type: str) -> PreTrainedModel:
    """In float32, with logits that are spread out."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_of(model_type), dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(_SEEDS.get(model_type, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.15)
    found: PreTrainedModel = model
    return found


def deployment(folder: Path, place: Path, **sections: dict[str, Any]) -> Resolved:
    model = {"model_impl": "transformers"} | sections.pop("model", {})
    cache = FEW_BLOCKS | sections.pop("cache", {})
    return resolved(folder, place, model=model, cache=cache, scheduler=ONE_GROUP, **sections)


def largest_difference(engine: Engine, model: PreTrainedModel, prompts: list[list[int]]) -> float:
    """Of log-probabilities of all prompt tokens and generated tokens from those of transformers."""
    asked = replace(GREEDY, max_tokens=6, ignore_eos=True, logprobs=3, prompt_logprobs=3)
    requests = [
        EngineRequest(request_id=str(index), inputs=RequestInputs(prompt, asked))
        for index, prompt in enumerate(prompts)
    ]
    worst = 0.0
    for index, output in engine.run(requests).items():
        tokens = prompts[int(index)] + output.token_ids
        expected = reference_logits(model, tokens).log_softmax(-1)
        for position, entry in enumerate([*(output.prompt_logprobs or [])[1:], *(output.logprobs or [])], start=1):
            assert entry is not None
            wanted = expected[position - 1][entry.token_ids]
            worst = max(worst, float((torch.tensor(entry.logprobs) - wanted).abs().max()))
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("model_type", FAMILIES)
def test_text_is_that_of_transformers(model_type: str, tmp_path: Path):
    """In chunks, mixed steps, with shared prefixes and preemptions: the same tokens, and logits within 1e-4."""
    model = random_model(model_type)
    folder = save(model, tmp_path / "model")
    engine = Engine(deployment(folder, tmp_path))
    prompts = make_prompts(20)
    found = engine.generate(prompts)
    for prompt, token_ids in zip(prompts, found, strict=True):
        assert token_ids == reference_greedy(model, prompt, 24, token_ids), f"prompt {prompt}"
    stats = engine.scheduler.stats()
    assert stats.num_preemptions >= 1
    assert stats.prefix_hits > 0
    assert engine.num_mixed_steps > 0
    assert largest_difference(engine, model, prompts[:4]) <= 1e-4


@pytest.mark.parametrize("model_type", BY_SPEED)
def test_auto_chooses_transformers_for_what_has_no_own_implementation(model_type: str, tmp_path: Path):
    folder = transformers_families.written_config(model_type, tmp_path / "model")
    settings = deployment(folder, tmp_path, model={"model_impl": "auto"}, load={"load_format": "dummy"})
    spec, _ = read_config(json.loads((folder / "config.json").read_text()))
    assert settings.model_files.implementation == ("transformers" if support_problem(spec) else "native")


@pytest.mark.slow
@pytest.mark.parametrize("model_type", QUICK)
def test_reversed_block_tables_change_the_text(model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The comparison above notices attention that reads the wrong blocks."""
    build = inputs.build_step_input

    def reversed_tables(*arguments: Any) -> Any:
        return tuple(replace(step, block_tables=step.block_tables.flip(1)) for step in build(*arguments))

    model = random_model(model_type)
    engine = Engine(deployment(save(model, tmp_path / "model"), tmp_path))
    monkeypatch.setattr(inputs, "build_step_input", reversed_tables)
    prompts = make_prompts(20)
    assert engine.generate(prompts) != [reference_greedy(model, prompt, 24) for prompt in prompts]


@pytest.mark.slow
def test_the_table_says_what_is_fused_with_the_installed_transformers():
    assert transformers_families.table() == TESTED
