"""What classes make of a text, from config.json."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.config_json import ModelConfigError
from stoker.model.families import FAMILIES, family_of
from stoker.model.pooling import OUTPUT_LAYER, PoolHead
from stoker.model.read import read_config
from stoker.model.spec import ModelSpec

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "num_hidden_layers": 2}


def read(architecture: str, **values: Any) -> ModelSpec:
    return read_config({"architectures": [architecture], **SIZES, **values})[0]


def heads(spec: ModelSpec) -> dict[str, PoolHead]:
    assert spec.pooling is not None
    return {head.task: head for head in spec.pooling.heads}


@pytest.mark.parametrize("name", sorted(name for name, family in FAMILIES.items() if family.makes == "tokens"))
def test_every_class_that_generates_embeds_with_the_last_token(name: str):
    needed = {"indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 2048}
    needed |= {"indexer_compress_ratio": 16}
    family = FAMILIES[name]
    spec, _ = read_config({"architectures": [name], **({family.text_in: needed} if family.text_in else needed)})
    assert spec.generates
    (head,) = heads(spec).values()
    assert (head.task, head.modes, head.width, head.needs_all) == ("embed", ("last",), spec.hidden_size, False)


@pytest.mark.parametrize(("architecture", "base", "tasks"), [
    ("LlamaForSequenceClassification", "LlamaForCausalLM", ["classify"]),
    ("GPT2ForSequenceClassification", "GPT2LMHeadModel", ["classify"]),
    ("Gemma3TextForSequenceClassification", "Gemma3ForCausalLM", ["classify"]),
    ("Qwen3ForTokenClassification", "Qwen3ForCausalLM", ["token_classify"]),
    ("Gemma3TextModel", "Gemma3ForCausalLM", ["embed", "token_embed"]),
    ("Qwen2ForProcessRewardModel", "Qwen2ForCausalLM", ["token_classify"]),
])  # fmt: skip
def test_other_classes_of_decoders_have_their_layers(architecture: str, base: str, tasks: list[str]):
    family = family_of(architecture)
    assert family is not None
    assert family.model_type == FAMILIES[base].model_type
    spec = read(architecture, num_key_value_heads=2, head_dim=16)
    assert list(heads(spec)) == tasks
    assert not spec.generates
    assert not spec.has_output


@pytest.mark.parametrize("name", ["AlbertModel", "LlamaForMaskedLM", "Model", "Qwen3VLModel", ""])
def test_other_names_are_not_known(name: str):
    assert family_of(name) is None


@pytest.mark.parametrize(("values", "labels", "activation"), [
    ({}, ("LABEL_0", "LABEL_1"), "softmax"),
    ({"num_labels": 1}, ("LABEL_0",), "sigmoid"),
    ({"id2label": {"1": "bad", "0": "good"}}, ("good", "bad"), "softmax"),
    ({"num_labels": 1, "problem_type": "regression"}, ("LABEL_0",), "none"),
    ({"num_labels": 2, "problem_type": "multi_label_classification"}, ("LABEL_0", "LABEL_1"), "sigmoid"),
    ({"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
     ("LABEL_0",), "none"),
    ({"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
     ("LABEL_0",), "sigmoid"),
])  # fmt: skip
def test_labels_and_what_is_applied_to_their_scores(values: dict[str, Any], labels: tuple[str, ...], activation: str):
    spec = read("BertForSequenceClassification", **values)
    assert spec.pooling.labels == labels
    head = heads(spec)["classify"]
    assert head.activation == activation
    assert head.width == len(labels)
    assert [layer.name for layer in head.after] == ["pooler.dense", "classifier"]


@pytest.mark.parametrize(("architecture", "values", "message"), [
    ("BertForSequenceClassification", {"id2label": {"0": "a", "2": "b"}}, "`id2label` must have a name for each"),
    ("BertForSequenceClassification", {"num_labels": 0}, "`num_labels` is 0"),
    ("BertForSequenceClassification", {"problem_type": "ranking"}, "`problem_type` is 'ranking'"),
    ("BertForSequenceClassification", {"sbert_ce_default_activation_function": "os.system"}, "is not supported"),
    ("BertForMaskedLM", {"hidden_act": "swoosh"}, "`hidden_act` is 'swoosh'"),
    ("ModernBertForSequenceClassification", {"classifier_pooling": "median"}, "`classifier_pooling` is 'median'"),
    ("BertModel", {"matryoshka_dimensions": [128]}, "must be a list of numbers from 1 to 64"),
    ("RobertaModel", {"max_position_embeddings": 2}, "the first 2 are of no token"),
])  # fmt: skip
def test_wrong_values_are_named(architecture: str, values: dict[str, Any], message: str):
    with pytest.raises(ModelConfigError, match=message):
        read(architecture, **values)


def test_vectors_may_be_cut_where_config_json_says_so():
    assert heads(read("BertModel", matryoshka_dimensions=[32, 8]))["embed"].dimensions == (8, 32)
    assert heads(read("BertModel", is_matryoshka=True))["embed"].any_dimension
    plain = heads(read("BertModel"))["embed"]
    assert (plain.dimensions, plain.any_dimension) == ((), False)


def test_weights_of_the_vocabulary_come_from_the_output_layer():
    spec = read("BertForMaskedLM", vocab_size=50)
    head = heads(spec)["sparse"]
    assert [layer.name for layer in head.before] == ["head.dense", OUTPUT_LAYER]
    assert (head.width, head.modes) == (50, ("max",))
    assert spec.has_output
    assert spec.is_tied
    assert not spec.generates


def test_positions_of_roberta_begin_after_that_of_padding():
    spec = read("RobertaModel", max_position_embeddings=514)
    assert (spec.max_position_embeddings, spec.position_offset) == (512, 2)


@pytest.mark.parametrize(("architecture", "values", "unsupported"), [
    ("RobertaModel", {"pad_token_id": 3}, "`pad_token_id` is 3; supported: 1"),
    ("BertModel", {"position_embedding_type": "relative_key"}, "`position_embedding_type` is 'relative_key'"),
    ("ModernBertModel", {"norm_bias": True}, "`norm_bias` is True"),
    ("ElectraModel", {"embedding_size": 32}, "`embedding_size` is 32; supported: 64"),
    ("NomicBertModel", {"num_experts": 8}, "`num_experts` is 8; supported: 0"),
])  # fmt: skip
def test_what_is_not_computed_is_named(architecture: str, values: dict[str, Any], unsupported: str):
    (found,) = read(architecture, **values).unsupported
    assert found.startswith(unsupported)
