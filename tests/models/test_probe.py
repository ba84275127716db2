"""A probe finds what an architecture of the transformers library asks of attention, and this engine does not do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from stoker.config import ModelFiles, ModelFilesError, load_deployment, read_model_files
from stoker.engine.executor.build import build_core, needs_probe
from stoker.engine.executor.probe import probe
from stoker.engine.models import hf_attention, hf_sequences
from stoker.engine.models.hf_small import small_config
from stoker.model import through_transformers

from .engine import resolved

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WITH_WINDOW = SIZES | {"layer_types": ["full_attention", *["sliding_attention"] * 4], "sliding_window": 4096}


PLAIN = {name: size for name, size in SIZES.items() if name not in ("num_key_value_heads", "head_dim")}
DECODER = {
    "vocab_size": 97,
    "d_model": 64,
    "encoder_layers": 5,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
}

DBRX = {
    "vocab_size": 97,
    "d_model": 64,
    "n_layers": 2,
    "n_heads": 4,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0},
    "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
}

LONGCAT = {
    "vocab_size": 97,
    "hidden_size": 64,
    "num_layers": 2,
    "num_attention_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "head_dim": 8,
    "ffn_hidden_size": 96,
    "expert_ffn_hidden_size": 32,
    "n_routed_experts": 4,
    "zero_expert_num": 2,
    "moe_topk": 2,
}


def files_of(folder: Path, model_type: str, architecture: str, **values: Any) -> ModelFiles:
    folder.mkdir(exist_ok=True)
    config = CONFIG_MAPPING[model_type](**values).to_dict() | {"architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(config))
    words = ["--model", str(folder), "--model-impl", "transformers", "--load-format", "dummy", "--skip-tokenizer-init"]
    return read_model_files(load_deployment([], words, {}))


def test_an_architecture_that_no_test_names_runs(tmp_path: Path):
    files = files_of(tmp_path, "granite_swa", "GraniteSWAForCausalLM", **WITH_WINDOW)
    assert needs_probe(files)
    probe(files)


@pytest.mark.parametrize("changes", [{"window": None}, {"window": 7}, {"softcap": 1.0}])
def test_attention_that_differs_is_refused_with_the_difference(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = hf_attention.AttentionVariant

    def other(*arguments: Any, **options: Any) -> Any:
        return replace(made(*arguments, **options), **changes)

    monkeypatch.setattr(hf_attention, "AttentionVariant", other)
    files = files_of(tmp_path, "granite_swa", "GraniteSWAForCausalLM", **WITH_WINDOW)
    with pytest.raises(ModelFilesError, match=r"small random model of it differ by .* from those of the transformers"):
        probe(files)


def test_a_model_that_sees_later_tokens_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(through_transformers, "DECODERS", frozenset())  # as if it were a class of a newer release
    reason = "sees later tokens too, so it cannot generate text; .* config.json must say `is_decoder: true`"
    with pytest.raises(ModelFilesError, match=reason):
        probe(files_of(tmp_path, "bert", "BertLMHeadModel", **PLAIN))


@pytest.mark.parametrize(
    ("model_type", "architecture", "values"),
    [
        ("bart", "BartForCausalLM", DECODER),  # takes no positions
        ("gpt_neox_japanese", "GPTNeoXJapaneseForCausalLM", PLAIN),  # computes attention itself
        ("doge", "DogeForCausalLM", SIZES | {"num_hidden_layers": 2}),  # computes with a mask of its own
        ("xlm-roberta", "XLMRobertaForCausalLM", PLAIN | {"is_decoder": True, "pad_token_id": 1}),
        ("dbrx", "DbrxForCausalLM", DBRX),  # asks for the numbers of tokens of its experts
        (
            "longcat_flash",
            "LongcatFlashForCausalLM",
            LONGCAT,
        ),  # its router reads the weight of a layer that is not called
        ("hrm_text", "HrmTextForCausalLM", PLAIN | {"head_dim": 16}),  # runs layers several times
        ("modernbert-decoder", "ModernBertDecoderForCausalLM", PLAIN),  # calls its output layer its decoder
    ],
)
def test_models_whose_modules_do_more_themselves_run(
    model_type: str, architecture: str, values: dict[str, Any], tmp_path: Path
):
    probe(files_of(tmp_path, model_type, architecture, **values))


def test_blocks_in_another_order_are_refused_with_the_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The model runs each sequence separately, on keys and values that are gathered for it."""
    read = hf_sequences.blocks_in
    monkeypatch.setattr(hf_sequences, "blocks_in", lambda cache, blocks, dtype: read(cache, blocks.flip(0), dtype))
    with pytest.raises(ModelFilesError, match=r"small random model of it differ by .* from those of the transformers"):
        probe(files_of(tmp_path, "bart", "BartForCausalLM", **DECODER))


def test_a_model_that_adds_tokens_of_its_own_is_refused(tmp_path: Path):
    values = {"hidden_size": 64, "num_attention_heads": 4, "dim_head": 16, "dim_ff": 96, "num_hidden_layers": 2}
    with pytest.raises(ModelFilesError, match="layer 0 has 35 keys for 3 tokens, which this build cannot serve"):
        probe(files_of(tmp_path, "cpmant", "CpmAntForCausalLM", **values))


def test_a_start_probes_before_the_weights_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = hf_attention.AttentionVariant
    monkeypatch.setattr(hf_attention, "AttentionVariant", lambda *_, **options: made(None, **options))
    files_of(tmp_path / "model", "granite_swa", "GraniteSWAForCausalLM", **WITH_WINDOW)
    options = {"model_impl": "transformers"}
    settings = resolved(tmp_path / "model", tmp_path, model=options, load={"load_format": "dummy"})
    phases: list[str] = []
    with pytest.raises(ModelFilesError, match="is not served"):
        build_core(settings, phases.append)
    assert phases == ["libraries", "probe"]


@pytest.mark.parametrize(
    ("model_type", "values"),
    [("granite_swa", WITH_WINDOW), ("gpt2", {"n_embd": 768, "n_head": 12, "n_layer": 12}), ("codegen", {})],
)
def test_a_small_model_keeps_what_attention_depends_on(model_type: str, values: dict[str, Any]):
    whole = CONFIG_MAPPING[model_type](**values)
    small = small_config(whole.to_dict(), CONFIG_MAPPING[model_type])
    heads = whole.num_attention_heads, small.num_attention_heads
    assert whole.hidden_size // heads[0] == small.hidden_size // heads[1]
    assert set(getattr(small, "layer_types", None) or ()) == set(getattr(whole, "layer_types", None) or ())
    assert (small.num_hidden_layers, small.vocab_size <= 512) == (min(whole.num_hidden_layers, 4), True)
