from __future__ import annotations

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
