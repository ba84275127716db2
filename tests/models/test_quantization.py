"""`model.quantization`: its effect on memory, on answers and on loading."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.unit.config.plan.shapes import write_config

from stoker import LLM, SamplingParams
from stoker.config import ConfigError, ModelFilesError
from stoker.engine.kernels import select_kernels
from stoker.model.quantised import shown

from .conftest import Saved
from .engine import Engine, resolved

SCHEMES = pytest.mark.parametrize("scheme", ["int8", "int4", "int4_pure"])
PROMPTS = [[5, 6, 7], list(range(20, 40))]
QUESTIONS = (
    "What does --max-num-seqs do?",
    "What does block_size do?",
    "What does --dtype do?",
    "What does --seed do?",
    "What does enable_prefix_caching do?",
    "What does --port set?",
    "What does max_model_len do?",
    "What does --api-key do?",
)


@SCHEMES
@pytest.mark.parametrize("family", ["qwen3", "qwen3 untied", "llama with biases"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.effect("model.quantization")
@pytest.mark.quick_cases(6)
def test_weights_have_the_planned_size(
    scheme: str, family: str, dtype: str, saved: Callable[[str], Saved], tmp_path: Path
):
    folder = saved(family)[1]
    plain = Engine(resolved(folder, tmp_path, model={"dtype": dtype})).runner.info()
    settings = resolved(folder, tmp_path, model={"dtype": dtype, "quantization": scheme})
    info = Engine(settings).runner.info()
    assert info.weights_bytes == pytest.approx(settings.memory.weights_bytes, rel=0.01)
    assert info.weights_bytes < plain.weights_bytes
    assert shown(scheme) in info.kernels["linear"]
    assert shown(scheme) not in plain.kernels["linear"]


@SCHEMES
@pytest.mark.effect("model.quantization", "load.load_format")
@pytest.mark.quick_cases(1)
def test_every_load_format_gives_the_same_quantised_weights(scheme: str, saved: Callable[[str], Saved], tmp_path: Path):
    model, folder = saved("qwen3 untied")
    quantised = {"quantization": scheme}
    expected = Engine(resolved(folder, tmp_path, model=quantised)).generate(PROMPTS)
    torchs, shards = tmp_path / "torch", tmp_path / "shards"
    torchs.mkdir()
    model.config.save_pretrained(torchs)
    torch.save(model.state_dict(), torchs / "pytorch_model.bin")
    assert Engine(resolved(torchs, tmp_path, model=quantised)).generate(PROMPTS) == expected
    cached = {"load_format": "npcache"}
    assert Engine(resolved(torchs, tmp_path, model=quantised, load=cached)).generate(PROMPTS) == expected
    shards.mkdir()
    model.config.save_pretrained(shards)
    save_file(load_file(folder / "model.safetensors"), shards / "model-rank-0-part-0.safetensors")
    sharded = {"load_format": "sharded_state"}
    assert Engine(resolved(shards, tmp_path, model=quantised, load=sharded)).generate(PROMPTS) == expected
    dummy = resolved(folder, tmp_path, model=quantised, load={"load_format": "dummy"})
    assert Engine(dummy).runner.info().weights_bytes == pytest.approx(dummy.memory.weights_bytes, rel=0.01)


@SCHEMES
@pytest.mark.quick_cases(1)
def test_torch_and_the_kernels_give_the_same_tokens(scheme: str, saved: Callable[[str], Saved], tmp_path: Path):
    folder = saved("qwen3")[1]
    ours, eager = (
        Engine(resolved(folder, tmp_path, model={"quantization": scheme, "enforce_eager": is_eager}))
        for is_eager in (False, True)
    )
    assert ours.generate(PROMPTS) == eager.generate(PROMPTS)
    assert eager.runner.info().kernels["linear"].startswith("torch: model.enforce_eager; weights in ")
    assert ours.runner.info().weights_bytes == eager.runner.info().weights_bytes


@pytest.mark.parametrize("scheme", ["aqlm", "hqq"])
def test_other_quantization_schemes_are_refused_by_name(scheme: str, saved: Callable[[str], Saved], tmp_path: Path):
    with pytest.raises(ConfigError, match="int8 or int4"):
        resolved(saved("qwen3")[1], tmp_path, model={"quantization": scheme})


def test_methods_of_quantised_checkpoints_are_for_these(saved: Callable[[str], Saved], tmp_path: Path):
    with pytest.raises(
        ModelFilesError, match=r"no quantised checkpoint, and `model\.quantization` is awq; on a CPU, int8"
    ):
        resolved(saved("qwen3")[1], tmp_path, model={"quantization": "awq"})


@SCHEMES
@pytest.mark.effect("model.activation_quantization")
@pytest.mark.quick_cases(1)
def test_activations_in_int8_change_products_and_no_sizes(scheme: str, saved: Callable[[str], Saved], tmp_path: Path):
    folder = saved("qwen3")[1]
    both = {"quantization": scheme, "activation_quantization": "int8"}
    weights_only, ours, eager = (
        Engine(resolved(folder, tmp_path, model=options))
        for options in ({"quantization": scheme}, both, {**both, "enforce_eager": True})
    )
    assert ours.generate(PROMPTS) == eager.generate(PROMPTS)
    for engine in (ours, eager):
        assert shown(scheme, "int8") in engine.runner.info().kernels["linear"]
    assert shown(scheme, "int8") not in weights_only.runner.info().kernels["linear"]
    assert ours.runner.info().weights_bytes == weights_only.runner.info().weights_bytes


def tiny(scheme: str | None, activations: str | None = None) -> LLM:
    return LLM(
        "builtin:tiny",
        quantization=scheme,
        activation_quantization=activations,
        max_model_len=512,
        num_gpu_blocks_override=128,
        num_threads=1,
    )


@pytest.fixture(scope="module")
def plain() -> Iterator[LLM]:
    with tiny(None) as llm:
        yield llm


@pytest.mark.parametrize(
    ("scheme", "activations", "min_equal", "max_ratio"),
    [
        ("int8", None, 7, 1.002),
        ("int8", "int8", 6, 1.005),
        ("int4", None, 5, 1.02),
        ("int4", "int8", 5, 1.02),
        ("int4_pure", None, 5, 1.02),
    ],
)
@pytest.mark.effect("model.quantization", "model.activation_quantization")
@pytest.mark.slow
def test_quantised_tiny_gives_nearly_the_same_answers(
    plain: LLM, scheme: str, activations: str | None, min_equal: int, max_ratio: float
):
    """Most greedy answers are those of bfloat16, and the tokens of bfloat16's answers remain likely.

    min_equal: equal answers of eight; max_ratio: perplexity of bfloat16's answers, relative to that of bfloat16 itself.
    """
    greedy = SamplingParams(temperature=0, max_tokens=64)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    answers = plain.chat(chats, greedy)
    with tiny(scheme, activations) as llm:
        again = llm.chat(chats, greedy)
        equal = sum(a.outputs[0].token_ids == b.outputs[0].token_ids for a, b in zip(answers, again, strict=True))
        assert equal >= min_equal
        assert perplexity(llm, answers) < max_ratio * perplexity(plain, answers)


def perplexity(llm: LLM, answers: list) -> float:
    """Perplexity of the answers' tokens after their prompts."""
    whole = [[*answer.prompt_token_ids, *answer.outputs[0].token_ids] for answer in answers]
    params = replace(SamplingParams(temperature=0, max_tokens=1), prompt_logprobs=0)
    results = llm.generate([{"prompt_token_ids": ids} for ids in whole], params)
    found = [
        entry.logprob
        for answer, result in zip(answers, results, strict=True)
        for entries in result.prompt_logprobs[len(answer.prompt_token_ids) :]
        for entry in [next(iter(entries.values()))]
    ]
    return math.exp(-sum(found) / len(found))


WIDE = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 2048, "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 2048, "tie_word_embeddings": True, "eos_token_id": 5,
    "dtype": "bfloat16",
}  # fmt: skip
LOAD = """
import json, sys
from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.engine.kernels import select_kernels
from stoker.engine.models.registry import model_class
from stoker.engine.runner.loading import load_weights
import torch

def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

deployment = load_deployment([], sys.argv[1:])
resolved = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())
kernels = select_kernels("cpu", torch.bfloat16, 128, quantization=resolved.model.quantization)
cpu = torch.device("cpu")
spec, quantization = resolved.model_spec, resolved.model.quantization
model = model_class(spec)(spec, kernels, 64, torch.bfloat16, cpu, quantization)
before = peak()
load_weights(model, resolved)
print(json.dumps([peak() - before, model.num_bytes]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the peak memory of a process")
@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_loading_never_holds_a_second_copy_of_the_weights(scheme: str, tmp_path: Path):
    """126M parameters: 252 MB in bfloat16; the largest matrix has 13 MB. torch's temporaries leave gaps in the heap."""
    folder = write_config(tmp_path / "model", WIDE)
    arguments = ["--model", str(folder), "--load-format", "dummy", "--skip-tokenizer-init", "--quantization", scheme]
    done = subprocess.run([sys.executable, "-c", LOAD, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown, weights = json.loads(done.stdout)
    assert grown < 1.1 * weights + 13e6 + (30e6 if is_compiled() else 100e6)


def is_compiled() -> bool:
    table = select_kernels("cpu", torch.bfloat16, 128, quantization="int8").table
    return table["linear"].startswith("c++")
