"""Named keys: scopes, limits, end dates, and a file that is read again."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import httpx
import pytest

from stoker.server.access.auth import Key, KeyLimits, Keys
from stoker.server.access.key_usage import KeyUsage
from stoker.server.access.keys_file import KeysFile, KeysProblem, read_keys
from stoker.server.access.shared_state import SharedState
from stoker.server.protocol.errors import ApiError
from stoker.server.routes.table import routes_of

from ..fakes import FakeEngine
from .deployment import MODEL, Served

FILE = """
keys:
  alice:
    requests_per_minute: 2
    secrets: [{key: sk-alice}]
  bob:
    scopes: [read]
    secrets: [{key: sk-bob}]
  scraper:
    scopes: [metrics]
    secrets: [{key: sk-scraper}]
  operator:
    scopes: [admin]
    secrets: [{key: sk-operator}]
"""
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}


def write(path: Path, text: str) -> str:
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    os.replace(temporary, path)
    return str(path)


@pytest.fixture
def served(folder: Path, tmp_path: Path) -> Served:
    return Served(folder, api_keys_file=write(tmp_path / "keys.yaml", FILE), enable_admin_routes=True)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def chat(served: Served, key: str) -> httpx.Response:
    return served.post("/v1/chat/completions", CHAT, headers=bearer(key))


@pytest.mark.effect("server.api_keys_file")
def test_scopes_decide_which_routes_a_key_may_call(served: Served):
    calls = {
        "inference": lambda key: chat(served, key),
        "read": lambda key: served.get("/v1/models", headers=bearer(key)),
        "metrics": lambda key: served.get("/metrics", headers=bearer(key)),
        "admin": lambda key: served.post("/reset_prefix_cache", headers=bearer(key)),
    }
    allowed = {
        "sk-alice": {"inference", "read"},
        "sk-bob": {"read"},
        "sk-scraper": {"metrics"},
        "sk-operator": set(calls),
        "sk-unknown": set(),
    }
    for key, scopes in allowed.items():
        for scope, call in calls.items():
            expected = 200 if scope in scopes else 401 if key == "sk-unknown" else 403
            response = call(key)
            assert response.status_code == expected, (key, scope)
            if expected == 403:
                error = response.json()["error"]
                assert (error["type"], error["code"]) == ("permission_error", "insufficient_scope")
                assert f"`{scope}`" in error["message"]
                assert key not in response.text
    assert len(served.engine.requests) == 2


def test_x_api_key_is_accepted_as_bearer_is(served: Served):
    assert served.get("/v1/models", headers={"x-api-key": "sk-bob"}).status_code == 200
    assert served.get("/v1/models", headers={"x-api-key": "sk-bob", **bearer("sk-bob")}).status_code == 200
    assert served.get("/v1/models", headers={"x-api-key": "sk-bob", **bearer("sk-alice")}).status_code == 401


def test_a_limit_is_answered_429_with_its_name(served: Served, caplog: pytest.LogCaptureFixture):
    """The name of the key is in log and metrics, its secret nowhere."""
    with caplog.at_level("INFO"):
        responses = [chat(served, "sk-alice") for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    error = responses[2].json()["error"]
    assert (error["code"], error["param"]) == ("rate_limit_exceeded", "requests_per_minute")
    assert 1 <= int(responses[2].headers["retry-after"]) <= 30
    assert chat(served, "sk-operator").status_code == 200  # another key has its own limits
    lines = [record.fields for record in caplog.records if record.name.startswith("stoker")]
    assert [line["status"] for line in lines if line["key"] == "alice"] == [200, 200, 429]
    assert served.metric('stoker_key_requests_total{key="alice",status="429"}') == 1
    assert served.metric('stoker_key_tokens_total{key="alice",kind="generated"}') == 6
    assert served.metric('stoker_key_tokens_total{key="alice",kind="prompt"}') > 0
    assert "sk-alice" not in caplog.text + served.service.metrics.render().decode()


def test_keys_of_one_name_share_a_prefix_cache_and_others_do_not(folder: Path, tmp_path: Path):
    text = "keys: {a: {secrets: [{key: a1}, {key: a2}]}, b: {secrets: [{key: b1}]}}"
    served = Served(folder, api_keys_file=write(tmp_path / "keys.yaml", text))
    for key in ("a1", "a2", "b1"):
        assert chat(served, key).status_code == 200
    first, second, other = (request.inputs.scope.salt for request in served.engine.requests)
    assert first == second != other


def test_a_changed_file_replaces_the_keys_and_an_invalid_one_does_not(served: Served, tmp_path: Path):
    path, admin = tmp_path / "keys.yaml", bearer("sk-operator")
    write(path, FILE.replace("sk-bob", "sk-robert"))
    assert served.post("/reload", {}, headers=bearer("sk-alice")).status_code == 403
    assert served.post("/reload", {}, headers=admin).json() == {"status": "ok", "num_keys": 4}
    assert served.get("/v1/models", headers=bearer("sk-bob")).status_code == 401
    assert served.get("/v1/models", headers=bearer("sk-robert")).status_code == 200
    write(path, FILE.replace("sk-bob", "sk-alice"))
    refused = served.post("/reload", {}, headers=admin)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "invalid_keys_file")
    assert "alice and bob have the same secret" in refused.text
    assert "sk-" not in refused.text
    assert served.get("/v1/models", headers=bearer("sk-robert")).status_code == 200
    write(path, "keys: {}")  # an emptied file does not open the server
    assert served.post("/reload", {}, headers=admin).status_code == 200
    assert served.get("/v1/models").status_code == 401


def test_a_watched_file_is_read_only_when_it_changes(tmp_path: Path):
    path = write(tmp_path / "keys.yaml", FILE)
    used: list[int] = []
    file = KeysFile(path, lambda keys: used.append(len(keys)))
    file.reread_if_changed()
    write(tmp_path / "keys.yaml", "keys: {a: {secrets: [{key: x}]}}")
    file.reread_if_changed()
    write(tmp_path / "keys.yaml", "keys: [")
    file.reread_if_changed()
    os.unlink(path)
    file.reread_if_changed()
    assert used == [4, 1]


def test_an_old_key_is_valid_until_its_end_date(tmp_path: Path):
    digest = hashlib.sha256(b"old").hexdigest()
    text = f"keys: {{a: {{secrets: [{{key: new}}, {{sha256: {digest}, expires: 1970-01-02}}]}}}}"
    now = [86399.0]
    keys = Keys((), read_keys(write(tmp_path / "keys.yaml", text)), wall_clock=lambda: now[0])
    for secret in (b"new", b"old"):
        found = keys.check("/v1/models", [(b"x-api-key", secret)])
        assert found is not None
        assert found.name == "a"
    now[0] = 86400.0
    assert keys.check("/v1/models", [(b"x-api-key", b"new")]) is not None
    with pytest.raises(ApiError, match="expired"):
        keys.check("/v1/models", [(b"x-api-key", b"old")])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keys: {a: {secrets: [{key: s3cret, sha256: " + "a" * 64 + "}]}}", "either `key` or `sha256`"),
        ("keys: {a: {secrets: [{key: s3cret}], scope: [read]}}", "keys.a.scope: Extra inputs"),
        ("keys: {a: {secrets: [{key: s3cret}], scopes: [write]}}", "keys.a.scopes.0"),
        ("keys: {a b: {secrets: [{key: s3cret}]}}", "pattern"),
        ("keys: {a: {secrets: [s3cret]}}", "keys.a.secrets.0"),
        ("keys: {a: {secrets: [{key: s3cret, expires: soon}]}}", "keys.a.secrets.0.expires"),
        ("keys: {a: {secrets: [{key: s3cret}], requests_per_minute: 0}}", "keys.a.requests_per_minute"),
        ("s3cret", "the file"),
        ("keys: {a: 's3cret", "invalid YAML at line"),
    ],
)
def test_a_mistake_in_the_file_is_named_by_its_place_and_shows_no_secret(tmp_path: Path, text: str, said: str):
    with pytest.raises(KeysProblem) as problem:
        read_keys(write(tmp_path / "keys.yaml", text))
    assert said in str(problem.value)
    assert "s3cret" not in str(problem.value)


def test_a_missing_file_ends_the_start(tmp_path: Path):
    with pytest.raises(KeysProblem, match="no such file"):
        read_keys(tmp_path / "none.yaml")


class TestLimits:
    now = 100.0

    def usage(self) -> KeyUsage:
        return KeyUsage(lambda: self.now, SharedState())

    def refusal(self, usage: KeyUsage, key: Key) -> tuple[str | None, str] | None:
        try:
            with usage.admitted(key):
                return None
        except ApiError as error:
            return error.param, error.headers["retry-after"]

    def test_requests_are_available_again_at_the_rate_of_the_limit(self):
        usage, key = self.usage(), Key("a", b"", limits=KeyLimits(requests_per_minute=6))
        assert [self.refusal(usage, key) for _ in range(6)] == [None] * 6
        assert self.refusal(usage, key) == ("requests_per_minute", "10")
        self.now += 10
        assert self.refusal(usage, key) is None
        assert self.refusal(usage, key) == ("requests_per_minute", "10")
        self.now += 1e6
        assert [self.refusal(usage, key) for _ in range(7)].count(None) == 6

    def test_tokens_of_a_request_delay_the_next(self):
        usage, key = self.usage(), Key("a", b"", limits=KeyLimits(tokens_per_minute=60))
        with usage.admitted(key):
            usage.charge(key, 90)
        assert self.refusal(usage, key) == ("tokens_per_minute", "31")
        self.now += 31
        assert self.refusal(usage, key) is None

    def test_running_requests_are_counted_until_they_end(self):
        usage, key = self.usage(), Key("a", b"", limits=KeyLimits(concurrent_requests=1))
        with usage.admitted(key):
            assert self.refusal(usage, key) == ("concurrent_requests", "1")
            assert self.refusal(usage, Key("b", b"", limits=key.limits)) is None
        assert self.refusal(usage, key) is None

    def test_a_limit_that_is_added_later_begins_with_a_full_minute(self):
        usage = self.usage()
        assert self.refusal(usage, Key("a", b"", limits=KeyLimits(concurrent_requests=5))) is None
        limited = Key("a", b"", limits=KeyLimits(requests_per_minute=2))
        assert [self.refusal(usage, limited) for _ in range(3)].count(None) == 2


def test_a_request_that_is_aborted_is_no_longer_counted(folder: Path, tmp_path: Path):
    text = "keys: {a: {concurrent_requests: 1, secrets: [{key: a1}]}}"
    served = Served(folder, FakeEngine(), api_keys_file=write(tmp_path / "keys.yaml", text))

    async def run() -> list[int]:
        statuses = []
        async with served.client() as client:
            for body in (CHAT, {**CHAT, "stream": True}, {**CHAT, "messages": []}, CHAT):
                response = await client.post("/v1/chat/completions", json=body, headers=bearer("a1"))
                statuses.append(response.status_code)
        return statuses

    assert asyncio.run(run()) == [200, 200, 400, 200]


def test_a_response_in_the_background_counts_until_it_has_ended(folder: Path, tmp_path: Path):
    """It counted until its first answer, so that a key could run any number of them."""
    text = "keys: {a: {concurrent_requests: 1, secrets: [{key: a1}]}}"
    held = asyncio.Event()
    keys = write(tmp_path / "keys.yaml", text)
    served = Served(folder, FakeEngine(pace=held.wait), api_keys_file=keys, responses_store="memory")

    async def run() -> list[int]:
        statuses = []
        body = {"input": "Hi", "background": True, "max_output_tokens": 2}
        async with served.client() as client:
            for _ in range(2):
                statuses.append((await client.post("/v1/responses", json=body, headers=bearer("a1"))).status_code)
            held.set()
            await asyncio.gather(*(each.task for each in served.service.background._running.values()))
            statuses.append((await client.post("/v1/chat/completions", json=CHAT, headers=bearer("a1"))).status_code)
        return statuses

    assert asyncio.run(run()) == [200, 429, 200]


def test_objects_of_one_key_do_not_exist_for_another(folder: Path, tmp_path: Path):
    """Every route that names one by its id, also those that are added later."""
    text = "keys: {a: {secrets: [{key: a1}]}, b: {secrets: [{key: b1}]}}"
    keys = write(tmp_path / "keys.yaml", text)
    served = Served(folder, api_keys_file=keys, files_dir=str(tmp_path / "files"), responses_store="memory")
    a1, b1 = bearer("a1"), bearer("b1")
    form = {"files": {"file": ("in.jsonl", "{}")}, "data": {"purpose": "batch"}, "headers": a1}
    file_id = served.post("/v1/files", **form).json()["id"]
    batch = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    ids = {
        "file_id": file_id,
        "batch_id": served.post("/v1/batches", batch, headers=a1).json()["id"],
        "response_id": served.post("/v1/responses", {"input": "Hi", "max_output_tokens": 2}, headers=a1).json()["id"],
    }
    routes = [route for route in routes_of(served.service.settings) if "_id}" in route.path]
    assert len(routes) == 9
    answers = [served.request(route.method, route.path.format(**ids), headers=b1) for route in routes]
    assert {answer.status_code for answer in answers} == {404}
    following = {"input": "Hi", "previous_response_id": ids["response_id"]}
    for path, body in (("/v1/batches", batch), ("/v1/responses", following), ("/v1/responses/input_tokens", following)):
        assert served.post(path, body, headers=b1).status_code == 404
    own = [route for route in routes if route.method == "GET"]
    assert {served.get(route.path.format(**ids), headers=a1).status_code for route in own} == {200}


def test_a_profile_is_recorded_for_operators(folder: Path, tmp_path: Path):
    assert "observability.profiler_config" in Served(folder).post("/start_profile", {}).json()["error"]["message"]
    config = {"profiler": "torch", "torch_profiler_dir": "/profiles"}
    served = Served(
        folder, observability={"profiler_config": config}, api_keys_file=write(tmp_path / "keys.yaml", FILE)
    )
    assert served.post("/start_profile", {}, headers=bearer("sk-alice")).status_code == 403
    operator = bearer("sk-operator")
    assert served.post("/start_profile", {}, headers=operator).json() == {"status": "ok"}
    assert served.post("/stop_profile", {}, headers=operator).json() == {"status": "ok", "trace": "/profiles/1.json.gz"}
    refused = served.post("/stop_profile", {}, headers=operator)
    assert (refused.status_code, refused.json()["error"]["message"]) == (409, "no profile is being recorded")


def test_a_cache_salt_does_not_show_a_key():
    """It was the SHA-256 of the key, which prefill servers get over plain HTTP."""
    keys = Keys(["sk-one", "sk-two"])
    salts = []
    for secret in ("sk-one", "sk-two"):
        key = keys.check("/v1/models", [(b"x-api-key", secret.encode())])
        salts.append(keys.cache_salt(key))
        assert hashlib.sha256(secret.encode()).hexdigest() not in salts
    assert len(set(salts)) == 2
    again = Keys(["sk-two", "sk-one"])  # another server with the same keys
    assert again.cache_salt(again.check("/v1/models", [(b"x-api-key", b"sk-one")])) == salts[0]
    more = Keys(["sk-one", "sk-two", "sk-three"])
    assert more.cache_salt(more.check("/v1/models", [(b"x-api-key", b"sk-one")])) != salts[0]
