from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.fakes import FakeEngine

from stoker.cli.prepare import device_variables, engine_client, engine_processes, start_beside
from stoker.config import (
    MachineSpec,
    Resolved,
    load_deployment,
    read_machine_spec,
    read_model_files,
    resolve_deployment,
)
from stoker.engine.client.process import EngineProcessClient
from stoker.engine.client.replicated import ReplicatedClient

from ..config.deployments import H200, WITH_GPU


class Slow(FakeEngine):
    """Starts when the test allows it; records a cancelled start."""

    was_cancelled = False

    async def start(self):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise


def test_the_result_of_work_parallel_to_the_start_is_returned():
    assert asyncio.run(start_beside(FakeEngine(), lambda: 7)) == 7


def test_the_engine_process_gets_no_variable_that_a_secret_is_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SOME_KEY", "sesame")
    monkeypatch.setenv("OTHER", "kept")
    (tmp_path / "deploy.yaml").write_text("model: {model: builtin:tiny}\nserver: {api_key: {env: SOME_KEY}}\n")
    deployment = load_deployment([tmp_path / "deploy.yaml"], [])
    resolved = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())
    client = engine_client(resolved, lambda phase: None)
    assert isinstance(client, EngineProcessClient)
    assert client.environment is not None
    assert "SOME_KEY" not in client.environment
    assert client.environment["OTHER"] == "kept"


def resolved(*words: str, machine: MachineSpec | None = None) -> Resolved:
    deployment = load_deployment([], ["--model", "builtin:tiny", *words])
    return resolve_deployment(deployment, read_model_files(deployment), machine or read_machine_spec())


@pytest.mark.effect(
    "parallel.data_parallel_rank", "parallel.data_parallel_start_rank", "parallel.data_parallel_hybrid_lb"
)
@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ("", [0]),
        ("-dp 3", [0, 1, 2]),
        ("-dp 3 -dpn 1", [1]),
        ("-dp 8 -dpl 2 -dpr 4 --data-parallel-hybrid-lb", [4, 5]),
    ],
)
def test_a_server_starts_the_engines_of_its_ranks(words: str, ranks: list[int]):
    settings = resolved(*words.split())
    replicas = engine_processes(settings, lambda phase: None)
    assert list(replicas) == ranks
    assert isinstance(engine_client(settings, lambda phase: None), ReplicatedClient) == (len(ranks) > 1)
    for rank in ranks:
        alone = Resolved.model_validate_json(settings.replica(rank).model_dump_json())
        assert list(alone.topology.replicas) == [rank]


@pytest.mark.parametrize(
    ("visible", "words", "expected"),
    [
        (None, "-dp 2", ["0", "1"]),
        ("3,GPU-1a", "-dp 2", ["3", "GPU-1a"]),
        (None, "-dp 2 -tp 2", ["0,1", "2,3"]),
        ("3,GPU-1a,0,1", "-dp 2 -tp 2", ["3,GPU-1a", "0,1"]),
        (None, "-tp 2", [None]),
        ("3,GPU-1a", "-dp 2 -dpn 1", [None]),
        (None, "-dp 2 --device cpu", [None, None]),
    ],
)
def test_each_replica_has_gpus_of_its_own(
    visible: str | None, words: str, expected: list[str | None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    machine = WITH_GPU.model_copy(update={"gpu": H200.model_copy(update={"num_visible": 4})})
    settings = resolved(*words.split(), machine=machine)
    found = [device_variables(settings, index).get("CUDA_VISIBLE_DEVICES") for index in range(len(expected))]
    assert found == expected


def test_a_failure_of_parallel_work_ends_the_start():
    engine = Slow()

    def work() -> None:
        raise ValueError("no tokenizer")

    async def both() -> None:
        with pytest.raises(ValueError, match="no tokenizer"):
            await start_beside(engine, work)

    asyncio.run(both())
    assert engine.was_cancelled
