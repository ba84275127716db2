"""Prompt lookup beside vLLM's n-gram drafts, one request, the same weights, in turns.

    python -m benchmarks.peers.drafts [--model qwen3-0.6b] [--tokens 256] [--rounds 3] [--lengths 4 8 16]

Weights are random, and the greedy answers of such a model soon repeat themselves: nearly every draft is accepted, by
both engines. So the ratio compares what verifying drafts costs, with the length of drafts that is best for vLLM, which
needs one; Stoker chooses it. Each engine also runs without drafts.
"""

from __future__ import annotations

import argparse
import random
import statistics
from typing import Any

from .contest import RUN_LIMIT_S, Offline, make
from .contestants import Contestant
from .environments import vocab_size

PROMPT = 512


def contestants(lengths: list[int]) -> list[Contestant]:
    found = [
        _contestant("stoker", "off"),
        _contestant("stoker", "lookup", method="ngram"),
        _contestant("vllm", "off"),
    ]
    for length in lengths:
        own = {"num_speculative_tokens": length, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
        found.append(_contestant("vllm", f"ngram of {length}", method="ngram", **own))
    return found


def _contestant(adapter: str, kind: str, **speculative: Any) -> Contestant:
    environment = "own" if adapter == "stoker" else adapter
    options = {"speculative_config": speculative} if speculative else {}
    return Contestant(f"{adapter}, {kind}", adapter, environment, "checkpoint", adapter, options=options)


def seconds(contest: Offline, prompt: list[int], tokens: int, rounds: int) -> float:
    """Seconds for a token of the answer, without the prompt: the difference of a long and a short answer."""
    found: list[float] = []
    for _ in range(rounds):
        assert contest.process is not None
        asks = ([[prompt, 1]], [[prompt, tokens + 1]])
        short, long = (contest.process.ask(ask, RUN_LIMIT_S)["seconds"] for ask in asks)
        found.append((long - short) / tokens)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4, 8, 16])
    arguments = parser.parse_args()
    numbers = random.Random(0)
    prompt = [numbers.randrange(1000, vocab_size(arguments.model) - 1000) for _ in range(PROMPT)]
    print("| engine | ms per token |\n|---|---|")
    for contestant in contestants(arguments.lengths):
        contest = make(contestant, arguments.model)
        assert isinstance(contest, Offline)
        try:
            contest.start()
            contest.warm_up(0)
            print(f"| {contestant.name} | {1e3 * seconds(contest, prompt, arguments.tokens, arguments.rounds):.2f} |")
        finally:
            contest.close()


if __name__ == "__main__":
    main()
