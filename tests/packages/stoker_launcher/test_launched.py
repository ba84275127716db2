"""Ranks that a launcher starts: torchrun, or plain processes with its environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.free_ports import free_port

pytestmark = pytest.mark.slow
LIMIT_S = 120.0
SCRIPT = Path(__file__).with_name("launched_script.py")
ROOT = SCRIPT.parents[3]
WAYS = {
    "tensor": {"tensor_parallel_size": 2},
    "gloo": {"tensor_parallel_size": 2, "disable_custom_all_reduce": True},
    "pipeline": {"pipeline_parallel_size": 2},
}
FOREVER = 1 << 20


def argument(options: dict[str, object], **more: object) -> str:
    launched = {"distributed_executor_backend": "external_launcher"}
    return json.dumps({"options": (launched if options else {}) | options, **more})


def environment(rank: int, size: int, port: int, **more: str) -> dict[str, str]:
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    return {**os.environ, **master, **own, **more}


def start(given: str, env: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), given]
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@contextmanager
def ranks(given: str, size: int = 2, **more: str) -> Iterator[list[subprocess.Popen[str]]]:
    port = free_port()
    started = [start(given, environment(rank, size, port, **more)) for rank in range(size)]
    try:
        yield started
    finally:
        for each in started:
            each.kill()
            each.communicate()


def end(process: subprocess.Popen[str]) -> str:
    """The last line of its error."""
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, err
    return err.strip().splitlines()[-1]


def printed(out: str, what: str) -> list[object]:
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return [line[what] for line in lines if what in line]


@pytest.fixture(scope="module")
def alone() -> object:
    """The results of one process."""
    (results,) = printed(subprocess.check_output([sys.executable, str(SCRIPT), argument({})], text=True), "results")
    return results


def results_of(started: list[subprocess.Popen[str]]) -> list[object]:
    """The first line of each rank, which goes on."""
    lines = [each.stdout.readline() for each in started if each.stdout is not None]
    return [result for line in lines for result in printed(line, "results")]


def test_every_rank_of_torchrun_returns_what_one_process_returns(alone: object):
    options = {"tensor_parallel_size": 2, "async_scheduling": True}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(SCRIPT), argument(options)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout, "results") == [alone, alone]


def test_ranks_on_two_machines(alone: object):
    """Two launchers of one rank each: the ranks share no memory."""
    port, given = free_port(), argument({"tensor_parallel_size": 2, "nnodes": 2})
    envs = [environment(rank, 2, port, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1") for rank in range(2)]
    started = [start(given, env) for env in envs]
    outs = [each.communicate(timeout=LIMIT_S) for each in started]
    assert [printed(out, "results") for out, _ in outs] == [[alone], [alone]], [err for _, err in outs]


@pytest.mark.parametrize(("way", "victim"), [("gloo", 1), ("pipeline", 0)])
def test_ranks_answer_until_one_is_killed_which_the_others_name(way: str, victim: int, alone: object):
    with ranks(argument(WAYS[way], more=FOREVER)) as started:
        assert results_of(started) == [alone] * 2
        started[victim].send_signal(signal.SIGKILL)
        assert f"rank {victim} of the model (" in end(started[1 - victim])


def test_stages_of_several_ranks_and_one_that_is_killed(alone: object):
    given = argument({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, more=FOREVER)
    with ranks(given, 4) as started:
        assert results_of(started) == [alone] * 4
        started[3].send_signal(signal.SIGKILL)
        for each in started[:3]:
            assert "rank 3 of the model (" in end(each)


DIVERGENT = {
    "prompts": ({"prompts": ["Something else"]}, "prompts of the sequences that begin differ in step"),
    "sampling": (
        {"sampling": {"temperature": 0.5}},
        "sampling parameters or cache scope of the sequences that begin differ in step",
    ),
}


@pytest.mark.parametrize(("way", "what"), [("tensor", "sampling"), ("pipeline", "prompts")])
def test_ranks_that_plan_different_steps_end_and_say_what_differs(way: str, what: str):
    own, difference = DIVERGENT[what]
    with ranks(argument(WAYS[way], own={"1": own}, more=1)) as started:
        errors = [end(each) for each in started]
    for error in errors:
        assert "rank 1 of the model (" in error
        assert f"does not do what rank 0 does: {difference}" in error
    assert errors[0] == errors[1]


def test_a_rank_whose_script_has_ended_ends_the_others():
    with ranks(argument(WAYS["tensor"], leaves="1", more=1)) as started:
        error = end(started[0])
    assert "rank 1 of the model (" in error
    assert "has left: its script has closed its LLM, or has ended" in error


def test_a_rank_with_other_options_is_refused():
    port = free_port()
    options = [{"tensor_parallel_size": 2, "seed": seed} for seed in (1, 2)]
    started = [start(argument(own), environment(rank, 2, port)) for rank, own in enumerate(options)]
    for each in started:
        assert "`model.seed` is 1 on node 0 and 2 on" in end(each)


EXTENSION: dict[str, object] = {"worker_extension_cls": "tests.own_code:WeightUpdates"}
WITH_TESTS = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}


def calls_of_one_script(options: dict[str, object]) -> list[object]:
    command = [sys.executable, str(SCRIPT), json.dumps({"options": EXTENSION | options})]
    return printed(subprocess.check_output(command, text=True, env=os.environ | WITH_TESTS, cwd=ROOT), "calls")


def test_workers_of_all_ranks_are_called(alone: object):
    """By one script whose ranks are its children, and by the scripts of a launcher."""
    way = WAYS["pipeline"]
    found = calls_of_one_script({}) + calls_of_one_script(way)
    with ranks(argument(EXTENSION | way), 2, **WITH_TESTS) as started:
        outs = [each.communicate(timeout=LIMIT_S) for each in started]
    found += [calls for out, _ in outs for calls in printed(out, "calls")]
    assert len(found) == 4, [err for _, err in outs]
    (_, others, _, _), *_ = found
    assert others != alone
    for (places, replaced, errors, back), size in zip(found, (1, 2, 2, 2), strict=True):
        assert (places, replaced, back) == ([[rank, size] for rank in range(size)], others, alone)
        assert errors[0] == f"`fails_on` has failed on rank {size - 1}: ValueError: as asked"
        assert errors[1].startswith("the workers have no method `nothing`")
        assert len(errors) == (2 if size == 1 else 3)


def test_a_world_of_another_size_is_refused():
    process = start(argument({"tensor_parallel_size": 2}), environment(0, 3, free_port()))
    assert "WORLD_SIZE is 3, and `tensor_parallel_size` 2 times `pipeline_parallel_size` 1 is 2" in end(process)


def test_workers_of_another_node_are_called(tmp_path: Path, alone: object):
    """They were refused: `engine up` on the other node has no call of workers, but its ranks have workers."""
    sizes = {"tensor_parallel_size": 2, "nnodes": 2, "master_addr": "127.0.0.1", "master_port": free_port()}
    file = tmp_path / "deploy.yaml"
    model = {"model": "builtin:tiny", "max_model_len": 256, "dtype": "float32"}
    device, server = {"num_threads": 1}, {"port": 0}
    file.write_text(json.dumps({"model": model, "parallel": sizes | EXTENSION, "device": device, "server": server}))
    words = ["-m", "stoker", "up", str(file), "--node-rank", "1"]
    other = subprocess.Popen([sys.executable, *words], env=os.environ | WITH_TESTS, cwd=ROOT)
    try:
        ((places, others, _, back),) = calls_of_one_script(sizes)
    finally:
        other.terminate()
        other.wait(LIMIT_S)
    assert (places, back) == ([[0, 2], [1, 2]], alone)
    assert others != alone


def test_rank_0_publishes_the_events_of_all(alone: object):
    """Every rank bound the same port, so events were refused."""
    zmq = pytest.importorskip("zmq")
    port, context = free_port(), zmq.Context()
    events = {"kv_events.enable_kv_cache_events": True, "kv_events.endpoint": f"tcp://*:{port}"}
    with context.socket(zmq.SUB) as subscriber:
        subscriber.connect(f"tcp://127.0.0.1:{port}")
        subscriber.subscribe("")
        with ranks(argument(WAYS["tensor"] | events)) as started:
            outs = [each.communicate(timeout=LIMIT_S) for each in started]
        assert [printed(out, "results") for out, _ in outs] == [[alone], [alone]], [err for _, err in outs]
        assert subscriber.poll(timeout=1000)
    context.term()
