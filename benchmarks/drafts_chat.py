"""Answers of builtin:tiny with its own draft head and without, one request at a time, in turns.

    python -m benchmarks.drafts_chat [--rounds 5] [--clock process]

The questions are about options of this repository, which the model was trained on, and the answers are greedy. A round
asks all of them. With `--clock process` each engine has one thread and the time is that of processors, which says more
on a busy machine than the time of a clock on the wall.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

QUESTIONS = (
    "What does max_num_seqs mean?",
    "What is the KV cache?",
    "How do I start a server?",
    "What does tensor_parallel_size mean?",
    "Which port does the server use?",
    "What is a prefix cache?",
    "What does gpu_memory_utilization mean?",
    "How do I limit the length of a prompt?",
)
MAX_TOKENS = 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=("wall", "process"), default="wall")
    arguments = parser.parse_args()
    clock = time.perf_counter
    if arguments.clock == "process":
        clock = time.process_time
        os.environ["OMP_NUM_THREADS"] = "1"
    from stoker import LLM, SamplingParams  # reads the environment

    engines = {
        "without": LLM("builtin:tiny"),
        "with": LLM("builtin:tiny", speculative_config={"model": "builtin:tiny-eagle3"}),
    }
    sampling = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)

    def seconds(engine: LLM) -> tuple[float, list[str]]:
        began, answers = clock(), []
        for question in QUESTIONS:
            outputs = engine.chat([{"role": "user", "content": question}], sampling, use_tqdm=False)
            answers.append(outputs[0].outputs[0].text)
        return clock() - began, answers

    ratios: list[float] = []
    for index in range(arguments.rounds + 1):
        found = {name: seconds(engine) for name, engine in engines.items()}
        assert found["with"][1] == found["without"][1], "drafts have changed an answer"
        if index:  # the first round captures steps
            ratios.append(found["without"][0] / found["with"][0])
            print({name: f"{1e3 * took:.1f} ms" for name, (took, _) in found.items()}, f"{ratios[-1]:.2f}")
    print(f"median {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
