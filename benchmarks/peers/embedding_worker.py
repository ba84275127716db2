"""Worker process with one engine that embeds: reads texts as JSON lines, writes seconds and the first vectors.

    python -m benchmarks.peers.embedding_worker ADAPTER FOLDER OPTIONS

Imports only the standard library and the adapter's packages, because it runs in every peer's environment.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time


def main() -> None:
    adapter, folder, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps output of libraries and child processes out of the answers
    engine = importlib.import_module(f".embedders.{adapter}", __package__).Engine(folder, **options)
    print(json.dumps({"info": engine.version}), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        texts = job["texts"]
        start = time.perf_counter()
        vectors = engine.embed(texts) if job["at_once"] else [engine.embed([text])[0] for text in texts]
        seconds = time.perf_counter() - start
        shown = [[float(each) for each in vector] for vector in vectors[: job["shown"]]]
        print(json.dumps({"seconds": seconds, "vectors": shown}), file=answers, flush=True)


if __name__ == "__main__":
    main()
