"""Compares outputs of requests run alone and in a batch of 32, with and without `model.batch_invariant`, and its cost.

    python -m benchmarks.equality batch [--quantization int4] [--only equality|speed] [--rounds 3]

Uses the shape of Qwen3-0.6B in bfloat16 with dummy weights. Many logits are nearly equal, so a sum in another order
soon changes a token. Both engines stay loaded and run alternately; a ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

from stoker import LLM, SamplingParams
from stoker.model.quantised import SCHEMES
from stoker.offline.outputs import RequestOutput

MODEL = Path(__file__).parent / "models" / "qwen3-0.6b"
VOCAB = 151_936
OUTPUT, ALONE = 24, 8  # tokens per output; requests of the batch that also run alone
SPEED = {  # requests, tokens in, tokens out
    "one request": (1, 32, 24),
    "32 requests": (32, 32, 24),
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


def prompts(rng: random.Random, *lengths: int) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": [rng.randrange(VOCAB) for _ in range(length)]} for length in lengths]


def generate(
    llm: LLM, requests: list[dict[str, list[int]]], num_tokens: int, logprobs: int | None = 0
) -> list[RequestOutput]:
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=logprobs)
    return llm.generate(requests, params, use_tqdm=False)


def equality(llm: LLM) -> str:
    """One row of the table. Tokens after the first difference are not counted: their context differs."""
    rng = random.Random(0)
    requests = prompts(rng, *(rng.randint(16, 96) for _ in range(32)))
    together = [result.outputs[0] for result in generate(llm, requests, OUTPUT)]
    tokens = outputs = logprobs = 0
    for prompt, batched in zip(requests[:ALONE], together, strict=False):
        alone = generate(llm, [prompt], OUTPUT)[0].outputs[0]
        same = next((i for i in range(OUTPUT) if alone.token_ids[i] != batched.token_ids[i]), OUTPUT)
        tokens += same
        outputs += same == OUTPUT
        logprobs += sum(alone.logprobs[i] == batched.logprobs[i] for i in range(same))
    total = ALONE * OUTPUT
    return f"{outputs} of {ALONE} | {tokens / total:.1%} | {logprobs / total:.1%}"


def speed(engines: dict[str, LLM], rounds: int) -> None:
    rng = random.Random(1)
    ratios: dict[str, list[float]] = {}
    for _ in range(rounds + 1):  # the first round warms up
        for name, (count, length, num_tokens) in SPEED.items():
            requests = prompts(rng, *[length] * count)
            seconds = {}
            for key, llm in engines.items():
                start = time.perf_counter()
                generate(llm, requests, num_tokens, None)
                seconds[key] = time.perf_counter() - start
            ratios.setdefault(name, []).append(seconds["on"] / seconds["off"])
    print("\n| time with the option / without | |\n|---|---|")
    for name, found in ratios.items():
        print(f"| {name} | {statistics.median(found[1:]):.2f} |")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.equality batch")
    parser.add_argument("--quantization", choices=SCHEMES)
    parser.add_argument("--only", choices=("equality", "speed"))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(arguments)
    engines = {key: engine(is_on=key == "on", quantization=args.quantization) for key in ("off", "on")}
    if args.only != "speed":
        print("\n| batch_invariant | equal outputs | equal tokens | of these, bitwise equal log-probabilities |")
        print("|---|---|---|---|")
        for key, llm in engines.items():
            print(f"| {key} | {equality(llm)} |", flush=True)
    if args.only != "equality":
        speed(engines, args.rounds)
    for llm in engines.values():
        llm.close()
    return 0
