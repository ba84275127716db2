"""CallThread: calls one after the other, with a limit for one that shows no progress."""

from __future__ import annotations

import threading

from stoker.engine.kv_stores.call_thread import CallThread

from .test_connector_store import Clock


def test_calls_run_in_order_and_before_the_end():
    thread, done = CallThread("calls", 1.0), []
    for number in range(100):
        thread.submit(lambda number=number: done.append(number))
    assert thread.close()
    assert done == list(range(100))


def test_progress_moves_the_limit_and_the_next_call_has_its_own():
    clock, runs, go_on = Clock(), threading.Event(), threading.Event()
    thread = CallThread("calls", 5.0, clock)
    clock.now = 100.0
    assert not thread.is_overdue  # nothing runs
    thread.submit(lambda: (runs.set(), go_on.wait()))  # type: ignore[arg-type, return-value]
    runs.wait(60)
    clock.now += 4
    thread.progress()
    clock.now += 4
    assert not thread.is_overdue
    clock.now += 2
    assert thread.is_overdue
    assert not thread.close()
    go_on.set()
    thread._thread.join(60)
    assert not thread.is_overdue
