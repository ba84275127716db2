"""Requests that are pooled, by the real scheduler and the real runner, beside others that generate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stoker.engine.api import (
    EngineOutput,
    EngineRequest,
    FinishReason,
    InvalidRequest,
    PoolingParams,
    RequestInputs,
    SamplingParams,
    Vectors,
)
from stoker.engine.layers.embedding import Embedding

from .checkpoints import save
from .conftest import Saved
from .engine import GREEDY, Engine, resolved
from .pooling_checkpoints import build_decoder
from .ranks import divided

TEXTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 5, 6, 15, 16, 17, 18, 19, 20, 21, 22, 23], [7]]


def pool(engine: Engine, texts: list[list[int]], *tasks: str, **params: Any) -> list[EngineOutput]:
    task = PoolingParams(tasks or ("embed",), **params)
    requests = [EngineRequest(request_id=f"p{i}", inputs=RequestInputs(text, task)) for i, text in enumerate(texts)]
    done = engine.run(requests)
    return [done[request.request_id] for request in requests]


def rows_of(vectors: Vectors) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(vectors.elements, "<f4").copy()).view(-1, vectors.width)


def rows_by(outputs: list[EngineOutput], task: str = "embed") -> list[torch.Tensor]:
    return [rows_of(output.vectors[task]) for output in outputs if output.vectors is not None]


def last_states(theirs: Any, texts: list[list[int]]) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [theirs.base_model(torch.tensor([text]), use_cache=False).last_hidden_state[0].float() for text in texts]


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_5"])
def test_texts_are_pooled_in_the_steps_of_answers(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    """Steps have 11 tokens: a text of 12 is computed in two of them, whose first has no output. Vectors equal those of
    transformers, and answers are those that the engine gives without pooled requests."""
    theirs, folder = saved(family)
    engine = Engine(resolved(folder, tmp_path))
    prompts = [[5, 6, 7], [30, 31]]
    expected = engine.generate(prompts)
    requests = [EngineRequest(request_id=f"g{i}", inputs=RequestInputs(each, GREEDY)) for i, each in enumerate(prompts)]
    requests += [
        EngineRequest(request_id=f"p{i}", inputs=RequestInputs(text, PoolingParams(("embed",))))
        for i, text in enumerate(TEXTS)
    ]
    done = engine.run(requests)
    assert [done[f"g{i}"].token_ids for i in range(len(prompts))] == expected
    assert engine.num_mixed_steps
    pooled = [done[f"p{i}"] for i in range(len(TEXTS))]
    assert all((output.token_ids, output.finish_reason) == ([], FinishReason.STOP) for output in pooled)
    for found, states in zip(rows_by(pooled), last_states(theirs, TEXTS), strict=True):
        torch.testing.assert_close(found, states[-1:], atol=1e-4, rtol=1e-4)
    assert engine.runner.slots.pooled == {}


def test_a_cached_prefix_gives_the_vector_of_the_whole_text(saved: Callable[[str], Saved], tmp_path: Path):
    engine = Engine(resolved(saved("qwen3")[1], tmp_path))
    (first,), (second,) = pool(engine, [TEXTS[2]]), pool(engine, [TEXTS[2]])
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 8)
    torch.testing.assert_close(rows_by([second])[0], rows_by([first])[0], atol=1e-5, rtol=1e-5)


def test_several_results_come_from_one_pass(tmp_path: Path):
    theirs = build_decoder("Qwen3Model", "qwen3")
    engine = Engine(resolved(save(theirs, tmp_path / "model"), tmp_path, scheduler={"max_num_batched_tokens": 16}))
    outputs = pool(engine, TEXTS, "embed", "token_embed")
    for vectors, tokens, states in zip(
        rows_by(outputs), rows_by(outputs, "token_embed"), last_states(theirs, TEXTS), strict=True
    ):
        torch.testing.assert_close(vectors, states[-1:], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(tokens, states, atol=1e-4, rtol=1e-4)
    assert engine.scheduler.stats().num_steps == 2  # 7 and 2 tokens, then 12 and 1


def test_a_model_without_an_output_layer_generates_nothing(tmp_path: Path):
    folder = save(build_decoder("Qwen3ForSequenceClassification", "qwen3", num_labels=3), tmp_path / "model")
    engine = Engine(resolved(folder, tmp_path))
    with pytest.raises(InvalidRequest, match="generates no tokens; its tasks are `classify`"):
        engine.generate([[5, 6]])
    assert [found.shape for found in rows_by(pool(engine, TEXTS, "classify"), "classify")] == [(1, 3)] * 4


def test_a_text_whose_result_is_not_finite_fails_and_others_do_not(tmp_path: Path):
    theirs = build_decoder("Qwen3ForSequenceClassification", "qwen3", num_labels=2)
    engine = Engine(resolved(save(theirs, tmp_path / "model"), tmp_path))
    (table,) = (each for each in engine.runner.loaded.model.loadables() if isinstance(each, Embedding))
    with torch.inference_mode():
        table.weight[40] = float("nan")  # files with such a tensor are refused
    for index, text in enumerate([[5, 6], [5, 40], [7]]):
        inputs = RequestInputs(text, PoolingParams(("classify",)))
        engine.scheduler.add(EngineRequest(request_id=str(index), inputs=inputs))
    plan = engine.scheduler.schedule()
    assert plan is not None
    outputs = {each.request_id: each for each in engine.scheduler.finish_step(plan, engine.runner.execute(plan))}
    assert outputs["1"].finish_reason is FinishReason.ERROR
    assert "the result of `classify` is not finite" in str(outputs["1"].error)
    assert outputs["1"].vectors is None
    assert all(torch.isfinite(each).all() for each in rows_by([outputs["0"], outputs["2"]], "classify"))
    assert not engine.scheduler.has_work


def test_a_full_context_is_pooled(saved: Callable[[str], Saved], tmp_path: Path):
    theirs, folder = saved("llama")
    engine = Engine(resolved(folder, tmp_path))
    text = [5 + index % 40 for index in range(64)]  # model.max_model_len
    (found,), (states,) = rows_by(pool(engine, [text])), last_states(theirs, [text])
    torch.testing.assert_close(found, states[-1:], atol=1e-4, rtol=1e-4)
    with pytest.raises(InvalidRequest, match="the prompt has 65 tokens; the model's context is 64"):
        pool(engine, [[*text, 5]])
    assert engine.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=2))[0]


@pytest.mark.parametrize(
    "parallel",
    [
        {"tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    ],
)
def test_processes_that_share_a_model_pool_as_one(
    parallel: dict[str, int], saved: Callable[[str], Saved], tmp_path: Path
):
    folder = saved("qwen3")[1]
    expected = rows_by(pool(Engine(resolved(folder, tmp_path)), TEXTS))
    answer = EngineRequest(request_id="answer", inputs=RequestInputs([5, 6, 7], GREEDY))
    with divided(resolved(folder, tmp_path, parallel=parallel)) as engine:
        requests = [
            EngineRequest(request_id=str(index), inputs=RequestInputs(text, PoolingParams(("embed",))))
            for index, text in enumerate(TEXTS)
        ]
        done = engine.run([answer, *requests])
        assert len(done["answer"].token_ids) == GREEDY.max_tokens
        for found, each in zip(rows_by([done[str(i)] for i in range(len(TEXTS))]), expected, strict=True):
            torch.testing.assert_close(found, each, atol=1e-4, rtol=1e-4)
