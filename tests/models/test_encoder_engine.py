"""Encoders in the real engine: texts share steps and nothing is kept, in one process and in several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.config import ConfigError
from stoker.engine.api import CacheScope, EngineRequest, PoolingParams, RequestInputs

from .adapters import adapter, with_lora
from .checkpoints import save
from .engine import Engine, resolved
from .pooling_checkpoints import TEXTS
from .ranks import divided
from .test_encoders import built, ids
from .test_pooled_requests import pool, rows_by

STEPS = {"max_num_batched_tokens": 64}


def settings(folder: Path, place: Path, **sections: Any) -> Any:
    return resolved(folder, place, scheduler=STEPS, **sections)


@pytest.mark.parametrize("stem", ["Bert", "ModernBert", "XLMRoberta", "EuroBert"])
def test_texts_that_share_a_step_are_pooled_by_themselves(stem: str, tmp_path: Path):
    theirs = built(stem, "ForSequenceClassification", num_labels=3)
    engine = Engine(settings(save(theirs, tmp_path / "model"), tmp_path))
    with torch.inference_mode():
        expected = [theirs(ids(text)).logits for text in TEXTS]
    for found, wanted in zip(rows_by(pool(engine, TEXTS, "classify"), "classify"), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert engine.scheduler.stats().num_steps == 1


def test_a_request_names_the_first_token_of_its_second_text(tmp_path: Path):
    theirs = built("Bert", "ForSequenceClassification", num_labels=1)
    engine = Engine(settings(save(theirs, tmp_path / "model"), tmp_path))
    places = [3, 1, 6, None]
    requests = [
        EngineRequest(request_id=str(index), inputs=RequestInputs(text, PoolingParams(("classify",), second=second)))
        for index, (text, second) in enumerate(zip(TEXTS, places, strict=True))
    ]
    done = engine.run(requests)
    found = rows_by([done[str(index)] for index in range(len(TEXTS))], "classify")
    for text, second, scores in zip(TEXTS, places, found, strict=True):
        first = len(text) if second is None else second
        types = ids([0] * first + [1] * (len(text) - first))
        with torch.inference_mode():
            expected = theirs(ids(text), token_type_ids=types).logits
        torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("parallel", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=str)
@pytest.mark.parametrize("stem", ["Bert", "ModernBert", "XLMRoberta", "EuroBert"])
def test_processes_that_share_an_encoder_give_what_one_gives(stem: str, parallel: dict[str, int], tmp_path: Path):
    theirs = built(stem, "ForSequenceClassification", num_labels=3)
    folder = save(theirs, tmp_path / "model")
    with torch.inference_mode():
        expected = [theirs(ids(text)).logits for text in TEXTS]
    with divided(settings(folder, tmp_path, parallel=parallel)) as engine:
        found = rows_by(pool(engine, TEXTS, "classify"), "classify")
    for each, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(each, wanted, atol=1e-5, rtol=1e-5)


def test_the_format_of_a_cache_that_holds_nothing_does_not_matter(tmp_path: Path):
    """Heads that are rotated are prepared by an op that writes a cache of this format for other models."""
    theirs = built("ModernBert", "ForSequenceClassification", num_labels=3)
    engine = Engine(settings(save(theirs, tmp_path / "model"), tmp_path, cache={"kv_cache_dtype": "int8"}))
    with torch.inference_mode():
        expected = [theirs(ids(text)).logits for text in TEXTS]
    for found, wanted in zip(rows_by(pool(engine, TEXTS, "classify"), "classify"), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"prefill_context_parallel_size": 2}, "tokens see later ones, which another process would compute"),
        ({"tensor_parallel_size": 2, "enable_dbo": True}, "models whose tokens see no later ones"),
    ],
)
def test_the_tokens_of_a_text_are_not_divided(parallel: dict[str, Any], message: str, tmp_path: Path):
    folder = save(built("Bert", "Model"), tmp_path / "model")
    with pytest.raises(ConfigError, match=message):
        settings(folder, tmp_path, parallel=parallel)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft reads it
@pytest.mark.parametrize("stem", ["Bert", "ModernBert", "XLMRoberta"])
def test_texts_with_and_without_an_adapter_share_a_step(stem: str, tmp_path: Path):
    theirs = built(stem, "ForSequenceClassification", num_labels=3)
    folder = save(theirs, tmp_path / "model")
    made = adapter(
        theirs, tmp_path / "tuned", 1, target_modules=r".*layers?\.\d+\..*(query|key|value|dense|Wqkv|Wo|Wi)"
    )
    engine = Engine(with_lora(folder, tmp_path, scheduler=STEPS))
    own = [None, made, made, None]
    requests = []
    for index, (text, its) in enumerate(zip(TEXTS, own, strict=True)):
        ref = None if its is None else its.ref
        scope = CacheScope(adapter="" if ref is None else ref.digest)
        inputs = RequestInputs(text, PoolingParams(("classify",)), scope, ref)
        requests.append(EngineRequest(request_id=str(index), inputs=inputs))
    done = engine.run(requests)
    found = rows_by([done[str(index)] for index in range(len(TEXTS))], "classify")
    for text, its, scores in zip(TEXTS, own, found, strict=True):
        with torch.inference_mode():
            expected = (theirs if its is None else its.merged)(ids(text)).logits
        torch.testing.assert_close(scores, expected, atol=1e-4, rtol=1e-4)
