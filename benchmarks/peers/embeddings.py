"""Embeddings of texts, beside other engines: the same weights and texts, each engine in a process of its own, in turns.

    python -m benchmarks.peers.embeddings FOLDER [--texts 1000] [--rounds 3] [--engines stoker torch onnx ...]

FOLDER is a sentence-transformers model. The texts are pieces of this repository's documentation.
Time is from texts to vectors, tokenising included. Each engine's first vectors are compared with those of torch in
float32: a cosine below 0.99 is an engine that computed something else.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from .environments import HOME, ROOT, SetupError, python_of, variables
from .process import Failed, Process

ENGINES = {
    "stoker": ("own", {}),
    "stoker-bfloat16": ("own", {"dtype": "bfloat16"}),
    "stoker-int8": ("own", {"dtype": "bfloat16", "quantization": "int8", "activation_quantization": "int8"}),
    "torch": ("embedders", {"backend": "torch"}),
    "torch-bfloat16": ("embedders", {"backend": "torch", "dtype": "bfloat16"}),
    "onnx": ("embedders", {"backend": "onnx"}),
    "onnx-int8": ("embedders", {"backend": "onnx", "quantised": True}),
    "openvino": ("embedders", {"backend": "openvino"}),
    "openvino-int8": ("embedders", {"backend": "openvino", "quantised": True}),
    "vllm": ("vllm", {}),
}
START_LIMIT_S, RUN_LIMIT_S = 420.0, 900.0
NUM_COMPARED = 8


def texts_of(tokenizer: Tokenizer, count: int, shortest: int = 20, longest: int = 200) -> list[str]:
    """Pieces of the documentation, whose lengths in tokens are uniform between the two."""
    words = " ".join(path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))).split()
    numbers = random.Random(0)
    found: list[str] = []
    while len(found) < count:
        start, wanted = numbers.randrange(len(words) - longest), numbers.randint(shortest, longest)
        text = " ".join(words[start : start + longest])
        encoded = tokenizer.encode(text)
        end = encoded.offsets[min(wanted, len(encoded.ids)) - 2][1]  # the last one is a separator
        found.append(text[:end])
    return found


class Contest:
    def __init__(self, name: str, folder: Path) -> None:
        environment, options = ENGINES[name]
        adapter = environment if environment == "vllm" else name.split("-")[0] if environment == "own" else "libraries"
        cores = sorted(os.sched_getaffinity(0))
        command = [str(python_of(environment)), "-m", "benchmarks.peers.embedding_worker", adapter, str(folder)]
        command.append(json.dumps(options | {"cores": len(cores), "cache": str(HOME / "weights")}))
        self.name = name
        self.process = Process(command, variables(environment, cores, 1), HOME / "logs" / f"embed-{name}.log")
        self.info = self.process.answer(START_LIMIT_S)["info"]

    def embed(self, texts: list[str], *, at_once: bool = True) -> dict[str, Any]:
        return self.process.ask({"texts": texts, "at_once": at_once, "shown": NUM_COMPARED}, RUN_LIMIT_S)


def cosine(left: list[float], right: list[float]) -> float:
    norms = sum(each * each for each in left) * sum(each * each for each in right)
    return sum(a * b for a, b in zip(left, right, strict=True)) / norms**0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--tokens", type=int, nargs=2, default=[20, 200], help="of the shortest and the longest text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--single", type=int, default=50, help="texts that are sent one by one")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    texts = texts_of(tokenizer, arguments.texts, *arguments.tokens)
    num_tokens = sum(len(each.ids) for each in tokenizer.encode_batch(texts))
    print(f"{len(texts)} texts, {num_tokens} tokens")
    contests: list[Contest] = []
    for name in arguments.engines:
        try:
            contests.append(Contest(name, arguments.folder))
        except (Failed, SetupError) as error:
            print(f"{name}: {error}")
    try:
        _compare(contests, texts, arguments.rounds, arguments.single)
    finally:
        for contest in contests:
            contest.process.close()


def _compare(contests: list[Contest], texts: list[str], rounds: int, num_single: int) -> None:
    seconds: dict[str, list[float]] = {contest.name: [] for contest in contests}
    single: dict[str, list[float]] = {contest.name: [] for contest in contests}
    shown: dict[str, list[list[float]]] = {}
    for contest in list(contests):
        try:
            shown[contest.name] = contest.embed(texts)["vectors"]  # the first run compiles and allocates
        except Failed as error:
            print(f"{contest.name}: {error}")
            contests.remove(contest)
    for _ in range(rounds):
        for contest in contests:  # in turns, so that a slow minute of the machine is one of all engines
            seconds[contest.name].append(contest.embed(texts)["seconds"])
            single[contest.name].append(contest.embed(texts[:num_single], at_once=False)["seconds"] / num_single)
            time.sleep(0.2)
    exact = shown.get("torch") or shown.get("stoker") or next(iter(shown.values()))
    print("| engine | texts/s | fastest | one text, ms | fastest | least cosine |\n|---|---|---|---|---|---|")
    for contest in contests:
        own, alone = seconds[contest.name], single[contest.name]
        least = min(cosine(a, b) for a, b in zip(shown[contest.name], exact, strict=True))
        rates = f"{len(texts) / statistics.median(own):.3g} | {len(texts) / min(own):.3g}"
        times = f"{1e3 * statistics.median(alone):.2f} | {1e3 * min(alone):.2f}"
        print(f"| {contest.name} | {rates} | {times} | {least:.5f} |")


if __name__ == "__main__":
    main()
