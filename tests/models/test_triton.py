"""The whole engine over Triton's kernels, in the interpreter: the tokens of the reference, with prompts cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from stoker.engine.api import SamplingParams
from stoker.engine.kernels.gpu.kernels import gpu_kernels
from stoker.engine.kernels.gpu.launch import is_interpreted
from stoker.engine.runner import model_runner

from .conftest import Saved
from .engine import Engine, resolved

SAMPLING = SamplingParams(temperature=0, max_tokens=6)
PROMPTS = [[5, 6, 7], list(range(20, 43)), [9], list(range(20, 38))]


@pytest.mark.skipif(torch.cuda.is_available(), reason="compiled kernels take no tensors of the CPU")
@pytest.mark.parametrize("family", ["qwen3", "llama with biases"])
def test_tokens_are_those_of_the_reference(
    family: str, saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = saved(family)[1]
    expected = Engine(resolved(folder, tmp_path, model={"enforce_eager": True})).generate(PROMPTS, SAMPLING)
    assert is_interpreted()
    kernels = gpu_kernels(torch.device("cpu"), "a test")
    monkeypatch.setattr(model_runner, "select_kernels", lambda *_, **__: kernels)
    engine = Engine(resolved(folder, tmp_path))
    assert engine.generate(PROMPTS, SAMPLING) == expected
    assert engine.num_mixed_steps > 0
    assert engine.runner.info().kernels["paged_attention"].startswith("triton ")
