"""Heads of decoders that make something of whole texts give what transformers gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from .checkpoints import save
from .conftest import Saved
from .pooling_checkpoints import TEXTS, assert_alone_and_together, build_decoder, pooled, stepped

HAVE_CLASSIFIERS = {
    "LlamaForSequenceClassification": "llama",
    "Qwen2ForSequenceClassification": "qwen2",
    "Qwen3ForSequenceClassification": "qwen3 untied",
    "MistralForSequenceClassification": "mistral",
    "Gemma2ForSequenceClassification": "gemma2",
    "GPT2ForSequenceClassification": "gpt2",
}


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2", "openai-gpt", "qwen3_5", "deepseek_v4"])
def test_every_decoder_embeds_with_its_last_token(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    """Results in float32 differ by at most 1e-5 relative to elements of about 1."""
    theirs, folder = saved(family)
    model = stepped(folder, tmp_path)
    assert model.spec.generates
    body = theirs.base_model
    with torch.inference_mode():
        expected = [body(torch.tensor([text]), use_cache=False).last_hidden_state[0, -1:].float() for text in TEXTS]
    assert_alone_and_together(model, "embed", expected, 1e-4)


@pytest.mark.parametrize("architecture", HAVE_CLASSIFIERS)
@pytest.mark.parametrize("num_labels", [1, 3])
def test_classifiers_of_decoders_equal_transformers(architecture: str, num_labels: int, tmp_path: Path):
    changes = {"num_labels": num_labels, "tie_word_embeddings": False}
    theirs = build_decoder(architecture, HAVE_CLASSIFIERS[architecture], **changes)
    model = stepped(save(theirs, tmp_path / "model"), tmp_path)
    assert not model.spec.generates
    assert model.spec.pooling.head("classify").activation == ("sigmoid" if num_labels == 1 else "softmax")
    assert len(model.spec.pooling.labels) == num_labels
    with torch.inference_mode():
        expected = [theirs(torch.tensor([text]), use_cache=False).logits for text in TEXTS]
    assert_alone_and_together(model, "classify", expected, 1e-4)


def test_labels_of_tokens_of_a_decoder_equal_transformers(tmp_path: Path):
    theirs = build_decoder("Qwen3ForTokenClassification", "qwen3", id2label={0: "O", 1: "B-NAME", 2: "I-NAME"})
    model = stepped(save(theirs, tmp_path / "model"), tmp_path)
    assert model.spec.pooling.labels == ("O", "B-NAME", "I-NAME")
    with torch.inference_mode():
        expected = [theirs(torch.tensor([text]), use_cache=False).logits[0] for text in TEXTS]
    assert_alone_and_together(model, "token_classify", expected, 1e-4)


def test_a_decoder_without_its_output_layer_embeds(tmp_path: Path):
    theirs = build_decoder("Qwen3Model", "qwen3")
    model = stepped(save(theirs, tmp_path / "model"), tmp_path)
    assert not model.spec.generates
    assert "lm_head.weight" not in dict(model.model.wanted())
    with torch.inference_mode():
        states = [theirs(torch.tensor([text]), use_cache=False).last_hidden_state[0] for text in TEXTS]
    assert_alone_and_together(model, "embed", [each[-1:] for each in states], 1e-4)
    assert_alone_and_together(model, "token_embed", states, 1e-4)


def test_parts_of_a_prompt_give_the_vector_of_the_whole(saved: Callable[[str], Saved], tmp_path: Path):
    model = stepped(saved("qwen3")[1], tmp_path)
    text = TEXTS[2]
    (whole,) = pooled(model, "embed", [text])
    model.forward([(0, text[:5])])
    hidden, residual = model.forward([(5, text[5:])], torch.tensor([len(text) - 6]))
    with torch.inference_mode():
        found = model.model.poolers["embed"].pool(hidden, residual, torch.tensor([0, 1]))
    torch.testing.assert_close(found, whole, atol=1e-5, rtol=1e-5)
