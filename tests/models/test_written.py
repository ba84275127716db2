"""Quantised checkpoints that their own libraries wrote (`make writers`): read as these libraries read them."""

from __future__ import annotations

import json
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tools.writers.record import NUM_TOKENS, PROMPT, WRITTEN, probe

from stoker.engine.api import SamplingParams
from stoker.engine.runner import loaded_model

from .engine import Engine, resolved
from .test_logits import our_logits
from .test_quantised_checkpoints import opened

NAMES = sorted(folder.name for folder in WRITTEN.iterdir())


@lru_cache
def expected(name: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    folder = WRITTEN / name
    return json.loads((folder / "expected.json").read_text()), load_file(folder / "expected.safetensors")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="compiled kernels take no tensors of the CPU")
def test_tokens_of_cuda_kernels_in_the_interpreter(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = pytest.importorskip("stoker.engine.kernels.gpu.kernels")
    few = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    expected = Engine(resolved(WRITTEN / name, tmp_path)).generate([PROMPT[:7]], few)
    kernels = gpu.gpu_kernels(torch.device("cpu"), max_rows=16)
    monkeypatch.setattr(loaded_model, "select_kernels", lambda *_, **__: kernels)
    engine = Engine(resolved(WRITTEN / name, tmp_path))
    assert engine.generate([PROMPT[:7]], few) == expected
    assert engine.runner.info().kernels["linear"].startswith("triton ")


def test_older_exports_of_modelopt_have_a_file_of_their_own(tmp_path: Path) -> None:
    shutil.copytree(WRITTEN / "modelopt-fp8", tmp_path / "older")
    file = tmp_path / "older" / "config.json"
    config = json.loads(file.read_text())
    del config["quantization_config"]
    file.write_text(json.dumps(config))
    found = resolved(tmp_path / "older", tmp_path).model_files.stored_as
    assert [(each.method, each.num_matrices) for each in found] == [("fp8, a scale per matrix", 14)]


def test_matrices_are_those_of_the_library(name: str) -> None:
    checkpoint, (_, tensors) = opened(WRITTEN / name), expected(name)
    quantised = {tensor for tensor, stored in checkpoint.tensors.items() if stored.packed is not None}
    assert quantised == {f"{layer}.weight" for layer in tensors if layer != "logits"}
    for tensor in quantised:
        into = torch.empty(checkpoint.tensors[tensor].shape)
        checkpoint.read(tensor, into)
        ours = into.double().numpy() @ probe(into.shape[1])
        np.testing.assert_allclose(ours, tensors[tensor.removesuffix(".weight")].numpy(), rtol=0, atol=1e-5)


def test_logits_and_greedy_tokens_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    wanted, tensors = expected(name)
    error = (our_logits(WRITTEN / name, tmp_path, tokens=PROMPT) - tensors["logits"]).abs().max()
    assert error < 1e-4 * tensors["logits"].std()
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    settings = resolved(WRITTEN / name, tmp_path)
    engine = Engine(settings)
    assert engine.generate([PROMPT], greedy) == [wanted["tokens"]]
    assert engine.runner.info().weights_bytes == settings.memory.weights_bytes
    rounded = our_logits(WRITTEN / name, tmp_path, tokens=PROMPT, dtype=torch.bfloat16)
    assert (rounded - tensors["logits"]).abs().max() < 0.2 * tensors["logits"].std()
