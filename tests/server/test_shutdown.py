"""Which signals stop a server, and how."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from stoker.server.http.shutdown import Shutdown, on_signals

pytestmark = pytest.mark.usefixtures("hang_up")


def after(*numbers: signal.Signals) -> Shutdown:
    """The state of a shutdown after this process has received signals."""

    async def run() -> Shutdown:
        shutdown = Shutdown()
        with on_signals(shutdown):
            for number in numbers:
                os.kill(os.getpid(), number)
                await asyncio.wait_for(shutdown.requested.wait(), 60)
        return shutdown

    return asyncio.run(run())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_each_signal_starts_the_drain_and_is_named(number: signal.Signals):
    """SIGHUP ended the process by its default action: streams were cut, without a line in the log."""
    shutdown = after(number)
    assert (shutdown.cause, shutdown.cut.is_set()) == (number.name, False)


def test_the_second_request_ends_the_drain_and_the_first_is_the_cause():
    shutdown = Shutdown()
    shutdown.request("SIGTERM")
    shutdown.request("SIGINT")
    assert (shutdown.cause, shutdown.cut.is_set()) == ("SIGTERM", True)


def test_a_closed_terminal_does_not_end_the_drain():
    """The kernel sends SIGHUP to the processes of the terminal, and the shell sends it to its jobs again."""
    shutdown = Shutdown()
    shutdown.hang_up()
    shutdown.hang_up()
    assert not shutdown.cut.is_set()


def test_a_server_that_nohup_started_survives_its_terminal():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def run() -> None:
        shutdown = Shutdown()
        with on_signals(shutdown):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)

    asyncio.run(run())
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
