from __future__ import annotations

import sys

import pytest

from stoker.engine.host import pages
from stoker.engine.runner.kv_memory import WAIT_S, IdleGap, KVMemory
from stoker.engine.runner.prefaulted_pages import prefaulted_pages

MIB = 1 << 20
populates = pytest.mark.skipif(sys.platform != "linux", reason="only Linux takes pages without writing to them")


def test_only_the_first_share_of_every_region_is_touched_before_the_engine_is_ready():
    memory = KVMemory(num_bytes=24 * MIB, num_regions=3, first_share=0.3)  # 2.4 MiB of 8: two huge pages
    assert memory.num_untouched == 24 * MIB
    memory.touch_first()
    assert memory.num_untouched == 3 * 4 * MIB


@pytest.mark.parametrize("num_bytes", [3, 6 * MIB, 9 * MIB + 3])
def test_a_region_that_is_no_whole_number_of_pages_is_touched_to_its_end(num_bytes: int):
    memory = KVMemory(num_bytes, num_regions=3)
    memory.touch_first()
    assert memory.num_untouched == 0
    assert len(memory.buffer) == num_bytes


@populates
def test_what_is_stored_stays_when_the_rest_is_touched():
    memory = KVMemory(num_bytes=8 * MIB, num_regions=2, first_share=0.0)
    memory.buffer[0], memory.buffer[-1] = 1, 2
    memory.touch_in_background(lambda: True).join(timeout=30)
    assert memory.num_untouched == 0
    assert (memory.buffer[0], memory.buffer[4 * MIB], memory.buffer[-1]) == (1, 0, 2)
    memory.check()


@populates
def test_nothing_is_touched_behind_while_steps_run():
    memory = KVMemory(num_bytes=8 * MIB, num_regions=1, first_share=0.0)
    asked: list[int] = []

    def may_touch() -> bool:
        asked.append(memory.num_untouched)
        return len(asked) > 2

    memory.touch_in_background(may_touch).join(timeout=30)
    assert asked[:3] == [8 * MIB] * 3
    assert memory.num_untouched == 0


@populates
def test_the_thread_ends_with_the_memory():
    memory = KVMemory(num_bytes=8 * MIB, num_regions=1)
    thread = memory.touch_in_background(lambda: False)
    del memory
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_too_little_memory_for_the_rest_is_an_error_with_both_numbers():
    memory = KVMemory(num_bytes=8 * MIB, num_regions=2, first_share=0.5)
    memory.touch_first()
    memory.check_room(available_bytes=4 * MIB)
    with pytest.raises(MemoryError, match=f"KV cache: .* {8 * MIB} bytes: {4 * MIB} are not resident yet, 7 are avail"):
        memory.check_room(available_bytes=7)


@populates
def test_memory_that_is_refused_later_fails_the_next_step_and_says_why(caplog: pytest.LogCaptureFixture):
    memory = KVMemory(num_bytes=8 * MIB, num_regions=1, first_share=0.0)
    memory._address += 1 << 46  # as if it were gone: nothing is mapped there
    memory.touch_in_background(lambda: True).join(timeout=30)
    with pytest.raises(MemoryError, match=f"does not provide all of its {8 * MIB} bytes: "):
        memory.check()
    assert "all further steps fail" in caplog.text


def test_a_system_that_cannot_take_pages_leaves_them_to_the_steps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pages, "_madvise", None)
    memory = KVMemory(num_bytes=8 * MIB, num_regions=1, first_share=0.1)
    memory.touch_first()
    memory.touch_in_background(lambda: True).join(timeout=30)
    assert memory.num_untouched == 6 * MIB
    memory.check()


def test_it_is_quiet_once_no_step_has_run_for_a_while():
    now, count = 0.0, 7
    is_idle = IdleGap(lambda: count, clock=lambda: now)
    assert not is_idle()
    now = WAIT_S
    assert is_idle()
    count = 8  # a step came and went between two looks
    assert not is_idle()
    now = 3 * WAIT_S
    assert is_idle()


def test_it_is_not_quiet_during_a_step():
    now = 0.0
    is_idle = IdleGap(lambda: None, clock=lambda: now)
    assert not is_idle()
    now = 3 * WAIT_S
    assert not is_idle()


@pytest.mark.parametrize("num_bytes", [1, 9 * MIB])
def test_prefaulting_begins_after_the_required_pages_and_ends_with_the_body(num_bytes: int):
    calls: list[bool] = []
    with prefaulted_pages(num_bytes, before=lambda go_on: calls.append(go_on())):
        pass
    assert len(calls) == 1
