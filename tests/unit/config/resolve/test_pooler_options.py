"""What `model.runner`, `model.convert` and `model.pooler_config` leave of a model's heads."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.config import ModelFilesError
from stoker.config.resolve.pooler_options import with_pooling_options
from stoker.config.schema.model import ModelConfig
from stoker.model.pooling import PoolDense, PoolHead, Pooling
from stoker.model.read import read_config
from stoker.model.spec import ModelSpec

DECODER = read_config(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": 100,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
)[0]


def encoder(*heads: PoolHead, **more: Any) -> ModelSpec:
    pooling = Pooling(heads=heads, **more)
    return DECODER.model_copy(update={"generates": False, "has_output": False, "pooling": pooling})


EMBEDS = PoolHead(task="embed", modes=("cls",), activation="normalize", width=64, dimensions=(16, 32))
RATES = PoolHead(task="classify", modes=("cls",), activation="sigmoid", width=1)
STEPS = PoolHead(task="token_classify", modes=(), activation="softmax", width=2)


def options(**written: Any) -> ModelConfig:
    return ModelConfig.model_validate({"model": "m", **written})


def changed(spec: ModelSpec, *, keeps_output: bool = False, **written: Any) -> ModelSpec:
    return with_pooling_options(spec, options(**written), keeps_output=keeps_output)


def changed_pooling(spec: ModelSpec, **written: Any) -> Pooling:
    pooling = changed(spec, pooler_config=written).pooling
    assert pooling is not None
    return pooling


def test_without_options_a_decoder_generates_and_embeds():
    assert changed(DECODER) == DECODER
    assert DECODER.pooling is not None
    assert [head.task for head in DECODER.pooling.heads] == ["embed"]


def test_a_model_that_only_pools_has_no_output_layer():
    for written in ({"runner": "pooling"}, {"convert": "embed"}, {"runner": "pooling", "convert": "embed"}):
        found = changed(DECODER, **written)
        assert (found.generates, found.has_output, found.pooling) == (False, False, DECODER.pooling)
    assert changed(DECODER, keeps_output=True, runner="pooling").has_output
    tied = DECODER.model_copy(update={"is_tied": True})
    assert changed(tied, runner="pooling") == tied.model_copy(update={"generates": False})


def test_a_model_that_only_generates_has_no_heads():
    for written in ({"runner": "generate"}, {"convert": "none"}, {"runner": "generate", "convert": "none"}):
        found = changed(DECODER, **written)
        assert (found.generates, found.pooling) == (True, None)
    assert changed(encoder(EMBEDS), convert="none") == encoder(EMBEDS)


@pytest.mark.parametrize(
    ("spec", "written", "option", "words"),
    [
        (encoder(RATES), {"runner": "generate"}, "model.runner", "generates no tokens; it has classify"),
        (encoder(RATES), {"convert": "embed"}, "model.convert", "has no head of embed or token_embed or sparse"),
        (DECODER, {"convert": "classify"}, "model.convert", "no head of classify or token_classify; it has tokens"),
        (DECODER, {"convert": "reward"}, "model.convert", "no head of classify or token_classify"),
        (DECODER, {"convert": "embed", "runner": "generate"}, "model.convert", "leaves out what `convert: embed` asks"),
        (DECODER, {"convert": "none", "runner": "pooling"}, "model.runner", "pools nothing here"),
        (DECODER, {"convert": "none", "pooler_config": {"dimensions": 8}}, "model.pooler_config", "pools nothing here"),
        (encoder(RATES), {"pooler_config": {"task": "embed"}}, "model.pooler_config", "`task` is not a task of this"),
        (encoder(RATES), {"pooler_config": {"dimensions": 8}}, "model.pooler_config", "`dimensions` is about embed"),
        (encoder(EMBEDS), {"pooler_config": {"dimensions": 8}}, "model.pooler_config", "is 8; allowed: 16, 32"),
        (DECODER, {"pooler_config": {"dimensions": 8}}, "model.pooler_config", "allowed: 64, which is not to be cut"),
        (encoder(EMBEDS), {"pooler_config": {"logit_mean": 1}}, "model.pooler_config", "is about classify"),
        (encoder(RATES), {"pooler_config": {"pooling_type": "STEP"}}, "model.pooler_config", "is about token_embed"),
        (encoder(STEPS), {"pooler_config": {"pooling_type": "STEP"}}, "model.pooler_config", "is needed for STEP"),
        (encoder(STEPS), {"pooler_config": {"pooling_type": "MEAN"}}, "model.pooler_config", "is about embed and"),
        (
            encoder(STEPS),
            {"pooler_config": {"pooling_type": "ALL", "step_tag_id": 5}},
            "model.pooler_config",
            "has no effect on ALL",
        ),
    ],
)  # fmt: skip
def test_what_a_model_does_not_have_is_refused_at_its_option(
    spec: ModelSpec, written: dict[str, Any], option: str, words: str
):
    with pytest.raises(ModelFilesError, match=words) as refused:
        changed(spec, **written)
    assert refused.value.option == option


def test_heads_pool_as_the_option_says():
    for key in ("pooling_type", "seq_pooling_type"):
        for name, mode in (("MEAN", "mean"), ("LAST", "last"), ("CLS", "cls")):
            pooling = changed_pooling(encoder(EMBEDS, RATES, STEPS), **{key: name})
            assert [head.modes for head in pooling.heads] == [(mode,), (mode,), ()]


def test_results_without_an_activation():
    pooling = changed_pooling(encoder(EMBEDS, RATES, STEPS), use_activation=False)
    assert {head.activation for head in pooling.heads} == {"none"}
    assert changed_pooling(encoder(EMBEDS), use_activation=True).heads == (EMBEDS,)


def test_a_process_reward_model_rates_its_steps_or_all_tokens():
    spec = encoder(STEPS, step_token=7)
    assert changed_pooling(spec, pooling_type="STEP").step_token == 7
    assert changed_pooling(spec, tok_pooling_type="STEP", step_tag_id=9).step_token == 9
    assert changed_pooling(spec, step_tag_id=9).step_token == 9
    assert changed_pooling(spec, pooling_type="ALL").step_token is None


def test_sizes_scores_and_tasks():
    assert changed_pooling(encoder(EMBEDS), dimensions=16).default_dimensions == 16
    flexible = EMBEDS.model_copy(update={"dimensions": (), "any_dimension": True})
    assert changed_pooling(encoder(flexible), dimensions=5).default_dimensions == 5
    pooling = changed_pooling(encoder(RATES), logit_mean=2, logit_sigma=0.5)
    assert (pooling.logit_mean, pooling.logit_sigma) == (2.0, 0.5)
    assert changed_pooling(encoder(EMBEDS, RATES), task="classify").heads == (RATES,)


def test_one_mode_in_place_of_several_has_the_width_of_one():
    several = PoolHead(task="embed", modes=("cls", "mean"), width=128)
    (head,) = changed_pooling(encoder(several), pooling_type="MEAN").heads
    assert (head.modes, head.width) == (("mean",), 64)
    dense = PoolDense(name="dense", inputs=128, outputs=32)
    with pytest.raises(ModelFilesError, match="does not fit the layers after the 2 modes"):
        changed(encoder(several.model_copy(update={"after": (dense,)})), pooler_config={"pooling_type": "MEAN"})
