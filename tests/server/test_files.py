"""Uploads and batches through the API, with the runner of batches beside it, as in the server."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.server.batch.part_file import PartFile
from stoker.server.files.batches import Batches, Queue
from stoker.server.files.runner import BatchRunner
from stoker.server.files.store import Files, Writing
from stoker.server.protocol.batches import CreateBatch

from ..fakes import FakeEngine
from .deployment import MODEL, Served

USED = (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens"))
ENDED = ("completed", "failed", "cancelled", "expired")


def row(custom_id: str = "a", url: str = "/v1/completions", **body: Any) -> str:
    fields = {"model": MODEL, "prompt": "Hello", "max_tokens": 3, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": fields})


class Api:
    """A client of a server with files."""

    def __init__(self, served: Served, client: httpx.AsyncClient, runner: BatchRunner, **headers: str) -> None:
        self.served = served
        self.client = client
        self.runner = runner
        self.headers = headers

    async def upload(self, content: str | bytes, **fields: str) -> httpx.Response:
        files = {"file": ("in.jsonl", content)}
        data = {"purpose": "batch", **fields}
        return await self.client.post("/v1/files", files=files, data=data, headers=self.headers)

    async def create(
        self, *rows: str, window: str = "24h", endpoint: str = "/v1/completions", **fields: Any
    ) -> dict[str, Any]:
        file_id = (await self.upload("\n".join(rows))).json()["id"]
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window, **fields}
        return (await self.client.post("/v1/batches", json=body, headers=self.headers)).json()

    async def get(self, path: str, **query: str) -> httpx.Response:
        return await self.client.get(path, params=query, headers=self.headers)

    async def ended(self, batch: dict[str, Any]) -> dict[str, Any]:
        for _ in range(3000):
            await self.runner._look()
            shown = (await self.get(f"/v1/batches/{batch['id']}")).json()
            if shown["status"] in ENDED:
                return shown
            await asyncio.sleep(0.01)
        raise AssertionError(shown)

    async def rows(self, file_id: str | None) -> dict[str, Any]:
        """Results by custom id."""
        if file_id is None:
            return {}
        lines = (await self.get(f"/v1/files/{file_id}/content")).text.splitlines()
        found = {result["custom_id"]: result for result in map(json.loads, lines)}
        assert len(found) == len(lines)
        return found


Scenario = Callable[[Api], Awaitable[None]]


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Callable[..., None]:
    def start(scenario: Scenario, engine: FakeEngine | None = None, **options: Any) -> None:
        async def work() -> None:
            served = Served(folder, engine, files_dir=str(tmp_path / "files"), **options)
            runner = BatchRunner(served.service, served.app, tmp_path / "files")
            api = Api(served, served.client(), runner)
            waiting = asyncio.ensure_future(runner.run())
            try:
                await scenario(api)
            finally:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)

        asyncio.run(work())

    return start


@pytest.mark.effect("server.files_dir")
def test_every_row_has_one_result(run: Callable[..., None]):
    async def scenario(api: Api) -> None:
        created = await api.create(row("a"), row("b", top_p=7), "", row("c"))
        assert (created["status"], created["object"]) == ("validating", "batch")
        batch = await api.ended(created)
        assert (batch["status"], batch["request_counts"]) == (
            "completed",
            {"total": 3, "completed": 2, "failed": 1},
        )
        answers, errors = await api.rows(batch["output_file_id"]), await api.rows(batch["error_file_id"])
        assert (set(answers), set(errors)) == ({"a", "c"}, {"b"})
        assert answers["a"]["response"]["body"]["object"] == "text_completion"
        assert errors["b"]["response"]["status_code"] == 400
        files = (await api.get("/v1/files")).json()["data"]
        assert [file["purpose"] for file in files] == ["batch_output", "batch_output", "batch"]
        assert (await api.get("/v1/batches")).json()["data"] == [batch]

    run(scenario)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 3}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}),
        ("/v1/embeddings", {"input": ["Hello, world", "How are you?"]}),
        ("/v1/score", {"queries": "Hello, world", "documents": ["How are you?"]}),
        ("/v1/rerank", {"query": "Hello, world", "documents": ["How are you?"]}),
    ],
)
def test_every_route_of_answers_can_be_that_of_a_batch(run: Callable[..., None], endpoint: str, body: dict[str, Any]):
    async def scenario(api: Api) -> None:
        line = json.dumps({"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": MODEL, **body}})
        batch = await api.ended(await api.create(line, endpoint=endpoint))
        assert batch["request_counts"]["completed"] == 1, await api.rows(batch["error_file_id"])
        answer = (await api.rows(batch["output_file_id"]))["a"]["response"]["body"]
        used = answer["usage"]
        counts = [used.get(name, used.get(other)) or 0 for name, other in USED]
        assert [batch["usage"][name] for name, _ in USED] == counts
        assert batch["usage"]["total_tokens"] == sum(counts) > 3
        assert batch["model"] == answer["model"]

    run(scenario)


def test_a_batch_continues_after_a_restart_without_a_doubled_row(folder: Path, tmp_path: Path):
    """The first server stops while rows run, and after some results are written."""
    root = tmp_path / "files"
    sent: list[int] = []

    async def session(engine: FakeEngine, until: Callable[[Api], Awaitable[Any]], batch: Any = None) -> Any:
        served = Served(folder, engine, files_dir=str(root))
        runner = BatchRunner(served.service, served.app, root)
        api = Api(served, served.client(), runner)
        batch = batch or await api.create(*(row(str(index)) for index in range(20)))
        running = asyncio.ensure_future(runner.run())
        try:
            if until is ended:
                return await api.ended(batch), await api.rows((await api.ended(batch))["output_file_id"])
            await until(api)
            return batch
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            sent.append(len(served.engine.requests))

    async def some_written(api: Api) -> None:
        parts = list(root.glob("*/batches/*.part"))
        while not parts or parts[0].read_bytes().count(b"\n") < 3:
            await asyncio.sleep(0.001)
            parts = list(root.glob("*/batches/*.part"))

    async def ended(api: Api) -> None: ...

    batch = asyncio.run(session(FakeEngine(), some_written))
    done, rows = asyncio.run(session(FakeEngine(), ended, batch))
    assert done["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    assert set(rows) == {str(index) for index in range(20)}
    assert done["usage"]["output_tokens"] == 60  # of all rows, before the restart as well
    assert sent[0] + sent[1] < 40  # what was answered before is not sent again
    assert Queue(root).all() == []


def test_a_wrong_file_fails_as_a_whole_with_its_lines(run: Callable[..., None]):
    async def scenario(api: Api) -> None:
        batch = await api.ended(await api.create(row("a"), row("a"), "{", row("b", url="/v1/chat/completions")))
        assert (batch["status"], batch["output_file_id"]) == ("failed", None)
        assert [(error["line"], error["code"]) for error in batch["errors"]["data"]] == [
            (2, "duplicate_custom_id"),
            (3, "invalid_json"),
            (4, "invalid_url"),
        ]
        assert api.served.engine.requests == []
        empty = await api.ended(await api.create(""))
        assert empty["errors"]["data"][0]["code"] == "empty_file"

    run(scenario)


def test_a_cancelled_batch_keeps_what_has_run(run: Callable[..., None]):
    async def scenario(api: Api) -> None:
        api.served.engine.num_waiting = 1  # another client waits: no row begins
        batch = await api.create(row("a"), row("b"))
        await api.runner._look()
        await asyncio.sleep(0.05)
        cancelled = (await api.client.post(f"/v1/batches/{batch['id']}/cancel")).json()
        assert cancelled["status"] == "cancelling"
        assert (await api.ended(batch))["status"] == "cancelled"
        assert api.served.engine.requests == []
        again = await api.client.post(f"/v1/batches/{batch['id']}/cancel")
        assert again.json()["status"] == "cancelled"

    run(scenario)


def test_what_has_not_run_in_the_window_is_an_error(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch):
    async def scenario(api: Api) -> None:
        api.served.engine.num_waiting = 1
        now = api.runner._clock()
        api.runner._clock = lambda: now + 61  # before the batch is created: its rows may be begun in the same moment
        batch = await api.create(row("a"), row("b"), window="1m")
        batch = await api.ended(batch)
        assert (batch["status"], batch["request_counts"]["failed"]) == ("expired", 2)
        errors = await api.rows(batch["error_file_id"])
        assert {custom_id: error["error"]["code"] for custom_id, error in errors.items()} == {
            "a": "batch_expired",
            "b": "batch_expired",
        }

    run(scenario)


@pytest.mark.effect("server.batch_concurrency")
def test_few_rows_run_at_a_time_over_all_batches(run: Callable[..., None]):
    async def scenario(api: Api) -> None:
        running = most = 0
        generate = api.served.engine.generate

        def counted(request: Any) -> Any:
            async def outputs() -> Any:
                nonlocal running, most
                running += 1
                most = max(most, running)
                try:
                    await asyncio.sleep(0)
                    async for output in generate(request):
                        yield output
                finally:
                    running -= 1

            return outputs()

        api.served.engine.generate = counted  # type: ignore[method-assign]
        batches = [await api.create(*(row(str(index)) for index in range(5))) for _ in range(2)]
        for batch in batches:
            assert (await api.ended(batch))["request_counts"]["completed"] == 5
        assert most == 2

    run(scenario, batch_concurrency=2)


def test_a_key_at_its_limit_does_not_hold_up_the_batches_of_others(
    run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its rows waited for the limit with the turns of all batches, and its batches in the places of all."""
    monkeypatch.setattr("stoker.server.files.runner.MAX_RUNNING_OF_OWNER", 1)
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: {a: {requests_per_minute: 5, secrets: [{key: a1}]}, b: {secrets: [{key: b1}]}}")

    async def scenario(api: Api) -> None:
        a, b = (Api(api.served, api.client, api.runner, authorization=f"Bearer {key}") for key in ("a1", "b1"))
        limited = [await a.create(*(row(str(index)) for index in range(50))) for _ in range(2)]  # 4 of 5 requests
        while not api.served.engine.requests:
            await asyncio.sleep(0.01)
        assert (await b.ended(await b.create(row("1"), row("2"))))["request_counts"]["completed"] == 2
        assert len(api.runner._running) == 1
        shown = [(await a.get(f"/v1/batches/{each['id']}")).json()["status"] for each in limited]
        assert shown == ["in_progress", "validating"]

    run(scenario, batch_concurrency=1, api_keys_file=str(keys))


def test_files_belong_to_a_key(run: Callable[..., None]):
    async def scenario(api: Api) -> None:
        one, other = (
            Api(api.served, api.client, api.runner, authorization=f"Bearer {key}") for key in ("key-1", "key-2")
        )
        batch = await one.ended(await one.create(row("a")))
        assert batch["request_counts"]["completed"] == 1
        for path in (f"/v1/files/{batch['output_file_id']}", f"/v1/batches/{batch['id']}"):
            assert (await one.get(path)).status_code == 200
            assert (await other.get(path)).status_code == 404
        assert (await other.get("/v1/files")).json()["data"] == []
        assert (await api.upload("x")).status_code == 401
        first, second = api.served.engine.requests[0], None
        await api.client.post("/v1/completions", json={"prompt": "Hello"}, headers=one.headers)
        second = api.served.engine.requests[1]
        assert first.inputs.scope.salt == second.inputs.scope.salt != ""

    run(scenario, api_key=["key-1", "key-2"])


def test_files_are_shown_read_and_deleted(run: Callable[..., None]):
    async def scenario(api: Api) -> None:
        content = bytes(range(256)) * 2000
        uploaded = (await api.upload(content)).json()
        assert (uploaded["bytes"], uploaded["filename"], uploaded["purpose"]) == (len(content), "in.jsonl", "batch")
        path = f"/v1/files/{uploaded['id']}"
        assert (await api.get(path)).json() == uploaded
        assert (await api.get(path + "/content")).content == content
        assert (await api.client.delete(path)).json() == {"id": uploaded["id"], "object": "file", "deleted": True}
        assert (await api.get(path)).status_code == (await api.get(path + "/content")).status_code == 404
        ids = [(await api.upload("x")).json()["id"] for _ in range(5)]
        page = (await api.get("/v1/files", limit="2")).json()
        assert ([file["id"] for file in page["data"]], page["has_more"]) == (ids[:2:-1], True)
        page = (await api.get("/v1/files", limit="9", after=page["last_id"])).json()
        assert ([file["id"] for file in page["data"]], page["has_more"]) == (ids[2::-1], False)
        assert (await api.get("/v1/files", purpose="batch_output")).json()["data"] == []

    run(scenario)


@pytest.mark.effect("server.files_quota")
def test_a_quota_limits_what_is_stored(run: Callable[..., None], tmp_path: Path):
    async def scenario(api: Api) -> None:
        assert (await api.upload(b"x" * 600)).status_code == 200
        refused = await api.upload(b"x" * 600)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "quota_exceeded")
        too_long = await api.upload(b"x" * 100_000)
        assert too_long.status_code == 413
        assert Files(tmp_path / "files", "").num_bytes() == 600  # nothing remains of what was refused

    run(scenario, files_quota=1000)


def test_uploads_at_the_same_time_share_the_quota(run: Callable[..., None], tmp_path: Path):
    """Each of them had what was left at its beginning."""

    async def scenario(api: Api) -> None:
        all_began = asyncio.Barrier(3)

        async def form() -> AsyncIterator[bytes]:
            yield b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            await all_began.wait()
            yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n' + b"x" * 400
            yield b"\r\n--b--\r\n"

        headers = {"content-type": "multipart/form-data; boundary=b"}
        uploads = [api.client.post("/v1/files", content=form(), headers=headers) for _ in range(3)]
        statuses = [answer.status_code for answer in await asyncio.gather(*uploads)]
        assert 413 in statuses
        assert Files(tmp_path / "files", "").num_bytes() == 400 * statuses.count(200)

    run(scenario, files_quota=1000)


def test_what_follows_a_form_is_limited_too(run: Callable[..., None]):
    async def scenario(api: Api) -> None:
        form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nx\r\n--b--\r\n'

        async def endless() -> AsyncIterator[bytes]:
            yield form
            for _ in range(100):
                yield b"x" * 10_000

        headers = {"content-type": "multipart/form-data; boundary=b"}
        answer = await api.client.post("/v1/files", content=endless(), headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "quota_exceeded")

    run(scenario, files_quota=1000)


def test_a_full_disk_is_said_and_costs_no_rows(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch):
    """The batch was started again every second, and ran rows whose results could not be written."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario(api: Api) -> None:
        batch = await api.create(*(row(str(index)) for index in range(20)))
        with monkeypatch.context() as patched:
            patched.setattr(PartFile, "append", full)
            for _ in range(50):
                await api.runner._look()
                await asyncio.sleep(0.005)
            assert 0 < len(api.served.engine.requests) <= 8
            patched.setattr(Writing, "write", full)
            refused = await api.upload("x")
            assert (refused.status_code, refused.json()["error"]["code"]) == (507, "disk_full")
        api.runner._retry_at.clear()
        assert (await api.ended(batch))["request_counts"]["completed"] == 20

    run(scenario)


@pytest.mark.effect("server.files_ttl")
def test_files_expire(run: Callable[..., None], tmp_path: Path):
    async def scenario(api: Api) -> None:
        uploaded = (await api.upload("x")).json()
        assert uploaded["expires_at"] == uploaded["created_at"] + 7200
        sooner = await api.upload("x", **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"})
        assert sooner.json()["expires_at"] == sooner.json()["created_at"] + 3600
        later = Files(tmp_path / "files", "", clock=lambda: uploaded["created_at"] + 7300)
        later.clean(lambda file_id: file_id == uploaded["id"])
        assert later.ids() == [uploaded["id"]]  # a batch reads it
        later.clean(lambda file_id: False)
        assert later.ids() == []

    run(scenario, files_ttl=7200)


def test_results_expire_when_the_batch_says_so(run: Callable[..., None]):
    async def scenario(api: Api) -> None:
        for seconds, expected in ((3600, 3600), (20_000, 7200)):  # not later than `server.files_ttl`
            wanted = {"anchor": "created_at", "seconds": seconds}
            batch = await api.ended(await api.create(row(), output_expires_after=wanted))
            file = (await api.get(f"/v1/files/{batch['output_file_id']}")).json()
            assert abs(file["expires_at"] - file["created_at"] - expected) <= 60
            assert "output_ttl_s" not in batch

    run(scenario, files_ttl=7200)


@pytest.mark.parametrize(
    ("fields", "content_type", "param"),
    [
        ({"purpose": "fine-tune"}, None, "purpose"),
        ({"purpose": "batch", "other": "x"}, None, "other"),
        ({"purpose": "batch", "expires_after[seconds]": "x"}, None, "expires_after[seconds]"),
        ({"purpose": "b" * 2000}, None, "purpose"),
        ({}, "application/json", None),
        ({}, "multipart/form-data", None),
        ({}, "multipart/form-data; boundary=x", None),
    ],
)
def test_a_wrong_upload_is_refused(run: Callable[..., None], fields: Any, content_type: str | None, param: str | None):
    async def scenario(api: Api) -> None:
        if content_type is not None:
            answer = await api.client.post("/v1/files", content=b"--y\r\n", headers={"content-type": content_type})
        else:
            answer = await api.upload("x", **fields)
        assert answer.status_code in (400, 415)
        assert answer.json()["error"]["param"] == param
        assert list(api.runner._root.glob("*/files/*")) == []

    run(scenario)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_file_id": "file-x"}, "file_id"),
        ({"input_file_id": "../../etc/passwd"}, "file_id"),
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "1y"}, "completion_window"),
        ({"completion_window": "90d"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 60}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "now", "seconds": 7200}}, "output_expires_after.anchor"),
    ],
)
def test_a_wrong_batch_is_refused(run: Callable[..., None], fields: Any, param: str):
    async def scenario(api: Api) -> None:
        file_id = (await api.upload(row())).json()["id"]
        body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h", **fields}
        answer = await api.client.post("/v1/batches", json=body)
        assert answer.status_code in (400, 404)
        assert answer.json()["error"]["param"] == param

    run(scenario)


def test_a_web_page_of_another_site_cannot_upload(run: Callable[..., None]):
    async def scenario(api: Api) -> None:
        api.headers = {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}
        assert (await api.upload("x")).status_code == 403

    run(scenario)


def test_results_of_batches_count_in_the_quota(run: Callable[..., None], tmp_path: Path):
    """30 rows with many log-probabilities left nineteen times the quota, and further batches were accepted."""
    quota = 20_000

    async def scenario(api: Api) -> None:
        rows = [row(str(index), max_tokens=20, logprobs=5) for index in range(30)]
        batch = await api.ended(await api.create(*rows))
        assert (batch["status"], batch["errors"]["data"][0]["code"]) == ("failed", "quota_exceeded")
        used = Batches(tmp_path / "files", "").num_bytes()
        assert used <= quota
        found = await api.rows(batch["output_file_id"])  # what has run is kept
        assert 0 < len(found) == batch["request_counts"]["completed"] < 30
        assert (await api.upload(b"x" * (quota - used))).status_code == 200
        body = {"input_file_id": batch["input_file_id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        refused = await api.client.post("/v1/batches", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "quota_exceeded")

    run(scenario, files_quota=quota)


def test_results_that_are_being_collected_count_in_the_quota(tmp_path: Path):
    batches = Batches(tmp_path, "")
    batches.folder.mkdir(parents=True)
    wanted = CreateBatch.model_validate(
        {"input_file_id": "file-x", "endpoint": "/v1/completions", "completion_window": "24h"}
    )
    batch = batches.create(wanted)
    batches.part(batch["id"]).write_bytes(b"x" * 100)
    assert batches.num_bytes() == 100


def test_errors_of_an_expired_batch_count_in_the_quota(run: Callable[..., None], tmp_path: Path):
    async def scenario(api: Api) -> None:
        api.served.engine.num_waiting = 1
        now = api.runner._clock()
        batch = await api.create(*(row(str(index)) for index in range(40)), window="1m")
        api.runner._clock = lambda: now + 61
        batch = await api.ended(batch)
        assert (batch["status"], batch["request_counts"]["failed"]) == ("expired", 40)
        assert batch["errors"]["data"][0]["code"] == "quota_exceeded"
        assert Batches(tmp_path / "files", "").num_bytes() <= 8000
        assert 0 < len(await api.rows(batch["error_file_id"])) < 40

    run(scenario, files_quota=8000)
