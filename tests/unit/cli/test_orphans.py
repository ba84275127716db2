"""A process that gets the ends of processes whose parents have ended, as the first one of a container does."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, os, signal, subprocess, sys, time
from stoker.cli.orphans import reap_orphans

def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

def is_zombie(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"

reap_orphans(())  # without children
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
known = subprocess.Popen([sys.executable, "-c", "input(); raise SystemExit(7)"], stdin=subprocess.PIPE)
parent = "import subprocess; print(subprocess.Popen(['sleep', 'infinity'], stdout=subprocess.DEVNULL).pid)"
orphans = [int(subprocess.check_output([sys.executable, "-c", parent])) for _ in range(2)]
for orphan in orphans:
    os.kill(orphan, signal.SIGKILL)
wait_for(lambda: all(map(is_zombie, orphans)))
reap_orphans({known.pid})
assert not any(os.path.exists(f"/proc/{orphan}") for orphan in orphans)
known.stdin.write(b"x" + bytes([10]))
known.stdin.flush()
wait_for(lambda: is_zombie(known.pid))
reap_orphans({known.pid})
assert known.wait() == 7
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans have a new parent on Linux alone")
def test_orphans_are_reaped_and_children_keep_their_exit_codes():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=120)
