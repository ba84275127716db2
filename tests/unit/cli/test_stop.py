"""A stop by a signal before a server is ready."""

import signal

import pytest

from stoker.cli.stop import unless_stopped

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
pytestmark = pytest.mark.usefixtures("hang_up")


def test_the_exit_code_is_that_of_the_work():
    assert unless_stopped(lambda: 7) == 7


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_during_the_work_ends_it_with_0(number: signal.Signals, capsys):
    def work() -> int:
        signal.raise_signal(number)
        return 7

    assert unless_stopped(work) == 0
    assert capsys.readouterr().err == "stopped before it was ready\n"


@pytest.mark.parametrize("number", STOPS)
def test_so_does_one_that_comes_before_all_signals_are_set(number: signal.Signals, monkeypatch, capsys):
    """The command ended with 130 and without a word if SIGTERM came before SIGINT had its handler."""
    real, to_come = signal.signal, [number]

    def then_the_signal(one, handler):
        result = real(one, handler)
        if one in to_come:
            to_come.remove(one)
            signal.raise_signal(one)
        return result

    monkeypatch.setattr("stoker.cli.stop.signal.signal", then_the_signal)
    assert unless_stopped(lambda: 7) == 0
    assert capsys.readouterr().err == "stopped before it was ready\n"


def test_a_hang_up_that_nohup_lets_be_ignored_stays_so():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def work() -> int:
        signal.raise_signal(signal.SIGHUP)
        return 7

    assert unless_stopped(work) == 7
