"""Memory that goes back to the system."""

from __future__ import annotations

import ctypes
import errno
import platform

import psutil
import pytest

from stoker.engine.host import pages
from stoker.engine.host.pages import give_back_free, map_private, touch_pages

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


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOMEM])
def test_pages_that_the_system_refuses_are_not_written(number: int, monkeypatch: pytest.MonkeyPatch):
    """A write to them ended the process. A kernel that does not know the advice has them all the same."""

    def refuse(address: int, size: int, advice: int) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(pages, "_madvise", refuse)
    memory = map_private(1 << 26)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if number == errno.EINVAL:
        touch_pages(address, len(memory), 2)
        return
    before = resident()
    with pytest.raises(OSError, match="Cannot allocate memory"):
        touch_pages(address, len(memory), 2)
    assert resident() - before < 1 << 25
