"""Load: many requests to a server at the same time.

Each open request has a thread and a connection. With a request rate, the time of a request starts when it is due:
waiting for a free thread counts as slowness of the server.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from ..remote import RemoteError
from .figures import Sample

Job = TypeVar("Job", contravariant=True)


class Client(Protocol[Job]):
    def ask(self, job: Job, due: float) -> Sample:
        """due: from which its times are counted. Raises RemoteError."""
        ...

    def stop(self) -> None:
        """End open requests."""
        ...


class Load(Generic[Job]):
    """Runs jobs at their due times, with a maximum number of open ones."""

    def __init__(self, client: Client[Job], max_concurrency: int, show: Callable[[int], None]) -> None:
        """show: called with the number of requests that are done."""
        self._client = client
        self._show = show
        self._num_done = itertools.count(1)  # the threads share it: its next() is atomic
        self._max_concurrency = max_concurrency
        self.errors: Counter[str] = Counter()  # of the last run, by message

    def run(self, jobs: Sequence[Job], due: Sequence[float], *, from_due: bool) -> list[Sample]:
        began = time.perf_counter()

        def ask(job: Job, due_s: float) -> Sample | str:
            try:
                return self._client.ask(job, began + due_s if from_due else time.perf_counter())
            except RemoteError as error:
                return str(error)
            finally:
                self._show(next(self._num_done))

        with ThreadPoolExecutor(self._max_concurrency, thread_name_prefix="bench") as threads:
            try:
                waiting = []
                for job, due_s in zip(jobs, due, strict=True):
                    time.sleep(max(0.0, began + due_s - time.perf_counter()))
                    waiting.append(threads.submit(ask, job, due_s))
                found = [future.result() for future in waiting]
            except KeyboardInterrupt:
                self._client.stop()
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        self.errors = Counter(one for one in found if isinstance(one, str))
        return [one for one in found if isinstance(one, Sample)]
