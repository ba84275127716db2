"""Profiler: traces of the engine's steps, recorded by torch's profiler while the engine serves.

A trace is a file that https://ui.perfetto.dev and chrome://tracing show. It has the names and times of operations, not
their values: no text and no token of a request.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from ..api import ProfileError
from ..kernels import spans

MAX_ITERATIONS = 100  # some 10 MB of trace
_OPTIONS = ("with_stack", "record_shapes", "with_memory", "with_flops", "use_gzip")
logger = logging.getLogger(__name__)


class Profiler:
    """Records steps. Called from the engine's thread, between steps."""

    def __init__(
        self,
        folder: Path,
        *,
        delay_iterations: int = 0,
        max_iterations: int = MAX_ITERATIONS,
        with_stack: bool = False,
        record_shapes: bool = False,
        with_memory: bool = False,
        with_flops: bool = False,
        use_gzip: bool = True,
    ) -> None:
        """
        folder: for the traces; created at the first one.
        delay_iterations: steps that pass before the recording begins.
        max_iterations: steps after which it ends by itself.
        with_stack, record_shapes, with_memory, with_flops: as torch.profiler.profile takes them.
        """
        self._folder = folder
        self._delay, self._most = delay_iterations, max_iterations
        self._options: dict[str, Any] = {
            "with_stack": with_stack,
            "record_shapes": record_shapes,
            "profile_memory": with_memory,
            "with_flops": with_flops,
        }
        self._suffix = ".json.gz" if use_gzip else ".json"
        self._running: profile | None = None
        self._is_started = False  # it runs, or waits for its first step, or has ended by itself
        self._num_steps = 0  # since the start
        self._written: Path | None = None  # the trace of a profile that has ended by itself

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Profiler:
        """settings: `observability.profiler_config`, not empty."""
        return cls(
            Path(settings["torch_profiler_dir"]),
            delay_iterations=settings.get("delay_iterations", 0),
            max_iterations=settings.get("max_iterations", MAX_ITERATIONS),
            **{name: settings[key] for name in _OPTIONS if (key := f"torch_profiler_{name}") in settings},
        )

    def start(self) -> None:
        """Raises ProfileError if one is being recorded, or if its folder cannot be written to."""
        if self._is_started and self._written is None:
            raise ProfileError("a profile is being recorded already; POST /stop_profile ends it")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ProfileError(f"the folder of profiles cannot be made: {error}") from None
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise ProfileError(f"the folder of profiles is not writable: {self._folder}")
        self._is_started, self._num_steps, self._written = True, 0, None
        if not self._delay:
            self._record()

    def stop(self) -> Path:
        """Ends the recording and writes its trace; no step is computed meanwhile. Returns the file.

        Raises ProfileError if none was started, if no step has been recorded, or if the file cannot be written.
        """
        if not self._is_started:
            raise ProfileError("no profile is being recorded; POST /start_profile begins one")
        self._is_started = False
        if self._written is not None:
            written, self._written = self._written, None
            return written
        if self._running is None:
            raise ProfileError(f"the engine has computed {self._num_steps} of {self._delay} steps to wait for")
        return self._write()

    def step_finished(self) -> None:
        """Counts a step."""
        if not self._is_started or self._written is not None:
            return
        self._num_steps += 1
        if self._running is None:
            if self._num_steps >= self._delay:
                self._record()
        elif self._num_steps >= self._delay + self._most:
            try:
                self._written = self._write()
            except ProfileError as error:
                logger.error("%s", error)
                self._is_started = False

    def _record(self) -> None:
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        config = _ExperimentalConfig(profile_all_threads=True)  # steps have their own thread
        self._running = profile(activities=activities, experimental_config=config, acc_events=True, **self._options)
        spans.is_profiling = True
        self._running.start()

    def _write(self) -> Path:
        assert self._running is not None
        running, self._running = self._running, None
        spans.is_profiling = False
        running.stop()
        path = self._folder / f"steps-{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 10**6:06d}{self._suffix}"
        try:
            running.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            raise ProfileError(f"the trace cannot be written: {error}") from None
        logger.info("profile of %d steps: %s", self._num_steps - self._delay, path)
        return path
