"""Compares computing a prefix with reading it from files, of `cache.kv_directory`.

    python -m benchmarks.stored_prefix [--tokens 4096] [--rounds 3] [--directory DIR]

Uses the shape of Qwen3-0.6B in bfloat16 with dummy weights, and a KV cache for little more than one prompt: each prompt
evicts the one before. A round computes two prompts and reads the first one again. Files that were just written are read
from the page cache of the system; a cold disk adds its own time.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

from stoker import LLM, SamplingParams

from .batch_invariant import MODEL, VOCAB

BLOCK = 16  # tokens
ONE = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)


def engine(directory: Path, num_tokens: int) -> LLM:
    return LLM(
        str(MODEL),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        block_size=BLOCK,
        max_model_len=num_tokens + 2 * BLOCK,
        max_num_seqs=1,
        num_gpu_blocks_override=num_tokens // BLOCK + 8,
        kv_directory=str(directory),
        kv_directory_size="20GiB",
    )


def timed(llm: LLM, prompt: list[int]) -> tuple[float, list[int]]:
    """Seconds, and the token."""
    began = time.perf_counter()
    (output,) = llm.generate([{"prompt_token_ids": prompt}], ONE, use_tqdm=False)
    return time.perf_counter() - began, list(output.outputs[0].token_ids)


def wait_for_files(directory: Path, count: int) -> None:
    while len(list(directory.glob("*/*.kv"))) < count:
        time.sleep(0.1)


def measure(directory: Path, num_tokens: int, num_rounds: int) -> None:
    rng, num_files, ratios = random.Random(0), 0, []
    llm = engine(directory, num_tokens)
    print("| round | computed, s | read, s | ratio | same token |\n|---|---|---|---|---|")
    for number in range(num_rounds):
        first, second = ([rng.randrange(VOCAB) for _ in range(num_tokens + 1)] for _ in range(2))
        results = []
        for prompt in (first, second):
            results.append(timed(llm, prompt))
            num_files += num_tokens // BLOCK
            wait_for_files(directory, num_files)
        seconds, token = timed(llm, first)
        ratios.append(results[0][0] / seconds)
        is_same = "yes" if token == results[0][1] else "no"
        print(f"| {number + 1} | {results[0][0]:.2f} | {seconds:.2f} | {ratios[-1]:.1f} | {is_same} |")
    print(f"median of the ratios: {statistics.median(ratios):.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096, help="of a prefix, a multiple of 16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="folder on the disk to measure; default: the folder for temporary files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stored-prefix-", dir=options.directory) as directory:
        measure(Path(directory), options.tokens, options.rounds)


if __name__ == "__main__":
    main()
