from __future__ import annotations

from stoker.engine.runner.measure import PhaseClock


def test_phases_are_reported_as_they_begin_and_timed_in_order():
    now, reported = [10.0], list[str]()
    clock = PhaseClock(reported.append, lambda: now[0])
    clock.start("weights")
    now[0] = 12.5
    clock.start("kv cache")
    now[0] = 13.0
    clock.stop()
    now[0] = 99.0
    clock.stop()
    assert reported == ["weights", "kv cache"]
    assert clock.seconds == {"weights": 2.5, "kv cache": 0.5}
