"""Folders of sentence-transformers and BGE-M3: their results are what their modules make of transformers' states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import PreTrainedModel

from stoker.config.errors import ModelFilesError
from stoker.convert.quantised import plan_conversion
from stoker.convert.sharded_state import plan_sharding

from .checkpoints import save
from .engine import resolved
from .pooling_checkpoints import TEXTS, assert_alone_and_together, build_decoder, pooled, stepped
from .test_encoders import built, ids

KINDS = "sentence_transformers.models."


def add_modules(folder: Path, modules: list[tuple[str, dict[str, Any], dict[str, torch.Tensor]]]) -> None:
    """Write modules after the transformer: name of the type, configuration, weights."""
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{KINDS}Transformer"}]
    for index, (name, config, weights) in enumerate(modules, 1):
        own = folder / f"{index}_{name}"
        own.mkdir()
        (own / "config.json").write_text(json.dumps(config))
        if weights:
            save_file(weights, own / "model.safetensors")
        listed.append({"idx": index, "name": str(index), "path": own.name, "type": f"{KINDS}{name}"})
    (folder / "modules.json").write_text(json.dumps(listed))


def weights(outputs: int, inputs: int, seed: int, *, has_bias: bool = True) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = {"linear.weight": torch.randn(outputs, inputs, generator=generator) / inputs**0.5}
    return found | ({"linear.bias": torch.randn(outputs, generator=generator)} if has_bias else {})


def applied(x: torch.Tensor, dense: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.linear(x, dense["linear.weight"], dense.get("linear.bias"))


def states_of(theirs: PreTrainedModel) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [theirs(ids(text)).last_hidden_state[0] for text in TEXTS]


def test_two_dense_layers_follow_the_mean(tmp_path: Path):
    """The two files have tensors of the same names, as in EmbeddingGemma; the first layer has a residual here."""
    theirs = built("Bert", "Model")
    folder = save(theirs, tmp_path / "model")
    first, second = weights(64, 64, 1), weights(20, 64, 2, has_bias=False)
    add_modules(folder, [
        ("Pooling", {"embedding_dimension": 64, "pooling_mode": "mean"}, {}),
        ("Dense", {"in_features": 64, "out_features": 64, "use_residual": True}, first),
        ("Dense", {"in_features": 64, "out_features": 20, "bias": False, "activation_function": "torch.nn.Identity"},
         second),
        ("Normalize", {}, {}),
    ])  # fmt: skip
    model = stepped(folder, tmp_path)
    expected = []
    for states in states_of(theirs):
        mean = states.mean(0, keepdim=True)
        expected.append(applied(torch.tanh(applied(mean, first)) + mean, second))
    assert_alone_and_together(model, "embed", expected)


@pytest.mark.parametrize("includes_prompt", [True, False])
@pytest.mark.parametrize("modes", [
    ["mean"], ["max"], ["weightedmean"], ["mean_sqrt_len_tokens"], ["cls"], ["lasttoken"], ["cls", "mean", "max"],
])  # fmt: skip
def test_every_pool_is_of_the_tokens_after_the_prompt(modes: list[str], includes_prompt: bool, tmp_path: Path):
    theirs = built("Bert", "Model")
    folder = save(theirs, tmp_path / "model")
    add_modules(folder, [("Pooling", {"pooling_mode": modes, "include_prompt": includes_prompt}, {})])
    model = stepped(folder, tmp_path)
    first = [3, 1, 5, 0]  # tokens of prompts
    found = pooled(model, "embed", TEXTS, first)
    for states, skipped, row in zip(states_of(theirs), first, found, strict=True):
        own = states if includes_prompt else states[skipped:]
        numbers = torch.arange(1, len(states) + 1.0)[-len(own) :, None]
        wanted = {
            "mean": own.mean(0),
            "max": own.amax(0),
            "weightedmean": (own * numbers).sum(0) / numbers.sum(),
            "mean_sqrt_len_tokens": own.sum(0) / len(own) ** 0.5,
            "cls": states[0],
            "lasttoken": states[-1],
        }
        torch.testing.assert_close(row[0], torch.cat([wanted[mode] for mode in modes]), atol=1e-5, rtol=1e-5)


def test_vectors_of_tokens_have_layers_of_their_own(tmp_path: Path):
    theirs = built("ModernBert", "Model")
    folder = save(theirs, tmp_path / "model")
    dense = weights(24, 64, 3, has_bias=False)
    config = {"in_features": 64, "out_features": 24, "bias": False, "activation_function": "torch.nn.Identity"}
    add_modules(folder, [("Dense", config, dense)])
    model = stepped(folder, tmp_path)
    assert_alone_and_together(model, "token_embed", [applied(states, dense) for states in states_of(theirs)])


def test_bge_makes_three_results_of_one_pass(tmp_path: Path):
    theirs = built("XLMRoberta", "Model")
    folder = save(theirs, tmp_path / "model")
    add_modules(folder, [("Pooling", {"pooling_mode": "cls"}, {}), ("Normalize", {}, {})])
    layers = {"colbert": weights(64, 64, 4), "sparse": weights(1, 64, 5)}
    for name, layer in layers.items():
        torch.save({key.removeprefix("linear."): value for key, value in layer.items()}, folder / f"{name}_linear.pt")
    model = stepped(folder, tmp_path)
    states = states_of(theirs)
    assert_alone_and_together(model, "embed", [each[:1] for each in states])
    assert_alone_and_together(model, "token_embed", [applied(each, layers["colbert"]) for each in states])
    assert_alone_and_together(model, "sparse", [applied(each, layers["sparse"]) for each in states])
    heads = {head.task: head for head in model.spec.pooling.heads}
    assert (heads["token_embed"].skips_first, heads["token_embed"].skips_last) == (1, 0)
    assert (heads["sparse"].skips_first, heads["sparse"].skips_last) == (1, 1)
    assert heads["sparse"].activation == "relu"


@pytest.mark.parametrize("family", ["qwen3", "qwen3 untied", "gemma2"])
@pytest.mark.parametrize("subtracted", [4, None])
def test_logits_of_two_tokens_are_a_score(family: str, subtracted: int | None, tmp_path: Path):
    """gemma2's logits have a limit, which applies to each of the two."""
    architecture = "Gemma2ForCausalLM" if family == "gemma2" else "Qwen3ForCausalLM"
    theirs = build_decoder(architecture, family)
    folder = save(theirs, tmp_path / "model")
    add_modules(folder, [("LogitScore", {"true_token_id": 9, "false_token_id": subtracted}, {})])
    model = stepped(folder, tmp_path)
    with torch.inference_mode():
        logits = [theirs(ids(text), use_cache=False).logits[:, -1] for text in TEXTS]
    expected = [each[:, 9:10] - (0 if subtracted is None else each[:, subtracted : subtracted + 1]) for each in logits]
    assert_alone_and_together(model, "classify", expected, 1e-4)


def test_a_body_with_the_class_of_another_head_embeds(tmp_path: Path):
    """Files of a masked language model, whose head sentence-transformers does not load."""
    theirs = built("Roberta", "ForMaskedLM")
    folder = save(theirs, tmp_path / "model")
    add_modules(folder, [("Pooling", {"pooling_mode_mean_tokens": True}, {})])
    model = stepped(folder, tmp_path)
    assert "lm_head.weight" not in dict(model.model.wanted())
    with torch.inference_mode():
        states = [theirs.roberta(ids(text)).last_hidden_state[0] for text in TEXTS]
    assert_alone_and_together(model, "embed", [each.mean(0, keepdim=True) for each in states])


def test_other_formats_are_written_of_models_that_generate_text(tmp_path: Path):
    folder, steps = save(built("Bert", "Model"), tmp_path / "model"), {"max_num_batched_tokens": 64}
    files = resolved(folder, tmp_path, scheduler=steps).model_files
    with pytest.raises(ModelFilesError, match="BertModel makes vectors or scores here"):
        plan_conversion(files, "int8")
    with pytest.raises(ModelFilesError, match="BertModel makes vectors or scores here"):
        plan_sharding(files, 1 << 30)
