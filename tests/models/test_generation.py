"""With the real scheduler: chunked prefill, shared prefixes and preemption do not change what is generated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams

from .checkpoints import VOCAB, families, reference_greedy, reference_logits, step_kinds
from .conftest import Saved
from .engine import GREEDY, Engine, resolved

FEW_BLOCKS = {"num_gpu_blocks_override": 14}  # for up to eight sequences of up to 7 blocks: some must be preempted


# Layers that keep a window only need so few blocks that nothing would be preempted; see test_cache_groups.py.
ONE_GROUP = {"disable_hybrid_kv_cache_manager": True}


def make_prompts(count: int) -> list[list[int]]:
    """Lengths from 1 to 26; every third starts with the same 17 tokens."""
    generator = torch.Generator().manual_seed(3)

    def some(length: int) -> list[int]:
        ids: list[int] = torch.randint(3, VOCAB, (length,), generator=generator).tolist()
        return ids

    shared = some(17)
    return [shared + some(1 + index % 9) if index % 3 == 0 else some(1 + index * 7 % 26) for index in range(count)]


@pytest.mark.parametrize("family", families())
@pytest.mark.quick_cases(1)
def test_greedy_output_equals_transformers_generate(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    model, folder = saved(family)
    engine = Engine(resolved(folder, tmp_path, cache=FEW_BLOCKS, scheduler=ONE_GROUP))
    prompts = make_prompts(20)
    found = engine.generate(prompts)
    for prompt, token_ids in zip(prompts, found, strict=True):
        assert token_ids == reference_greedy(model, prompt, 24, token_ids), f"prompt {prompt}"
    stats = engine.scheduler.stats()
    assert stats.num_preemptions >= 1
    assert stats.prefix_hits > 0
    assert engine.num_mixed_steps > 0
    assert stats.num_free_blocks == stats.num_blocks


SAMPLED = (
    SamplingParams(max_tokens=24, ignore_eos=True),
    SamplingParams(max_tokens=24, ignore_eos=True, top_k=5, top_p=0.9),
    SamplingParams(max_tokens=24, ignore_eos=True, top_p=0.8, presence_penalty=0.5, repetition_penalty=1.2),
    SamplingParams(max_tokens=24, ignore_eos=True, min_p=0.1, frequency_penalty=0.3, logit_bias={5: 1.0}),
)


@pytest.mark.parametrize("family", step_kinds())
@pytest.mark.slow
def test_the_kernels_sample_what_torch_samples(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    """Greedy and seeded, token for token in float32: chunks, shared prefixes, preemption, batches that change."""
    folder = saved(family)[1]
    prompts = make_prompts(20)
    kinds = [GREEDY, *SAMPLED]
    sampling = [replace(kinds[index % 5], seed=index, max_tokens=5 + index, ignore_eos=True) for index in range(20)]
    kernels, torchs = (
        Engine(resolved(folder, tmp_path, model={"enforce_eager": is_eager}, cache=FEW_BLOCKS, scheduler=ONE_GROUP))
        for is_eager in (False, True)
    )
    assert kernels.generate(prompts, sampling) == torchs.generate(prompts, sampling)
    has_states = kernels.runner.loaded.model.model_spec.has_states  # then no prefix is shared, and fewer run at a time
    assert kernels.scheduler.stats().num_preemptions >= 1 or has_states


def test_seeded_samples_are_the_same_alone_and_in_a_batch_with_preemption(
    saved: Callable[[str], Saved], tmp_path: Path
):
    _, folder = saved("qwen3")
    prompts = make_prompts(12)
    sampling = [replace(SAMPLED[index % 4], seed=index) for index in range(12)]
    engine = Engine(resolved(folder, tmp_path, cache=FEW_BLOCKS))
    together = engine.generate(prompts, sampling)
    assert engine.scheduler.stats().num_preemptions >= 1
    roomy = Engine(resolved(folder, tmp_path, cache={"enable_prefix_caching": False}))
    for index, (prompt, params) in enumerate(zip(prompts, sampling, strict=True)):
        assert roomy.generate([prompt], params) == [together[index]], f"request {index}"


def test_logprobs_of_prompt_and_output_equal_transformers(saved: Callable[[str], Saved], tmp_path: Path):
    model, folder = saved("mistral")
    prompts = make_prompts(5)
    engine = Engine(resolved(folder, tmp_path))
    asked = replace(GREEDY, logprobs=4, prompt_logprobs=2)
    requests = [
        EngineRequest(request_id=str(index), inputs=RequestInputs(prompt, asked))
        for index, prompt in enumerate(prompts)
    ]
    for index, output in sorted(engine.run(requests).items()):
        prompt = prompts[int(index)]
        tokens = prompt + output.token_ids
        expected = reference_logits(model, tokens).log_softmax(-1)
        assert output.logprobs is not None
        assert output.prompt_logprobs is not None
        assert output.prompt_logprobs[0] is None
        entries = output.prompt_logprobs[1:] + output.logprobs
        assert len(entries) == len(tokens) - 1
        for position, entry in enumerate(entries, start=1):
            assert entry is not None
            of_position = expected[position - 1]
            count = 2 if position < len(prompt) else 4
            best = of_position.topk(count)
            assert entry.token_ids == [tokens[position], *best.indices.tolist()]
            wanted = [of_position[tokens[position]].item(), *best.values.tolist()]
            assert entry.logprobs == pytest.approx(wanted, abs=1e-4)
            assert entry.rank == int((of_position > of_position[tokens[position]]).sum()) + 1


def test_min_tokens_and_stop_ids_end_a_sequence_where_they_should(saved: Callable[[str], Saved], tmp_path: Path):
    _, folder = saved("llama")
    engine = Engine(resolved(folder, tmp_path))
    prompt = make_prompts(1)
    free = engine.generate(prompt, replace(GREEDY, ignore_eos=True))[0]
    stop = free[3]
    first = free.index(stop)
    assert engine.generate(prompt, replace(GREEDY, stop_token_ids=(stop,)))[0] == free[: first + 1]
    held = engine.generate(prompt, replace(GREEDY, stop_token_ids=(stop,), min_tokens=24))[0]
    assert len(held) == 24
    assert stop not in held
