"""Adapters that are damaged, hostile, or of another kind: each is refused with its key or its tensor."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from stoker.config.checkpoint.adapter_files import read_adapter
from stoker.config.errors import ModelFilesError
from stoker.model.adapter import Replaced, StoredMatrix
from stoker.model.read import read_config
from stoker.model.spec import ModelSpec

PREFIX = "base_model.model.model.layers"
Q = f"{PREFIX}.0.self_attn.q_proj"
EMBED = "base_model.model.model.embed_tokens"
Arrays = dict[str, np.ndarray]


def model(**values: Any) -> ModelSpec:
    sizes = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    heads = {"num_key_value_heads": 1, "intermediate_size": 12}
    spec, _ = read_config({"architectures": ["LlamaForCausalLM"], "model_type": "llama", **sizes, **heads, **values})
    return spec


def experts(**values: Any) -> ModelSpec:
    counts = {"num_local_experts": 3, "num_experts_per_tok": 2}
    return model(architectures=["MixtralForCausalLM"], model_type="mixtral", **counts, **values)


def pair(module: str, inputs: int, outputs: int, rank: int = 2) -> Arrays:
    a = np.arange(rank * inputs, dtype=np.float32).reshape(rank, inputs)
    return {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": np.ones((outputs, rank), np.float32)}


def whole() -> Arrays:
    """Queries of both layers."""
    return {**pair(Q, 8, 8), **pair(Q.replace("layers.0", "layers.1"), 8, 8)}


def write(folder: Path, tensors: Mapping[str, np.ndarray] | None = None, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(dict(whole() if tensors is None else tensors), folder / "adapter_model.safetensors")
    known = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "peft_version": "0.21.2"}
    (folder / "adapter_config.json").write_text(json.dumps({**known, **config}))
    return folder


def fault(folder: Path, spec: ModelSpec | None = None, **options: Any) -> tuple[str, str]:
    """The code, and the message without the folder."""
    with pytest.raises(ModelFilesError) as caught:
        read_adapter(folder, spec or model(), **options)
    return caught.value.code, str(caught.value).replace(f"{folder}/", "")


def test_a_plain_adapter_is_read(tmp_path: Path) -> None:
    spec = read_adapter(write(tmp_path), model())
    assert [delta.target for delta in spec.deltas] == [f"model.layers.{layer}.self_attn.q_proj" for layer in (0, 1)]
    first = spec.deltas[0]
    assert (first.rank, first.scale, first.in_features, first.out_features, first.bias) == (2, 2.0, 8, 8, None)
    assert (first.a, first.b) == (
        StoredMatrix(f"{Q}.lora_A.weight", (2, 8)),
        StoredMatrix(f"{Q}.lora_B.weight", (8, 2)),
    )
    assert (spec.max_rank, spec.num_elements) == (2, 64)


@pytest.mark.parametrize(
    ("config", "code", "message"),
    [
        ({"peft_type": "LOHA"}, "M310", "`peft_type` is 'LOHA'; this build reads adapters of the type LORA"),
        ({"peft_type": None}, "M310", "`peft_type` is None"),
        ({"use_dora": "yes"}, "M306", "`use_dora` is 'yes'; it must be true or false"),
        ({"modules_to_save": "lm_head"}, "M306", "`modules_to_save` is 'lm_head'; it must be a list of names"),
        ({"trainable_token_indices": [3, 3]}, "M306", "`trainable_token_indices` is [3, 3]; it must be a list of diff"),
        ({"trainable_token_indices": {"x": [-1]}}, "M306", "`trainable_token_indices` is {'x': [-1]}; it must be a"),
        ({"trainable_token_indices": 7}, "M306", "`trainable_token_indices` is 7"),
        ({"ensure_weight_tying": 1}, "M306", "`ensure_weight_tying` is 1; it must be true or false"),
        ({"alora_invocation_tokens": [5, 6]}, "M310", "`alora_invocation_tokens` is [5, 6]: this build applies"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "M310", "`layer_replication` is [[0, 2], [1, 2]]: the adapter's"),
        ({"use_qalora": True}, "M310", "`use_qalora` is True: inputs of the adapter are averaged"),
        ({"use_bdlora": {"nblocks": 2}}, "M310", "`use_bdlora` is {'nblocks': 2}: matrices of the adapter are block"),
        ({"kasa_config": {"beta": 1}}, "M310", "`kasa_config` is {'beta': 1}: singular values between A and B"),
        ({"monteclora_config": {"x": 1}}, "M310", "`monteclora_config` is {'x': 1}: this build samples no weights"),
        ({"arrow_config": {"top_k": 3}}, "M310", "`arrow_config` is {'top_k': 3}: this build routes no tokens"),
        ({"init_lora_weights": "pissa_niter_16"}, "M310", "`init_lora_weights` is 'pissa_niter_16': it changed the"),
        ({"init_lora_weights": "loftq"}, "M310", "serve the model that was trained with it"),
        ({"use_newlora": True}, "M310", "`use_newlora` is True: this build does not know the key, which may change"),
        ({"r": 0}, "M306", "`r` is 0; it must be a whole number from 1 to 65536"),
        ({"r": True}, "M306", "`r` is True"),
        ({"r": 2.5}, "M306", "`r` is 2.5"),
        ({"lora_alpha": "16"}, "M306", "`lora_alpha` is '16'; it must be a number"),
        ({"use_rslora": "yes"}, "M306", "`use_rslora` is 'yes'; it must be true or false"),
        ({"rank_pattern": [1]}, "M306", "`rank_pattern` is [1]; it must be an object of at most 4096 patterns"),
        ({"rank_pattern": {"q_proj": -1}}, "M306", "`rank_pattern` has -1 for 'q_proj'; its values must be whole"),
        ({"alpha_pattern": {"q_proj": None}}, "M306", "`alpha_pattern` has None for 'q_proj'; its values must be"),
        ({"alpha_pattern": {"(a+)+b": 1}}, "M310", "`alpha_pattern` has the pattern '(a+)+b'; this build reads names"),
        ({"alpha_pattern": {".*.*.*x": 1}}, "M310", "`alpha_pattern` has the pattern '.*.*.*x'"),
        ({"alpha_pattern": {"q(": 1}}, "M310", "`alpha_pattern` has the pattern 'q('"),
        ({"target_parameters": "all"}, "M306", "`target_parameters` is 'all'; it must be a list of names"),
        ({"bias": "some"}, "M306", "`bias` is 'some'; it must be none, all or lora_only"),
    ],
)
def test_a_key_is_refused_by_its_name(tmp_path: Path, config: dict[str, Any], code: str, message: str) -> None:
    found, text = fault(write(tmp_path, **config))
    assert (found, text.startswith("adapter_config.json: ")) == (code, True)
    assert message in text


def test_keys_that_only_describe_the_training_are_harmless(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        lora_dropout=0.1,
        fan_in_fan_out=True,
        init_lora_weights="eva",
        eva_config={"rho": 2.0},
        velora_config={"num_groups": 4},
        layers_pattern=["layers"],
        megatron_core="megatron.core",
        qalora_group_size=16,
        runtime_config={"ephemeral_gpu_offload": False},
        base_model_name_or_path="some/model",
        a_later_key=None,
        another=False,
        modules_to_save=[],
        bias="all",
    )
    assert read_adapter(folder, model()).base_model == "some/model"


def changed(**tensors: np.ndarray | None) -> Callable[[], Arrays]:
    """The plain adapter with other tensors; None: without this one."""

    def make() -> Arrays:
        both: dict[str, np.ndarray | None] = {**whole(), **tensors}
        return {name: tensor for name, tensor in both.items() if tensor is not None}

    return make


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("tensors", "code", "message"),
    [
        (changed(**{f"{Q}.lora_B.weight": None}), "M311", f"tensor `{Q}.lora_A.weight` is there without `{Q}.lora_B.w"),
        (changed(**{f"{Q}.lora_A.weight": None}), "M311", f"tensor `{Q}.lora_B.weight` is there without `{Q}.lora_A.w"),
        (
            changed(**{f"{Q}.lora_A.weight": floats(2, 9)}),
            "M311",
            f"tensor `{Q}.lora_A.weight` has shape [2, 9]; `model",
        ),
        (changed(**{f"{Q}.lora_A.weight": floats(2, 8, 1)}), "M311", "needs [rank, 8]"),
        (changed(**{f"{Q}.lora_A.weight": floats()}), "M311", "has shape []; `model.layers.0.self_attn.q_proj` needs"),
        (
            changed(**{f"{Q}.lora_B.weight": floats(8, 3)}),
            "M311",
            f"tensor `{Q}.lora_B.weight` has shape [8, 3]; `model.",
        ),
        (
            changed(**{f"{Q}.lora_B.bias": floats(4)}),
            "M311",
            f"tensor `{Q}.lora_B.bias` has shape [4]; `model.layers.0",
        ),
        (
            changed(**{f"{Q}.lora_A.weight": np.zeros((2, 8), np.int32)}),
            "M310",
            f"tensor `{Q}.lora_A.weight` has dtype I32; supported: F32, BF16, F16",
        ),
        (
            changed(**pair(f"{PREFIX}.0.self_attn.q_prj", 8, 8)),
            "M311",
            "q_prj.lora_A.weight`: the model has no such layer; the nearest are `model.layers.0.self_attn.q_proj`",
        ),
        (changed(**pair(f"{PREFIX}.7.self_attn.q_proj", 8, 8)), "M311", "the model has 2 layers"),
        (changed(**pair(f"{PREFIX}.0.input_layernorm", 8, 8)), "M311", "it is no linear layer whose product"),
        (changed(**pair("base_model.model.model.embed_tokens", 8, 50)), "M311", "an embedding has `lora_em"),
        (
            changed(**pair("../../etc/passwd", 8, 8)),
            "M311",
            "tensor `../../etc/passwd.lora_A.weight`: the model has no",
        ),
        (changed(**pair("base_model.model.model.layers.0.self_attn.qkv_proj", 8, 9)), "M311", "has shape [9, 2]"),
        (
            changed(**pair("base_model.model.model.layers.0.self_attn.qkv_proj", 8, 16)),
            "M311",
            f"tensors `{Q}.lora_A.weight` and `{PREFIX}.0.self_attn.qkv_proj.lora_A.weight` are both of `model",
        ),
        (changed(**pair("model.layers.0.self_attn.q_proj", 8, 8)), "M311", "are of the same module"),
        (
            changed(**pair("base_model.model.model.language_model.layers.0.self_attn.q_proj", 8, 8)),
            "M311",
            "are both of `model.layers.0.self_attn.q_proj`",
        ),
        (
            changed(**{f"{PREFIX}.1.self_attn.q_proj.lora_{kind}.weight": None for kind in "AB"}),
            "M311",
            "no tensors of `model.layers.1.self_attn.q_proj`, although `target_modules` in adapter_config.json has",
        ),
        (
            changed(**{f"{Q}.base_layer.weight": floats(9, 8)}),
            "M311",
            "has shape [9, 8], and the adapter of its module",
        ),
        (
            changed(**{f"{Q}.lora_magnitude_vector": floats(4)}),
            "M311",
            f"tensor `{Q}.lora_magnitude_vector` has shape [4]; `model.layers.0.self_attn.q_proj` needs [8]",
        ),
        (
            changed(**{f"{PREFIX}.0.mlp.up_proj.lora_magnitude_vector": floats(4)}),
            "M311",
            f"lora_magnitude_vector` is there without `{PREFIX}.0.mlp.up_proj.lora_A.weight`",
        ),
        (
            changed(**{f"{Q}.base_layer.bias": floats(8)}),
            "M310",
            "is a bias of the model, and `bias` in adapter_config",
        ),
        (
            changed(**{"base_model.model.lm_head.weight": floats(50, 8)}),
            "M310",
            "is a weight of the model, and `modules_to_save` in adapter_config.json does not say that it was trained",
        ),
        (
            changed(**{f"{EMBED}.lora_embedding_A": floats(2, 50)}),
            "M311",
            f"tensor `{EMBED}.lora_embedding_A` is there without `{EMBED}.lora_embedding_B`",
        ),
        (
            changed(**{f"{EMBED}.lora_embedding_A": floats(2, 49), f"{EMBED}.lora_embedding_B": floats(8, 2)}),
            "M311",
            f"tensor `{EMBED}.lora_embedding_A` has shape [2, 49]; `model.embed_tokens` needs [2, 50]",
        ),
        (
            changed(
                **{f"{PREFIX}.0.x.lora_embedding_A": floats(2, 50), f"{PREFIX}.0.x.lora_embedding_B": floats(8, 2)}
            ),
            "M310",
            "does not compute another one than that of tokens",
        ),
        (
            changed(**{f"{EMBED}.token_adapter.trainable_tokens_delta": floats(1, 8)}),
            "M311",
            "trainable_tokens_delta` has shape [1, 8]; `model.embed_tokens` needs [0, 8]",
        ),
        (
            changed(**{f"{PREFIX}.0.mlp.up_proj.base_layer.weight": floats(8, 8)}),
            "M310",
            "is the weight of a layer that the adapter does not change; remove it",
        ),
        (changed(**{f"{Q}.lora_diag.default": floats(2)}), "M310", "has none of the names that PEFT gives"),
        (dict, "M311", "no tensor of it changes a layer of the model"),
    ],
)
def test_a_tensor_is_refused_by_its_name(
    tmp_path: Path, tensors: Callable[[], Arrays], code: str, message: str
) -> None:
    found, text = fault(write(tmp_path, tensors()))
    assert (found, text.startswith("adapter_model.safetensors: ")) == (code, True)
    assert message in text


@pytest.mark.parametrize(
    ("tensors", "config", "code", "message"),
    [
        (
            {},
            {"modules_to_save": ["lm_head"]},
            "M311",
            "no tensors of `lm_head`, which `modules_to_save` in adapter_con",
        ),
        ({}, {"trainable_token_indices": [3]}, "M311", "no rows of `embed_tokens`, which `trainable_token_indices` in"),
        (
            {f"{EMBED}.token_adapter.trainable_tokens_delta": floats(2, 8)},
            {"trainable_token_indices": [3, 50]},
            "M311",
            "`trainable_token_indices` has 50, and the model has 50 tokens",
        ),
        (
            {"base_model.model.lm_head.weight": floats(51, 8)},
            {"modules_to_save": ["lm_head"]},
            "M311",
            "tensor `base_model.model.lm_head.weight` has shape [51, 8]; `lm_head` needs [50, 8]",
        ),
        (
            {f"{EMBED}.weight": floats(51, 8)},
            {"modules_to_save": ["embed_tokens"]},
            "M311",
            "has shape [51, 8]; `model.embed_tokens` needs [50, 8]",
        ),
        (
            {"base_model.model.score.weight": floats(3, 8)},
            {"modules_to_save": ["classifier", "score"]},
            "M310",
            "is a head that was trained with the adapter",
        ),
        (
            {f"{PREFIX}.0.input_layernorm.weight": floats(8)},
            {"modules_to_save": ["input_layernorm"]},
            "M310",
            "is in place of `model.layers.0.input_layernorm.weight`; this build replaces linear layers",
        ),
        (
            {f"{Q}.base_layer.bias": floats(8)},
            {"bias": "all"},
            "M311",
            "is a bias of `model.layers.0.self_attn.q_proj`",
        ),
        (
            {f"{Q}.weight": floats(8, 8)},
            {"modules_to_save": ["layers.0.self_attn.q_proj"]},
            "M311",
            "is not the only one of `model.layers.0.self_attn.q_proj`",
        ),
        (
            {
                f"{EMBED}.token_adapter.trainable_tokens_delta": floats(1, 8),
                f"{EMBED}.lora_embedding_A": floats(2, 50),
                f"{EMBED}.lora_embedding_B": floats(8, 2),
            },
            {"trainable_token_indices": [3]},
            "M311",
            "several tensors change the embedding in different ways",
        ),
        (
            {f"{PREFIX}.0.self_attn.token_adapter.trainable_tokens_delta": floats(1, 8)},
            {"trainable_token_indices": {"self_attn": [3]}},
            "M310",
            "this build replaces rows of the embedding and of the output layer",
        ),
    ],
)
def test_what_takes_the_place_of_weights_is_checked(
    tmp_path: Path, tensors: Arrays, config: dict[str, Any], code: str, message: str
) -> None:
    found, text = fault(write(tmp_path, {**whole(), **tensors}, **config))
    assert (found, message in text) == (code, True), text


def test_trained_rows_are_those_of_a_tied_output_layer_too(tmp_path: Path) -> None:
    name = f"{EMBED}.token_adapter.trainable_tokens_delta"
    folder = write(tmp_path, {name: floats(2, 8)}, trainable_token_indices=[9, 3], target_modules=[])
    for is_tied in False, True:
        spec = read_adapter(folder, model(tie_word_embeddings=is_tied))
        rows = Replaced("model.embed_tokens", StoredMatrix(name, (2, 8)), (2, 8), rows=(9, 3))
        assert spec.embedding == rows
        assert spec.replaced == ((replace(rows, target="lm_head"),) if is_tied else ())
        assert spec.num_saved_elements == (32 if is_tied else 16)


def test_a_rank_that_the_configuration_does_not_say_is_refused(tmp_path: Path) -> None:
    """The scale would be wrong: it is alpha over the rank of the configuration."""
    text = (
        f"tensor `{Q}.lora_A.weight` has shape [2, 8], which is rank 2, and adapter_config.json says 4 for this module"
    )
    assert fault(write(tmp_path, r=4)) == ("M311", f"adapter_model.safetensors: {text}")


def test_a_rank_above_the_limit_says_the_number_that_is_needed(tmp_path: Path) -> None:
    folder = write(tmp_path, {**pair(Q, 8, 8, 20)}, r=20, layers_to_transform=[0])
    assert fault(folder, max_rank=16) == (
        "M311",
        f"adapter_model.safetensors: tensor `{Q}.lora_A.weight` has rank 20, and `lora.max_lora_rank` is 16; set "
        "`lora.max_lora_rank: 32`",
    )
    assert read_adapter(folder, model(), max_rank=32).max_rank == 20


def test_files_that_are_missing_or_of_another_format_say_what_to_do(tmp_path: Path) -> None:
    assert fault(tmp_path) == ("M302", "adapter_config.json: cannot be read: No such file or directory")
    folder = write(tmp_path)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    code, text = fault(folder)
    assert (code, "load it with PEFT and save it again" in text) == ("M305", True)
    (folder / "adapter_model.bin").unlink()
    assert fault(folder) == ("M302", "adapter_model.safetensors: no such file")


def test_a_file_that_is_no_file_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path)
    for name in "adapter_model.safetensors", "adapter_config.json":
        (folder / name).unlink()
        os.mkfifo(folder / name)
        code, text = fault(folder)
        assert (code, "a named pipe, not a regular file" in text) == ("M309", True)


def test_damaged_headers_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path)
    file = folder / "adapter_model.safetensors"
    content = file.read_bytes()
    for damaged in (
        content[:-1],
        content[:4],
        content + b"\0",
        b"\xff" * 8 + content[8:],
        content[:8] + b"[" + content[9:],
        (8).to_bytes(8, "little") + b'{"a": 1}',
    ):
        file.write_bytes(damaged)
        assert fault(folder)[0] == "M303"


def test_json_that_is_deep_or_no_object_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path)
    for text in "[" * 5000, "[]", '{"r": 2', '{"r": 1e400, "peft_type": "LORA"}':
        (folder / "adapter_config.json").write_text(text)
        assert fault(folder)[0] in ("M303", "M306")


def test_patterns_may_have_groups_and_sets(tmp_path: Path) -> None:
    folder = write(
        tmp_path, alpha_pattern={r".*\d+x": 1, "(?:a|b|c).*y": 1, r"layers\.[0]\.(self_attn|mlp)\.q_proj$": 6}
    )
    assert [delta.scale for delta in read_adapter(folder, model()).deltas] == [3.0, 2.0]


def test_layers_that_the_deployment_does_not_adapt_are_left_out(tmp_path: Path) -> None:
    fused = pair(Q.replace("q_proj", "qkv_proj"), 8, 16)
    folder = write(tmp_path, fused, target_modules=["qkv_proj"], layers_to_transform=0)
    for names, kept in (
        (["q_proj"], ["q_proj"]),
        (["qkv_proj"], ["q_proj", "k_proj", "v_proj"]),
        (["self_attn.v_proj"], ["v_proj"]),
    ):
        spec = read_adapter(folder, model(), target_modules=names)
        assert [delta.target.rpartition(".")[2] for delta in spec.deltas] == kept
        assert len(spec.left_out) == 3 - len(kept)
    code, text = fault(folder, target_modules=["o_proj"])
    assert (code, "`lora.lora_target_modules` leaves all of them out" in text) == ("M311", True)


def test_a_bias_of_an_expert_is_refused(tmp_path: Path) -> None:
    module = f"{PREFIX}.0.mlp.experts.1.gate_proj"
    tensors = pair(module, 8, 12) | {f"{module}.lora_B.bias": floats(12)}
    code, text = fault(write(tmp_path, tensors, lora_bias=True), experts())
    assert (code, f"tensor `{module}.lora_B.bias` is a bias of the adapter of an expert" in text) == ("M310", True)


def test_a_pair_of_one_expert_has_its_number_in_its_name(tmp_path: Path) -> None:
    for name, own in ("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj"), ("up_proj", "up_proj"):
        sizes = (12, 8) if own == "down_proj" else (8, 12)
        module = f"{PREFIX}.1.block_sparse_moe.experts.2.{name}"
        spec = read_adapter(write(tmp_path, pair(module, *sizes)), experts())
        assert [delta.target for delta in spec.deltas] == [f"model.layers.1.mlp.experts.2.{own}"]


def stacked(module: str, of_a: int, of_b: int, inputs: int, outputs: int) -> Arrays:
    return {
        f"{module}.lora_A.weight": floats(of_a, 2, inputs),
        f"{module}.lora_B.weight": floats(of_b, outputs, 2),
    }


@pytest.mark.parametrize(("of_a", "of_b"), [(3, 3), (1, 3), (3, 1)])
def test_three_dimensions_are_experts_or_shared_by_them(tmp_path: Path, of_a: int, of_b: int) -> None:
    module = f"{PREFIX}.0.mlp.experts.gate_up_proj"
    spec = read_adapter(write(tmp_path, stacked(module, of_a, of_b, 8, 24)), experts())
    assert len(spec.deltas) == 6
    last = spec.deltas[-1]
    assert last.target == "model.layers.0.mlp.experts.2.up_proj"
    assert last.a == StoredMatrix(f"{module}.lora_A.weight", (of_a, 2, 8), ((0, 2 if of_a == 3 else 0),))
    assert last.b == StoredMatrix(f"{module}.lora_B.weight", (of_b, 2, 12, 2), ((0, 2 if of_b == 3 else 0), (1, 1)))


def test_names_of_shared_outer_matrices_are_known(tmp_path: Path) -> None:
    tensors = stacked(f"{PREFIX}.0.mlp.experts.w2", 3, 1, 12, 8) | stacked(f"{PREFIX}.0.mlp.experts.w3", 1, 3, 8, 12)
    spec = read_adapter(write(tmp_path, tensors), experts())
    assert [delta.target.split("experts.")[1] for delta in spec.deltas] == [
        f"{expert}.{part}" for part in ("up_proj", "down_proj") for expert in range(3)
    ]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (pair(f"{PREFIX}.0.mlp.experts", 8, 24, 4), "have shapes [4, 8] and [24, 4]; 3 experts with 12 of 8 elements"),
        (pair(f"{PREFIX}.0.mlp.experts", 9, 24, 6), "have shapes [6, 9] and [24, 6]"),
        (stacked(f"{PREFIX}.0.mlp.experts.w1", 2, 3, 8, 12), "have shapes [2, 2, 8] and [3, 12, 2]"),
        (stacked(f"{PREFIX}.0.mlp.experts.w1", 3, 3, 12, 8), "have shapes [3, 2, 12] and [3, 8, 2]"),
        (pair(f"{PREFIX}.0.mlp.experts.9.w1", 8, 12), "the model has no such layer; the nearest"),
        (
            pair(f"{PREFIX}.0.mlp.experts", 8, 24, 6) | pair(f"{PREFIX}.0.mlp.experts.base_layer", 8, 24, 6),
            "are both of `model.layers.0.mlp.experts.0.gate_proj`",
        ),
    ],
)
def test_experts_whose_shapes_fit_no_layout_are_refused(tmp_path: Path, tensors: Arrays, message: str) -> None:
    with pytest.raises(ModelFilesError) as caught:
        read_adapter(write(tmp_path, tensors), experts())
    assert (caught.value.code, message in str(caught.value)) == ("M311", True), str(caught.value)


def test_experts_that_are_missing_are_noticed(tmp_path: Path) -> None:
    """PEFT's names of two parameters differ by `base_layer` only, so one of them is easily lost."""
    both = ["experts.gate_up_proj", "experts.down_proj"]
    for missing in 0, 1:
        tensors: Arrays = {}
        for layer in range(2):
            tensors |= pair(f"{PREFIX}.{layer}.mlp.experts.base_layer", 8, 24, 6)
            if layer != missing:
                tensors |= pair(f"{PREFIX}.{layer}.mlp.experts", 12, 8, 6)
        assert fault(write(tmp_path, tensors, target_modules=[], target_parameters=both), experts()) == (
            "M311",
            f"adapter_model.safetensors: no tensors of `model.layers.{missing}.mlp.experts.0.down_proj`, although "
            "`target_parameters` in adapter_config.json has `experts.down_proj`",
        )


def test_a_square_expert_is_read_as_its_family_stores_it(tmp_path: Path) -> None:
    """Shapes do not say whether PEFT has taken inputs for outputs if they are equal."""
    tensors = pair(f"{PREFIX}.0.mlp.experts", 8, 8, 6)
    spec = read_adapter(write(tmp_path, tensors), experts(intermediate_size=8))
    assert (spec.deltas[0].target, spec.deltas[0].a.is_transposed) == ("model.layers.0.mlp.experts.0.down_proj", False)
