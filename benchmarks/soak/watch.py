"""Samples a deployment's resource use every few seconds: /proc of all its processes and its /metrics."""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from dataclasses import asdict, dataclass

import psutil

from ..peers.process import anonymous_bytes

MIB = 1 << 20


@dataclass(frozen=True)
class Sample:
    at_s: float  # since monitoring began
    anonymous_mib: float  # not backed by files, over all processes: where a leak would show
    pss_mib: float  # proportional set size; changes with other processes that use the same libraries
    rss_mib: float
    num_fds: int
    num_threads: int
    num_running: int
    num_waiting: int
    kv_usage: float  # fraction of the blocks
    num_generated: int  # tokens, since the server started
    loop_lag_ms: float  # longest response time of /livez since the last sample: event loop delay

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


class Watch:
    """Samples in a separate thread, so that the load generator's event loop does not affect the measurement."""

    def __init__(self, process: psutil.Process, url: str, every_s: float) -> None:
        self.samples: list[Sample] = []
        self._process = process
        self._url = url
        self._every_s = every_s
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def look(self, loop_lag_ms: float = 0.0) -> Sample:
        anonymous = pss = rss = num_fds = num_threads = 0
        for each in [self._process, *self._process.children(recursive=True)]:
            memory = each.memory_full_info()
            anonymous += anonymous_bytes([each.pid])
            pss, rss = pss + memory.pss, rss + memory.rss
            num_fds, num_threads = num_fds + each.num_fds(), num_threads + each.num_threads()
        text = self._get("/metrics")
        return Sample(
            at_s=round(time.monotonic() - self._began, 1),
            anonymous_mib=round(anonymous / MIB, 1),
            pss_mib=round(pss / MIB, 1),
            rss_mib=round(rss / MIB, 1),
            num_fds=num_fds,
            num_threads=num_threads,
            num_running=int(_metric(text, "stoker_num_requests_running")),
            num_waiting=int(_metric(text, "stoker_num_requests_waiting")),
            kv_usage=round(_metric(text, "stoker_kv_cache_usage_ratio"), 3),
            num_generated=int(_metric(text, "stoker_generation_tokens_total")),
            loop_lag_ms=round(loop_lag_ms, 1),
        )

    def _run(self) -> None:
        due, lag = time.monotonic() + self._every_s, 0.0
        while not self._ended.wait(0.1):
            began = time.monotonic()
            self._get("/livez")
            lag = max(lag, time.monotonic() - began)
            if time.monotonic() >= due:
                self.samples.append(self.look(lag * 1e3))
                due, lag = time.monotonic() + self._every_s, 0.0

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self._url + path, timeout=30) as answer:
            return answer.read().decode()


def _metric(text: str, name: str) -> float:
    found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert found, f"{name} is not in the metrics"
    return float(found[1])
