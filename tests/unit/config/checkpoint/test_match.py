"""Tensors in the files against those that the model needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stoker.config import ModelFilesError
from stoker.config.checkpoint.match import divided_anew, matched, split_experts, split_fused, tensors_of
from stoker.config.checkpoint.stored import StoredTensor
from stoker.model.read import read_config
from stoker.model.tensors import model_shapes

WANTED = {"a": (3, 4), "b": (2,)}
FOLDER, FILE = Path("m"), Path("m/one.safetensors")


def stored(*shape: int, dtype: str = "F32", offset: int = 0) -> StoredTensor:
    return StoredTensor(FILE, dtype, shape, offset)


def fault(is_tied: bool = False, **tensors: StoredTensor) -> ModelFilesError:
    with pytest.raises(ModelFilesError) as caught:
        matched(FOLDER, tensors, WANTED, is_tied=is_tied)
    return caught.value


def test_a_missing_tensor_is_named() -> None:
    error = fault(a=stored(3, 4))
    assert (str(error), error.code) == ("m: tensor `b` is not in any of its weight files", "M302")


def test_a_wrong_shape_names_tensor_file_and_both_shapes() -> None:
    error = fault(a=stored(4, 3), b=stored(2))
    assert str(error) == "m/one.safetensors: tensor `a` has shape [4, 3], config.json says [3, 4]"
    assert error.code == "M306"


def test_a_dtype_nobody_can_convert_is_named() -> None:
    error = fault(a=stored(3, 4), b=stored(2, dtype="I8"))
    assert "tensor `b` has dtype I8; supported: F32, BF16, F16" in str(error)


def test_tensors_the_model_does_not_use_are_refused_except_known_leftovers() -> None:
    tensors = {"a": stored(3, 4), "b": stored(2)}
    extra = {"x.rotary_emb.inv_freq": stored(2), "lm_head.weight": stored(3, 4)}
    assert matched(FOLDER, {**extra, **tensors}, WANTED, is_tied=True) == tensors
    assert "tensor `lm_head.weight` is in its weight files, but the model does not" in str(fault(**tensors, **extra))


def test_the_rows_of_a_fused_tensor_are_its_parts() -> None:
    shapes = {"l.q_proj.w": (4, 2), "l.k_proj.w": (1, 2), "l.v_proj.w": (1, 2)}
    parts = split_fused({"l.qkv_proj.w": stored(6, 2, offset=100)}, shapes)
    assert {name: (part.shape, part.offset) for name, part in parts.items()} == {
        "l.q_proj.w": ((4, 2), 100),
        "l.k_proj.w": ((1, 2), 132),
        "l.v_proj.w": ((1, 2), 140),
    }


def test_the_columns_of_a_transposed_fused_tensor_are_its_parts() -> None:
    """GPT-2: [inputs, queries and keys and values]."""
    shapes = {"l.q_proj.w": (2, 3), "l.k_proj.w": (2, 3), "l.v_proj.w": (2, 3)}
    whole = StoredTensor(FILE, "F32", (6, 3), 100, strides=(1, 6))
    parts = split_fused({"l.qkv_proj.w": whole}, shapes)
    assert [(part.offset, part.strides) for part in parts.values()] == [(100, (1, 6)), (108, (1, 6)), (116, (1, 6))]


def test_tensors_of_all_experts_become_those_of_each(tmp_path: Path) -> None:
    """gpt-oss: [experts, inputs, gates and ups in turn]. The elements are found where strides say."""
    experts, inputs, inner = 3, 4, 2
    whole = np.arange(experts * inputs * 2 * inner, dtype=np.float32)
    (tmp_path / "w").write_bytes(bytes(8) + whole.tobytes())
    name = "model.layers.0.mlp.experts.gate_up_proj"
    tensor = StoredTensor(tmp_path / "w", "F32", (experts, inputs, 2 * inner), 8)
    split = split_experts({name: tensor, "model.norm.weight": stored(4)}, "interleaved")
    assert split.pop("model.norm.weight") == stored(4)
    assert len(split) == 2 * experts
    for expert, values in enumerate(whole.reshape(tensor.shape)):
        for first, part in enumerate(("gate_proj", "up_proj")):
            own = split[f"model.layers.0.mlp.experts.{expert}.{part}.weight"]
            assert own.shape == (inner, inputs)
            assert own.strides is not None
            found = np.lib.stride_tricks.as_strided(
                whole[(own.offset - 8) // 4 :], own.shape, [4 * stride for stride in own.strides]
            )
            assert (found == values.T[first::2]).all()


def test_columns_of_experts_are_gates_and_then_ups() -> None:
    """Llama 4: [experts, inputs, gates and then ups]."""
    whole = StoredTensor(FILE, "F32", (2, 3, 8), 100)
    split = split_experts({"l.experts.gate_up_proj": whole}, "columns")
    assert {name: (part.shape, part.offset, part.strides) for name, part in split.items()} == {
        "l.experts.0.gate_proj.weight": ((4, 3), 100, (1, 8)),
        "l.experts.0.up_proj.weight": ((4, 3), 116, (1, 8)),
        "l.experts.1.gate_proj.weight": ((4, 3), 196, (1, 8)),
        "l.experts.1.up_proj.weight": ((4, 3), 212, (1, 8)),
    }


def test_biases_of_all_experts_become_those_of_each() -> None:
    split = split_experts({"mlp.experts.gate_up_proj_bias": stored(2, 6, offset=100)}, "interleaved")
    up = split["mlp.experts.1.up_proj.bias"]
    assert (up.shape, up.strides, up.offset) == ((3,), (2,), 100 + 24 + 4)
    assert set(split) == {f"mlp.experts.{expert}.{part}_proj.bias" for expert in (0, 1) for part in ("gate", "up")}


def test_stacked_experts_become_those_of_each() -> None:
    """Qwen3.5: [experts, gates and then ups, inputs], and [experts, outputs, inputs]."""
    split = split_experts({"e.experts.gate_up_proj": stored(2, 6, 5, offset=100)}, "stacked")
    assert {name: (part.shape, part.offset, part.strides) for name, part in split.items()} == {
        "e.experts.0.gate_proj.weight": ((3, 5), 100, None),
        "e.experts.0.up_proj.weight": ((3, 5), 160, None),
        "e.experts.1.gate_proj.weight": ((3, 5), 220, None),
        "e.experts.1.up_proj.weight": ((3, 5), 280, None),
    }
    split = split_experts({"e.experts.down_proj": stored(2, 5, 3, offset=100)}, "stacked")
    assert [(part.shape, part.offset) for part in split.values()] == [((5, 3), 100), ((5, 3), 160)]


def test_thirds_of_convolutions_become_those_of_queries_keys_and_values() -> None:
    """Of 2, 2 and 5 rows; transformers writes three of each, in the order of their names in the file."""
    names = [f"layers.0.linear_attn.{part}_conv1d.weight" for part in "qkv"]
    shapes = {name: (rows, 1, 4) for name, rows in zip(names, (2, 2, 5), strict=True)}
    offsets, row = {"q": 48, "k": 0, "v": 96}, 4 * 4
    thirds = {name: stored(3, 1, 4, offset=at) for name, at in zip(names, offsets.values(), strict=True)}
    found = divided_anew(thirds, shapes)
    assert {name: tensor.shape for name, tensor in found.items()} == shapes
    assert [(piece.offset, piece.shape[0]) for piece in found[names[0]].pieces] == [(48, 2)]
    assert [(piece.offset, piece.shape[0]) for piece in found[names[1]].pieces] == [(48 + 2 * row, 1), (0, 1)]
    assert [(piece.offset, piece.shape[0]) for piece in found[names[2]].pieces] == [(row, 2), (96, 3)]
    whole = {name: stored(*shape) for name, shape in shapes.items()}
    assert divided_anew(whole, shapes) == whole


def test_layers_after_the_last_that_draft_tokens_are_not_used() -> None:
    """One was, in some families; the layers of GLM-4.5, DeepSeek-V3 and HunYuan 3 as published were refused."""
    config = {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 1, "num_attention_heads": 2}
    spec, _ = read_config({**config, "hidden_size": 8, "n_routed_experts": 8, "first_k_dense_replace": 1})
    tensors = {name: stored(*shape) for name, shape in model_shapes(spec).items()}
    draft = {
        f"model.layers.{layer}.{name}.weight": stored(8, 16)
        for layer in (1, 2)
        for name in ("eh_proj", "enorm", "embed_tokens", "shared_head.norm", "self_attn.o_proj")
    }
    assert tensors_of(FOLDER, tensors | draft, spec) == tensors
    with pytest.raises(ModelFilesError, match=r"model\.layers\.3\.self_attn"):  # it has no projection of a draft
        tensors_of(FOLDER, tensors | draft | {"model.layers.3.self_attn.o_proj.weight": stored(8, 16)}, spec)
