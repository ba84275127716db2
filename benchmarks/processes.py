"""Compares two processes of one thread, that compute a model together, with one process of two threads.

    python -m benchmarks.processes [tensor|experts|pipeline] [--model DIR] [--rounds 4] [--requests 1] [--prompt 1024]
        [--tokens 128]

Dummy weights in bfloat16, the shape of Qwen3-0.6B unless another is named. Both engines are loaded, each in a process
of its own, and take turns: a round is prompts, then single tokens of other requests, on one after the other. Ratios
are of two neighbouring measurements, and their median is printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection

from stoker import LLM, SamplingParams

from .batch_invariant import MODEL, VOCAB


def serve(link: Connection, model: str, way: str, size: int, max_model_len: int, num_requests: int) -> None:
    """Answers (prompts, number of tokens) with seconds, until None comes."""
    with LLM(
        model,
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=max_model_len,
        max_num_seqs=num_requests,
        enable_prefix_caching=False,
        num_threads=2 // size,
        **({"pipeline_parallel_size": size} if way == "pipeline" else {"tensor_parallel_size": size}),
        enable_expert_parallel=way == "experts" and size > 1,
    ) as llm:
        link.send(llm.info.kernels["decode_step"])
        while (asked := link.recv()) is not None:
            prompts, count = asked
            sampling = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
            began = time.perf_counter()
            llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
            link.send(time.perf_counter() - began)


def measure(model: str, way: str, num_rounds: int, num_requests: int, prompt_len: int, num_tokens: int) -> None:
    context, links = get_context("spawn"), []
    for size in (1, 2):
        mine, its = context.Pipe()
        how = (its, model, way, size, prompt_len + num_tokens + 64, num_requests)
        context.Process(target=serve, args=how).start()
        assert mine.recv().startswith("replayed")
        links.append(mine)

    def seconds(count: int, length: int, number: int) -> list[float]:
        found = []
        prompts = [[(7 * index + number + each) % VOCAB for index in range(length)] for each in range(num_requests)]
        for link in links:
            link.send((prompts, count))
            found.append(link.recv())
        return found

    prompts, tokens = [], []
    print(
        "| round | prompts, s: 1 process | 2 | ratio | tokens/s: 1 process | 2 | ratio |\n|---|---|---|---|---|---|---|"
    )
    for number in range(num_rounds + 1):
        one, two = seconds(1, prompt_len, number)
        first, second = (num_requests * num_tokens / each for each in seconds(num_tokens, 16, number))
        if not number:
            continue  # pages are touched, steps captured
        prompts.append(one / two)
        tokens.append(second / first)
        print(
            f"| {number} | {one:.3f} | {two:.3f} | {prompts[-1]:.2f} | {first:.1f} | {second:.1f} | {tokens[-1]:.2f} |",
            flush=True,
        )
    print(f"\nmedian: prompts {statistics.median(prompts):.2f}, single tokens {statistics.median(tokens):.2f}")
    for link in links:
        link.send(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", nargs="?", choices=("tensor", "experts", "pipeline"), default="tensor")
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    measure(args.model, args.way, args.rounds, args.requests, args.prompt, args.tokens)


if __name__ == "__main__":
    main()
