"""Worker process with one engine: reads workloads as JSON lines, writes times and memory use."""

from __future__ import annotations

import json
import resource
import sys
import time

from . import workload


def build(engine: str, model: str):
    if engine == "transformers":
        from .engines.transformers import Transformers

        return Transformers(model)
    from .engines.stoker import Stoker

    return Stoker(model, enable_prefix_caching=engine != "stoker-no-prefix-cache")


def main() -> None:
    engine_name, model, vocab_size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    answers, sys.stdout = sys.stdout, sys.stderr  # keeps output of libraries out of the answers
    start = time.perf_counter()
    engine = build(engine_name, model)
    print(json.dumps({"ready_s": time.perf_counter() - start, **engine.memory_plan()}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        job = workload.read(command["workload"], vocab_size, command["seed"])
        start = time.perf_counter()
        generated = engine.generate(job.requests)
        seconds = time.perf_counter() - start
        assert generated == sum(request.output for request in job.requests), (generated, job.name)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        rate = job.num_metric_tokens / seconds
        print(json.dumps({"seconds": seconds, "rate": rate, "peak_rss_bytes": peak}), file=answers, flush=True)


if __name__ == "__main__":
    main()
