"""Adapters written by PEFT, read as deltas of the weights: what they add is what PEFT merges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.checkpoints import build
from tests.peft_adapters import write_adapter

from stoker.config.checkpoint.adapter_files import read_adapter
from stoker.config.checkpoint.layout import read_weight_files
from stoker.config.checkpoint.match import tensors_of
from stoker.config.checkpoint.model_files import read_json
from stoker.config.checkpoint.safetensors import read_header
from stoker.config.checkpoint.stored import StoredTensor
from stoker.model.adapter import AdapterSpec, StoredMatrix
from stoker.model.read import read_config
from stoker.model.spec import ModelSpec

EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]


def values_of(stored: StoredTensor) -> np.ndarray:
    """Elements of a float32 tensor in a file."""
    if stored.pieces:
        return np.concatenate([values_of(piece) for piece in stored.pieces])
    flat = np.fromfile(stored.file, np.float32, stored.span, offset=stored.offset)
    if stored.strides is None:
        return flat.reshape(stored.shape)
    return np.lib.stride_tricks.as_strided(flat, stored.shape, [4 * stride for stride in stored.strides])


def matrix_of(spec: AdapterSpec, part: StoredMatrix) -> np.ndarray:
    """The matrix that a description of it means."""
    whole = values_of(read_header(spec.weights)[part.name]).reshape(part.view)
    for dim, index in sorted(part.chosen, reverse=True):
        whole = np.take(whole, index, axis=dim)
    if part.rows is not None:
        whole = whole[slice(*part.rows)]
    if part.head_dim is not None:
        heads = whole.reshape(-1, 2, part.head_dim // 2, whole.shape[-1])
        whole = heads.swapaxes(1, 2).reshape(whole.shape)
    return whole.T if part.is_transposed else whole


def weights_in(folder: Path) -> tuple[ModelSpec, dict[str, np.ndarray]]:
    spec, _ = read_config(read_json(folder / "config.json"))
    stored = read_weight_files(folder, "auto", (), {}, "cpu").tensors
    return spec, {name: values_of(tensor) for name, tensor in tensors_of(folder, stored, spec).items()}


def read_and_merged(tmp_path: Path, family: str, **settings: Any) -> tuple[AdapterSpec, dict[str, float]]:
    """An adapter of a family, and by matrices of the model the largest difference from what PEFT has merged."""
    model = build(family)
    model.save_pretrained(tmp_path / "base")
    merged = write_adapter(tmp_path / "adapter", model, is_merged=True, **settings)
    assert merged is not None
    merged.save_pretrained(tmp_path / "merged")
    (spec, before), (_, after) = weights_in(tmp_path / "base"), weights_in(tmp_path / "merged")
    read = read_adapter(tmp_path / "adapter", spec)
    added = {
        f"{delta.target}.weight": delta.scale * matrix_of(read, delta.b) @ matrix_of(read, delta.a)
        for delta in read.deltas
    }
    names = [name for name in before if name in added or not np.array_equal(before[name], after[name])]
    return read, {name: np.abs(after[name] - before[name] - added.get(name, 0)).max() for name in names}


def check(tmp_path: Path, family: str, **settings: Any) -> AdapterSpec:
    read, differences = read_and_merged(tmp_path, family, **settings)
    assert len(differences) == len(read.deltas)
    assert {name: each for name, each in differences.items() if not each < 1e-5} == {}
    return read


@pytest.mark.parametrize(
    "family",
    [
        "llama",
        "qwen3",
        "phi3",  # its class has fused layers
        "gpt2",  # stores inputs before outputs, and one layer for queries, keys and values
        "bloom",  # stores queries, keys and values by head
        "glm4",
        "gemma3",
        "gemma4 shared",  # layers without keys and values of their own
        "lfm2",
        "granitemoeshared",
    ],
)
def test_all_linear_layers_get_what_peft_merges(tmp_path: Path, family: str) -> None:
    read = check(tmp_path, family, target_modules="all-linear")
    assert read.max_rank == 4


@pytest.mark.parametrize(
    ("family", "parameters"),
    [
        ("mixtral", EXPERTS),
        ("mixtral", EXPERTS[1:]),
        ("qwen3_moe", EXPERTS),
        ("gpt_oss", EXPERTS),  # gates and ups alternate, and inputs are stored before outputs
        ("llama4", EXPERTS),  # PEFT takes inputs for outputs
        ("granitemoe", EXPERTS),
    ],
)
def test_each_expert_gets_what_peft_merges(tmp_path: Path, family: str, parameters: list[str]) -> None:
    read = check(tmp_path, family, target_modules=["q_proj"], target_parameters=parameters)
    assert {delta.rank for delta in read.deltas} == {4}


def test_patterns_and_the_stable_scale_are_each_module_s_own(tmp_path: Path) -> None:
    read = check(
        tmp_path,
        "mixtral",
        target_modules=["q_proj", "v_proj"],
        target_parameters=EXPERTS,
        rank_pattern={"experts.down_proj": 2, r"layers\.1\..*v_proj": 9},
        alpha_pattern={"q_proj": 3},
        use_rslora=True,
    )
    found = {delta.target: (delta.rank, round(delta.scale, 4)) for delta in read.deltas}
    assert found["model.layers.0.self_attn.q_proj"] == (4, 1.5)
    assert found["model.layers.0.self_attn.v_proj"] == (4, 4.0)
    assert found["model.layers.1.self_attn.v_proj"] == (9, round(8 / 3, 4))
    assert found["model.layers.1.mlp.experts.3.down_proj"] == (2, round(8 / 2**0.5, 4))


def test_the_output_layer_is_one_of_the_layers_tied_or_not(tmp_path: Path) -> None:
    untied = check(tmp_path / "untied", "qwen3 untied", target_modules=["lm_head"])
    assert [delta.target for delta in untied.deltas] == ["lm_head"]
    model = build("qwen3")
    write_adapter(tmp_path / "tied", model, target_modules=["lm_head"])
    model.save_pretrained(tmp_path / "base")
    spec, _ = weights_in(tmp_path / "base")
    tied = read_adapter(tmp_path / "tied", spec)
    assert [(delta.target, delta.out_features) for delta in tied.deltas] == [("lm_head", spec.vocab_size)]


def test_a_bias_of_b_is_divided_as_its_rows_are(tmp_path: Path) -> None:
    model = build("phi3")
    model.save_pretrained(tmp_path / "base")
    write_adapter(tmp_path / "adapter", model, target_modules=["qkv_proj"], lora_bias=True)
    read = read_adapter(tmp_path / "adapter", weights_in(tmp_path / "base")[0])
    biases = [matrix_of(read, delta.bias) for delta in read.deltas[:3] if delta.bias is not None]
    name = "base_model.model.model.layers.0.self_attn.qkv_proj.lora_B.bias"
    whole = values_of(read_header(read.weights)[name])
    assert np.array_equal(np.concatenate(biases)[:, 0], whole)
    assert [len(bias) for bias in biases] == [64, 32, 32]


def test_rows_follow_the_order_of_formats_with_neighbouring_pairs(tmp_path: Path) -> None:
    """GGUF files of Llama have queries and keys in another order; the same adapter must fit both."""
    model = build("llama")
    model.save_pretrained(tmp_path / "base")
    write_adapter(tmp_path / "adapter", model, target_modules=["q_proj", "v_proj"])
    spec, _ = weights_in(tmp_path / "base")
    plain = read_adapter(tmp_path / "adapter", spec)
    paired = read_adapter(tmp_path / "adapter", spec.with_weights_of("gguf", has_pairs=True))
    queries, ordered = (matrix_of(read, read.deltas[0].b) for read in (plain, paired))
    assert [plain.deltas[1].b, plain.deltas[0].a] == [paired.deltas[1].b, paired.deltas[0].a]
    # llama.cpp: of each head of 16 rows, row i of the first half is followed by row i of the second
    order = [head * 16 + half * 8 + i for head in range(4) for i in range(8) for half in range(2)]
    assert np.array_equal(ordered, queries[order])


def test_a_digest_changes_with_any_byte(tmp_path: Path) -> None:
    model = build("llama")
    model.save_pretrained(tmp_path / "base")
    write_adapter(tmp_path / "adapter", model, target_modules="all-linear")
    spec, _ = weights_in(tmp_path / "base")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    digests = {read_adapter(file.parent, spec).digest for _ in range(2)}
    content = bytearray(file.read_bytes())
    for place in len(content) // 2, len(content) - 1:
        content[place] ^= 1
        file.write_bytes(content)
        digests.add(read_adapter(file.parent, spec).digest)
    config = file.parent / "adapter_config.json"
    config.write_text(config.read_text().replace('"lora_alpha": 8', '"lora_alpha": 9'))
    digests.add(read_adapter(file.parent, spec).digest)
    assert len(digests) == 4
