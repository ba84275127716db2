"""What KV cache events cost: the same requests on two engines in one process, with events and without, in turns.

Each round is a batch of new prompts on each engine, so that blocks are stored and replaced; another process subscribes
and reads everything. Reported are milliseconds per step, and the median over rounds of the ratio of both.

Usage: python -m benchmarks.kv_events [--model MODEL] [--rows 32] [--rounds 9] [engine options ...]
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import tempfile
import time
from statistics import median

import zmq

from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.executor.build import build_core
from stoker.engine.loop.engine_core import EngineCore

PROMPT_LEN = 128  # tokens; the answers have as many


def read_all(endpoint: str) -> None:
    subscriber = zmq.Context.instance().socket(zmq.SUB)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"")
    subscriber.connect(endpoint)
    while True:
        subscriber.recv_multipart()


def engine(words: list[str]) -> EngineCore:
    deployment = load_deployment([], words)
    return build_core(resolve_deployment(deployment, read_model_files(deployment), read_machine_spec()))


def run(core: EngineCore, prompts: list[list[int]], name: str) -> float:
    """Milliseconds per step."""
    for index, prompt in enumerate(prompts):
        sampling = SamplingParams(max_tokens=PROMPT_LEN, ignore_eos=True)
        core.add(EngineRequest(request_id=f"{name}-{index}", inputs=RequestInputs(prompt, sampling)))
    before, start = core.num_steps, time.perf_counter()
    while core.has_work:
        core.step()
    return (time.perf_counter() - start) * 1000 / (core.num_steps - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="builtin:tiny")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    args, words = parser.parse_known_args()
    blocks = 3 * args.rows * PROMPT_LEN // 16  # of one and a half rounds: most blocks are replaced
    words += ["--model", args.model, "--max-num-seqs", str(args.rows), "--num-gpu-blocks-override", str(blocks)]
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"ipc://{folder}/events"
        on = ["--kv-events-config.enable-kv-cache-events", "true", "--kv-events-config.endpoint", endpoint]
        without, with_events = engine(words), engine([*words, *on])
        reader = multiprocessing.get_context("spawn").Process(target=read_all, args=(endpoint,), daemon=True)
        reader.start()
        source, ratios = random.Random(0), []
        for index in range(-1, args.rounds):  # round -1 warms up
            vocab_size = without.info.vocab_size
            prompts = [[source.randrange(vocab_size) for _ in range(PROMPT_LEN)] for _ in range(args.rows)]
            order = [(without, "without"), (with_events, "with")][:: -1 if index % 2 else 1]
            took = {name: run(core, prompts, f"{name}-{index}") for core, name in order}
            if index >= 0:
                ratios.append(took["with"] / took["without"])
                print(f"round {index}: with {took['with']:.3f} ms, without {took['without']:.3f} ms per step")
        print(f"{args.model}, {args.rows} rows: median of with / without {median(ratios):.3f}")
        reader.terminate()
        with_events.close()


if __name__ == "__main__":
    main()
