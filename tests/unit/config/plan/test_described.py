"""A plan from config.json alone and one from the headers of the weight files are the same plan."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.config.plan.devices import find_profile, machine_of
from stoker.config.plan.model import read_model
from stoker.config.plan.plan import Plan, make_plan
from stoker.config.resolve.resolve import examine
from stoker.model.read import read_config
from stoker.model.tensors import model_tensors

from ..deployments import MACHINE, load

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "eos_token_id": 2,
}  # fmt: skip
SPARSE = LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 128, "head_dim": 64, "decoder_sparse_step": 1, "norm_topk_prob": True,
}  # fmt: skip
OSS = LLAMA | {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "head_dim": 64, "num_local_experts": 4,
    "num_experts_per_tok": 2, "sliding_window": 128, "attention_bias": True, "intermediate_size": 128,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    },
}  # fmt: skip
NEXT = LLAMA | {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128, "head_dim": 64, "decoder_sparse_step": 1,
    "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention", "full_attention"], "partial_rotary_factor": 0.25,
}  # fmt: skip
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
CHANNELS = {
    "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
        }
    },
}  # fmt: skip
MODELS = {
    "plain": LLAMA,
    "sparse": SPARSE,
    "recurrent": NEXT,
    "float32": LLAMA | {"torch_dtype": "float32"},
    "tied": LLAMA | {"tie_word_embeddings": True},
    "gptq": LLAMA | {"quantization_config": GPTQ},
    "awq": LLAMA | {"quantization_config": AWQ},
    "fp8": LLAMA | {"quantization_config": FP8},
    "fp8-channels": LLAMA | {"quantization_config": CHANNELS},
    "fp8-sparse": SPARSE | {"quantization_config": FP8},
    "gpt-oss": OSS,
}


def stored_as(name: str, shape: tuple[int, ...], config: dict[str, Any]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """The tensors of a matrix in a checkpoint of this method, as their writers document them."""
    layer, method = name.removesuffix(".weight"), config.get("quantization_config", {}).get("quant_method")
    outputs, inputs = shape
    if method in ("gptq", "awq"):
        groups = inputs // config["quantization_config"]["group_size"]
        codes = (inputs // 8, outputs) if method == "gptq" else (inputs, outputs // 8)
        yield f"{layer}.qweight", "I32", codes
        yield f"{layer}.qzeros", "I32", (groups, outputs // 8)
        yield f"{layer}.scales", "F16", (groups, outputs)
    elif method == "fp8":
        yield name, "F8_E4M3", shape
        yield f"{layer}.weight_scale_inv", "F32", (-(-outputs // 128), -(-inputs // 128))
    elif method == "compressed-tensors":
        yield name, "F8_E4M3", shape
        yield f"{layer}.weight_scale", "BF16", (outputs, 1)
    else:
        yield name, "F32" if config["torch_dtype"] == "float32" else "BF16", shape


def write_headers(folder: Path, config: dict[str, Any]) -> None:
    """A file of the right size without data, which the file system stores in a few bytes."""
    spec = read_config(config)[0]
    dtype = "F32" if config["torch_dtype"] == "float32" else "BF16"
    found: list[tuple[str, str, tuple[int, ...]]] = []
    is_oss = config["model_type"] == "gpt_oss"
    for tensor in model_tensors(spec):
        if is_oss and ".experts." in tensor.name:
            continue
        is_quantised = tensor.is_matrix and not is_oss
        for index in range(tensor.copies):
            name = tensor.name.format(index)
            found += stored_as(name, tensor.shape, config) if is_quantised else [(name, dtype, tensor.shape)]
    if is_oss:
        found = [(name.replace(".mlp.gate.", ".mlp.router."), *rest) for name, *rest in found]
        for layer in range(config["num_hidden_layers"]):
            place, count, width, inner = f"model.layers.{layer}.mlp.experts.", 4, 256, 128
            for part, outputs, inputs in (("gate_up_proj", 2 * inner, width), ("down_proj", width, inner)):
                found += [
                    (f"{place}{part}_blocks", "U8", (count, outputs, inputs // 32, 16)),
                    (f"{place}{part}_scales", "U8", (count, outputs, inputs // 32)),
                    (f"{place}{part}_bias", "BF16", (count, outputs)),
                ]
    sizes = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "U8": 1, "F8_E4M3": 1}
    header: dict[str, Any] = {}
    at = 0
    for name, kind, shape in found:
        end = at + math.prod(shape) * sizes[kind]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)


def plan_of(folder: Path, device: str, *words: str) -> Plan:
    deployment = load(folder.parent, "{}", "--model", str(folder), "--skip-tokenizer-init", *words)
    model = read_model(deployment)
    profile = find_profile(device, MACHINE)
    return make_plan(model, profile, examine(deployment, model.files, machine_of(profile, MACHINE)).decisions)


@pytest.mark.parametrize("device", ["this-machine", "h100-80gb", "a100-40gb"])
@pytest.mark.parametrize("name", MODELS)
def test_weight_files_that_are_not_here_are_planned_as_if_they_were(name: str, device: str, tmp_path: Path) -> None:
    """The bytes that a checkpoint stores were counted, not those that are held: experts are dequantised on GPUs, so a
    model that needs 217 GiB was said to fit into 79."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODELS[name]))
    before = plan_of(folder, device)
    write_headers(folder, MODELS[name])
    after = plan_of(folder, device)
    assert after.model.files is not None, after.model.why_not
    assert before.estimate == after.estimate
    assert before.ask == after.ask
    assert before.model.num_parameters == after.model.num_parameters
    assert (before.verdict, after.verdict) == (
        f"{after.verdict}; not checked: weight files are not on this machine",
        after.estimate.status,
    )


def test_an_option_of_the_model_counts_before_its_weights_are_here(tmp_path: Path) -> None:
    """`model.rope_scaling` was ignored, and the model said to support a third of the context that was planned."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    scaling = json.dumps({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096})
    plan = plan_of(folder, "h200", "--rope-scaling", scaling, "--max-model-len", "16k")
    assert plan.model.limit == 16384


@pytest.mark.parametrize("size", [1, 2, 4])
def test_recurrent_sequences_follow_from_the_devices_own_part(size: int, tmp_path: Path) -> None:
    """max_num_seqs was that of undivided weights and states, whatever the number of devices."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(NEXT | {"vocab_size": 200_000, "hidden_size": 2048}))
    tight = tmp_path / "tight.yaml"
    tight.write_text("{memory: 1.7GiB, bandwidth_gb_per_s: 100, bf16_tflops: 10}")
    plan = plan_of(folder, str(tight), "--tensor-parallel-size", str(size))
    spec = plan.ask
    assert spec.tensor_parallel_size == size
    room = plan.estimate.budget_bytes - plan.estimate.weights_bytes
    one_state = plan.estimate.state_bytes // plan.estimate.num_states
    assert plan.ask.max_num_seqs == max(1, min(256, room // 4 // one_state))


@pytest.mark.parametrize("words", [(), ("--dtype", "half")])
@pytest.mark.parametrize("name", ["dense", "gptq"])
def test_a_plan_for_another_cpu_has_the_dtype_that_is_served(name: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """A quantised checkpoint in float16 was planned in float32, in twice the memory, and served in bfloat16."""
    folder = tmp_path / "model"
    folder.mkdir()
    config = LLAMA if name == "dense" else MODELS[name]
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float16"}))
    profile = tmp_path / "cpu.yaml"
    profile.write_text("{kind: cpu, memory: 64GiB, bandwidth_gb_per_s: 100, bf16_tflops: 2}")
    served = examine(
        load(tmp_path, "{}", "--model", str(folder), "--skip-tokenizer-init", *words),
        read_model(load(tmp_path, "{}", "--model", str(folder), "--skip-tokenizer-init")).files,
        MACHINE,
    ).decisions
    assert plan_of(folder, str(profile), *words).ask.dtype == served.get("model.dtype")
    assert served.get("model.dtype") == ("float32" if name == "dense" else "bfloat16")
