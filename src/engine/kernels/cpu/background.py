"""Compilation of a library in a thread, while the engine serves with torch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ....config.cpu_features import NoKernels
from ....config.cpu_library import LibrarySpec
from .library import CpuLibrary, load_library
from .progress import Progress

logger = logging.getLogger(__name__)
Load = Callable[..., CpuLibrary]  # load_library, or a test's


class BackgroundCompilation:
    """Begins when it is made. As text: how far it is, or why it failed."""

    def __init__(self, spec: LibrarySpec, load: Load = load_library) -> None:
        self._spec = spec
        self._load = load
        self._progress: Progress | None = None
        self._on_loaded: Callable[[CpuLibrary], None] | None = None
        self._lock = threading.Lock()
        self._library: CpuLibrary | None = None
        self._failure = ""
        self._thread = threading.Thread(target=self._run, name="kernel compilation", daemon=True)
        self._thread.start()

    def __str__(self) -> str:
        if self._failure:
            return self._failure
        progress = f": {self._progress}" if self._progress is not None else ""
        return f"compiling in the background{progress}; torch until then"

    def when_loaded(self, call: Callable[[CpuLibrary], None]) -> None:
        """Calls it once with the library, in this or another thread; never if the compilation fails."""
        with self._lock:
            self._on_loaded = call
            library = self._library
        if library is not None:
            call(library)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            library = self._load(self._spec, report=self._report, nice=True)
        except NoKernels as error:
            self._failure = str(error)
            logger.warning("torch stays in use: %s", error)
            return
        with self._lock:
            self._library = library
            call = self._on_loaded
        if call is not None:
            call(library)

    def _report(self, progress: Progress) -> None:
        self._progress = progress
