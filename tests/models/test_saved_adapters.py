"""Adapters with weights, biases and rows of their own, and with magnitudes, against the model with PEFT's adapter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.slow_cases import slow_but
from transformers import PreTrainedModel

from stoker.config.checkpoint.adapter_files import adapter_digest
from stoker.engine.api import AdapterError, EngineRequest
from stoker.engine.kernels import select_kernels
from stoker.engine.layers.linear import Linear
from stoker.engine.runner import loaded_model

from .adapters import Adapter, adapter, inputs_of, outputs, with_lora
from .checkpoints import build, save
from .conftest import Saved
from .engine import Engine
from .gguf_files import write_gguf
from .quantised import METHODS, write, write_plain
from .ranks import divided
from .test_adapters import PROMPTS, SCORED, assert_scored_by, prompt_scores, scores

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{each}")
    for each in (
        "`is_gradient_checkpointing` is deprecated:FutureWarning",
        "Adapter 'default'",
        "Model (has|with) `tie_word_embeddings=True`:UserWarning",
        "You have requested `ensure_weight_tying`",
        "Setting `save_embedding_layers`",
        "Input and output embeddings are no longer tied",
        "fan_in_fan_out is set to False",
    )
]
TOKENS = {"trainable_token_indices": [7, 5, 40, 12, 90], "save_embedding_layers": False}
EMBEDDING = {"target_modules": ["embed_tokens", "v_proj"], "save_embedding_layers": False}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "biases": ("llama with biases", {"bias": "all"}),
    "biases of adapted layers": ("llama with biases", {"bias": "lora_only", "target_modules": ["q_proj", "o_proj"]}),
    "output layer": ("llama", {"modules_to_save": ["lm_head"], "target_modules": ["q_proj"]}),
    "output layer that is tied": ("qwen3", {"modules_to_save": ["lm_head"], "target_modules": ["q_proj"]}),
    "embedding": ("llama", {"modules_to_save": ["embed_tokens"], "target_modules": ["q_proj"]}),
    "embedding that is tied": ("qwen3", {"modules_to_save": ["embed_tokens"], "target_modules": ["q_proj"]}),
    "both in one": (
        "qwen3",
        {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True, "target_modules": ["q_proj"]},
    ),
    "both": ("llama", {"modules_to_save": ["embed_tokens", "lm_head"], "target_modules": ["q_proj"]}),
    "linear layers": ("phi3", {"modules_to_save": ["qkv_proj", "down_proj"], "target_modules": ["o_proj"]}),
    "matrices of the embedding": ("llama", EMBEDDING),
    "matrices of an embedding that is tied": ("qwen3", EMBEDDING),
    "matrices of both in one": ("qwen3", {**EMBEDDING, "ensure_weight_tying": True}),
    "matrices of a scaled embedding": ("gemma3", EMBEDDING),
    "rows of tokens": ("llama", {**TOKENS, "target_modules": ["q_proj"]}),
    "rows of tokens of both in one": ("qwen3", {**TOKENS, "target_modules": ["q_proj"]}),
    "rows of a scaled embedding": ("gemma3", {**TOKENS, "target_modules": ["q_proj"]}),
    "magnitudes": ("llama", {"use_dora": True}),
    "magnitudes and biases": ("llama with biases", {"use_dora": True, "bias": "all"}),
    "magnitudes of fused layers": ("phi3", {"use_dora": True, "r": 3}),
    "magnitudes of layers that store inputs first": (
        "gpt2",
        {"use_dora": True, "target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True},
    ),
    "magnitudes of rows in another order": (
        "qwen3_next",
        {"use_dora": True, "target_modules": ["in_proj_qkvz", "q_proj", "out_proj"]},
    ),
}


@pytest.mark.parametrize(
    "case",
    slow_but(
        CASES,
        "biases",
        "embedding",
        "both in one",
        "matrices of the embedding",
        "rows of tokens of both in one",
        "magnitudes",
    ),
)
def test_rows_are_computed_as_by_peft(case: str, saved: Callable[[str], Saved], tmp_path: Path):
    """Two adapters and the base in one batch, prompts in chunks, and continued rows."""
    family, config = CASES[case]
    base, folder = saved(family)
    own = adapter(base, tmp_path / "own", 1, **config)
    plain = adapter(base, tmp_path / "plain", 2, target_modules=["c_attn"] if family == "gpt2" else ["o_proj"])
    engine = Engine(with_lora(folder, tmp_path, named([own])))
    rows = [own, None, plain, own, None]
    found = outputs(engine, PROMPTS, rows, SCORED)
    for prompt, output, merged in zip(PROMPTS, found, rows, strict=True):
        assert_scored_by(base if merged is None else merged.unmerged, prompt, output)
    assert engine.num_mixed_steps > 0
    without = scores(outputs(engine, PROMPTS, [None] * 5, SCORED))
    mixed = scores(outputs(engine, PROMPTS, [None, own, None, own, None], SCORED))
    assert [mixed[row] for row in (0, 2, 4)] == [without[row] for row in (0, 2, 4)]
    assert [mixed[row] for row in (1, 3)] != [without[row] for row in (1, 3)]


def several(base: PreTrainedModel, place: Path, family: str) -> list[Adapter]:
    """An adapter with magnitudes, and one with rows of tokens, the output layer and biases where the model has some."""
    columns = {"target_modules": ["q_proj", "k_proj", "v_proj", "up_proj"]}  # whose outputs ranks divide
    bias = {"bias": "all"} if family == "llama with biases" else {}
    return [
        adapter(base, place / "magnitudes", 1, use_dora=True, **columns),
        adapter(base, place / "rows", 2, target_modules=["o_proj"], **TOKENS),
        adapter(base, place / "weights", 3, target_modules=["k_proj"], modules_to_save=["lm_head"], **bias),
        adapter(base, place / "matrices", 4, **EMBEDDING),
    ]


def named(adapters: Sequence[Adapter]) -> dict[str, Any]:
    return {"modules": {own.ref.name: {"path": own.ref.folder} for own in adapters}}


PARALLEL = {
    "columns": {"tensor_parallel_size": 2},
    "stages": {"pipeline_parallel_size": 2},
    "stages of two ranks": {"pipeline_parallel_size": 2, "tensor_parallel_size": 2},
}


@pytest.mark.parametrize(
    ("family", "kind"),
    [("llama with biases", "columns"), ("qwen3", "columns"), ("qwen3", "stages of two ranks"), ("llama", "stages")],
)
def test_several_ranks_compute_them(family: str, kind: str, saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved(family)
    every = several(base, tmp_path, family)
    rows = [*every, None]
    with divided(with_lora(folder, tmp_path, named(every), parallel=PARALLEL[kind])) as engine:
        found = outputs(engine, PROMPTS, rows, SCORED)
    for prompt, output, own in zip(PROMPTS, found, rows, strict=True):
        assert_scored_by(base if own is None else own.unmerged, prompt, output)


def test_magnitudes_of_divided_inputs_are_refused(saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("llama")
    own = adapter(base, tmp_path / "own", 1, use_dora=True, target_modules=["o_proj"])
    with divided(with_lora(folder, tmp_path, parallel=PARALLEL["columns"])) as engine:
        engine.scheduler.add(EngineRequest(request_id="own", inputs=inputs_of([5, 6], own)))
        assert engine.scheduler.schedule() is None
        (failed,) = engine.scheduler.take_failed()
        assert "has magnitudes (DoRA) of `model.layers.0.self_attn.o_proj`, whose inputs are divided" in str(
            failed.error
        )


def test_replayed_steps_give_the_same_bits(
    saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The steps are captured with one adapter, and replayed with others."""
    base, folder = saved("qwen3")
    every = several(base, tmp_path, "qwen3")
    settings = with_lora(folder, tmp_path, {"max_loras": 2, **named(every)}, model={"dtype": "bfloat16"})
    engine = Engine(settings)
    if engine.runner.loaded.kernels.capture is None:
        pytest.skip("no compiler")
    with monkeypatch.context() as patch:
        patch.setattr(loaded_model, "select_kernels", lambda *a, **k: replace(select_kernels(*a, **k), capture=None))
        one_by_one = Engine(settings)
    for rows in ([every[0]] * 5, [every[1], None, every[2], None, every[1]], [None, every[3], every[0], None, None]):
        assert scores(outputs(engine, PROMPTS, rows, SCORED)) == scores(outputs(one_by_one, PROMPTS, rows, SCORED))
    launches = engine.runner.launches()
    assert launches.captured > launches.kernels


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_bit_depends_on_the_batch(dtype: str, saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("qwen3")
    every = several(base, tmp_path, "qwen3")
    sections = {"model": {"dtype": dtype, "batch_invariant": True}, "cache": {"enable_prefix_caching": False}}
    engine = Engine(with_lora(folder, tmp_path, named(every), **sections))
    rows = [*every, None]
    together = scores(outputs(engine, PROMPTS, rows, SCORED))
    alone = [scores(outputs(engine, [prompt], [own], SCORED))[0] for prompt, own in zip(PROMPTS, rows, strict=True)]
    assert alone == together


@pytest.mark.parametrize("name", ["gptq", "gptq ordered", "fp8 channels", "bnb int8"])
def test_rows_of_codes_have_their_lengths(name: str, saved: Callable[[str], Saved], tmp_path: Path):
    """The magnitudes are over the lengths of the values that the codes of the checkpoint represent."""
    base, source = saved("qwen3")
    values = write(source, tmp_path / "quantised", METHODS[name])
    plain = write_plain(source, tmp_path / "plain", values)
    own = adapter(base, tmp_path / "own", 1, use_dora=True)
    rows = [own, None, own, None, own]
    found = prompt_scores(outputs(Engine(with_lora(tmp_path / "quantised", tmp_path)), PROMPTS, rows, SCORED))
    expected = prompt_scores(outputs(Engine(with_lora(plain, tmp_path)), PROMPTS, rows, SCORED))
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=0.0)


def test_rows_of_a_gguf_file_have_their_lengths(tmp_path: Path):
    """Its rows of queries and keys, and so their magnitudes, are in another order than those of the adapter."""
    base = build("llama", hidden_size=256, intermediate_size=256, head_dim=64)
    file, plain = write_gguf(save(base, tmp_path / "theirs"), tmp_path / "gguf", "Q8_0")
    own = adapter(base, tmp_path / "own", 1, size=20.0, use_dora=True)
    rows = [own, None, own, None, own]
    found = prompt_scores(outputs(Engine(with_lora(file, tmp_path)), PROMPTS, rows, SCORED))
    expected = prompt_scores(outputs(Engine(with_lora(plain, tmp_path)), PROMPTS, rows, SCORED))
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_rows_of_rounded_weights_have_their_lengths(scheme: str, saved: Callable[[str], Saved], tmp_path: Path):
    """With matrices of zeros and the lengths of the rounded rows as magnitudes, nothing is changed."""
    base, folder = saved("llama")
    engine = Engine(with_lora(folder, tmp_path, model={"quantization": scheme}))
    own = adapter(base, tmp_path / "own", 1, size=0.0, use_dora=True, target_modules=["q_proj", "down_proj"])
    tensors = load_file(tmp_path / "own" / "adapter_model.safetensors")
    for layer in engine.runner.loaded.model.loadables():
        for part, count in layer.parts.items() if isinstance(layer, Linear) else ():
            if (name := f"base_model.model.{part}.lora_magnitude_vector") in tensors:
                tensors[name] = layer.rows_of(part, range(count)).norm(dim=1)
    save_file(tensors, tmp_path / "own" / "adapter_model.safetensors")
    own.ref = replace(own.ref, digest=adapter_digest(tmp_path / "own"))
    found, plain = (outputs(engine, PROMPTS, [each] * 5, SCORED) for each in (own, None))
    torch.testing.assert_close(prompt_scores(found), prompt_scores(plain), atol=1e-4, rtol=0.0)


def test_weights_for_which_no_memory_is_planned_are_refused(saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("llama")
    own = adapter(base, tmp_path / "own", 1, target_modules=["q_proj"], modules_to_save=["lm_head"])
    few = adapter(base, tmp_path / "few", 1, target_modules=["q_proj"], **TOKENS)
    adapters = Engine(with_lora(folder, tmp_path)).runner.loaded.adapters
    assert adapters is not None
    adapters.load(few.ref)  # there is memory for matrices that add to the embedding
    with pytest.raises(AdapterError, match=r"memory is planned for 0; name it in `lora\.modules`") as caught:
        adapters.load(own.ref)
    assert caught.value.code == "unsupported_adapter"
    adapters = Engine(with_lora(folder, tmp_path, named([own]))).runner.loaded.adapters
    assert adapters is not None
    adapters.load(own.ref)
