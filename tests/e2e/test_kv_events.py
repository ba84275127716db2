"""KV cache events of a server with two replicas: a reset, a killed engine, an address in use."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.e2e.deployment import EXIT_LIMIT_S, START_LIMIT_S, command, environment, serving, write_manifest
from tests.kv_event_consumer import Consumer
from tests.tiny_checkpoint import write_checkpoint

pytestmark = pytest.mark.slow
BLOCK = 16


def until_ready(url: str) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while httpx.get(f"{url}/readyz").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextmanager
def following(folder: Path, rank: int) -> Iterator[Consumer]:
    end = f"_dp{rank}" if rank else ""
    consumer = Consumer(f"ipc://{folder}/e{end}", f"ipc://{folder}/r{end}")
    try:
        yield consumer
    finally:
        consumer.close()


def test_events_of_replicas_follow_resets_and_restarts(tmp_path: Path):
    manifest = write_manifest(tmp_path / "deploy.yaml", write_checkpoint(tmp_path / "model"), enable_admin_routes=True)
    content = json.loads(manifest.read_text())
    content["parallel"] = {"data_parallel_size": 2}
    content["kv_events"] = {
        "enable_kv_cache_events": True,
        "endpoint": f"ipc://{tmp_path}/e",
        "replay_endpoint": f"ipc://{tmp_path}/r",
    }
    manifest.write_text(json.dumps(content))
    with serving(manifest) as (server, url), following(tmp_path, 0) as first, following(tmp_path, 1) as second:

        def complete(rank: int, prompt: list[int]) -> None:
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 1}
            assert httpx.post(
                f"{url}/v1/completions", json=body, headers={"X-Data-Parallel-Rank": str(rank)}
            ).is_success

        def cached(consumer: Consumer) -> list[tuple[int, ...]]:
            """The token ids of its blocks. The batch of the last step is sent after its answer."""
            time.sleep(0.2)
            consumer.snapshot()
            return [token_ids for _, token_ids in consumer.view.blocks.values()]

        prompt = list(range(3, 3 + 2 * BLOCK + 1))
        blocks = [tuple(prompt[:BLOCK]), tuple(prompt[BLOCK : 2 * BLOCK])]
        complete(1, prompt)
        assert (cached(first), cached(second)) == ([], blocks)
        assert (first.view.rank, second.view.rank) == (0, 1)
        assert httpx.post(f"{url}/reset_prefix_cache").is_success
        complete(1, prompt[: BLOCK + 1])
        assert cached(second) == blocks[:1]
        before = {consumer.publisher for consumer in (first, second)}
        for engine in server.engines():
            engine.kill()
        deadline = time.monotonic() + START_LIMIT_S
        while httpx.get(f"{url}/readyz").status_code == 200:
            assert time.monotonic() < deadline
        until_ready(url)
        deadline = time.monotonic() + START_LIMIT_S
        while len(server.engines()) < 2 or '"restarting"' in httpx.get(f"{url}/readyz").text:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        complete(0, prompt)
        assert (cached(first), cached(second)) == (blocks, [])
        assert not before & {first.publisher, second.publisher}
        done = subprocess.run(
            command("up", str(manifest), "--port", "0"),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=EXIT_LIMIT_S,
            check=False,
        )
        assert done.returncode == 4
        assert "`kv_events.endpoint`: cannot use ipc://" in done.stderr
        assert done.stderr.rstrip().endswith("address already in use")
        assert "weights" not in done.stderr
