"""Two models in one process, each with an executor and a cache: neither changes what the other computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.slow_cases import slow

from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.executor.build import build_core
from stoker.engine.loop.engine_core import EngineCore

from .conftest import Saved
from .engine import resolved
from .test_generation import make_prompts

SAMPLING = SamplingParams(temperature=0.7, max_tokens=17, ignore_eos=True, logprobs=2, seed=5)
Answer = tuple[tuple[int, ...], tuple[float, ...]]


def run_in_turns(cores: Sequence[EngineCore]) -> list[dict[str, Answer]]:
    """The tokens and log-probabilities that each engine answers; the engines take steps in turns."""
    found: list[dict[str, Answer]] = [{} for _ in cores]
    for core in cores:
        for index, prompt in enumerate(make_prompts(6)):
            core.add(EngineRequest(request_id=str(index), inputs=RequestInputs(prompt, SAMPLING)))
    while any(core.has_work for core in cores):
        for core, answers in zip(cores, found, strict=True):
            for output in core.step() if core.has_work else ():
                tokens, logprobs = answers.get(output.request_id, ((), ()))
                new = tuple(value for entry in output.logprobs or () for value in entry.logprobs)
                answers[output.request_id] = (*tokens, *output.token_ids), (*logprobs, *new)
    return found


@pytest.mark.parametrize("is_async", [True, slow(False)])
@pytest.mark.parametrize(("first", "second"), [("qwen3", "llama"), slow("qwen3_next", "gemma2")])
def test_each_computes_what_it_does_alone(
    first: str, second: str, is_async: bool, saved: Callable[[str], Saved], tmp_path: Path
):
    """Decode steps are captured, and with overlapping steps the models compute at the same time."""

    def core_of(family: str) -> EngineCore:
        how = {"scheduler": {"async_scheduling": is_async}, "observability": {"cudagraph_metrics": True}}
        how["device"] = {"num_threads": 1 + (family == second)}  # the later model's is the process's
        return build_core(resolved(saved(family)[1], tmp_path, **how))

    alone, again = [], []  # again: with prefixes from the cache
    for family in (first, second):
        core = core_of(family)
        alone += run_in_turns([core])
        again += run_in_turns([core])
        core.close()
    assert alone[0] != alone[1]
    cores = [core_of(first), core_of(second)]
    assert run_in_turns(cores) == alone
    launches = [core.stats.launches for core in cores]
    assert all(each is not None and each.captured for each in launches)
    cores[0].close()
    assert run_in_turns(cores[1:]) == again[1:]
    cores[1].close()
