"""Shared by all tests: no test leaves files in the user's folders, or depends on how the run was started."""

from __future__ import annotations

import gc
import importlib
import os
import re
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

# Read when torch is first imported, also by processes that tests start. Threads that spin while they wait take half of
# the time of a machine whose cores are shared with other tests.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if not os.path.exists("/dev/nvidiactl"):  # of NVIDIA's driver
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported, by whichever test that is
    importlib.import_module("tests.interpreter.sitecustomize")
    if (folder := str(Path(__file__).with_name("interpreter"))) not in (path := os.environ.get("PYTHONPATH", "")):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, path)))  # of processes that tests start

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: processes of tests would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

_ALL_ARE_SLOW = re.compile(r"^pytestmark = .*pytest\.mark\.slow\b", re.MULTILINE)

settings.register_profile("repeatable", derandomize=True)  # a run fails because of the change it tests, not by chance
settings.load_profile("repeatable")
# hypothesis also takes constants of all modules imported so far, which depend on the tests that ran before in a process
providers.is_local_module_file = lambda _: False


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules whose tests are all slow: importing what they use takes seconds."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return _ALL_ARE_SLOW.search(collection_path.read_text("utf-8")) is not None or None


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the cases that `quick_cases` leaves to the slow run."""
    num_quick: Counter[tuple[pytest.Item | pytest.Collector | None, str]] = Counter()
    for item in items:
        quick = item.get_closest_marker("quick_cases")
        if quick is None or item.get_closest_marker("slow"):
            continue
        assert isinstance(item, pytest.Function)
        test, (most,) = (item.parent, item.originalname), quick.args
        if all(item.callspec.params[name] in values for name, values in quick.kwargs.items()):
            num_quick[test] += 1
            if num_quick[test] <= most:
                continue
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay until the end: they are not searched for garbage again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries complain of what is left at the end


@pytest.fixture(autouse=True, scope="session")
def _no_traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Engines that tests start write their measurements elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Signals do again what they did before a test, also one that left them ignored or started Ray in this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def hang_up() -> Iterator[None]:
    """SIGHUP as in a terminal, for this process and those that it starts, even if the tests are run by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
