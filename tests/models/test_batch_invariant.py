"""`model.batch_invariant`: no bit of a request's tokens and log-probabilities depends on the batch composition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.engine.api import EngineOutput, EngineRequest, RequestInputs
from stoker.engine.executor.build import build_core

from .checkpoints import VOCAB
from .conftest import Saved
from .engine import GREEDY, Engine, resolved
from .test_generation import ONE_GROUP, SAMPLED, make_prompts

KINDS = [replace(kind, max_tokens=20, logprobs=index) for index, kind in enumerate((GREEDY, *SAMPLED))]
KINDS.append(replace(SAMPLED[0], max_tokens=9, logprobs=4, prompt_logprobs=2))
FEW_BLOCKS = {"num_gpu_blocks_override": 34}  # for 32 sequences of up to 6 blocks
Results = dict[str, tuple[object, ...]]


def requests() -> list[EngineRequest]:
    """32 of all kinds, of 1 to 26 prompt tokens; every third prompt has the same beginning."""
    prompts = make_prompts(32)
    return [
        EngineRequest(request_id=str(i), inputs=RequestInputs(prompt, replace(KINDS[i % len(KINDS)], seed=i)))
        for i, prompt in enumerate(prompts)
    ]


def results_of(outputs: dict[str, EngineOutput]) -> Results:
    """All results of each request that a client gets."""
    return {name: (output.token_ids, output.logprobs, output.prompt_logprobs) for name, output in outputs.items()}


def run_alone(resolved_settings: Any) -> Results:
    engine = Engine(resolved_settings)
    found: Results = {}
    for request in requests():
        found |= results_of(engine.run([request]))
    return found


ROOMY: dict[str, dict[str, Any]] = {
    "cache": {"enable_prefix_caching": False},
    "scheduler": {"max_num_batched_tokens": 64},
}
# Installations compile no batch-invariant kernels of int8 and int4
CASES = [
    ("qwen3", {"dtype": "float32"}),
    ("qwen3", {"dtype": "bfloat16"}),
    ("qwen3", {"dtype": "bfloat16", "quantization": "int8"}),
    ("qwen3", {"dtype": "bfloat16", "quantization": "int4"}),
    ("qwen3", {"dtype": "float32", "quantization": "int8"}),
    ("qwen3 untied", {"dtype": "bfloat16"}),  # heads of 8 elements: torch computes attention
    ("mistral", {"dtype": "bfloat16"}),  # a window of 6 tokens
    ("qwen2", {"dtype": "bfloat16", "quantization": "int4"}),  # one layer with a window, biases
    ("llama", {"dtype": "bfloat16", "enforce_eager": True}),
    ("llama with biases", {"dtype": "float32", "enforce_eager": True}),
    ("qwen4_exp", {"dtype": "bfloat16"}),
    ("deepseek_v32", {"dtype": "bfloat16"}),
    ("deepseek_v4", {"dtype": "bfloat16"}),
    ("hy_v4", {"dtype": "bfloat16"}),
    ("dots3", {"dtype": "bfloat16"}),
]


@pytest.mark.parametrize(
    ("family", "model"), CASES, ids=lambda each: each if isinstance(each, str) else "-".join(map(str, each.values()))
)
@pytest.mark.effect("model.batch_invariant")
@pytest.mark.quick_cases(1)
def test_results_are_the_same_alone_and_in_a_batch_of_32(
    family: str, model: dict[str, Any], saved: Callable[[str], Saved], tmp_path: Path
):
    """In the batch, prompts are chunked, prefixes are found in the cache, and requests are preempted."""
    folder = saved(family)[1]
    model = {**model, "batch_invariant": True}
    alone = run_alone(resolved(folder, tmp_path, model=model, **ROOMY))
    crowd = {"max_num_seqs": 32, "max_num_batched_tokens": 41, **ONE_GROUP}
    engine = Engine(resolved(folder, tmp_path, model=model, cache=FEW_BLOCKS, scheduler=crowd))
    together = results_of(engine.run(requests()))
    assert together == alone
    again = results_of(engine.run(requests()[::-1]))  # with whole prompts in the prefix cache
    assert again == alone
    stats = engine.scheduler.stats()
    assert stats.num_preemptions >= 1
    assert stats.prefix_hits > 0
    assert engine.num_mixed_steps > 0


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [None, "int8"])
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    budget=st.integers(20, 70),
    share=st.sampled_from([0.3, 0.75, 1.0]),
    num_seqs=st.integers(4, 20),
    num_blocks=st.integers(9, 30),
    is_ahead=st.booleans(),
    threads=st.integers(1, 2),
    order=st.permutations(range(32)),
    late=st.integers(0, 24),
)
def test_results_do_not_depend_on_scheduling(
    saved: Callable[[str], Saved], tmp_path: Path, budget: int, share: float, num_seqs: int, num_blocks: int,
    is_ahead: bool, threads: int, order: list[int], late: int, scheme: str | None,
):  # fmt: skip
    """late: number of requests that arrive one by one, after steps of the earlier ones."""
    folder = saved("qwen3")[1]
    model = {"dtype": "bfloat16", "quantization": scheme, "batch_invariant": True}
    core = build_core(
        resolved(
            folder,
            tmp_path,
            model=model,
            cache={"num_gpu_blocks_override": num_blocks},
            scheduler={
                "max_num_seqs": num_seqs,
                "max_num_batched_tokens": budget,
                "max_prefill_share": share,
                "async_scheduling": is_ahead,
            },
            device={"num_threads": threads},
        )
    )
    every = requests()
    waiting = [every[index] for index in order]
    for request in waiting[late:]:
        core.add(request)
    del waiting[late:]
    found: dict[str, list[EngineOutput]] = {}
    while core.has_work or waiting:
        if waiting:
            core.add(waiting.pop())
        for output in core.step():
            found.setdefault(output.request_id, []).append(output)
    together = {
        name: (
            [token for output in outputs for token in output.token_ids],
            [entry for output in outputs for entry in output.logprobs or ()],
            next((output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None), None),
        )
        for name, outputs in found.items()
    }
    if scheme not in _CACHED:
        _CACHED[scheme] = run_alone(resolved(folder, tmp_path, model=model, **ROOMY))
    assert together == _CACHED[scheme]


_CACHED: dict[str | None, Results] = {}  # alone, by quantisation


def test_the_start_up_table_shows_the_option(saved: Callable[[str], Saved], tmp_path: Path):
    def table(**model: Any) -> dict[str, str]:
        return Engine(resolved(saved("llama")[1], tmp_path, model=model)).runner.info().kernels

    for model in ({"dtype": "bfloat16"}, {"enforce_eager": True}):
        off, on = table(**model), table(**model, batch_invariant=True)
        assert not any("in any batch" in kernel for kernel in off.values())
        assert all(
            ("one row at a time" if kernel.startswith("torch") else "the same sums in any batch") in kernel
            for stage, kernel in on.items()
            if stage != "decode_step"
        )


def test_the_option_changes_only_the_order_of_sums(saved: Callable[[str], Saved], tmp_path: Path):
    folder = saved("qwen3")[1]
    answers = [
        Engine(resolved(folder, tmp_path, model={"batch_invariant": is_on})).generate(make_prompts(12))
        for is_on in (False, True)
    ]
    assert answers[0] == answers[1]
    assert max(token for answer in answers[0] for token in answer) < VOCAB
