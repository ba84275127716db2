"""Stores of KV blocks that save in a thread."""

from __future__ import annotations

from typing import Any


def flush(store: Any) -> None:
    """Wait until a TieredStore has the blocks that are arriving, or BlockFiles has written those that were saved."""
    thread = store._waiter if hasattr(store, "_waiter") else store._writer
    thread.submit(lambda: None).result()
