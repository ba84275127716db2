"""Sequences with grammars in the engine: with others, planned ahead, preempted, on the CPU's runner and on CUDA's."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tests.slow_cases import slow
from tests.tiny_checkpoint import write_checkpoint

from stoker.engine.api import (
    Constraint,
    EngineOutput,
    EngineRequest,
    FinishReason,
    Reasoning,
    RequestInputs,
    SamplingParams,
)
from stoker.engine.core import step_results
from stoker.engine.executor.build import build_core
from stoker.engine.loop.engine_core import EngineCore

from .engine import WITH_GPU, joined, resolved

DIGITS = Constraint('start: "(" /[0-9]{6}/ ")"')
DIGITS_PATTERN = r"\([0-9]{6}\)"
LIST = Constraint('start: "[" item ("," item){2} "]"\nitem: /[a-c]{3}/ | %json {"type": "integer", "maximum": 9999}')
FREE = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0)
PROMPT = list(range(20, 31))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def vocabulary(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def core_of(folder: Path, place: Path, device: str = "cpu", **sections: dict[str, Any]) -> EngineCore:
    model = {"skip_tokenizer_init": False, "max_model_len": 48}
    given: dict[str, dict[str, Any]] = {"model": model, "device": {"device": device}}
    for section, values in sections.items():
        given.setdefault(section, {}).update(values)
    return build_core(resolved(folder, place, WITH_GPU, **given))


def run(engine: EngineCore, samplings: Sequence[SamplingParams]) -> list[EngineOutput]:
    """A new one arrives with every second step. Returns joined outputs."""
    waiting = [
        EngineRequest(request_id=str(index), inputs=RequestInputs(PROMPT[: 3 + index % 7], sampling))
        for index, sampling in enumerate(samplings)
    ][::-1]
    done: dict[str, EngineOutput] = {}
    num_steps = 0
    while waiting or engine.has_work:
        if waiting and num_steps % 2 == 0:
            engine.add(waiting.pop())
        for output in engine.step():
            before = done.get(output.request_id)
            done[output.request_id] = output if before is None else joined(before, output)
        num_steps += 1
    return [done[str(index)] for index in range(len(samplings))]


def compile_grammars(engine: EngineCore, samplings: Sequence[SamplingParams]) -> None:
    """So that the sequences of a test do not begin when their grammars happen to be compiled."""
    for sampling in samplings:
        run(engine, [replace(sampling, max_tokens=1, min_tokens=0)])


def texts_of(outputs: Sequence[EngineOutput], vocabulary: tokenizers.Tokenizer) -> list[str]:
    return [vocabulary.decode(output.token_ids, skip_special_tokens=False) for output in outputs]


@pytest.mark.parametrize(
    ("device", "is_ahead", "num_blocks"),
    [("cpu", True, 7), slow("cpu", False, 64), slow("cpu", True, 64), slow("cuda", True, 64)],
)
def test_each_answer_obeys_its_grammar_in_any_company(
    folder: Path, vocabulary: tokenizers.Tokenizer, tmp_path: Path, device: str, is_ahead: bool, num_blocks: int
):
    if device == "cuda":
        pytest.importorskip("triton")
        if torch.cuda.is_available():
            pytest.skip("needs Triton's interpreter")
    engine = core_of(
        folder,
        tmp_path,
        device,
        scheduler={"async_scheduling": is_ahead, "max_num_seqs": 4},
        cache={"num_gpu_blocks_override": num_blocks},
    )
    hot: dict[str, Any] = {"temperature": 1.0, "max_tokens": 36}
    samplings = [
        SamplingParams(**hot, seed=1, constraint=DIGITS),
        FREE,
        SamplingParams(**hot, seed=2, constraint=LIST, logprobs=2),
        SamplingParams(**hot, seed=3, constraint=DIGITS, min_tokens=30, ignore_eos=True, presence_penalty=1.0),
        FREE,
        SamplingParams(**hot, seed=4, constraint=DIGITS, top_k=3, logit_bias={5: 9.0}, bad_word_ids=((7, 8), (9,))),
    ]
    compile_grammars(engine, samplings)
    outputs = run(engine, samplings)
    texts = texts_of(outputs, vocabulary)
    for index in (0, 3, 5):
        assert re.fullmatch(DIGITS_PATTERN, texts[index]), texts[index]
        assert outputs[index].finish_reason is FinishReason.COMPLETE
    assert re.fullmatch(r"\[((-?\d+|[a-c]{3}),){2}(-?\d+|[a-c]{3})\]", texts[2]), texts[2]
    assert len(outputs[2].logprobs or ()) == len(outputs[2].token_ids)
    assert [len(outputs[index].token_ids) for index in (1, 4)] == [20, 20]
    assert (engine.stats.num_preemptions > 0) == (num_blocks == 7)
    if device == "cuda":  # grammars do not change the tokens of others, nor what a seed samples
        expected = run(core_of(folder, tmp_path, scheduler={"max_num_seqs": 4}), samplings)
        assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]


@pytest.mark.parametrize(
    ("device", "num_blocks"), [("cpu", 64), ("cpu", 8), slow("cuda", 64)], ids=["cpu", "few blocks", "cuda"]
)
def test_tokens_without_an_alternative_come_together_and_no_token_changes(
    folder: Path, tmp_path: Path, device: str, num_blocks: int, monkeypatch: pytest.MonkeyPatch
):
    if device == "cuda":
        pytest.importorskip("triton")
        if torch.cuda.is_available():
            pytest.skip("needs Triton's interpreter")
    named = Constraint('start: "name = " /[a-z]{2}/ "; number = " /[0-9]{2}/ "; end."')
    hot: dict[str, Any] = {"temperature": 1.0, "max_tokens": 36, "constraint": named}
    samplings = [
        SamplingParams(**hot, seed=1),
        SamplingParams(**hot, seed=2, frequency_penalty=1.5, repetition_penalty=1.3),
        SamplingParams(**{**hot, "max_tokens": 14}, seed=3),
        FREE,
        SamplingParams(**hot, seed=4, logprobs=1),
    ]
    sections = {"cache": {"num_gpu_blocks_override": num_blocks}, "scheduler": {"max_num_seqs": 4}}
    engine = core_of(folder, tmp_path, device, **sections)
    compile_grammars(engine, samplings[:1])

    def answers() -> tuple[list[tuple[list[int], FinishReason | None]], int]:
        before = engine.stats.num_steps
        outputs = run(engine, samplings)
        return [(output.token_ids, output.finish_reason) for output in outputs], engine.stats.num_steps - before

    together, num_steps = answers()
    monkeypatch.setattr(step_results, "LEAST_FORCED", 1000)
    singly, more_steps = answers()
    assert together == singly
    ends = [FinishReason.COMPLETE] * 2 + [FinishReason.LENGTH] * 2 + [FinishReason.COMPLETE]
    assert [reason for _, reason in together] == ends
    assert len(together[2][0]) == 14
    assert num_steps < more_steps or num_blocks == 8


def test_a_preempted_sequence_goes_on_as_if_it_had_not_been(folder: Path, tmp_path: Path):
    long = Constraint("start: /[0-9]{24}/")
    samplings = [SamplingParams(temperature=1.0, seed=seed, max_tokens=30, constraint=long) for seed in range(4)]
    few = {"cache": {"num_gpu_blocks_override": 6}, "scheduler": {"max_num_seqs": 4}}
    preempted = core_of(folder, tmp_path, **few)
    compile_grammars(preempted, samplings[:1])
    tokens = [output.token_ids for output in run(preempted, samplings)]
    assert preempted.stats.num_preemptions > 0
    assert tokens == [output.token_ids for output in run(core_of(folder, tmp_path), samplings)]


def test_a_constraint_begins_after_a_forced_end_of_the_reasoning(
    folder: Path, vocabulary: tokenizers.Tokenizer, tmp_path: Path
):
    reasoning = Reasoning(end="so: ", budget=5)
    sampling = SamplingParams(temperature=1.0, seed=1, max_tokens=50, constraint=DIGITS, reasoning=reasoning)
    output = run(core_of(folder, tmp_path), [sampling])[0]
    thought, found, answer = texts_of([output], vocabulary)[0].partition("so: ")
    assert found
    assert re.fullmatch(DIGITS_PATTERN, answer), (thought, answer)


def test_a_grammar_that_fails_ends_its_request_only(folder: Path, tmp_path: Path):
    broken = SamplingParams(constraint=Constraint("start: <|no_such_token|>"))
    blocked = SamplingParams(constraint=DIGITS, allowed_token_ids=(9,))
    outputs = run(core_of(folder, tmp_path), [broken, FREE, blocked])
    assert [output.finish_reason for output in outputs] == [FinishReason.ERROR, FinishReason.LENGTH, FinishReason.ERROR]
    assert "unknown special token" in (outputs[0].error or "")
    assert "forbids every token" in (outputs[2].error or "")


def test_others_pass_a_request_whose_grammar_is_being_compiled(folder: Path, tmp_path: Path):
    engine = core_of(folder, tmp_path)
    is_compiled = False
    slow_one = EngineRequest(request_id="slow", inputs=RequestInputs([5], SamplingParams(max_tokens=2)))
    engine.add(slow_one)
    engine._scheduler.sequences.get("slow").is_ready = lambda: is_compiled  # type: ignore[attr-defined]
    for index in range(2):
        engine.add(EngineRequest(request_id=str(index), inputs=RequestInputs([6, 7], FREE)))
    finished = [output.request_id for _ in range(30) for output in engine.step() if output.finish_reason]
    assert sorted(finished) == ["0", "1"]
    is_compiled = True
    assert [output.request_id for _ in range(4) for output in engine.step() if output.finish_reason] == ["slow"]


def test_json_of_a_random_model_is_json(folder: Path, vocabulary: tokenizers.Tokenizer, tmp_path: Path):
    grammar = 'start: %json {"type": "object", "properties": {"a": {"type": "array", "items": {"enum": ["x", 1]}, '
    grammar += '"maxItems": 3}, "b": {"type": "boolean"}}, "required": ["a", "b"], "additionalProperties": false, '
    grammar += '"x-guidance": {"whitespace_flexible": false}}'
    samplings = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=50, constraint=Constraint(grammar)) for seed in range(6)
    ]
    for text in texts_of(run(core_of(folder, tmp_path), samplings), vocabulary):
        assert sorted(json.loads(text)) == ["a", "b"]
