from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.fakes import FakeEngine

from stoker.cli.prepare import engine_client, start_beside
from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.engine.process_client import EngineProcessClient


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


def test_a_failure_of_parallel_work_ends_the_start():
    engine = Slow()

    def work() -> None:
        raise ValueError("no tokenizer")

    async def both() -> None:
        with pytest.raises(ValueError, match="no tokenizer"):
            await start_beside(engine, work)

    asyncio.run(both())
    assert engine.was_cancelled
