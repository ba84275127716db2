"""Ranks of a launcher, one of which is stopped while another sends it more than a connection holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.free_ports import free_port

from stoker.config import Resolved, load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.engine.ranks.followers import RankLost
from stoker.engine.transport.rank_messages import AllReturned, Loaded, Operation, Returned
from stoker_launcher.following import LaunchedRank
from stoker_launcher.launch import Launch
from stoker_launcher.leading import LaunchedProcesses

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("rank_script.py")
NUM_RANKS = 4
WORDS = f"--model builtin:tiny -tp {NUM_RANKS} --distributed-executor-backend external_launcher --max-model-len 256"
LIMIT_S, SILENCE_S = 120.0, 5.0
LARGE = Returned(bytes(64 << 20))  # more than the buffers of a connection on this machine
Here = dict[int, LaunchedProcesses | LaunchedRank]


@contextmanager
def ranks(elsewhere: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Here, Callable[[], None]]]:
    """All that have joined, without the one that is a process of its own, and what stops that one."""
    port = free_port()
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(LaunchedProcesses, "default_silence_s", SILENCE_S)
    deployment = load_deployment([], WORDS.split(), env={})
    resolved = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())
    command = [sys.executable, str(SCRIPT), str(elsewhere), str(NUM_RANKS), *WORDS.split()]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (
        subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE) as process,
        ThreadPoolExecutor(NUM_RANKS) as pool,
    ):
        here: Here = {}
        try:
            numbers = [rank for rank in range(NUM_RANKS) if rank != elsewhere]
            joining = {
                rank: pool.submit(joined, resolved, Launch(rank, NUM_RANKS, "127.0.0.1", port)) for rank in numbers
            }
            here |= {rank: each.result(LIMIT_S) for rank, each in joining.items()}
            assert process.stdout is not None
            assert process.stdout.readline() == "joined\n"

            def stop() -> None:
                process.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, process.pid, os.WSTOPPED)

            yield here, stop
        finally:
            process.kill()
            for each in here.values():
                each.close()


def joined(resolved: Resolved, launch: Launch) -> LaunchedProcesses | LaunchedRank:
    if not launch.rank:
        rank_0 = LaunchedProcesses(resolved, launch)
        rank_0.wait_loaded()
        return rank_0
    other = LaunchedRank(resolved, launch)
    other.send(Loaded())
    return other


def read_all(rank: LaunchedRank) -> None:
    while True:
        rank.receive()


def test_a_rank_that_is_stopped_while_rank_0_sends_to_it(monkeypatch: pytest.MonkeyPatch):
    with ranks(2, monkeypatch) as (here, stop), ThreadPoolExecutor(1) as pool:
        rank_0 = here[0]
        assert isinstance(rank_0, LaunchedProcesses)
        rank_0.begin(Operation("a call of `place`"))
        stop()
        sending = pool.submit(rank_0.end, AllReturned([LARGE]))
        with pytest.raises(RankLost) as lost:
            sending.result(LIMIT_S)
        text = str(lost.value)
        assert text.startswith("rank 2 of the model (")
        assert text.endswith(f") has not answered for {SILENCE_S:g} s")
        for rank in (1, 3):
            other = here[rank]
            assert isinstance(other, LaunchedRank)
            with pytest.raises(RankLost, match=r"rank 2 of the model \(.* has not answered for 5 s"):
                read_all(other)


def test_rank_0_that_is_stopped_while_others_send_to_it(monkeypatch: pytest.MonkeyPatch):
    with ranks(0, monkeypatch) as (here, stop), ThreadPoolExecutor(NUM_RANKS) as pool:
        others = [each for each in here.values() if isinstance(each, LaunchedRank)]
        for each in others:
            each._link._silence_s = SILENCE_S
        stop()
        for sending in [pool.submit(each.send, LARGE) for each in others]:
            with pytest.raises(RankLost, match=r"rank 0 of the model \(.* has been silent for 5 s"):
                sending.result(LIMIT_S)
