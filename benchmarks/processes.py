"""Compares two processes of one thread, that compute a model together, with one process of two threads.

    python -m benchmarks.processes [tensor|experts|pipeline] [--model DIR] [--rounds 4] [--requests 1] [--prompt 1024]
        [--tokens 128] [--vllm]

Dummy weights in bfloat16, the shape of Qwen3-0.6B unless another is named. Both engines are loaded, each in a process
of its own, and take turns: a round is prompts, then single tokens of other requests, on one after the other. Ratios
are of two neighbouring measurements, and their median is printed.

With --vllm two processes of vLLM, with tensor parallel, take turns too (installed under .peers at the first time).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection

from stoker import LLM, SamplingParams

from .batch_invariant import MODEL, VOCAB
from .peers.environments import HOME, LIMIT_S, python_of, variables
from .peers.process import Process

KV_BYTES = 1 << 30


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


class Vllm:
    """vLLM in two processes, each with a core of its own; a Connection as far as `measure` uses one."""

    def __init__(self, model: str, max_model_len: int, num_requests: int) -> None:
        options = {
            "kv_bytes": KV_BYTES,
            "max_len": max_model_len,
            "streams": num_requests,
            "cores": 2,
            "tensor_parallel_size": 2,
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "enable_prefix_caching": False,
        }
        command = [str(python_of("vllm")), "-m", "benchmarks.peers.worker", "vllm", model, json.dumps(options)]
        environment = variables("vllm", [0, 1], KV_BYTES >> 30) | {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
        self._process = Process(command, environment, HOME / "logs" / "two-processes.log")
        print("vLLM", self._process.answer(LIMIT_S)["info"]["version"])

        self._signal(signal.SIGSTOP)

    def send(self, asked: tuple[list[list[int]], int] | None) -> None:
        self._signal(signal.SIGCONT)
        if asked is None:
            self._process.close()
            return
        prompts, count = asked
        self._seconds = self._process.ask([(prompt, count) for prompt in prompts], LIMIT_S)["seconds"]
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        """Stop the processes while others are measured, or let them go on: some never wait without using a core."""
        for pid in self._process.members():
            os.kill(pid, number)

    def recv(self) -> float:
        return float(self._seconds)


def measure(
    model: str, way: str, num_rounds: int, num_requests: int, prompt_len: int, num_tokens: int, *, has_vllm: bool
) -> None:
    context, max_model_len = get_context("spawn"), prompt_len + num_tokens + 64
    links: list[Connection | Vllm] = []
    for size in (1, 2):
        mine, its = context.Pipe()
        context.Process(target=serve, args=(its, model, way, size, max_model_len, num_requests)).start()
        assert mine.recv().startswith("replayed")
        links.append(mine)
    if has_vllm:
        links.append(Vllm(model, max_model_len, num_requests))

    def seconds(count: int, length: int, number: int) -> list[float]:
        found = []
        prompts = [[(7 * index + number + each) % VOCAB for index in range(length)] for each in range(num_requests)]
        for link in links:
            link.send((prompts, count))
            found.append(link.recv())
        return found

    ratios: dict[str, list[float]] = {}
    print("| round | | 1 process | 2 | 2 / 1 | vLLM, 2 | 2 / vLLM |\n|---|---|---|---|---|---|---|")
    for number in range(num_rounds + 1):
        for what, count, length in (("prompts", 1, prompt_len), ("single tokens", num_tokens, 16)):
            each = num_requests * (length if count == 1 else count)
            one, two, *others = (each / taken for taken in seconds(count, length, number))
            if not number:
                continue  # pages are touched, steps captured
            cells = [f"{one:.1f}", f"{two:.1f}", f"{two / one:.2f}"]
            ratios.setdefault(f"{what}, 2 / 1", []).append(two / one)
            for other in others:
                cells += [f"{other:.1f}", f"{two / other:.2f}"]
                ratios.setdefault(f"{what}, 2 / vLLM", []).append(two / other)
            print(f"| {number} | {what}, tokens/s | {' | '.join(cells)} |", flush=True)
    print("\nmedians: " + "; ".join(f"{what} {statistics.median(found):.2f}" for what, found in ratios.items()))
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
    parser.add_argument("--vllm", action="store_true")
    args = parser.parse_args()
    sizes = args.rounds, args.requests, args.prompt, args.tokens
    measure(args.model, args.way, *sizes, has_vllm=args.vllm)


if __name__ == "__main__":
    main()
