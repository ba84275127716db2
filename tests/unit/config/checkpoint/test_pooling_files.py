"""What files of sentence-transformers say, and what is said of files that this build does not know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from stoker.config.checkpoint.pooling_files import head_files, with_pooling_files
from stoker.config.errors import ModelFilesError
from stoker.model.pooling import OUTPUT_LAYER, PoolHead
from stoker.model.read import read_config
from stoker.model.spec import ModelSpec

BERT = {
    "architectures": ["BertModel"],
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
QWEN = BERT | {
    "architectures": ["Qwen3ForCausalLM"],
    "num_key_value_heads": 2,
    "head_dim": 8,
    "tie_word_embeddings": True,
}
MEAN = {"word_embedding_dimension": 16, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
OLD, NEW = "sentence_transformers.models.", "sentence_transformers.sentence_transformer.modules.pooling."


def folder_of(place: Path, modules: list[tuple[str, dict[str, Any] | None]], **files: dict[str, Any]) -> Path:
    """A directory with these modules after the transformer: their types and configurations. files: others by stem."""
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{OLD}Transformer"}]
    for index, (kind, config) in enumerate(modules, 1):
        name = kind.rpartition(".")[2]
        own = place / f"{index}_{name}"
        own.mkdir()
        listed.append({"idx": index, "name": str(index), "path": own.name, "type": kind})
        if config is not None:
            (own / "config.json").write_text(json.dumps(config))
        if name == "Dense" and config is not None:
            save_file({"linear.weight": torch.zeros(1)}, own / "model.safetensors")
    (place / "modules.json").write_text(json.dumps(listed))
    for stem, values in files.items():
        (place / f"{stem}.json").write_text(json.dumps(values))
    return place


def read(place: Path, config: dict[str, Any] = BERT) -> ModelSpec:
    return with_pooling_files(read_config(config)[0], place)


def head_of(spec: ModelSpec, task: str) -> PoolHead:
    assert spec.pooling is not None
    head = spec.pooling.head(task)
    assert head is not None, f"no head {task}"
    return head


@pytest.mark.parametrize(
    ("kind", "config", "modes"),
    [
        (f"{OLD}Pooling", MEAN, ("mean",)),
        (f"{OLD}Pooling", MEAN | {"pooling_mode_cls_token": True}, ("cls", "mean")),
        (f"{OLD}Pooling", {"pooling_mode_lasttoken": True}, ("last",)),
        (f"{OLD}Pooling", {"pooling_mode_weightedmean_tokens": True}, ("weighted_mean",)),
        (f"{NEW}Pooling", {"embedding_dimension": 16, "pooling_mode": "cls"}, ("cls",)),
        (f"{NEW}Pooling", {"pooling_mode": ["mean_sqrt_len_tokens", "max"]}, ("mean_sqrt", "max")),
    ],
)
def test_both_forms_of_pooling_are_read(kind: str, config: dict[str, Any], modes: tuple[str, ...], tmp_path: Path):
    spec = read(folder_of(tmp_path, [(kind, config), (f"{OLD}Normalize", None)]))
    head = head_of(spec, "embed")
    assert head.modes == modes
    assert head.width == 16 * len(modes)
    assert head.activation == "normalize"
    assert head.includes_prompt
    assert head_of(spec, "token_embed").width == 16


def test_layers_after_the_pool_have_files_of_their_own(tmp_path: Path):
    dense = {"in_features": 16, "out_features": 64, "bias": False, "activation_function": "torch.nn.Identity"}
    back = {"in_features": 64, "out_features": 12}
    modules = [
        (f"{OLD}Pooling", MEAN),
        (f"{OLD}Dense", dense),
        ("sentence_transformers.base.modules.dense.Dense", back),
    ]
    spec = read(folder_of(tmp_path, modules))
    head = head_of(spec, "embed")
    assert [layer.name for layer in head.after] == ["2_Dense.linear", "3_Dense.linear"]
    assert [layer.activation for layer in head.after] == ["none", "tanh"]
    assert [layer.has_bias for layer in head.after] == [False, True]
    assert head.width == 12
    assert head.activation == "none"
    assert head_files(spec) == ("2_Dense/model.safetensors", "3_Dense/model.safetensors")


def test_layers_of_tokens_come_before_the_pool(tmp_path: Path):
    dense = {"in_features": 16, "out_features": 8, "bias": False, "activation_function": "torch.nn.Identity"}
    spec = read(folder_of(tmp_path, [("pylate.models.Dense.Dense", dense)]))
    assert [head.task for head in spec.pooling.heads] == ["token_embed"]
    head = head_of(spec, "token_embed")
    assert [layer.name for layer in head.before] == ["1_Dense.linear"]
    assert head.width == 8


def test_settings_of_texts_are_read(tmp_path: Path):
    place = folder_of(
        tmp_path,
        [(f"{OLD}Pooling", MEAN | {"include_prompt": False})],
        config_sentence_transformers={
            "prompts": {"query": "query: ", "passage": "passage: "},
            "default_prompt_name": "query",
            "similarity_fn_name": "dot",
        },
        sentence_bert_config={"max_seq_length": 20, "do_lower_case": True},
    )
    spec = read(place, BERT | {"matryoshka_dimensions": [8, 4]})
    pooling = spec.pooling
    assert pooling.prompts == {"query": "query: ", "passage": "passage: "}
    assert pooling.default_prompt == "query"
    assert pooling.similarity == "dot"
    assert pooling.max_length == 20
    assert pooling.lowers_case
    head = head_of(spec, "embed")
    assert not head.includes_prompt
    assert head.dimensions == (4, 8)


def test_a_decoder_with_modules_generates_nothing(tmp_path: Path):
    assert read_config(QWEN)[0].generates
    spec = read(folder_of(tmp_path, [(f"{NEW}Pooling", {"pooling_mode": "lasttoken"})]), QWEN)
    assert not spec.generates
    assert not spec.has_output
    assert head_of(spec, "embed").modes == ("last",)


def test_the_difference_of_two_logits_is_a_score(tmp_path: Path):
    kind = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    settings = {"activation_fn": "torch.nn.modules.linear.Identity"}
    config = {"true_token_id": 9, "false_token_id": 4}
    spec = read(folder_of(tmp_path, [(kind, config)], config_sentence_transformers=settings), QWEN)
    head = head_of(spec, "classify")
    assert head.modes == ("last",)
    assert head.activation == "none"
    assert [(layer.name, layer.rows) for layer in head.after] == [(OUTPUT_LAYER, ((9, 4),))]
    assert spec.has_output
    assert not spec.generates


def test_a_folder_without_such_files_is_as_its_class_says(tmp_path: Path):
    spec = read_config(QWEN)[0]
    assert with_pooling_files(spec, tmp_path) == spec


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([(f"{OLD}CNN", {})], "the module `CNN` is not supported"),
        ([(f"{OLD}Pooling", {"pooling_mode": "median"})], "`pooling_mode` is 'median'"),
        ([(f"{OLD}Pooling", {"pooling_mode_median_tokens": True})], "`pooling_mode_median_tokens` is not supported"),
        ([(f"{OLD}Pooling", {"how": "mean"})], "says in no known way what is pooled"),
        ([(f"{OLD}Pooling", MEAN | {"word_embedding_dimension": 17})], "have 17 elements, those of the model 16"),
        ([(f"{OLD}Pooling", MEAN), (f"{OLD}Pooling", MEAN)], "two modules that pool"),
        (
            [(f"{OLD}Pooling", MEAN), (f"{OLD}Dense", {"in_features": 8, "out_features": 4})],
            "a layer of 8 inputs and 4 outputs, after 16 elements",
        ),
        (
            [(f"{OLD}Pooling", MEAN), (f"{OLD}Dense", {"in_features": 16, "out_features": 4, "use_residual": True})],
            "`use_residual` with another size",
        ),
        (
            [
                (f"{OLD}Pooling", MEAN),
                (f"{OLD}Dense", {"in_features": 16, "out_features": 4, "activation_function": "os.system"}),
            ],
            "`activation_function` is 'os.system'",
        ),
        ([("sparse_encoder.modules.SpladePooling", {"pooling_strategy": "sum"})], "`pooling_strategy` is 'sum'"),
        ([("sparse_encoder.modules.SpladePooling", {})], "needs a class with logits of the vocabulary"),
        ([("modules.LogitScore", {"true_token_id": 99})], "99 is no token of a vocabulary of 50"),
        ([("modules.LogitScore", {})], "None is no token of a vocabulary of 50"),
        ([("modules.LogitScore", {"true_token_id": 9, "false_token_id": -1})], "-1 is no token of a vocabulary of 50"),
        ([("modules.LogitScore", {"true_token_id": 9})], "needs a model with an output layer"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_named(modules: list[tuple[str, dict[str, Any]]], message: str, tmp_path: Path):
    with pytest.raises(ModelFilesError, match=message):
        read(folder_of(tmp_path, modules))


@pytest.mark.parametrize(
    ("stem", "values", "message"),
    [
        ("config_sentence_transformers", {"prompts": ["a"]}, "`prompts` must map names to texts"),
        ("config_sentence_transformers", {"default_prompt_name": "q"}, "which is no prompt"),
        ("config_sentence_transformers", {"similarity_fn_name": "jaccard"}, "`similarity_fn_name` is 'jaccard'"),
        ("config_sentence_transformers", {"truncate_dim": 8}, "`truncate_dim` is not supported"),
        ("sentence_bert_config", {"max_seq_length": "long"}, "`max_seq_length` is 'long'"),
        ("sentence_bert_config", {"do_lower_case": 1}, "`do_lower_case` must be true or false"),
    ],
)
def test_wrong_settings_are_named(stem: str, values: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(ModelFilesError, match=message):
        read(folder_of(tmp_path, [(f"{OLD}Pooling", MEAN)], **{stem: values}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "must hold a JSON list"),
        ("[]", "lists no modules"),
        ("[1]", "each module must have a type and a path"),
        ('[{"type": "a.Pooling", "path": "../x"}]', "is no plain folder name"),
        ('[{"type": "a.Transformer", "path": "0_Transformer"}]', "serve this folder instead"),
        ("[", "invalid JSON"),
    ],
)
def test_a_wrong_list_of_modules_is_named(content: str, message: str, tmp_path: Path):
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(ModelFilesError, match=message):
        read(tmp_path)


PYLATE = {"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 12, "document_length": 24}
DENSE = {"in_features": 16, "out_features": 8, "bias": False, "activation_function": "torch.nn.Identity"}
TOKENIZER = {"model": {"vocab": {"!": 5, ",": 6, "word": 7}}, "added_tokens": [{"id": 9, "content": "[MASK]"}]}


def late_folder(place: Path, **values: Any) -> Path:
    named = {"mask_token": {"content": "[MASK]"}}
    return folder_of(
        place,
        [("pylate.models.Dense.Dense", DENSE)],
        config_sentence_transformers=PYLATE | values,
        tokenizer=TOKENIZER,
        tokenizer_config=named,
    )


def test_queries_that_are_compared_token_by_token_are_filled(tmp_path: Path):
    pooling = read(late_folder(tmp_path, attend_to_expansion_tokens=True)).pooling
    assert (pooling.query_marker, pooling.document_marker) == ("[Q] ", "[D] ")
    assert (pooling.query_length, pooling.query_filler) == (12, 9)
    assert pooling.max_length == 24
    assert pooling.skipped_tokens == (5, 6)


def test_queries_need_not_be_filled(tmp_path: Path):
    pooling = read(late_folder(tmp_path, do_query_expansion=False, skiplist_words=["word"])).pooling
    assert (pooling.query_length, pooling.query_filler) == (None, None)
    assert pooling.skipped_tokens == (7,)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "filled with tokens that others do not see"),
        ({"query_prefix": 3}, "`query_prefix` is 3"),
        ({"document_length": -1}, "`document_length` is -1"),
        ({"do_query_expansion": False, "skiplist_words": "!"}, "`skiplist_words` must be a list"),
    ],
)
def test_what_is_not_computed_of_late_interaction_is_named(values: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(ModelFilesError, match=message):
        read(late_folder(tmp_path, **values))


def test_sentence_transformers_own_form_of_late_interaction_is_read(tmp_path: Path):
    kinds = "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
    place = folder_of(
        tmp_path,
        [("pylate.models.Dense.Dense", DENSE), (kinds, {"skiplist_words": ["!"]}), (f"{OLD}Normalize", None)],
        config_sentence_transformers={"model_type": "MultiVectorEncoder", "prompts": {"query": "q: ", "document": ""}},
        sentence_bert_config={"query_expansion": {"strategy": "fixed", "attend": True, "length": 8}},
        tokenizer=TOKENIZER,
        special_tokens_map={"mask_token": "[MASK]"},
    )
    pooling = read(place).pooling
    assert (pooling.query_marker, pooling.document_marker) == ("q: ", "")
    assert (pooling.query_length, pooling.query_filler) == (8, 9)
    assert pooling.skipped_tokens == (5,)
