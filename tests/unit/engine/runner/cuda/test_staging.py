from __future__ import annotations

import pytest
import torch

from stoker.engine.runner.cuda.staging import Download, Upload


def test_numbers_go_up_from_buffers_that_take_turns():
    there = torch.zeros(5, dtype=torch.int32)
    upload = Upload(there)
    first = upload.buffer()
    first[:3] = [1, 2, 3]
    upload.send(3)
    assert there.tolist() == [1, 2, 3, 0, 0]
    second = upload.buffer()
    assert second is not first
    second[:2] = [8, 9]
    upload.send(2)
    assert there.tolist() == [8, 9, 3, 0, 0]
    assert first[:3].tolist() == [1, 2, 3]  # still as it was sent: the device may not have read it yet


class Reading:
    """An event of a device that is late: it has read nothing before somebody waits for it."""

    def __init__(self, still_reading: list[Reading]) -> None:
        self._still_reading = still_reading

    def record(self) -> None:
        assert self not in self._still_reading, "written over while the device still read it"
        self._still_reading.append(self)

    def synchronize(self) -> None:
        while self in self._still_reading:
            del self._still_reading[0]


def test_a_step_that_sends_much_waits_for_the_device_to_read_what_it_would_write_over():
    """Once a prompt that goes up in more parts than there are buffers wrote over parts on their way."""
    still_reading: list[Reading] = []
    upload = Upload(torch.zeros(5, dtype=torch.int32), lambda: Reading(still_reading))  # type: ignore[arg-type, return-value]
    for number in range(9):
        upload.buffer()[:1] = number
        upload.send(1)
        assert len(still_reading) == min(number + 1, 4)


def test_what_comes_down_is_that_of_the_step_it_belongs_to():
    there = torch.tensor([1, 2, 3], dtype=torch.int32)
    download = Download(there)
    first = download.start(3)
    there += 10
    second = download.start(2)
    there += 10
    assert download.wait(first, 3).tolist() == [1, 2, 3]
    kept = download.wait(second, 2)
    for _ in range(4):
        download.start(3)
    assert kept.tolist() == [11, 12]


def test_while_a_step_is_waited_for_the_other_ranks_are_checked():
    class Ended(Exception):
        pass

    class Running:
        def query(self) -> bool:
            return False

    def check() -> None:
        raise Ended

    download = Download(torch.zeros(3, dtype=torch.int32), check)
    download._events = [Running()] * 4  # type: ignore[list-item]
    with pytest.raises(Ended):
        download.wait(0, 3)
