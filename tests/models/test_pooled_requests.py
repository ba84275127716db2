"""Requests that are pooled, by the real scheduler and the real runner, beside others that generate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
from stoker.engine.runner.load_runner import host_parts, load_runner

from .checkpoints import save
from .conftest import Saved
from .engine import GREEDY, WITH_GPU, Engine, resolved, scheduler_of
from .pooling_checkpoints import build, build_decoder
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


def qwen3(tmp_path: Path) -> tuple[Any, Path]:
    theirs = build_decoder("Qwen3ForCausalLM", "qwen3", tie_word_embeddings=False)
    return theirs, save(theirs, tmp_path / "model")


@pytest.mark.effect("model.runner")
def test_a_model_can_be_served_without_its_output_layer(tmp_path: Path):
    """Runner `pooling` gives the same vectors and holds less; `generate` gives no vectors."""
    theirs, folder = qwen3(tmp_path)
    both = Engine(resolved(folder, tmp_path))
    alone = Engine(resolved(folder, tmp_path, model={"runner": "pooling"}))
    assert both.runner.loaded.model.num_bytes - alone.runner.loaded.model.num_bytes == theirs.lm_head.weight.nbytes
    for found, expected in zip(rows_by(pool(alone, TEXTS)), rows_by(pool(both, TEXTS)), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(InvalidRequest, match="generates no tokens; its tasks are `embed`"):
        alone.generate([[5, 6]])
    only_text = Engine(resolved(folder, tmp_path, model={"runner": "generate"}))
    with pytest.raises(InvalidRequest, match="does not have the task 'embed': it only generates tokens"):
        pool(only_text, TEXTS)


@pytest.mark.effect("model.convert")
def test_a_model_is_left_one_kind_of_results(tmp_path: Path):
    _, folder = qwen3(tmp_path)
    embeds = Engine(resolved(folder, tmp_path, model={"convert": "embed"}))
    assert len(pool(embeds, TEXTS)) == 4
    with pytest.raises(InvalidRequest, match="generates no tokens"):
        embeds.generate([[5, 6]])
    nothing = Engine(resolved(folder, tmp_path, model={"convert": "none"}))
    with pytest.raises(InvalidRequest, match="it only generates tokens"):
        pool(nothing, TEXTS)


@pytest.mark.effect("model.pooler_config")
def test_a_decoder_pools_as_the_option_says(tmp_path: Path):
    """The mean of a text needs all of its tokens in one step, and nothing of the prefix cache."""
    theirs, folder = qwen3(tmp_path)
    mean = {"pooler_config": {"pooling_type": "MEAN"}}
    engine = Engine(resolved(folder, tmp_path, model=mean, scheduler={"max_num_batched_tokens": 12}))
    for _ in range(2):
        outputs = pool(engine, TEXTS)
        assert [output.num_cached_tokens for output in outputs] == [0] * 4
        for found, states in zip(rows_by(outputs), last_states(theirs, TEXTS), strict=True):
            torch.testing.assert_close(found[0], states.mean(0), atol=1e-4, rtol=1e-4)
    with pytest.raises(InvalidRequest, match="one step, which must compute all of it, has 12"):
        pool(engine, [[5] * 13])
    assert len(engine.generate([[5] * 13])[0]) == GREEDY.max_tokens


def test_an_encoder_computes_texts_whole_and_keeps_nothing(tmp_path: Path):
    """Texts of 7, 2, 12 and 1 tokens in steps of 64, which the longest text fills; the second of two texts has other
    types of tokens."""
    theirs = build(
        "BertModel", "bert", vocab_size=97, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64,
    )  # fmt: skip
    settings = resolved(save(theirs, tmp_path / "model"), tmp_path, scheduler={"max_num_batched_tokens": 64})
    assert settings.memory.kv_cache_bytes == 0
    engine = Engine(settings)
    for texts in (TEXTS, TEXTS, [[5 + index % 40 for index in range(64)]]):
        outputs = pool(engine, texts, "embed", "token_embed")
        assert [output.num_cached_tokens for output in outputs] == [0] * len(texts)
        for tokens, text in zip(rows_by(outputs, "token_embed"), texts, strict=True):
            with torch.inference_mode():
                expected = theirs(torch.tensor([text])).last_hidden_state[0]
            torch.testing.assert_close(tokens, expected, atol=1e-4, rtol=1e-4)
    assert engine.scheduler.stats().num_steps == 3
    (pair,) = rows_by(pool(engine, [TEXTS[0]], "token_embed", second=3), "token_embed")
    with torch.inference_mode():
        types = torch.tensor([[0] * 3 + [1] * 4])
        expected = theirs(torch.tensor([TEXTS[0]]), token_type_ids=types).last_hidden_state[0]
    torch.testing.assert_close(pair, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_a_gpu_pools_as_a_cpu(kind: str, tmp_path: Path):
    """By Triton's interpreter. A decoder's other rows sample on the device, before and after those that are pooled."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("needs Triton's interpreter")
    from stoker.engine.runner.cuda.device_parts import sampling_parts
    from stoker.engine.runner.cuda.loading import load_on_device

    if kind == "decoder":
        folder = save(build_decoder("Qwen3ForCausalLM", "qwen3"), tmp_path / "model")
    else:
        sizes = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        more = {"intermediate_size": 128, "max_position_embeddings": 64}
        folder = save(build("BertModel", "bert", **sizes, **more), tmp_path / "model")
    scheduler = {"max_num_batched_tokens": 64}
    own = Engine(resolved(folder, tmp_path, scheduler=scheduler))
    settings = resolved(folder, tmp_path, WITH_GPU, device={"device": "cuda"}, scheduler=scheduler)
    assert settings.launches_on_device == (kind == "decoder")
    parts = sampling_parts() if settings.launches_on_device else host_parts()
    runner = load_runner(settings, parts, load_on_device)
    requests = [
        EngineRequest(request_id=f"p{index}", inputs=RequestInputs(text, PoolingParams(("embed",))))
        for index, text in enumerate(TEXTS)
    ]
    if kind == "decoder":
        sampling = SamplingParams(temperature=0, max_tokens=4)
        requests.insert(1, EngineRequest(request_id="g", inputs=RequestInputs([5, 6, 7], sampling)))
    expected = own.run([replace(request) for request in requests])
    scheduler_of_gpu = scheduler_of(settings, runner)
    for request in requests[:2]:
        scheduler_of_gpu.add(request)
    tokens: list[int] = []
    found: list[EngineOutput] = []
    later = requests[2:]
    while scheduler_of_gpu.has_work:
        plan = scheduler_of_gpu.schedule()
        assert plan is not None
        for output in scheduler_of_gpu.finish_step(plan, runner.execute(plan)):
            tokens += output.token_ids
            found += [output] if output.vectors is not None else []
        for request in later:
            scheduler_of_gpu.add(request)
        later = []
    assert tokens == (expected["g"].token_ids if kind == "decoder" else [])
    assert len(found) == len(TEXTS)
    for output in found:
        its = rows_by([expected[output.request_id]])[0]
        torch.testing.assert_close(rows_by([output])[0], its, atol=1e-4, rtol=1e-4)
