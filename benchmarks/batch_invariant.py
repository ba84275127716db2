"""What requests get alone and in a batch of 32, with and without `model.batch_invariant`, and what the option costs.

    python -m benchmarks.equality batch [--quantization int4] [--only equality|speed] [--rounds 3]

The shape of Qwen3-0.6B in bfloat16 with dummy weights: near ties abound, so a sum in another order shows soon. Both
engines stay loaded and take turns; a ratio is the median of those within a round.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

from stoker import LLM, SamplingParams
from stoker.config.quantised import SCHEMES
from stoker.outputs import RequestOutput

MODEL = Path(__file__).parent / "models" / "qwen3-0.6b"
VOCAB = 151_936
OUTPUT, ALONE = 24, 8  # tokens of an answer; requests of the batch that are asked alone too
SPEED = {  # requests, tokens in, tokens out
    "one answer": (1, 32, 24),
    "32 answers": (32, 32, 24),
    "prompt of 1024": (1, 1024, 1),
    "prompt of 2048": (1, 2048, 1),
}


def engine(*, is_on: bool, quantization: str | None) -> LLM:
    return LLM(
        str(MODEL),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        quantization=quantization,
        max_model_len=2304,
        max_num_seqs=32,
        max_num_batched_tokens=2048,
        kv_cache_memory_bytes=1 << 30,
        enable_prefix_caching=False,
        batch_invariant=is_on,
    )


def prompts(draw: random.Random, *lengths: int) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": [draw.randrange(VOCAB) for _ in range(length)]} for length in lengths]


def ask(llm: LLM, asked: list[dict[str, list[int]]], num_tokens: int, logprobs: int | None = 0) -> list[RequestOutput]:
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=logprobs)
    return llm.generate(asked, params, use_tqdm=False)


def equality(llm: LLM) -> str:
    """One line of the table. Tokens count as equal up to the first difference: what follows has another prompt."""
    draw = random.Random(0)
    asked = prompts(draw, *(draw.randint(16, 96) for _ in range(32)))
    together = [found.outputs[0] for found in ask(llm, asked, OUTPUT)]
    tokens = answers = bits = 0
    for prompt, other in zip(asked[:ALONE], together, strict=False):
        alone = ask(llm, [prompt], OUTPUT)[0].outputs[0]
        same = next((i for i in range(OUTPUT) if alone.token_ids[i] != other.token_ids[i]), OUTPUT)
        tokens += same
        answers += same == OUTPUT
        bits += sum(alone.logprobs[i] == other.logprobs[i] for i in range(same))
    total = ALONE * OUTPUT
    return f"{answers} of {ALONE} | {tokens / total:.1%} | {bits / total:.1%}"


def speed(engines: dict[str, LLM], rounds: int) -> None:
    draw = random.Random(1)
    ratios: dict[str, list[float]] = {}
    for _ in range(rounds + 1):  # the first warms up
        for name, (count, length, num_tokens) in SPEED.items():
            asked = prompts(draw, *[length] * count)
            seconds = {}
            for key, llm in engines.items():
                start = time.perf_counter()
                ask(llm, asked, num_tokens, None)
                seconds[key] = time.perf_counter() - start
            ratios.setdefault(name, []).append(seconds["on"] / seconds["off"])
    print("\n| time with the option / without | |\n|---|---|")
    for name, found in ratios.items():
        print(f"| {name} | {statistics.median(found[1:]):.2f} |")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.equality batch")
    parser.add_argument("--quantization", choices=SCHEMES)
    parser.add_argument("--only", choices=("equality", "speed"))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(words)
    engines = {key: engine(is_on=key == "on", quantization=args.quantization) for key in ("off", "on")}
    if args.only != "speed":
        print("\n| batch_invariant | equal answers | equal tokens | of these, log-probabilities to the bit |")
        print("|---|---|---|---|")
        for key, llm in engines.items():
            print(f"| {key} | {equality(llm)} |", flush=True)
    if args.only != "equality":
        speed(engines, args.rounds)
    for llm in engines.values():
        llm.close()
    return 0
