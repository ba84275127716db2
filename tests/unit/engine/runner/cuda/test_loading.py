"""Memory of ranks that sleep together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from stoker.engine.runner.cuda import loading

TOPOLOGY = SimpleNamespace(num_ranks=4)


@pytest.mark.parametrize("available", [65_536, 65_535])
def test_the_leading_rank_knows_whether_all_can_sleep(available: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others found the memory of the ranks before them taken, asked for that of all ranks, and ended the engine."""
    left = available
    monkeypatch.setattr(loading, "read_machine_spec", lambda: SimpleNamespace(available_memory_bytes=left))
    resolved: Any = SimpleNamespace(model=SimpleNamespace(enable_sleep_mode=True), topology=TOPOLOGY)
    ranks = []
    for rank in range(4):
        memory = loading._sleeping(resolved, torch.device("cpu"), leads=not rank)
        assert memory is not None
        memory.keep([torch.ones(4096)])
        ranks.append(memory)
    if available < 65_536:
        with pytest.raises(MemoryError, match="65536 bytes, and 65535"):
            ranks[0].give_back()
        return
    for memory in ranks:
        memory.give_back()
        left -= 16_384
