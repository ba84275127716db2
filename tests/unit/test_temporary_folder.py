from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

from stoker.temporary_folder import YOUNGEST_S, temporary_folder

HOLDS = """
import sys, time
from stoker.temporary_folder import temporary_folder
with temporary_folder("stoker-x-", sys.argv[1]) as folder:
    print(folder, flush=True)
    time.sleep(600)
"""


def test_a_folder_is_private_and_ends_with_its_block(tmp_path: Path):
    with temporary_folder("stoker-x-", str(tmp_path)) as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "file").touch()
    assert not folder.exists()


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_running_one_is_not(tmp_path: Path):
    held = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with held:
        assert held.stdout is not None
        left = Path(held.stdout.readline().strip())
        others = tmp_path / "stoker-y-1"
        others.mkdir()
        for folder in (left, others):
            _make_old(folder)
        with temporary_folder("stoker-x-", str(tmp_path)):
            assert left.exists()
        held.send_signal(signal.SIGKILL)
    with temporary_folder("stoker-x-", str(tmp_path)):
        assert not left.exists()
        assert others.exists()


def test_a_young_folder_and_a_link_are_not_touched(tmp_path: Path):
    (tmp_path / "stoker-x-young").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "stoker-x-link").symlink_to(elsewhere)
    old = time.time() - 2 * YOUNGEST_S
    os.utime(tmp_path / "stoker-x-link", (old, old), follow_symlinks=False)
    _make_old(elsewhere)
    with temporary_folder("stoker-x-", str(tmp_path)):
        assert (tmp_path / "stoker-x-young").exists()
        assert elsewhere.exists()


def _make_old(folder: Path) -> None:
    old = time.time() - 2 * YOUNGEST_S
    os.utime(folder, (old, old))
