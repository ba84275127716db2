"""Compares computing a prompt with reading its KV blocks from another engine, of `kv_transfer`.

    python -m benchmarks.prefill_decode [--tokens 4096] [--rounds 3] [--connectors TcpConnector NixlConnector
        MooncakeConnector SharedStorageConnector]

Two servers with the shape of Qwen3-0.6B in bfloat16 and dummy weights, on one machine, by turns: one computes a prompt
for the other; the other computes it too (under another salt), and then reads it. Times are those of requests for one
token, with HTTP and JSON. With NIXL, UCX is held to TCP (UCX_TLS=tcp) unless the variable is set.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from .batch_invariant import MODEL, VOCAB

BLOCK = 16  # tokens
CONNECTORS = ("TcpConnector", "NixlConnector", "MooncakeConnector", "SharedStorageConnector")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def server(folder: Path, name: str, connector: str, num_tokens: int) -> Iterator[str]:
    """Run a server. Yields its address."""
    port, transfer = free_port(), {"kv_connector": connector}
    if connector == "SharedStorageConnector":
        transfer |= {"kv_connector_extra_config": {"shared_storage_path": str(folder / "kv")}}
    else:
        transfer |= {"kv_port": free_port(), "kv_buffer_size": "4GiB"}
    deployment = {
        "model": {
            "model": str(MODEL),
            "dtype": "bfloat16",
            "skip_tokenizer_init": True,
            "max_model_len": num_tokens + 2 * BLOCK,
        },
        "load": {"load_format": "dummy"},
        "cache": {"block_size": BLOCK, "num_gpu_blocks_override": num_tokens // BLOCK + 8},
        "scheduler": {"max_num_seqs": 1},
        "kv_transfer": transfer,
        "server": {"port": port},
    }
    file, url = folder / f"{name}.yaml", f"http://127.0.0.1:{port}"
    file.write_text(json.dumps(deployment))
    environment = {"UCX_TLS": "tcp", **os.environ}
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "stoker", "up", str(file)], stdout=log, stderr=log, env=environment
        )
    try:
        while not is_ready(url):
            assert process.poll() is None, (folder / f"{name}.log").read_text()
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def is_ready(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/health").is_success
    return False


def ask(
    url: str, prompt: list[int], salt: str, params: dict[str, Any] | None, num_tokens: int = 1
) -> tuple[float, dict[str, Any]]:
    """Seconds, and the answer."""
    body = {
        "token_ids": prompt,
        "sampling_params": {"max_tokens": num_tokens, "temperature": 0, "ignore_eos": True},
        "cache_salt": salt,
        "kv_transfer_params": params,
    }
    began = time.perf_counter()
    response = httpx.post(f"{url}/inference/v1/generate", json=body, timeout=None)
    seconds = time.perf_counter() - began
    return seconds, response.raise_for_status().json()


def measure(connector: str, num_tokens: int, num_rounds: int) -> None:
    rng, ratios = random.Random(0), []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prefill-decode-")))
        first, second = (stack.enter_context(server(folder, name, connector, num_tokens)) for name in "ab")
        for number in range(num_rounds + 1):
            prompt = [rng.randrange(VOCAB) for _ in range(num_tokens + 1)]
            prefill, answer = ask(first, prompt, "read", {"do_remote_decode": True})
            computed, expected = ask(second, prompt, "computed", None)
            read, found = ask(second, prompt, "read", answer["kv_transfer_params"])
            if not number:
                continue  # pages are touched
            ratios.append(computed / read)
            is_same = "yes" if found["choices"][0]["token_ids"] == expected["choices"][0]["token_ids"] else "no"
            row = f"{prefill:.2f} | {computed:.2f} | {read:.2f} | {ratios[-1]:.1f} | {is_same}"
            print(f"| {connector} | {number} | {row} |", flush=True)
    print(f"| {connector} | median | | | | {statistics.median(ratios):.1f} | |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096, help="of a prompt, a multiple of 16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connectors", nargs="+", choices=CONNECTORS, default=CONNECTORS)
    options = parser.parse_args()
    print("| connector | round | for the other, s | computed, s | read, s | ratio | same token |")
    print("|---|---|---|---|---|---|---|")
    for connector in options.connectors:
        measure(connector, options.tokens, options.rounds)


if __name__ == "__main__":
    main()
