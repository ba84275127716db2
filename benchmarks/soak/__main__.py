"""Soak test: runs a deployment under full load for minutes. Exits with 1 if a check fails.

    python -m benchmarks.soak [--minutes 10] [--streams 48] [--model builtin:tiny] [--output soak.json]
                              [-- flags of `engine up`]

Clients connect and disconnect (clients.py) while memory, blocks, speed and the event loop are sampled (watch.py). At
the end all blocks must be free, memory in the last third of the time must be as in the second third, speed in the last
third as in the first, no request may be stuck, and the log must contain no error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import psutil

from .clients import Client, Tally
from .watch import Sample, Watch

START_LIMIT_S = 120.0
IDLE_LIMIT_S = 15.0
CONTEXT = 384  # tokens of the longest prompts
MAX_GROWTH = 0.01  # of memory, from the second third of the time to the last
MAX_SLOWDOWN = 0.1  # of tokens per second, from the first third to the last
MAX_LAG_MS = 1000.0


def manifest(model: str) -> str:
    return json.dumps(
        {
            "apiVersion": "stoker/v1",
            "kind": "Deployment",
            "model": {"model": model, "max_model_len": CONTEXT + 136, "served_model_name": ["soak"]},
            "cache": {"num_gpu_blocks_override": 200},  # too few for all running sequences, so some are preempted
            "scheduler": {"max_num_seqs": 32, "max_num_batched_tokens": 512},
            "server": {"port": 0, "log_level": "warning"},
        }
    )


def start(folder: Path, model: str, flags: list[str]) -> tuple[psutil.Popen, str]:
    """The process and its URL."""
    (folder / "soak.yaml").write_text(manifest(model))
    command = [sys.executable, "-m", "stoker", "up", str(folder / "soak.yaml"), *flags]
    with (folder / "out").open("w") as out, (folder / "log").open("w") as log:
        process = psutil.Popen(command, stdout=out, stderr=log)
    until = time.monotonic() + START_LIMIT_S
    while time.monotonic() < until and process.poll() is None:
        found = re.search(r"url +(http\S+)/v1", (folder / "out").read_text())
        if found:
            return process, found[1]
        time.sleep(0.1)
    process.kill()
    raise SystemExit("not ready:\n" + (folder / "log").read_text())


async def load(url: str, num_streams: int, seconds: float) -> Tally:
    tally, address, end = Tally(), urlsplit(url), time.monotonic() + seconds
    assert address.hostname is not None
    assert address.port is not None
    clients = [
        Client(address.hostname, address.port, "soak", CONTEXT, tally, Random(number)) for number in range(num_streams)
    ]
    await asyncio.gather(*(client.run_until(end) for client in clients))
    return tally


def wait_until_idle(watch: Watch) -> Sample:
    until = time.monotonic() + IDLE_LIMIT_S
    while True:
        sample = watch.look()
        if time.monotonic() > until or not (sample.num_running or sample.num_waiting or sample.kv_usage):
            return sample
        time.sleep(0.2)


def thirds(samples: list[Sample]) -> list[dict[str, float]]:
    """Medians, tokens per second and maximum lag, for each third of the time."""
    found, size = [], len(samples) // 3
    for start in (0, size, 2 * size):
        part = samples[start : start + size]
        seconds = part[-1].at_s - part[0].at_s
        medians = {name: statistics.median(each.as_dict()[name] for each in part) for name in part[0].as_dict()}
        medians["tokens_per_s"] = (part[-1].num_generated - part[0].num_generated) / seconds
        medians["loop_lag_ms"] = max(each.loop_lag_ms for each in part)
        found.append(medians)
    return found


def checks(
    parts: list[dict[str, float]], before: Sample, after: Sample, tally: Tally, errors: list[str]
) -> dict[str, tuple[bool, str]]:
    """Check -> whether it passed, and the measured value."""
    first, second, last = parts
    growth = last["anonymous_mib"] / second["anonymous_mib"] - 1
    pace = last["tokens_per_s"] / first["tokens_per_s"]
    return {
        "all blocks are free when idle": (not after.kv_usage, f"{after.kv_usage:.1%} in use"),
        "no request runs or waits": (
            not after.num_running + after.num_waiting,
            f"{after.num_running} run, {after.num_waiting} wait",
        ),
        "memory is flat": (growth <= MAX_GROWTH, f"{growth:+.2%} from the second third to the last"),
        "speed is constant": (pace >= 1 - MAX_SLOWDOWN, f"{pace:.2f}x of the first third"),
        "connections are closed": (after.num_fds <= before.num_fds, f"{before.num_fds} fds before, {after.num_fds}"),
        "the number of threads is constant": (
            after.num_threads <= before.num_threads + 8,  # the event loop's pool for tokenising grows on demand
            f"{before.num_threads} before, {after.num_threads}",
        ),
        "the event loop is not blocked": (
            all(part["loop_lag_ms"] <= MAX_LAG_MS for part in parts),
            f"{max(part['loop_lag_ms'] for part in parts):.0f} ms at most",
        ),
        "every request ends as expected": (not tally.wrong, "; ".join(tally.wrong[:3]) or f"{tally.ended.total()} did"),
        "the log contains no error": (not errors, errors[0] if errors else ""),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--streams", type=int, default=48)
    parser.add_argument("--model", default="builtin:tiny")
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS", help="between two samples")
    parser.add_argument("--output", type=Path, help="also write every sample, as JSON")
    parser.add_argument("flags", nargs="*", help="of `engine up`, after --")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as created:
        folder = Path(created)
        process, url = start(folder, chosen.model, chosen.flags)
        try:
            asyncio.run(load(url, chosen.streams, 5))  # lazy initialisation happens before the measurement
            watch = Watch(process, url, chosen.every)
            before = wait_until_idle(watch)
            watch.start()
            tally = asyncio.run(load(url, chosen.streams, chosen.minutes * 60))
            watch.stop()
            after = wait_until_idle(watch)
            process.terminate()
            code = process.wait(60)
        finally:
            for each in [*process.children(recursive=True), process] if process.is_running() else []:
                each.kill()
        log = (folder / "log").read_text().splitlines()
    errors = [line for line in log if re.search(r"error|traceback|exception|warning", line, re.IGNORECASE)]
    if code:
        errors.append(f"the server exited with code {code}")
    parts = thirds(watch.samples)
    found = checks(parts, before, after, tally, errors)
    report(parts, tally, found)
    if chosen.output:
        record = {
            "thirds": parts,
            "samples": [sample.as_dict() for sample in watch.samples],
            "ended": tally.ended,
            "wrong": tally.wrong,
            "checks": {name: {"passed": passed, "found": note} for name, (passed, note) in found.items()},
            "log": log,
        }
        chosen.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(passed for passed, _ in found.values()) else 1


def report(parts: list[dict[str, float]], tally: Tally, found: dict[str, tuple[bool, str]]) -> None:
    rows = (
        "tokens_per_s",
        "anonymous_mib",
        "pss_mib",
        "rss_mib",
        "num_fds",
        "num_threads",
        "num_running",
        "num_waiting",
        "kv_usage",
    )
    print("| | first third | second | last |\n|---|---|---|---|")
    for row in (*rows, "loop_lag_ms"):
        print(f"| {row} | " + " | ".join(f"{part[row]:.5g}" for part in parts) + " |")
    first_token = statistics.quantiles(tally.first_token_s, n=100)
    print(f"\nfirst token: {first_token[49] * 1e3:.0f} ms at the median, {first_token[98] * 1e3:.0f} ms at 99 %")
    print(
        ", ".join(f"{count} {kind}" for kind, count in tally.ended.most_common()) + f", {tally.num_refused} refused\n"
    )
    for check, (passed, note) in found.items():
        print(f"{'passed' if passed else 'FAILED'} {check}: {note}")


if __name__ == "__main__":
    sys.exit(main())
