"""Compares the ways in which two nodes compute a model together, over a network of known speed.

    sudo python -m benchmarks.two_nodes [--gbit 1] [--prompt 2048] [--sequences 1] [--tokens 1] [--rounds 3]
        [--ways tensor "2 parts" prompts]

Two nodes are two network namespaces of this machine, connected by a virtual link whose rate the kernel limits in each
direction (tc-tbf). A model with the shape of Qwen3-0.6B in bfloat16 and dummy weights is computed by both, one process
and one thread on each; a deployment for each way. All stay loaded and answer by turns. Times are those of requests,
with HTTP and JSON; a ratio is of two neighbouring measurements, above 1 where a way is faster than the first one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .batch_invariant import MODEL, VOCAB
from .prefill_decode import ask, is_ready

SPACES = ("stoker-a", "stoker-b")
ADDRESSES = ("10.219.0.1", "10.219.0.2")
WAYS = {
    "one": {},  # node 0 alone
    "tensor": {"tensor_parallel_size": 2},
    "2 parts": {"tensor_parallel_size": 2, "ubatch_size": 2},
    "3 parts": {"tensor_parallel_size": 2, "ubatch_size": 3},
    "prompts": {"prefill_context_parallel_size": 2},
    "prompts, 2 parts": {"prefill_context_parallel_size": 2, "ubatch_size": 2},
}
INSIDE = "STOKER_BENCHMARK_NAMESPACE"  # set in the process that runs in the first namespace


def run(command: str) -> None:
    subprocess.run(command.split(), check=True)


@contextlib.contextmanager
def network(gbit: float) -> Iterator[None]:
    for space in SPACES:
        run(f"ip netns add {space}")
    try:
        run(f"ip link add name wire netns {SPACES[0]} type veth peer name wire netns {SPACES[1]}")
        for space, address in zip(SPACES, ADDRESSES, strict=True):
            inside = f"ip netns exec {space}"
            run(f"{inside} ip addr add {address}/24 dev wire")
            run(f"{inside} ip link set lo up")
            run(f"{inside} ip link set wire up")
            run(f"{inside} tc qdisc add dev wire root tbf rate {gbit * 1000:.0f}mbit burst 1mb latency 50ms")
        yield
    finally:
        for space in SPACES:
            run(f"ip netns del {space}")


@contextlib.contextmanager
def deployed(folder: Path, index: int, way: str, options: argparse.Namespace) -> Iterator[str]:
    """The address of the first node."""
    files, num_nodes = [], 1 if way == "one" else 2
    length = options.prompt + options.tokens + 16
    for node in range(num_nodes):
        deployment = {
            "model": {"model": str(MODEL), "dtype": "bfloat16", "skip_tokenizer_init": True, "max_model_len": length},
            "load": {"load_format": "dummy"},
            "cache": {"num_gpu_blocks_override": options.sequences * (length // 16 + 2), "block_size": 16},
            "scheduler": {"max_num_seqs": options.sequences, "max_num_batched_tokens": 2048},
            "device": {"num_threads": 1},
            "parallel": {
                **WAYS[way],
                "nnodes": num_nodes,
                "node_rank": node,
                "master_addr": ADDRESSES[0],
                "master_port": 29500 + index,
            },
            "server": {"port": 8000 + index, "headless": node > 0},
        }
        files.append(folder / f"{index}-{node}.yaml")
        files[-1].write_text(json.dumps(deployment))
    url = f"http://127.0.0.1:{8000 + index}"
    with contextlib.ExitStack() as stack:
        for space, file in zip(SPACES, files, strict=False):
            log = stack.enter_context(file.with_suffix(".log").open("w"))
            command = ["ip", "netns", "exec", space, sys.executable, "-m", "stoker", "up", str(file)]
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        while not is_ready(url):
            assert process.poll() is None, file.with_suffix(".log").read_text()
            time.sleep(0.2)
        yield url


def seconds(url: str, number: int, options: argparse.Namespace) -> float:
    """Seconds of all sequences together."""
    rng = random.Random(number)
    prompts = [[rng.randrange(VOCAB) for _ in range(options.prompt)] for _ in range(options.sequences)]
    began = time.perf_counter()
    with ThreadPoolExecutor(options.sequences) as pool:
        list(pool.map(lambda prompt: ask(url, prompt, str(number), None, options.tokens), prompts))
    return time.perf_counter() - began


def measure(options: argparse.Namespace) -> None:
    ratios: dict[str, list[float]] = {way: [] for way in options.ways[1:]}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="two-nodes-")))
        urls = [stack.enter_context(deployed(folder, *each, options)) for each in enumerate(options.ways)]
        for number in range(options.rounds + 1):
            found = [seconds(url, number, options) for url in urls]
            if not number:
                continue  # pages are touched
            for its, way in zip(found[1:], ratios.values(), strict=True):
                way.append(found[0] / its)
            print(f"| {number} | " + " | ".join(f"{each:.2f}" for each in found) + " |", flush=True)
    print("| ratio | | " + " | ".join(f"{statistics.median(each):.2f}" for each in ratios.values()) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gbit", type=float, default=1.0, help="rate of the link in each direction, Gbit/s")
    parser.add_argument("--prompt", type=int, default=2048, help="tokens")
    parser.add_argument("--sequences", type=int, default=1, help="at a time")
    parser.add_argument("--tokens", type=int, default=1, help="of each answer")
    parser.add_argument("--ways", nargs="+", default=["tensor", "2 parts", "prompts"], choices=WAYS)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if INSIDE in os.environ:
        measure(options)
        return
    with network(options.gbit):
        print("| round | " + " | ".join(f"{each}, s" for each in options.ways) + " |", flush=True)
        print("|---" * (1 + len(options.ways)) + "|", flush=True)
        here = ["ip", "netns", "exec", SPACES[0], sys.executable, "-m", "benchmarks.two_nodes", *sys.argv[1:]]
        subprocess.run(here, check=True, env={**os.environ, INSIDE: SPACES[0]})


if __name__ == "__main__":
    main()
