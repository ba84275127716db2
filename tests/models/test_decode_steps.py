"""Replayed decode steps give bit for bit the same results as the ops one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.engine.api import EngineOutput, EngineRequest, RequestInputs, SamplingParams
from stoker.engine.kernels import select_kernels
from stoker.engine.runner import loaded_model

from .checkpoints import KINDS, QUICK
from .conftest import Saved
from .engine import Engine, resolved
from .test_generation import make_prompts


def answers(engine: Engine) -> dict[str, EngineOutput]:
    """Twenty requests of 1 to 33 tokens in eight slots, so that the batch changes; scores show a change of one bit."""
    return engine.run(
        [
            EngineRequest(
                request_id=str(index),
                inputs=RequestInputs(
                    prompt,
                    SamplingParams(
                        temperature=index % 2, seed=index, max_tokens=1 + index * 5 % 33, ignore_eos=True, logprobs=3
                    ),
                ),
            )
            for index, prompt in enumerate(make_prompts(20))
        ]
    )


@pytest.fixture
def both(
    saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Engine, Engine]]:
    """An engine that replays decode steps, and one that cannot capture them."""

    def make(family: str, **sections: dict[str, Any]) -> tuple[Engine, Engine]:
        settings = resolved(saved(family)[1], tmp_path, **sections)
        replaying = Engine(settings)
        with monkeypatch.context() as patch:
            patch.setattr(
                loaded_model, "select_kernels", lambda *a, **k: replace(select_kernels(*a, **k), capture=None)
            )
            return replaying, Engine(settings)

    return make


FORMATS = [("float32", None), ("bfloat16", None), ("bfloat16", "int8"), ("bfloat16", "int4")]
RUNS = [*((family, 1) for family in KINDS), ("mistral", 2), ("qwen3", 2)]


def cases() -> Iterator[object]:
    """A family of each kind in bfloat16; few in all formats, whose matrices are replayed alike."""
    for family, num_threads in RUNS:
        for dtype, scheme in FORMATS:
            is_plain = (dtype, scheme) == ("bfloat16", None)
            if not is_plain and family not in ("qwen3", "gpt_oss", "qwen3_next", "deepseek_v3"):
                continue
            is_quick = is_plain and (family in QUICK if num_threads == 1 else family == "qwen3")
            yield pytest.param(family, num_threads, dtype, scheme, marks=() if is_quick else pytest.mark.slow)


@pytest.mark.parametrize(("family", "num_threads", "dtype", "scheme"), list(cases()))
@pytest.mark.quick_cases(3)
def test_replayed_steps_give_the_same_bits(
    family: str, num_threads: int, dtype: str, scheme: str | None, both: Callable[..., tuple[Engine, Engine]]
):
    model = {"dtype": dtype} if scheme is None else {"dtype": dtype, "quantization": scheme}
    replaying, op_by_op = both(family, model=model, device={"num_threads": num_threads})
    assert answers(replaying) == answers(op_by_op)


def test_start_up_says_whether_steps_are_replayed(both: Callable[..., tuple[Engine, Engine]]):
    replaying, _ = both("qwen3")
    stages = replaying.runner.info().kernels
    if stages["linear"].startswith("torch"):
        pytest.skip("no compiler")
    assert stages["decode_step"] == "replayed: captured at the first step of each batch size"
    narrow, _ = both("qwen3 untied")  # heads of 8 elements
    assert narrow.runner.info().kernels["decode_step"] == "op by op: rope_and_store, paged_attention in torch"


def test_steps_with_compressed_vectors_are_replayed(both: Callable[..., tuple[Engine, Engine]]):
    """Also with experts that a table lists, and limited gates: nothing of such a step is computed by torch."""
    replaying, _ = both("deepseek_v4", model={"dtype": "bfloat16"})
    if replaying.runner.info().kernels["linear"].startswith("torch"):
        pytest.skip("no compiler")
    answers(replaying)
    assert replaying.runner.info().kernels["decode_step"] == "replayed: captured at the first step of each batch size"
    assert replaying.runner.parts.body.launches().captured > 0
