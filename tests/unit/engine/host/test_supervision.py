from __future__ import annotations

from stoker.engine.host.supervision import RestartBudget, Watchdog
from stoker.engine.transport.messages import Heartbeat


def test_no_heartbeat_and_no_output_for_ten_seconds_is_a_stall():
    watchdog = Watchdog(0.0)
    assert not watchdog.is_stalled(9.9)
    assert watchdog.is_stalled(10.0)
    watchdog.progress(10.0)
    assert not watchdog.is_stalled(19.9)


def test_a_long_step_that_computes_is_not_a_stall():
    watchdog = Watchdog(0.0)
    for second in range(1, 100):
        watchdog.heartbeat(Heartbeat(5, True, cpu_s=1.9 * second), float(second))
        assert not watchdog.is_stalled(float(second))


def test_a_long_step_that_sleeps_is_a_stall():
    watchdog = Watchdog(0.0)
    watchdog.heartbeat(Heartbeat(5, True, 1.0), 1.0)  # the step number is new: progress
    stalled_at = [
        second
        for second in range(2, 15)
        if not watchdog.heartbeat(Heartbeat(5, True, 1.0 + second / 100), second) and watchdog.is_stalled(float(second))
    ]
    assert stalled_at[0] == 11


def test_a_step_that_computes_endlessly_is_a_stall_after_ten_minutes():
    watchdog = Watchdog(0.0, max_step_s=60.0)
    for second in range(1, 75):
        watchdog.heartbeat(Heartbeat(5, True, cpu_s=2.0 * second), float(second))
    assert watchdog.is_stalled(74.0)


def test_heartbeats_of_an_engine_that_never_steps_are_not_progress():
    watchdog = Watchdog(0.0)
    for second in range(1, 11):
        watchdog.heartbeat(Heartbeat(0, False, cpu_s=2.0 * second), float(second))
    assert watchdog.is_stalled(10.0)


def test_an_engine_that_only_reads_an_adapter_is_not_stalled():
    """A request that waited alone for slow storage made calls fail as if the engine were dead."""
    watchdog = Watchdog(0.0)
    for second in range(1, 31):
        watchdog.heartbeat(Heartbeat(5, False, 1.0, is_reading=True), float(second))
        assert not watchdog.is_stalled(float(second))
    for second in range(31, 42):  # a step hangs, whatever is read
        watchdog.heartbeat(Heartbeat(5, True, 1.0, is_reading=True), float(second))
    assert watchdog.is_stalled(41.0)


def test_only_an_engine_that_lately_was_between_steps_is_idle():
    watchdog = Watchdog(0.0)
    watchdog.heartbeat(Heartbeat(5, False, 1.0), 1.0)
    assert watchdog.is_idle(10.9)
    assert not watchdog.is_idle(11.0)  # stopped since
    watchdog.heartbeat(Heartbeat(5, True, 1.0), 12.0)
    assert not watchdog.is_idle(12.0)


def test_the_restart_budget_refills_as_its_window_moves():
    budget = RestartBudget(2, window_s=600.0)
    assert [budget.take(now) for now in (0.0, 1.0, 2.0, 599.0, 600.0, 600.5, 601.0)] == [
        True,
        True,
        False,
        False,
        True,
        False,
        True,
    ]


def test_a_budget_of_zero_allows_nothing():
    assert not RestartBudget(0).take(0.0)
