"""`model.batch_invariant` with every kernel set that this machine can run, in matrices wide enough to show the order.

At the sizes of the other tests a sum has few terms, and rounding to bfloat16 hides most changes of their order. Here
sums have 2,048 terms and more, so that kernels which add in different orders for different numbers of rows give other
log-probabilities in nearly every request.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.unit.engine.kernels.levels import EMULATED_AMX, library_of, runnable_levels

from stoker.config import cpu_features
from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams

from .checkpoints import VOCAB, build, save
from .engine import Engine, resolved
from .test_batch_invariant import Results, results_of

pytestmark = pytest.mark.slow

SAMPLING = SamplingParams(temperature=0, max_tokens=6, logprobs=3, ignore_eos=True)
LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 33, 40, 47, 48, 49, 64, 65, 80, 100, 127, 180]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = build(
        "qwen3", hidden_size=2048, intermediate_size=2560, num_attention_heads=16, num_key_value_heads=4, head_dim=64,
        max_position_embeddings=256, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(0.1)
    return save(model, tmp_path_factory.mktemp("wide"))


def requests() -> list[EngineRequest]:
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(3, VOCAB, (length,), generator=generator).tolist() for length in LENGTHS]
    return [
        EngineRequest(request_id=str(index), inputs=RequestInputs(prompt, SAMPLING))
        for index, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("level", [level.name for level in runnable_levels()])
def test_results_are_the_same_alone_again_and_together(
    level: str, dtype: str, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Alone; alone again with the prompt in the prefix cache; all 24 together in steps of 60 tokens, twice."""
    monkeypatch.setitem(cpu_features.LEVELS, EMULATED_AMX.name, EMULATED_AMX)
    monkeypatch.setenv(cpu_features.VARIABLE, level)
    library_of(level, is_batch_invariant=True)
    model = {"dtype": dtype, "batch_invariant": True, "max_model_len": 256}
    cache = {"num_gpu_blocks_override": 512}
    one = Engine(resolved(wide, tmp_path, model=model, cache=cache, scheduler={"max_num_batched_tokens": 256}))
    assert any(level in kernel for kernel in one.runner.info().kernels.values())
    alone: Results = {}
    again: Results = {}
    for request in requests():
        alone |= results_of(one.run([request]))
    for request in requests():
        again |= results_of(one.run([request]))
    crowd = {"max_num_seqs": 24, "max_num_batched_tokens": 60}
    many = Engine(resolved(wide, tmp_path, model=model, cache=cache, scheduler=crowd))
    together = results_of(many.run(requests()))
    cached = results_of(many.run(requests()[::-1]))
    assert one.scheduler.stats().prefix_hits > 0
    assert many.num_mixed_steps > 0
    assert again == alone
    assert together == alone
    assert cached == alone
