"""Structured outputs: a mask per row, a step of 32 constrained rows, the first token of a new schema, and whole answers
whose forced tokens are appended in runs or sampled one by one.

    python -m benchmarks.structured [--rows 32] [--steps 30] [--rounds 4]

The vocabulary is byte-level, of Qwen2's size and random words; the model has Qwen3-0.6B's shape and random weights.
Both sides of a comparison are measured in turn, in one process.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import llguidance
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from stoker import LLM
from stoker.engine.api import CacheScope, Constraint, EngineRequest, RequestInputs, SamplingParams
from stoker.engine.core import step_results
from stoker.engine.loop.engine_core import EngineCore
from stoker.engine.structured.guidance import Guidance
from stoker.server.grammars.json_schema import grammar_of_schema

MODEL = Path(__file__).parent / "models" / "qwen3-0.6b"
VOCAB_SIZE, NUM_WORDS = 151_936, 151_643
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "kind": {"enum": ["red", "green", "blue"]},
        "size": {"type": "number", "minimum": 0},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,8}$"}, "maxItems": 4},
        "note": {"type": ["string", "null"]},
    },
    "required": ["name", "kind", "size", "tags", "note"],
    "additionalProperties": False,
}
PERSON = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string", "maxLength": 12},
        "age_in_years": {"type": "integer", "minimum": 10, "maximum": 99},
        "postal_address": {
            "type": "object",
            "properties": {
                "street_and_number": {"type": "string", "maxLength": 12},
                "postal_code": {"type": "string", "maxLength": 6},
            },
            "required": ["street_and_number", "postal_code"],
            "additionalProperties": False,
        },
        "is_member": {"type": "boolean"},
    },
    "required": ["full_name", "age_in_years", "postal_address", "is_member"],
    "additionalProperties": False,
}
LONG = {"type": "array", "items": ITEM, "minItems": 500}  # no answer comes to its end


def vocabulary() -> tokenizers.Tokenizer:
    """Words of 1 to 12 letters, half of them with a space before, and pieces of punctuation and digits."""
    randomness = random.Random(1)
    words = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    while len(words) < NUM_WORDS:
        letters = "etaoinshrdlucmfwypvbgkjqxz" if randomness.random() < 0.9 else '{}[]":,.-_/()=0123456789'
        length = min(12, 1 + int(randomness.expovariate(0.22)))
        word = "".join(randomness.choice(letters) for _ in range(length))
        words.setdefault(("\u0120" if randomness.random() < 0.5 else "") + word, len(words))
    found = tokenizers.Tokenizer(models.BPE(words, []))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    found.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return found


def grammar_of(schema: Any) -> str:
    return grammar_of_schema(schema, "schema", whitespace_pattern=None, is_compact=False, is_closed=False)


def schema_of_lines(num_lines: int, salt: int) -> dict[str, Any]:
    """A new one for each salt, of about this number of lines."""
    num_fields = num_lines // 4
    fields = {f"field_{salt}_{index}": {"type": "string" if index % 2 else "integer"} for index in range(num_fields)}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def masks(guidance: Guidance, num_tokens: int) -> tuple[float, float]:
    """Mean and 99th percentile of the microseconds of a mask, over sampled answers."""
    import numpy as np

    randomness, times = random.Random(1), []
    for schema in (ITEM, LONG, {"type": "object"}):
        matcher = guidance.compile(grammar_of(schema))
        mask = np.zeros(-(-VOCAB_SIZE // 32), np.int32)
        for _ in range(num_tokens):
            began = time.perf_counter()
            guidance.fill([matcher], mask[None])
            times.append(1e6 * (time.perf_counter() - began))
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            matcher.consume([int(randomness.choice(allowed))])
            if matcher.is_finished:
                break
    return statistics.mean(times), sorted(times)[int(0.99 * len(times))]


def step_ms(core: EngineCore, num_rows: int, num_steps: int, constraint: Constraint | None, salt: int) -> float:
    """Milliseconds of a decode step, the tenth percentile: other programs slow some steps down."""
    ids = [f"{salt}-{row}" for row in range(num_rows)]
    for row, request_id in enumerate(ids):
        sampling = SamplingParams(temperature=1.0, seed=row, max_tokens=400, ignore_eos=True, constraint=constraint)
        core.add(EngineRequest(request_id=request_id, inputs=RequestInputs([5 + row, 6, 7], sampling)))
    for _ in range(6):
        core.step()
    times = []
    for _ in range(num_steps):
        began = time.perf_counter()
        core.step()
        times.append(1e3 * (time.perf_counter() - began))
    for request_id in ids:
        core.abort(request_id)
    while core.has_work:
        core.step()
    return statistics.quantiles(times, n=10)[0]


def answers(core: EngineCore, num_rows: int, constraint: Constraint, name: str) -> tuple[float, int, int]:
    """Seconds, steps and tokens until all these requests have their answers."""
    for row in range(num_rows):
        sampling = SamplingParams(temperature=1.0, seed=row, max_tokens=300, constraint=constraint)
        core.add(EngineRequest(request_id=f"{name}-{row}", inputs=RequestInputs([5 + row, 6, 7], sampling)))
    num_steps, num_tokens, began = core.stats.num_steps, 0, time.perf_counter()
    while core.has_work:
        num_tokens += sum(len(output.token_ids) for output in core.step())
    return time.perf_counter() - began, core.stats.num_steps - num_steps, num_tokens


def forced_runs(core: EngineCore, num_rows: int, num_rounds: int) -> str:
    """Both sides in turns."""
    constraint, least = Constraint(grammar_of(PERSON)), step_results.LEAST_FORCED
    runs, singles = [], []
    answers(core, num_rows, constraint, "first")
    for salt in range(num_rounds):
        runs.append(answers(core, num_rows, constraint, f"runs-{salt}"))
        step_results.LEAST_FORCED = 10**6
        singles.append(answers(core, num_rows, constraint, f"singles-{salt}"))
        step_results.LEAST_FORCED = least
    ratio = statistics.median(single[0] / run[0] for single, run in zip(singles, runs, strict=True))
    tokens = f"{singles[0][2]} tokens in {runs[0][1]} steps instead of {singles[0][1]}"
    return f"{num_rows} answers by a schema: {tokens}, {ratio:.2f} times as fast (median of {num_rounds})"


def first_token_ms(core: EngineCore, grammar: str | None, name: str) -> float:
    began = time.perf_counter()
    constraint = None if grammar is None else Constraint(grammar)
    sampling = SamplingParams(temperature=1.0, seed=1, max_tokens=1, constraint=constraint)
    core.add(EngineRequest(request_id=name, inputs=RequestInputs(list(range(5, 69)), sampling, CacheScope(name))))
    while core.has_work:
        core.step()
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    words = vocabulary()
    began = time.perf_counter()
    guidance = Guidance(words, VOCAB_SIZE, (NUM_WORDS,))
    print(f"vocabulary of {VOCAB_SIZE} tokens: {time.perf_counter() - began:.2f} s, once at the start")
    mean, worst = masks(guidance, 400)
    print(f"mask: {mean:.0f} us a row, 99th percentile {worst:.0f} us (llguidance {llguidance.__version__})")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(MODEL, folder, dirs_exist_ok=True)
        words.save(f"{folder}/tokenizer.json")
        Path(folder, "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
        options = {"load_format": "dummy", "max_num_seqs": given.rows, "max_model_len": 512, "dtype": "bfloat16"}
        with LLM(folder, **options) as llm:  # type: ignore[arg-type]
            core = llm._core
            long = Constraint(grammar_of(LONG))
            free, bound = [], []
            least, step_results.LEAST_FORCED = step_results.LEAST_FORCED, 10**6  # steps with as many tokens
            for salt in range(given.rounds):
                free.append(step_ms(core, given.rows, given.steps, None, 2 * salt))
                bound.append(step_ms(core, given.rows, given.steps, long, 2 * salt + 1))
            step_results.LEAST_FORCED = least
            ratio = statistics.median(b / f for b, f in zip(bound, free, strict=True))
            shown = f"{statistics.median(free):.1f} ms free, {statistics.median(bound):.1f} ms constrained"
            print(f"step of {given.rows} rows: {shown}, {100 * (ratio - 1):+.1f} %")
            for num_rows in (1, 8, given.rows):
                print(forced_runs(core, num_rows, given.rounds))
            extra, made = [], []
            for salt in range(9):
                began = time.perf_counter()
                grammar = grammar_of(schema_of_lines(200, salt))
                made.append(1e3 * (time.perf_counter() - began))
                plain = first_token_ms(core, None, f"free-{salt}")
                extra.append(first_token_ms(core, grammar, f"bound-{salt}") - plain)
            print(
                f"first token of a new schema of 200 lines: {statistics.median(extra):+.1f} ms in the engine, "
                f"and {statistics.median(made):.1f} ms for its check before"
            )


if __name__ == "__main__":
    main()
