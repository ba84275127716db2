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
from transformers import Qwen3Config, Qwen3ForCausalLM

from stoker.engine.api import SamplingParams
from stoker.engine.kernels.quantised import rounded_rows_reference
from stoker.engine.runner import loaded_model

from .engine import Engine, resolved
from .test_logits import our_logits
from .test_quantised_checkpoints import opened

NAMES = sorted(folder.name for folder in WRITTEN.iterdir())
# Kinds of codes that test_device_runner.py has not; kernels do not see who wrote them.
OF_KERNELS = ("compressed-tensors-w8a8", "gptqmodel-gptq-4-act-order", "modelopt-mxfp8", "torchao-int6-rows")


@lru_cache
def expected(name: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    folder = WRITTEN / name
    return json.loads((folder / "expected.json").read_text()), load_file(folder / "expected.safetensors")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_KERNELS)
@pytest.mark.skipif(torch.cuda.is_available(), reason="compiled kernels take no tensors of the CPU")
def test_tokens_of_cuda_kernels_in_the_interpreter(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = pytest.importorskip("stoker.engine.kernels.gpu.kernels")
    few = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    expected = Engine(resolved(WRITTEN / name, tmp_path)).generate([PROMPT[:3]], few)
    kernels = gpu.gpu_kernels(torch.device("cpu"), max_rows=16)
    monkeypatch.setattr(loaded_model, "select_kernels", lambda *_, **__: kernels)
    engine = Engine(resolved(WRITTEN / name, tmp_path))
    assert engine.generate([PROMPT[:3]], few) == expected
    assert engine.runner.info().kernels["linear"].startswith("triton ")


def test_older_exports_of_modelopt_have_a_file_of_their_own(tmp_path: Path) -> None:
    shutil.copytree(WRITTEN / "modelopt-fp8", tmp_path / "older")
    file = tmp_path / "older" / "config.json"
    config = json.loads(file.read_text())
    del config["quantization_config"]
    file.write_text(json.dumps(config))
    found = resolved(tmp_path / "older", tmp_path).model_files.stored_as
    assert [(each.method, each.num_matrices) for each in found] == [("fp8, a scale per matrix", 14)]


@pytest.mark.quick_cases(4)
def test_matrices_are_those_of_the_library(name: str) -> None:
    checkpoint, (_, tensors) = opened(WRITTEN / name), expected(name)
    quantised = {tensor for tensor, stored in checkpoint.tensors.items() if stored.packed is not None}
    assert quantised == {f"{layer}.weight" for layer in tensors if layer != "logits"}
    for tensor in quantised:
        into = torch.empty(checkpoint.tensors[tensor].shape)
        checkpoint.read(tensor, into)
        ours = into.double().numpy() @ probe(into.shape[1])
        np.testing.assert_allclose(ours, tensors[tensor.removesuffix(".weight")].numpy(), rtol=0, atol=1e-5)


def rounded(name: str) -> torch.Tensor:
    """[37, vocabulary] of the dequantised matrices in float32, with the inputs of each in int8, a scale per token."""
    config = json.loads((WRITTEN / name / "config.json").read_text())
    del config["quantization_config"]
    model, checkpoint = Qwen3ForCausalLM(Qwen3Config(**config)), opened(WRITTEN / name)
    for own, weight in model.named_parameters():
        checkpoint.read(own, weight.data)
        stored = checkpoint.tensors[own].packed
        if stored is not None:
            layer = model.get_submodule(own.removesuffix(".weight"))
            layer.register_forward_pre_hook(lambda _, inputs: (rounded_rows_reference(inputs[0]),))
    with torch.no_grad():
        return model(torch.tensor([PROMPT])).logits[0]


@pytest.mark.effect("model.activation_quantization")
@pytest.mark.slow
def test_inputs_are_rounded_where_the_checkpoint_says_so(tmp_path: Path) -> None:
    """A sum in another order can be rounded to another code, which later tokens see too."""
    name = "compressed-tensors-w8a8"
    ours, reference = our_logits(WRITTEN / name, tmp_path, tokens=PROMPT), rounded(name)
    torch.testing.assert_close(ours[:4], reference[:4], rtol=0, atol=1e-5)
    assert (ours - reference).abs().max() < 0.15 * reference.std()
    assert (ours - expected(name)[1]["logits"])[:4].abs().max() > 0.01 * reference.std()
    engine = Engine(resolved(WRITTEN / name, tmp_path))
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    assert engine.generate([PROMPT], greedy) == [expected(name)[0]["own tokens"]]
    exact = Engine(resolved(WRITTEN / name, tmp_path, model={"activation_quantization": "none"}))
    assert exact.generate([PROMPT], greedy) == [expected(name)[0]["tokens"]]
    prompts = [[(19 * index + 7 * other) % 256 for index in range(8)] for other in range(8)]
    assert engine.generate(prompts) != exact.generate(prompts)


@pytest.mark.quick_cases(3)
def test_logits_and_greedy_tokens_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    wanted, tensors = expected(name)
    limit = 0.3 if name == "compressed-tensors-w8a8" else 1e-4
    error = (our_logits(WRITTEN / name, tmp_path, tokens=PROMPT) - tensors["logits"]).abs().max()
    assert error < limit * tensors["logits"].std()
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    settings = resolved(WRITTEN / name, tmp_path)
    engine = Engine(settings)
    assert engine.generate([PROMPT], greedy) == [wanted["tokens"]]
    assert engine.runner.info().weights_bytes == settings.memory.weights_bytes
    nearly = our_logits(WRITTEN / name, tmp_path, tokens=PROMPT, dtype=torch.bfloat16)
    assert (nearly - tensors["logits"]).abs().max() < max(0.2, limit) * tensors["logits"].std()
