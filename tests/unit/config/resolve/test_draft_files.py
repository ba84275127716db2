"""What drafts is read and checked from headers, before any weights are loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.config import (
    DeploymentError,
    ModelFilesError,
    Resolved,
    load_deployment,
    read_model_files,
    resolve_deployment,
)
from stoker.model.drafts import draft_shapes
from stoker.model.read import read_config
from stoker.model.trained_drafts import dflash_spec, eagle3_spec, eagle_spec

from ..deployments import MACHINE
from ..model_files import QWEN3, write_model, write_safetensors
from ..plan.shapes import NATIVE, SHAPES, write_config

EAGLE3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "vocab_size": 100,
    "draft_vocab_size": 40,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]},
}
NAMES = {"model.layers.0.": "midlayer.", "model.norm.": "norm."}


DEEPSEEK = {**SHAPES, **NATIVE}["deepseek-v3"][0]


def write_eagle3(folder: Path, without: str = "", **changes: Any) -> Path:
    """A layer for `write_model`'s model, whose weights are zeros. without: a tensor that is left out."""
    target, _ = read_config(QWEN3)
    shapes: dict[str, list[int]] = {}
    for name, shape in draft_shapes(eagle3_spec(target, EAGLE3)).items():
        beginning = next((own for own in NAMES if name.startswith(own)), "")
        shapes[NAMES.get(beginning, "") + name.removeprefix(beginning)] = list(shape)
    folder.mkdir()
    offsets = shapes.pop("d2t")
    shapes.pop(without, None)
    write_safetensors(folder / "model.safetensors", shapes)
    if without != "d2t":
        header = {"d2t": {"dtype": "I64", "shape": offsets, "data_offsets": [0, 8 * offsets[0]]}}
        text = json.dumps(header).encode()
        (folder / "offsets.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8 * offsets[0]))
        files = dict.fromkeys(shapes, "model.safetensors") | {"d2t": "offsets.safetensors"}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (folder / "config.json").write_text(json.dumps(EAGLE3 | changes))
    return folder


def resolved(*arguments: str) -> Resolved:
    deployment = load_deployment([], [*arguments], {})
    return resolve_deployment(deployment, read_model_files(deployment), MACHINE)


def test_a_folder_says_what_it_is(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model"))
    other = str(write_model(tmp_path / "other"))
    layer = str(write_eagle3(tmp_path / "layer"))
    methods = [resolved("--model", model, "--spec-model", draft).speculative.method for draft in (other, layer)]
    assert methods == ["draft_model", "eagle3"]


def test_the_form_of_speculators(tmp_path: Path) -> None:
    model, layer = write_model(tmp_path / "model"), write_eagle3(tmp_path / "layer")
    own = {name: value for name, value in EAGLE3.items() if name not in ("eagle_config", "draft_vocab_size")}
    values = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": own,
        "draft_vocab_size": 40,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 1],
        "norm_before_residual": True,
    }
    (layer / "config.json").write_text(json.dumps(values))
    draft = resolved("--model", str(model), "--spec-model", str(layer)).model_files.draft
    assert draft is not None
    assert draft.draft.spec.layers[0].joins_embedding == "normed"
    assert draft.draft.read_layers == (0, 1, 1)


@pytest.mark.parametrize(
    ("changes", "without", "said"),
    [
        ({"hidden_size": 32}, "", "`hidden_size` is 32, and that of the model is 16"),
        ({"target_hidden_size": 32}, "", "`target_hidden_size` is 32"),
        ({"vocab_size": 90}, "", "`vocab_size` is 90"),
        ({"draft_vocab_size": 101}, "", "`draft_vocab_size` is 101, of a vocabulary of 100 tokens"),
        ({"num_hidden_layers": 2}, "", "tensors `layers.1.input_layernorm.weight`, "),
        ({"mask_token_id": 100}, "", "`mask_token_id` is 100, and the vocabulary has 100 tokens"),
        ({"mask_token_id": 7}, "", "tensor `mask_hidden` is not in any"),
        ({"model_type": "gemma3"}, "", "`model_type` is 'gemma3'; drafts come from layers of llama, qwen3"),
        ({"fc_norm": True}, "", "`fc_norm` is true, which is not supported"),
        ({"norm_before_fc": True}, "", "tensor `input_norm.weight` is not in any"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}, "", "is [0, 1, 2], and the model has 2"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": "last"}}, "", "`eagle_aux_hidden_state_layer_ids` is"),
        ({"intermediate_size": 48}, "", "tensor `midlayer.mlp.gate_proj.weight` has shape [32, 16]"),
        ({}, "fc.weight", "tensor `fc.weight` is not in any"),
        ({}, "d2t", "tensor `d2t` is not in any"),
    ],
)
def test_a_layer_that_does_not_fit_is_refused_at_its_option(
    changes: dict[str, Any], without: str, said: str, tmp_path: Path
) -> None:
    model, layer = write_model(tmp_path / "model"), write_eagle3(tmp_path / "layer", without, **changes)
    with pytest.raises(ModelFilesError) as refused:
        resolved("--model", str(model), "--spec-method", "eagle3", "--spec-model", str(layer))
    assert said in str(refused.value)
    assert refused.value.option == "speculative.model"


EAGLE = {name: value for name, value in EAGLE3.items() if name not in ("draft_vocab_size", "eagle_config")}


def write_eagle(folder: Path, without: str = "", **changes: Any) -> Path:
    """A layer of EAGLE-1 for `write_model`'s model, whose config.json names it as a language model."""
    target, _ = read_config(QWEN3)
    shapes = {
        name.removeprefix("model."): list(shape) for name, shape in draft_shapes(eagle_spec(target, EAGLE)).items()
    }
    shapes.pop(without, None)
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", shapes)
    (folder / "config.json").write_text(json.dumps(EAGLE | {"architectures": ["LlamaForCausalLM"]} | changes))
    return folder


def test_layers_of_eagle_are_known_by_their_tensors(tmp_path: Path) -> None:
    model, layer = write_model(tmp_path / "model"), write_eagle(tmp_path / "layer")
    found = resolved("--model", str(model), "--spec-model", str(layer))
    assert found.speculative.method == "eagle"
    assert found.memory.weights_bytes > resolved("--model", str(model)).memory.weights_bytes


@pytest.mark.parametrize(
    ("changes", "without", "said"),
    [
        ({"hidden_size": 32}, "", "`hidden_size` is 32, and that of the model is 16"),
        ({"vocab_size": 90}, "", "`vocab_size` is 90"),
        ({"model_type": "gemma3"}, "", "`model_type` is 'gemma3'; drafts come from layers of llama, qwen3, mistral"),
        ({"layernorms": True}, "", "`layernorms` is true, which is not supported"),
        (
            {"num_hidden_layers": 2},
            "",
            "tensors `layers.1.input_layernorm.weight`, `layers.1.post_attention_layernorm.weight`, ",
        ),
        ({}, "fc.weight", "tensor `fc.weight` is not in any"),
        ({}, "layers.0.mlp.up_proj.weight", "tensor `layers.0.mlp.up_proj.weight` is not in any"),
    ],
)
def test_layers_of_eagle_that_do_not_fit_are_refused(
    changes: dict[str, Any], without: str, said: str, tmp_path: Path
) -> None:
    model, layer = write_model(tmp_path / "model"), write_eagle(tmp_path / "layer", without, **changes)
    with pytest.raises(ModelFilesError) as refused:
        resolved("--model", str(model), "--spec-method", "eagle", "--spec-model", str(layer))
    assert said in str(refused.value)
    assert refused.value.option == "speculative.model"


DFLASH = {
    **{name: value for name, value in EAGLE.items() if name != "architectures"},
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "block_size": 4,
    "dflash_config": {"mask_token_id": 99, "target_layer_ids": [0, 0]},
}


def write_dflash(folder: Path, without: str = "", **changes: Any) -> Path:
    """A layer of DFlash for `write_model`'s model."""
    target, _ = read_config(QWEN3)
    shapes = {
        name.removeprefix("model."): list(shape) for name, shape in draft_shapes(dflash_spec(target, DFLASH)).items()
    }
    shapes.pop(without, None)
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", shapes)
    (folder / "config.json").write_text(json.dumps(DFLASH | changes))
    return folder


def test_layers_of_dflash_are_read(tmp_path: Path) -> None:
    model, layer = write_model(tmp_path / "model"), write_dflash(tmp_path / "layer")
    found = resolved("--model", str(model), "--spec-model", str(layer))
    assert found.speculative.method == "dflash"
    files = found.model_files.draft
    assert files is not None
    assert (files.draft.read_layers, files.draft.mask_token_id, files.draft.most_drafts) == ((1, 1), 99, 3)
    (layer / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(ModelFilesError, match=r"holds mask_embedding\.pt"):
        resolved("--model", str(model), "--spec-model", str(layer))


@pytest.mark.parametrize(
    ("changes", "without", "said"),
    [
        ({"hidden_size": 32}, "", "`hidden_size` is 32, and that of the model is 16"),
        ({"model_type": "llama"}, "", "`model_type` is 'llama'; drafts come from layers of qwen3"),
        ({"block_size": 1}, "", "`block_size` is 1"),
        ({"block_size": None}, "", "`block_size`"),
        ({"sample_from_anchor": True}, "", "`sample_from_anchor` is true, which is not supported"),
        ({"dflash_config": {"target_layer_ids": [0]}}, "", "`mask_token_id` is missing"),
        ({"dflash_config": {"mask_token_id": 100, "target_layer_ids": [0]}}, "", "`mask_token_id` is 100, and the voc"),
        ({"dflash_config": {"mask_token_id": 9, "target_layer_ids": [1]}}, "", "`target_layer_ids` is [1], and the mo"),
        ({"dflash_config": {"mask_token_id": 9}}, "", "`target_layer_ids` is None"),
        (
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0},
            "",
            "describes layers with a window",
        ),
        ({}, "hidden_norm.weight", "tensor `hidden_norm.weight` is not in any"),
    ],
)
def test_layers_of_dflash_that_do_not_fit_are_refused(
    changes: dict[str, Any], without: str, said: str, tmp_path: Path
) -> None:
    model, layer = write_model(tmp_path / "model"), write_dflash(tmp_path / "layer", without, **changes)
    with pytest.raises(ModelFilesError) as refused:
        resolved("--model", str(model), "--spec-model", str(layer))
    assert said in str(refused.value)
    assert refused.value.option == "speculative.model"


def test_a_model_of_another_vocabulary_or_with_states_is_refused(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model"))
    other = write_config(tmp_path / "other", "qwen3.5-0.8b")
    for said in ("recurrent states", "`vocab_size` is"):
        with pytest.raises(ModelFilesError, match=said):
            resolved("--model", model, "--spec-model", str(other))
        other = write_model(tmp_path / "larger", vocab_size=101)


def test_a_model_of_another_vocabulary_drafts_common_tokens(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    larger, other = write_model(tmp_path / "larger", vocab_size=101), write_model(tmp_path / "other")
    with pytest.raises(ModelFilesError, match=r"With `speculative.use_heterogeneous_vocab: true` those that both have"):
        resolved("--model", str(model), "--spec-model", str(larger))
    arguments = ("--model", str(model), "--spec-model", str(other))
    drafts = resolved(*arguments, "-sc.use_heterogeneous_vocab", "true").model_files.draft
    assert drafts is not None
    assert drafts.draft.translates
    assert (drafts.draft.vocab_size, drafts.draft.spec.vocab_size) == (100, 100)
    weights = drafts.weights_bytes("bfloat16", None)
    assert drafts.held_bytes("bfloat16", None, 4) == weights + 8 * 3 * 100  # the ids of three tables
    with pytest.raises(ModelFilesError, match=r"with `model.skip_tokenizer_init` the model has none"):
        resolved(*arguments, "-sc.use_heterogeneous_vocab", "true", "--skip-tokenizer-init")
    (other / "tokenizer.json").unlink()
    with pytest.raises(ModelFilesError, match=r"holds no tokenizer.json, whose tokens would be drafted"):
        resolved(*arguments, "-sc.use_heterogeneous_vocab", "true")


@pytest.mark.parametrize("kind", ["dflash2", "dspark"])
def test_other_networks_of_speculators_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    model, layer = write_model(tmp_path / "model"), write_eagle3(tmp_path / "layer", speculators_model_type=kind)
    with pytest.raises(
        ModelFilesError, match=f"`speculators_model_type` is '{kind}'; supported: eagle, eagle3, peagle, dflash"
    ):
        resolved("--model", str(model), "--spec-model", str(layer))


def test_drafts_in_one_pass_need_a_mask(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model"))
    plain, pard = (str(write_model(tmp_path / name, **more)) for name, more in (("a", {}), ("b", {"pard_token": 7})))

    def mask(*arguments: str) -> int | None:
        found = resolved("--model", model, *arguments).model_files.draft
        assert found is not None
        return found.draft.mask_token_id

    assert mask("--spec-model", pard) == 7
    assert mask("--spec-model", pard, "-sc.parallel_drafting", "false") is None
    assert mask("--spec-model", plain) is None
    with pytest.raises(ModelFilesError, match=r"`pard_token` is missing.*remove `speculative.parallel_drafting`"):
        mask("--spec-model", plain, "-sc.parallel_drafting", "true")
    with pytest.raises(ModelFilesError, match="or another vocabulary's"):
        mask("--spec-model", pard, "-sc.parallel_drafting", "true", "-sc.use_heterogeneous_vocab", "true")
    layer = write_eagle3(tmp_path / "layer", speculators_model_type="peagle")
    with pytest.raises(ModelFilesError, match="`mask_token_id` is missing: the token that stands for those"):
        mask("--spec-model", str(layer))


def test_missing_files_are_named(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model"))
    with pytest.raises(ModelFilesError) as refused:
        resolved("--model", model, "--spec-model", str(tmp_path / "none"))
    assert refused.value.option == "speculative.model"


def dummy(folder: Path, *arguments: str) -> Resolved:
    return resolved("--model", str(folder), "--load-format", "dummy", "--skip-tokenizer-init", *arguments)


def test_mtp_is_for_checkpoints_with_a_layer_for_it(tmp_path: Path) -> None:
    plain = write_model(tmp_path / "model")
    with pytest.raises(ModelFilesError, match="whose layers for drafts this build does not read"):
        resolved("--model", str(plain), "--spec-method", "mtp")
    layerless = write_config(tmp_path / "layerless", DEEPSEEK | {"num_nextn_predict_layers": 0})
    with pytest.raises(ModelFilesError, match="describes no layer for drafts"):
        dummy(layerless, "--spec-method", "mtp")


def test_streams_and_windows_are_refused(tmp_path: Path) -> None:
    streams = write_config(tmp_path / "streams", "deepseek-v4-flash")
    with pytest.raises(ModelFilesError) as refused:
        dummy(streams, "--spec-method", "mtp")
    assert refused.value.option == "speculative.method"


def test_memory_has_room_for_the_network(tmp_path: Path) -> None:
    """Blocks are as many, and each has the keys and values of the layer too."""
    model, layer = str(write_model(tmp_path / "model")), str(write_eagle3(tmp_path / "layer"))
    alone, drafting = resolved("--model", model), resolved("--model", model, "--spec-model", layer)
    draft = drafting.model_files.draft
    assert draft is not None
    more = drafting.memory.weights_bytes - alone.memory.weights_bytes
    assert more == draft.held_bytes("bfloat16", None, drafting.scheduler.max_num_seqs)
    assert more - draft.weights_bytes("bfloat16", None) == drafting.scheduler.max_num_seqs * 64 * 3 * 16 * 2
    before, after = alone.memory.kv_bytes_per_token, drafting.memory.kv_bytes_per_token
    assert after - before == draft.token_bytes("bfloat16") == before // 2  # of two layers of the same width


SMALL = {"num_nextn_predict_layers": 1, "num_hidden_layers": 4, "n_routed_experts": 8, "num_experts_per_tok": 2}
SMALL |= {"n_group": 1, "topk_group": 1, "vocab_size": 1000}


def test_auto_takes_the_layer_of_a_checkpoint(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "model", DEEPSEEK | SMALL)
    small = ("--spec-method", "auto", "--kv-cache-memory-bytes", "64M", "--max-model-len", "1024")
    for more in ((), ("-tp", "2"), ("-pp", "2")):
        found = dummy(folder, *small, *more)
        assert found.speculative.method == "mtp"
        assert found.model_files.draft is not None


def test_auto_drafts_with_no_layer_that_reads_other_stages(tmp_path: Path) -> None:
    model, layer = write_model(tmp_path / "model"), write_eagle3(tmp_path / "layer")
    auto = "--model", str(model), "--spec-method", "auto", "--spec-model", str(layer)
    assert resolved(*auto, "-tp", "2").speculative.method == "eagle3"
    with pytest.raises(DeploymentError) as refused:
        resolved(*auto, "-pp", "2")
    assert "R519" in str(refused.value)
