"""A rank of a launcher that joins the others and then waits to be ended: for tests that stop it."""

from __future__ import annotations

import os
import signal
import sys

from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.engine.transport.rank_messages import Loaded
from stoker_launcher.following import LaunchedRank
from stoker_launcher.launch import Launch
from stoker_launcher.leading import LaunchedProcesses


def main(rank: int, size: int, words: list[str]) -> None:
    deployment = load_deployment([], words, env={})
    resolved = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())
    launch = Launch(rank, size, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank:
        LaunchedRank(resolved, launch).send(Loaded())
    else:
        LaunchedProcesses(resolved, launch).wait_loaded()
    print("joined", flush=True)
    signal.pause()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
