from __future__ import annotations

import pytest

from stoker.engine.kv_stores import waiting_blocks
from stoker.engine.kv_stores.waiting_blocks import WaitingBlocks


def test_blocks_wait_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_blocks, "MAX_BYTES", 100)
    waiting = WaitingBlocks()
    assert b"a" not in waiting
    assert waiting.add(b"a", 60)
    assert not waiting.add(b"a", 60)  # it waits already
    assert not waiting.add(b"b", 41)  # too much would wait
    assert waiting.add(b"c", 40)
    assert (b"a" in waiting, b"b" in waiting, b"c" in waiting) == (True, False, True)
    waiting.remove([b"a"])
    assert b"a" not in waiting
    assert waiting.add(b"b", 60)
    waiting.remove([b"c", b"b"])
    assert waiting.add(b"a", 100)
