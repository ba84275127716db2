"""Decoders that score texts: rerankers by the logits of tokens, and reward models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from stoker.config.errors import ModelFilesError

from .checkpoints import save
from .pooling_checkpoints import TEXTS, assert_alone_and_together, build_decoder, stepped
from .test_encoders import ids

TOKENIZER = {"model": {"type": "BPE", "vocab": {"no": 4, "yes": 9}}, "added_tokens": [{"id": 11, "content": "<maybe>"}]}


def with_tokenizer(folder: Path) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return folder


def logits_of(theirs: PreTrainedModel) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [theirs(ids(text), use_cache=False).logits[:, -1] for text in TEXTS]


@pytest.mark.parametrize("family", ["qwen3", "qwen3 untied"])
def test_the_original_files_of_qwen3_reranker_score_with_yes_and_no(family: str, tmp_path: Path):
    """The name of the directory says what it is: its config.json is that of any other Qwen 3."""
    theirs = build_decoder("Qwen3ForCausalLM", family)
    folder = with_tokenizer(save(theirs, tmp_path / "Qwen3-Reranker-0.6B"))
    model = stepped(folder, tmp_path)
    pooling = model.spec.pooling
    assert [head.task for head in pooling.heads] == ["classify"]
    assert pooling.head("classify").activation == "sigmoid"
    assert not model.spec.generates
    filled = pooling.pair.format(instruction=pooling.instruction, query="what is rain?", document="Water that falls.")
    assert filled.startswith("<|im_start|>system\nJudge whether the Document meets the requirements")
    assert "<Instruct>: Given a web search query, retrieve relevant passages" in filled
    assert filled.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert_alone_and_together(model, "classify", [each[:, 9:10] - each[:, 4:5] for each in logits_of(theirs)], 1e-4)


def test_a_reranker_without_its_tokenizer_is_refused(tmp_path: Path):
    folder = save(build_decoder("Qwen3ForCausalLM", "qwen3"), tmp_path / "Qwen3-Reranker-0.6B")
    with pytest.raises(ModelFilesError, match="lists no token 'yes', which the scores of this model need"):
        stepped(folder, tmp_path)


@pytest.mark.parametrize(("keys", "pairs"), [
    ({"classifier_from_token": ["no", "yes"], "is_original_qwen3_reranker": True}, [(9, 4)]),
    ({"classifier_from_token": ["no", "<maybe>"], "method": "from_2_way_softmax"}, [(11, 4)]),
    ({"classifier_from_token": ["no", "yes", "<maybe>"], "method": "no_post_processing"},
     [(4, None), (9, None), (11, None)]),
])  # fmt: skip
def test_the_keys_of_other_engines_name_the_tokens(
    keys: dict[str, Any], pairs: list[tuple[int, int | None]], tmp_path: Path
):
    theirs = build_decoder("Qwen3ForCausalLM", "qwen3")
    folder = with_tokenizer(save(theirs, tmp_path / "model"))
    overrides = {"architectures": ["Qwen3ForSequenceClassification"], **keys}
    model = stepped(folder, tmp_path, model={"hf_overrides": overrides})
    head = model.spec.pooling.head("classify")
    assert head.activation == ("sigmoid" if len(pairs) == 1 else "softmax")
    expected = [
        torch.stack([each[:, row] - (0 if less is None else each[:, less]) for row, less in pairs], 1)
        for each in logits_of(theirs)
    ]
    assert_alone_and_together(model, "classify", expected, 1e-4)


@pytest.mark.parametrize(("keys", "message"), [
    ({"classifier_from_token": "yes"}, "it must be a list of tokens"),
    ({"classifier_from_token": ["no"], "method": "from_2_way_softmax"}, "with 1 tokens; supported"),
    ({"classifier_from_token": ["no", "yes"], "method": "mean"}, "`method` is 'mean'"),
])  # fmt: skip
def test_wrong_keys_are_named(keys: dict[str, Any], message: str, tmp_path: Path):
    folder = with_tokenizer(save(build_decoder("Qwen3ForCausalLM", "qwen3"), tmp_path / "model"))
    overrides = {"architectures": ["Qwen3ForSequenceClassification"], **keys}
    with pytest.raises(ModelFilesError, match=message):
        stepped(folder, tmp_path, model={"hf_overrides": overrides})


@pytest.mark.parametrize(("architecture", "task", "num_labels"), [
    ("Qwen2ForRewardModel", "classify", 1), ("Qwen2ForProcessRewardModel", "token_classify", 2),
])  # fmt: skip
def test_reward_models_have_two_layers(architecture: str, task: str, num_labels: int, tmp_path: Path):
    """Their classes are code of the repositories: a layer, ReLU and another layer over the last hidden states."""
    theirs = build_decoder("Qwen2Model", "qwen2 tied")
    folder = save(theirs, tmp_path / "model")
    generator = torch.Generator().manual_seed(3)
    shapes = {"score.0.weight": (64, 64), "score.0.bias": (64,)}
    shapes |= {"score.2.weight": (num_labels, 64), "score.2.bias": (num_labels,)}
    layers = {name: torch.randn(shape, generator=generator) / 8 for name, shape in shapes.items()}
    body = {f"model.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    output = {"lm_head.weight": torch.zeros(97, 64)}  # published files have one
    save_file(body | layers | output, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": [architecture]}
    config = {key: value for key, value in config.items() if key not in ("id2label", "label2id", "num_labels")}
    (folder / "config.json").write_text(json.dumps(config))
    model = stepped(folder, tmp_path)
    pooling = model.spec.pooling
    assert len(pooling.labels) == num_labels
    assert pooling.head(task).activation == ("softmax" if task == "token_classify" else "none")
    assert pooling.step_token == (151651 if task == "token_classify" else None)
    expected = []
    with torch.inference_mode():
        for text in TEXTS:
            states = theirs(ids(text), use_cache=False).last_hidden_state[0]
            inner = torch.relu(F.linear(states, layers["score.0.weight"], layers["score.0.bias"]))
            scores = F.linear(inner, layers["score.2.weight"], layers["score.2.bias"])
            expected.append(scores if task == "token_classify" else scores[-1:])
    assert_alone_and_together(model, task, expected, 1e-4)


def test_a_decoder_saved_without_its_head_embeds_under_the_class_that_generates(tmp_path: Path):
    """As Qwen3-Embedding: config.json names the class that generates, and the names of tensors begin with `layers`."""
    theirs = build_decoder("Qwen3Model", "qwen3 untied")
    folder = save(theirs, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["Qwen3ForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    prompts = {"query": "Instruct: Given a web search query, retrieve relevant passages\nQuery:", "document": ""}
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    model = stepped(folder, tmp_path)
    assert model.spec.pooling.prompts == prompts
    assert not model.spec.generates
    with torch.inference_mode():
        expected = [theirs(ids(text), use_cache=False).last_hidden_state[0, -1:] for text in TEXTS]
    assert_alone_and_together(model, "embed", expected, 1e-4)
