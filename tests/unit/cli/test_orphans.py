"""A process that gets the ends of processes whose parents have ended, as the first one of a container does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TINY = Path(__file__).parents[3] / "deployments" / "tiny.yaml"
SCRIPT = """
import ctypes, os, signal, subprocess, sys, time
from stoker.cli.orphans import reap

def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

def is_zombie(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"

assert reap(set()) == set()  # without children
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
known = subprocess.Popen([sys.executable, "-c", "input(); raise SystemExit(7)"], stdin=subprocess.PIPE)
parent = "import subprocess; print(subprocess.Popen(['sleep', 'infinity'], stdout=subprocess.DEVNULL).pid)"
orphans = [int(subprocess.check_output([sys.executable, "-c", parent])) for _ in range(2)]
for orphan in orphans:
    os.kill(orphan, signal.SIGKILL)
wait_for(lambda: all(map(is_zombie, orphans)))
before = reap(set())
assert before == set(orphans)
assert all(map(is_zombie, orphans))  # somebody may wait for them
known.stdin.write(b"x" + bytes([10]))
known.stdin.flush()
wait_for(lambda: is_zombie(known.pid))
assert reap(before) == {known.pid}
assert not any(os.path.exists(f"/proc/{orphan}") for orphan in orphans)
assert known.wait() == 7
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans have a new parent on Linux alone")
def test_orphans_are_reaped_and_children_keep_their_exit_codes():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=120)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="makes a namespace of processes")
def test_a_server_that_is_the_first_process_of_a_container_reaps_orphans(tmp_path: Path) -> None:
    """The parent of `sleep` ends before it."""
    script = tmp_path / "container.py"
    script.write_text(
        "import os, subprocess, sys, threading\n"
        "from stoker.cli import orphans\n"
        "from stoker.cli.app import main\n"
        "orphans._INTERVAL_S = 0.1\n"
        "def watch():\n"
        "    orphan = int(subprocess.check_output(['sh', '-c', 'sleep 0.3 > /dev/null & echo $!']))\n"
        "    while os.path.exists(f'/proc/{orphan}'):\n"
        "        pass\n"
        "    print('REAPED', flush=True)\n"
        "    os._exit(0)\n"
        "threading.Thread(target=watch, daemon=True).start()\n"
        f"sys.argv = ['engine', 'up', {str(TINY)!r}, '--port', '0']\n"
        "main()\n"
    )
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, str(script)]
    done = subprocess.run(unshare, capture_output=True, text=True, timeout=120)
    if "Operation not permitted" in done.stderr:
        pytest.skip("this system makes no namespaces")
    assert "REAPED" in done.stdout, done.stderr[-2000:]
