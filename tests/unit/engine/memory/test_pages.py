"""Memory that goes back to the system."""

from __future__ import annotations

import platform

import psutil
import pytest

from stoker.engine.memory.pages import give_back_free

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")


def resident() -> int:
    found: int = psutil.Process().memory_info().rss
    return found


def test_holes_between_pieces_that_are_kept_go_back():
    pieces = [bytes([1]) * 100_000 for _ in range(600)]  # too small for a mapping of their own
    del pieces[::2]
    before = resident()
    give_back_free()
    assert before - resident() > 20e6
    assert all(set(piece) == {1} for piece in pieces[::100])
