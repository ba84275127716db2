"""Worker process with one engine: reads requests as JSON lines, writes times and token counts.

    python -m benchmarks.peers.worker ADAPTER WEIGHTS OPTIONS

Imports only the standard library and the adapter's packages, because it runs in every peer's environment.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time

from ..request import Request


def main() -> None:
    adapter, weights, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps output of libraries and child processes out of the answers
    engine = importlib.import_module(f".engines.{adapter}", __package__).Engine(weights, **options)
    print(json.dumps({"info": engine.info()}), file=answers, flush=True)
    prepare = getattr(engine, "prepare", None)
    for line in sys.stdin:
        requests = [Request(prompt, output) for prompt, output in json.loads(line)]
        if prepare is not None:
            prepare(requests)
        start = time.perf_counter()
        outputs = engine.generate(requests)
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "outputs": outputs}), file=answers, flush=True)


if __name__ == "__main__":
    main()
