"""Files and batches as the official client uses them, on a server that is killed in the middle of a batch."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import openai
import pytest

from .deployment import serving

NUM_ROWS = 120
LIMIT_S = 300.0
pytestmark = pytest.mark.slow


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    content = {
        "apiVersion": "stoker/v1",
        "kind": "Deployment",
        "model": {"model": "builtin:tiny"},
        "server": {"port": 0, "files_dir": "files", "batch_concurrency": 4, "drain_timeout": "1s"},
    }
    path = tmp_path / "deploy.yaml"
    path.write_text(json.dumps(content))
    return path


def requests(folder: Path, num: int) -> Path:
    def line(index: int) -> str:
        messages = [{"role": "user", "content": f"What is {index} + 1?"}]
        body = {"model": "builtin:tiny", "messages": messages, "max_tokens": 40}
        fields = {"custom_id": f"row-{index}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        return json.dumps(fields)

    path = folder / "requests.jsonl"
    path.write_text("\n".join(map(line, range(num))))
    return path


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def started(client: openai.OpenAI, path: Path) -> Any:
    uploaded = client.files.create(file=path, purpose="batch")
    return client.batches.create(
        input_file_id=uploaded.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"test": "yes"},
    )


def until(client: openai.OpenAI, batch_id: str, reached: Any) -> Any:
    deadline = time.monotonic() + LIMIT_S
    while not reached(batch := client.batches.retrieve(batch_id)):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
    return batch


def test_a_killed_server_continues_its_batch_and_every_row_has_one_result(manifest: Path, tmp_path: Path):
    with serving(manifest) as (server, url), client_of(url) as client:
        batch = started(client, requests(tmp_path, NUM_ROWS))
        part = next(iter((tmp_path / "files").glob("open/batches")))
        deadline = time.monotonic() + LIMIT_S
        while not any(path.read_bytes().count(b"\n") >= 5 for path in part.glob("*.part")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(server.process.pid, signal.SIGKILL)
        server.wait()
    (results,) = part.glob("*.part")
    num_before = results.read_bytes().count(b"\n")
    assert 5 <= num_before < NUM_ROWS
    with results.open("ab") as file:
        file.write(b'{"id":"batch_req_0_7","custom')  # as if it had been killed in the middle of a line
    with serving(manifest) as (_, url), client_of(url) as client:
        ended = until(client, batch.id, lambda found: found.status == "completed")
        counts = ended.request_counts
        assert (counts.total, counts.completed, counts.failed) == (NUM_ROWS, NUM_ROWS, 0)
        lines = client.files.content(ended.output_file_id).text.splitlines()
        seen = Counter(json.loads(line)["custom_id"] for line in lines)
        assert seen == dict.fromkeys((f"row-{index}" for index in range(NUM_ROWS)), 1)
    assert list(part.glob("*.part")) == []


def test_every_call_of_the_official_client(manifest: Path, tmp_path: Path):
    with serving(manifest) as (_, url), client_of(url) as client:
        batch = started(client, requests(tmp_path, 3))
        assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"test": "yes"})
        ended = until(client, batch.id, lambda found: found.status == "completed")
        assert ended.output_file_id is not None
        assert ended.error_file_id is None
        assert [found.id for found in client.batches.list()] == [batch.id]
        assert {found.purpose for found in client.files.list()} == {"batch", "batch_output"}
        output = client.files.retrieve(ended.output_file_id)
        assert output.bytes == len(client.files.content(output.id).content)
        assert client.files.delete(output.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(output.id)
        long = started(client, requests(tmp_path, 200))
        assert client.batches.cancel(long.id).status == "cancelling"
        assert until(client, long.id, lambda found: found.status == "cancelled").cancelled_at
