"""A batch through the app, with an engine that generates known tokens, and that the test can stop or fill."""

from __future__ import annotations

import asyncio
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from stoker.engine.client.engine_client import EngineState
from stoker.server.batch.lines import lines_of
from stoker.server.batch.part_file import Counts, PartFile, PartFileInUse
from stoker.server.batch.run import Batch, EngineGone

from ..fakes import FakeEngine
from .deployment import MODEL, Served

RUN = "ab12"


def line(custom_id: object = "a", url: str = "/v1/completions", **body: Any) -> bytes:
    fields = {"model": MODEL, "prompt": "Hello", "max_tokens": 3, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": fields}).encode() + b"\n"


class Runs:
    """Runs of one batch into one part file."""

    def __init__(self, folder: Path, part: Path) -> None:
        self.folder = folder
        self.path = part

    def batch(self, served: Served, content: bytes, part: PartFile, **options: Any) -> Batch:
        source = io.BytesIO(content)
        return Batch(served.service, served.app, source, part, **{"run_id": RUN, "concurrency": 4} | options)

    def run(
        self, *lines: bytes, engine: FakeEngine | None = None, concurrency: int = 4, **options: Any
    ) -> dict[int, dict[str, Any]]:
        """Results by line number."""
        part = PartFile(self.path)
        try:
            batch = self.batch(Served(self.folder, engine, **options), b"".join(lines), part, concurrency=concurrency)
            asyncio.run(batch.run())
        finally:
            part.close()
        return self.results()

    def results(self) -> dict[int, dict[str, Any]]:
        results = [json.loads(each) for each in self.path.read_bytes().splitlines()]
        return {int(result["id"].rpartition("_")[2]): result for result in results}


@pytest.fixture
def runs(folder: Path, tmp_path: Path) -> Runs:
    return Runs(folder, tmp_path / "out.part")


def test_each_line_gets_the_response_of_the_api(runs: Runs, folder: Path):
    chat = line("c", "/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}], prompt=None)
    results = runs.run(line("a"), b"\n", chat.replace(b'"prompt": null, ', b""))
    assert set(results) == {1, 3}, "a blank line is not a request"
    direct = Served(folder).complete(max_tokens=3).json()
    answer = results[1]["response"]
    assert (results[1]["custom_id"], results[1]["error"], answer["status_code"]) == ("a", None, 200)
    assert answer["body"]["choices"] == direct["choices"]
    assert answer["body"]["usage"] == direct["usage"]
    assert answer["request_id"]
    assert results[3]["response"]["body"]["object"] == "chat.completion"


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b"nonsense\n", "invalid_json", "line 1 is not JSON: Expecting value (line 1, column 1)"),
        (b"[1]\n", "invalid_json", "line 1 must be a JSON object"),
        (b'{"custom_id": "a", "custom_id": "b"}\n', "invalid_json", "line 1: duplicate key 'custom_id' in one object"),
        (b"\xff\n", "invalid_unicode", "line 1 is not UTF-8"),
        (line(custom_id=7), "invalid_custom_id", "line 1: `custom_id` must be a string that is not empty"),
        (line(url="/v1/moderations"), "invalid_url", "line 1: `url` must be /v1/chat/completions or /v1/completions"),
        (line(url="/v1/embeddings", encoding_format="bytes"), "unsupported_parameter", "a batch are JSON; send base64"),
        (line().replace(b"POST", b"GET"), "invalid_method", 'line 1: `method` must be "POST"'),
        (line(stream=True), "unsupported_parameter", "line 1: `stream`: a batch cannot stream"),
        (b'{"custom_id": "a", "method": "POST", "url": "/v1/completions"}', "invalid_body", "`body` must be an object"),
    ],
)
def test_a_line_that_is_not_a_request_is_an_error_and_the_next_one_runs(
    runs: Runs, content: bytes, code: str, message: str
):
    results = runs.run(content.rstrip(b"\n") + b"\n", line("next"))
    assert results[1]["response"] is None
    assert results[1]["error"]["code"] == code
    assert message in results[1]["error"]["message"]
    assert results[2]["response"]["status_code"] == 200


@pytest.mark.effect("server.max_request_bytes")
def test_a_line_is_read_up_to_the_limit_of_a_body(runs: Runs):
    results = runs.run(line("a", prompt="x" * 5000), line("b"), max_request_bytes=1000)
    assert results[1]["error"]["code"] == "request_too_large"
    assert results[2]["response"]["status_code"] == 200
    content = b"x" * 50 + b"\n" + b"y" * 9
    assert list(lines_of(io.BytesIO(content), 10)) == [(1, None), (2, b"y" * 9)]


def test_a_request_that_the_api_refuses_has_a_response_with_its_status(runs: Runs):
    results = runs.run(line("long", max_tokens=50_000), line("other", model="none"), line("good"))
    answers = [results[number]["response"] for number in (1, 2, 3)]
    assert [answer["status_code"] for answer in answers] == [400, 404, 200]
    assert answers[0]["body"]["error"]["code"] == "context_length_exceeded"
    assert results[1]["error"] is None


def test_a_response_that_is_not_json_becomes_an_error_body(runs: Runs):
    """A response of the operator's middleware ended the run."""
    answer = runs.run(line("a"), middleware=["tests.server.example_middleware.refuse_all"])[1]["response"]
    assert (answer["status_code"], answer["body"]["error"]["code"]) == (403, "no_json")
    assert answer["body"]["error"]["message"] == "the response is not a JSON object: closed today"


def test_a_duplicate_custom_id_is_an_error_and_not_run(runs: Runs):
    engine = FakeEngine()
    results = runs.run(line("a"), line("b"), line("a"), engine=engine)
    assert results[3]["error"] == {
        "code": "duplicate_custom_id",
        "message": "line 3: an earlier line has the same `custom_id`",
    }
    assert results[3]["custom_id"] == "a"
    assert len(engine.requests) == 2


def test_the_number_of_concurrent_requests_is_limited(runs: Runs):
    engine, highest = FakeEngine(), [0]

    async def pace() -> None:
        highest[0] = max(highest[0], len(engine.open_requests))
        await asyncio.sleep(0)

    engine._pace = pace
    runs.run(*(line(str(number)) for number in range(20)), engine=engine, concurrency=3)
    assert highest == [3]
    assert len(runs.results()) == 20


def test_a_request_refused_by_a_full_queue_is_sent_again(runs: Runs):
    engine = FakeEngine(max_queued=1)
    results = runs.run(line("a"), line("b"), engine=engine, concurrency=2)
    assert [result["response"]["status_code"] for result in results.values()] == [200, 200]
    assert len(engine.requests) > 2, "one was refused and sent again"


def stopping_engine(state: EngineState, comes_back: bool) -> FakeEngine:
    """Stops during its first request."""
    engine = FakeEngine()

    async def pace() -> None:
        await asyncio.sleep(0)
        if len(engine.requests) == 1:
            engine.die(state)
            if comes_back:
                asyncio.get_running_loop().call_later(0.01, setattr, engine, "state", EngineState.READY)

    engine._pace = pace
    return engine


def test_a_request_during_which_the_engine_stopped_is_sent_again(runs: Runs):
    engine = stopping_engine(EngineState.RESTARTING, comes_back=True)
    results = runs.run(line("a"), line("b"), engine=engine, concurrency=1)
    assert [result["response"]["status_code"] for result in results.values()] == [200, 200]
    assert len(engine.requests) == 3


def test_a_request_that_stops_every_engine_is_not_sent_more_than_three_times(runs: Runs):
    engine = FakeEngine()

    async def pace() -> None:
        await asyncio.sleep(0)
        if engine.open_requests[0].inputs.sampling.max_tokens == 7:
            engine.die()
            asyncio.get_running_loop().call_later(0.01, setattr, engine, "state", EngineState.READY)

    engine._pace = pace
    results = runs.run(line("poison", max_tokens=7), line("good"), engine=engine, concurrency=1)
    assert results[1]["response"]["status_code"] == 503
    assert results[1]["response"]["body"]["error"]["code"] == "engine_restarting"
    assert results[2]["response"]["status_code"] == 200
    assert len(engine.requests) == 4


def test_an_engine_that_will_not_be_started_again_ends_the_run_and_a_later_run_continues(runs: Runs):
    lines = [line(str(number), prompt="x" * (number + 1)) for number in range(6)] + [b"nonsense\n"]
    engine = FakeEngine()

    async def pace() -> None:
        await asyncio.sleep(0)
        if len(engine.requests) == 4:
            engine.die(EngineState.DEAD)

    engine._pace = pace
    with pytest.raises(EngineGone, match="signal 9"):
        runs.run(*lines, engine=engine, concurrency=1)
    kept = runs.results()
    assert sorted(kept) == [1, 2, 3]
    second = FakeEngine()
    results = runs.run(*lines, engine=second)
    assert len(second.requests) == 3, "lines with a result are not run again"
    assert sorted(results) == [1, 2, 3, 4, 5, 6, 7]
    assert {number: results[number] for number in kept} == kept


def test_a_cancelled_run_keeps_complete_lines_and_aborts_its_requests(runs: Runs, folder: Path):
    engine = FakeEngine()
    part = PartFile(runs.path)

    async def run() -> None:
        done = asyncio.Event()
        lines = line("short", max_tokens=1) + line("long", max_tokens=400)
        batch = runs.batch(Served(folder, engine), lines, part, on_progress=lambda counts: done.set())
        task = asyncio.ensure_future(batch.run())
        await done.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    part.close()
    assert list(runs.results()) == [1]
    assert engine.aborted[-1] == engine.requests[-1].request_id
    assert not engine.open_requests


def test_an_incomplete_line_is_removed(tmp_path: Path):
    path = tmp_path / "part"
    good = b'{"id":"batch_req_ab_4","custom_id":"x","response":{"status_code":400},"error":null}\n'
    path.write_bytes(good + good[:30])
    part = PartFile(path)
    assert (part.done, part.custom_ids, part.counts) == ({4}, {"x"}, Counts(refused=1))
    part.append(good.replace(b"_4", b"_5"))
    part.close()
    assert path.read_bytes() == good + good.replace(b"_4", b"_5")


def test_a_damaged_line_of_an_earlier_run_is_removed(tmp_path: Path):
    """Nested arrays ended the command with a traceback."""
    path = tmp_path / "part"
    path.write_bytes(b"[" * 200_000 + b"\n")
    part = PartFile(path)
    assert part.counts == Counts()
    part.close()


def test_two_runs_cannot_write_one_file(tmp_path: Path):
    part = PartFile(tmp_path / "part")
    with pytest.raises(PartFileInUse, match="is being written by another run"):
        PartFile(tmp_path / "part")
    part.close()


def test_a_part_file_without_results_is_removed(tmp_path: Path):
    PartFile(tmp_path / "part").close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_ends_the_run(runs: Runs, folder: Path, monkeypatch: pytest.MonkeyPatch):
    part = PartFile(runs.path)
    full = os.open("/dev/full", os.O_WRONLY)
    kept, part._file = part._file, full
    monkeypatch.setattr(os, "ftruncate", lambda file, size: None)  # a device has no size
    with pytest.raises(OSError, match="No space left"):
        asyncio.run(runs.batch(Served(folder), line(), part).run())
    part._file = kept
    part.close()
    os.close(full)
