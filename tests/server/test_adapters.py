"""Adapters by name: in each route, loaded and unloaded while serving, and in a folder."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from safetensors.numpy import load_file, save_file
from tests.peft_adapters import write_adapter

from stoker.config import ModelFilesError
from stoker.config.checkpoint.model_files import locate
from stoker.config.resolve.adapter_files import NamedAdapter
from stoker.engine.api import AdapterError, AdapterRef, EngineDead
from stoker.model.read import read_config
from stoker.server.adapters import Adapters
from stoker.server.protocol.errors import ApiError

from .adapted import LAYERS, MODEL, serving, tiny_model, write_adapters
from .deployment import Served

PROMPT = "The king said to his daughter"


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapters(tmp_path_factory.mktemp("adapters"), "sql", "math", "chat")


async def text(http: httpx.AsyncClient, model: str, prompt: str = PROMPT, **more: Any) -> str:
    """A greedy answer of 12 tokens."""
    body = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **more}
    answer = await http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model.rpartition(f"{MODEL}:")[2] or MODEL
    found: str = answer.json()["choices"][0]["text"]
    return found


async def error(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_an_adapter_answers_as_the_model_into_which_peft_has_merged_it(adapters: Path, tmp_path: Path) -> None:
    model = tiny_model()
    merged = write_adapter(tmp_path / "sql", model, is_merged=True, seed=7, target_modules=LAYERS)
    assert merged is not None
    merged.save_pretrained(tmp_path / "merged")

    async def run() -> None:
        words = ["--lora-modules", f"sql={tmp_path / 'sql'}", f"math={adapters / 'math'}", "--max-loras", "2"]
        async with serving(*words) as (http, _):
            names = ["sql", MODEL, "math", f"{MODEL}:sql", "sql"]
            found = await asyncio.gather(*(text(http, name) for name in names))  # in the same steps
        folder = str(tmp_path / "merged")
        async with serving(model=folder, tokenizer=MODEL, served_model_name=[MODEL]) as (http, _):
            wanted = await text(http, MODEL)
        assert found[0] == found[3] == found[4] == wanted
        assert len(set(found)) == 3

    asyncio.run(run())


ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/v1/responses": {"input": "a", "max_output_tokens": 16},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/inference/v1/generate": {"token_ids": [5, 6], "sampling_params": {"max_tokens": 2}},
    "/invocations": {"prompt": "a", "max_tokens": 2},
}
OTHERS: dict[str, dict[str, Any]] = {
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/completions/render": {"prompt": "a"},
    "/v1/chat/completions/render": {"messages": [{"role": "user", "content": "a"}]},
}
NAMED = NamedAdapter(name="sql", folder="/adapters/sql", digest="d1", max_rank=4, num_elements=1, num_layers=1)


def adapted(folder: Path, **options: Any) -> Served:
    """A server with the adapter `sql` and an engine that computes nothing."""
    served = Served(folder, **options)
    resolved = served.service.resolved
    files = resolved.model_files.model_copy(update={"adapters": (NAMED,)})
    lora = resolved.lora.model_copy(update={"enable_lora": True})
    served.service.resolved = resolved.model_copy(update={"model_files": files, "lora": lora})
    served.service.adapters.__init__(served.service.resolved, served.engine)  # type: ignore[misc]
    return served


@pytest.mark.parametrize("path", ROUTES)
def test_each_route_that_generates_takes_an_adapter_as_its_model(folder: Path, path: str) -> None:
    served = adapted(folder)
    for name in "sql", "org/tiny:sql", "alias:sql":
        answer = served.post(path, {**ROUTES[path], "model": name})
        assert (answer.status_code, answer.json()["model"]) == (200, "sql"), answer.text
    inputs = [request.inputs for request in served.engine.requests]
    assert [each.adapter.name for each in inputs if each.adapter is not None] == ["sql"] * 3
    assert {each.scope.adapter for each in inputs} == {"d1"}
    assert served.post(path, {**ROUTES[path], "model": "org/tiny"}).status_code == 200
    assert served.engine.requests[-1].inputs.adapter is None
    for name in "nothing", "org/tiny:nothing", "nothing:sql", ":sql", "sql:sql":
        answer = served.post(path, {**ROUTES[path], "model": name})
        assert (answer.status_code, answer.json()["error"]["message"][:11]) == (404, "the model '")


@pytest.mark.parametrize("path", OTHERS)
def test_routes_without_an_answer_of_the_model_take_its_name_too(folder: Path, path: str) -> None:
    served = adapted(folder)
    assert served.post(path, {**OTHERS[path], "model": "sql"}).status_code == 200
    assert served.post(path, {**OTHERS[path], "model": "nothing"}).status_code == 404


def test_models_are_listed_with_their_parents(folder: Path) -> None:
    served = adapted(folder)
    found = {entry["id"]: (entry["root"], entry["parent"]) for entry in served.get("/v1/models").json()["data"]}
    assert found == {
        "org/tiny": ("org/tiny", None),
        "alias": ("org/tiny", None),
        "sql": ("/adapters/sql", "org/tiny"),
    }
    assert served.get("/v1/models/sql").json()["parent"] == "org/tiny"
    assert served.get("/v1/models/org/tiny:sql").json()["id"] == "sql"
    assert served.get("/v1/models/nothing").status_code == 404


@pytest.mark.effect("server.enable_lora_routes")
def test_the_routes_need_the_option_and_a_key_of_an_operator(folder: Path, tmp_path: Path) -> None:
    for path in "/v1/load_lora_adapter", "/v1/unload_lora_adapter":
        answer = Served(folder).post(path, {"lora_name": "a", "lora_path": "x"})
        assert answer.status_code == 404
        assert "`server.enable_lora_routes: true` adds it" in answer.json()["error"]["message"]
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: {app: {scopes: [inference], secrets: [{key: sk-app}]}}\n")
    served = adapted(folder, enable_lora_routes=True, api_keys_file=str(keys))
    headers = {"authorization": "Bearer sk-app"}
    refused = served.post("/v1/unload_lora_adapter", {"lora_name": "sql"}, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope")
    assert [each.name for each in served.service.adapters] == ["sql"]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("load", {"lora_path": "x"}, 400, "missing_required_parameter"),
        ("load", {"lora_name": "a"}, 400, "missing_required_parameter"),
        ("load", {"lora_name": "", "lora_path": "x"}, 400, "string_below_min_length"),
        ("load", {"lora_name": "../a", "lora_path": "x"}, 400, "invalid_adapter_name"),
        ("load", {"lora_name": "a/b/c", "lora_path": "x"}, 400, "invalid_adapter_name"),
        ("load", {"lora_name": "a b", "lora_path": "x"}, 400, "invalid_adapter_name"),
        ("load", {"lora_name": "alias", "lora_path": "x"}, 400, "adapter_name_taken"),
        ("load", {"lora_name": "sql", "lora_path": "x"}, 400, "adapter_name_taken"),
        ("load", {"lora_name": "a", "lora_path": "/nowhere"}, 404, "adapter_files_not_found"),
        ("load", {"lora_name": "a", "lora_path": "org/not-here"}, 404, "adapter_files_not_found"),
        ("unload", {"lora_name": "nothing"}, 404, "adapter_not_found"),
        ("unload", {}, 400, "missing_required_parameter"),
        ("unload?wait=-1", {"lora_name": "sql"}, 400, "invalid_value"),
        ("unload?wait=nan", {"lora_name": "sql"}, 400, "invalid_value"),
        ("unload?wait=soon", {"lora_name": "sql"}, 400, "invalid_value"),
    ],
)
def test_a_call_that_cannot_succeed_changes_nothing(
    folder: Path, path: str, body: dict[str, Any], status: int, code: str
) -> None:
    verb, _, query = path.partition("?")
    served = adapted(folder, enable_lora_routes=True)
    answer = served.post(f"/v1/{verb}_lora_adapter?{query}", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert [each.name for each in served.service.adapters] == ["sql"]
    assert served.engine.adapters == {}


def test_adapters_are_loaded_and_forgotten_in_the_order_of_trl(adapters: Path) -> None:
    """TRL loads the weights of a training step under a new name before it unloads those before."""

    async def run() -> None:
        async with serving("--enable-lora-routes") as (http, _):
            base = await text(http, MODEL)
            before = ""
            for name in "sql", "math", "chat":
                body = {"lora_name": name, "lora_path": str(adapters / name)}
                loaded = await http.post("/v1/load_lora_adapter", json=body)
                assert (loaded.status_code, loaded.headers["content-type"]) == (200, "text/plain; charset=utf-8")
                assert loaded.text == f"Success: LoRA adapter '{name}' added successfully."
                assert await text(http, name) != base
                if before:
                    gone = await http.post("/v1/unload_lora_adapter", json={"lora_name": before, "lora_int_id": 1})
                    assert gone.text == f"Success: LoRA adapter '{before}' removed successfully."
                    assert await error(await http.post("/v1/completions", json={"model": before, "prompt": "a"})) == (
                        404,
                        "model_not_found",
                    )
                before = name
            assert await text(http, MODEL) == base

    asyncio.run(run())


def test_a_request_ends_with_the_weights_that_it_began_with(adapters: Path) -> None:
    """Loading in place while it runs changes the answers of later requests only."""

    async def run() -> None:
        words = ["--enable-lora-routes", "--lora-modules", f"now={adapters / 'sql'}", "--max-loras", "2"]
        async with serving(*words) as running:
            http, service = running
            whole = await text(http, "now", max_tokens=300)
            before, num_generated = next(iter(service.adapters)), service.metrics.num_generated
            task = asyncio.ensure_future(text(http, "now", max_tokens=300))
            await running.until(lambda: service.metrics.num_generated > num_generated)
            body = {"lora_name": "now", "lora_path": str(adapters / "math"), "load_inplace": True}
            assert (await http.post("/v1/load_lora_adapter", json=body)).status_code == 200
            assert before.num_users == 1
            other = await text(http, "now", max_tokens=300)
            assert await task == whole != other
            await running.until(lambda: not service.adapters._replaced and not service.adapters._forgetting)
            assert await text(http, "now", max_tokens=300) == other

    asyncio.run(run())


def test_the_official_client_lists_and_uses_adapters(adapters: Path) -> None:
    async def run() -> None:
        async with serving("--lora-modules", f"sql={adapters / 'sql'}") as (http, _):
            client = openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http)
            models = [model.id async for model in client.models.list()]
            assert models == [MODEL, "sql"]
            assert (await client.models.retrieve("sql")).model_dump()["parent"] == MODEL
            answer = await client.chat.completions.create(
                model="sql", messages=[{"role": "user", "content": "Hello"}], max_tokens=4
            )
            assert (answer.model, answer.usage.completion_tokens) == ("sql", 4)  # type: ignore[union-attr]
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="x", messages=[{"role": "user", "content": "Hello"}])

    asyncio.run(run())


def test_an_adapter_finds_no_prefix_of_another_or_of_the_model(adapters: Path) -> None:
    async def run() -> list[int]:
        words = ["--enable-lora-routes", "--enable-prompt-tokens-details", "--lora-modules"]
        words += [f"{name}={adapters / name}" for name in ("sql", "math")]
        found: list[int] = []
        async with serving(*words, "--max-loras", "2") as (http, _):

            async def cached(model: str) -> None:
                body = {"model": model, "prompt": PROMPT * 8, "max_tokens": 1}
                usage = (await http.post("/v1/completions", json=body)).json()["usage"]
                found.append(usage["prompt_tokens_details"]["cached_tokens"])

            for model in "sql", MODEL, "math", "sql", MODEL, "math":
                await cached(model)
            body = {"lora_name": "sql", "lora_path": str(adapters / "chat"), "load_inplace": True}
            await http.post("/v1/load_lora_adapter", json=body)
            for _ in range(2):
                await cached("sql")
        return found

    found = asyncio.run(run())
    assert [number > 0 for number in found] == [False] * 3 + [True] * 3 + [False, True]


def test_unload_waits_for_requests_and_gives_up_after_a_time(adapters: Path) -> None:
    async def run() -> None:
        async with serving("--enable-lora-routes", "--lora-modules", f"sql={adapters / 'sql'}") as running:
            http, service = running
            (adapter,) = service.adapters
            whole = await text(http, "sql", max_tokens=300)
            task = asyncio.ensure_future(text(http, "sql", max_tokens=300))
            await running.until(lambda: adapter.num_users)
            busy = await http.post("/v1/unload_lora_adapter?wait=0", json={"lora_name": "sql"})
            assert await error(busy) == (409, "adapter_in_use")
            unloading = asyncio.ensure_future(http.post("/v1/unload_lora_adapter", json={"lora_name": "sql"}))
            await running.until(lambda: not list(service.adapters))
            late = await http.post("/v1/completions", json={"model": "sql", "prompt": "a"})
            assert await error(late) == (404, "model_not_found")
            assert not unloading.done()
            assert await task == whole
            assert (await unloading).status_code == 200

    asyncio.run(run())


def test_routers_read_which_adapters_run(adapters: Path) -> None:
    async def run() -> str:
        async with serving("--lora-modules", f"sql={adapters / 'sql'}", "--max-loras", "3") as running:
            task = asyncio.ensure_future(text(running.http, "sql", max_tokens=300))
            await running.until(lambda: running.service.client.stats.running_adapters)
            found = (await running.http.get("/metrics")).text
            await task
            return found

    lines = [line for line in asyncio.run(run()).splitlines() if line.startswith("vllm:lora_requests_info{")]
    assert len(lines) == 1
    labels, _, value = lines[0].rpartition(" ")
    assert 'max_lora="3"' in labels
    assert 'running_lora_adapters="sql"' in labels
    assert 'waiting_lora_adapters=""' in labels
    assert float(value) > 1.7e9


@pytest.mark.effect("lora.resolver_folder")
def test_an_adapter_of_the_folder_is_loaded_by_the_first_request(adapters: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "team").mkdir(parents=True)
    (store / "sql").symlink_to("team/one")
    (adapters / "math").rename(store / "team" / "one")
    (store / "out").symlink_to(adapters)
    (store / "broken").mkdir()
    (store / "broken" / "adapter_config.json").write_text("{}")
    (store / "empty").mkdir()

    async def run() -> None:
        async with serving("--resolver-folder", str(store), "--max-loras", "2") as (http, _):
            listed = {model["id"] for model in (await http.get("/v1/models")).json()["data"]}
            assert listed == {MODEL, "sql", "team/one", "broken"}
            assert await text(http, "team/one") == await text(http, "sql") != await text(http, MODEL)
            for name in "out/sql", "../store/sql", "team/../sql", "empty", "team", "", "/etc", "sql\0", "x" * 300:
                answer = await http.post("/v1/completions", json={"model": name or " ", "prompt": "a"})
                assert await error(answer) == (404, "model_not_found"), name
            broken = await http.post("/v1/completions", json={"model": "broken", "prompt": "a"})
            assert await error(broken) == (400, "invalid_adapter")

    try:
        asyncio.run(run())
    finally:
        (store / "team" / "one").rename(adapters / "math")


def test_an_error_of_the_engine_is_the_answer_and_names_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = adapted(folder, enable_lora_routes=True)
    ref = AdapterRef("a", "d2", str(tmp_path))
    monkeypatch.setattr(served.service.adapters, "_described", lambda name, path: ref)
    for code, status in ("invalid_adapter", 400), ("adapter_changed", 400), ("adapter_memory", 500):
        served.engine.adapter_error = AdapterError("tensor `x` has NaN", code=code)
        answer = served.post("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": str(tmp_path)})
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert [each.name for each in served.service.adapters] == ["sql"]
    served.engine.adapter_error = EngineDead("killed")
    answer = served.post("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": str(tmp_path)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_restarting")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_elements_that_are_no_numbers_are_found_when_the_adapter_is_loaded(
    adapters: Path, tmp_path: Path, value: float
) -> None:
    """One of them would spread to every token, and through the KV cache."""
    shutil.copytree(adapters / "sql", tmp_path / "bad")
    file = tmp_path / "bad" / "adapter_model.safetensors"
    tensors = load_file(file)
    name = sorted(tensors)[-1]
    tensors[name][-1, -1] = value
    save_file(tensors, file)

    async def run() -> None:
        async with serving("--enable-lora-routes") as (http, service):
            body = {"lora_name": "bad", "lora_path": str(tmp_path / "bad")}
            answer = await http.post("/v1/load_lora_adapter", json=body)
            assert await error(answer) == (400, "invalid_adapter")
            assert f"tensor `{name}` has elements that are infinite or not a number" in answer.text
            assert not list(service.adapters)
        with pytest.raises(ModelFilesError, match="infinite or not a number"):
            async with serving("--lora-modules", f"bad={tmp_path / 'bad'}"):
                raise AssertionError("the start ends with the error")

    asyncio.run(run())


@pytest.mark.parametrize("option", ["--tensor-parallel-size", "--pipeline-parallel-size"])
def test_files_may_go_when_an_adapter_is_loaded(adapters: Path, tmp_path: Path, option: str) -> None:
    """Trainers write to a temporary folder. Another process of the model read it in the first step, and ended."""

    async def run() -> None:
        words = ["--enable-lora-routes", "--max-loras", "1", "--max-cpu-loras", "2", option, "2"]
        async with serving(*words) as (http, _):
            wanted: dict[str, str] = {}
            for name in "sql", "math", "chat":
                where = tmp_path / name
                shutil.copytree(adapters / name, where)
                body = {"lora_name": name, "lora_path": str(where)}
                assert (await http.post("/v1/load_lora_adapter", json=body)).status_code == 200
                shutil.rmtree(where)
                wanted[name] = await text(http, name)
            assert await text(http, "chat") == wanted["chat"]
            assert await text(http, "math") == wanted["math"]
            gone = await http.post("/v1/completions", json={"model": "sql", "prompt": "a"})  # others took its place
            assert await error(gone) == (500, "adapter_unreadable")
            assert "the adapter of this request: adapter `sql`: " in gone.text
            assert await text(http, "math") == wanted["math"]
            assert len(set(wanted.values())) == 3

    asyncio.run(run())


def stored(folder: Path, store: Path, **options: Any) -> Served:
    """A server with `lora.resolver_folder`, the adapter `sql` and an engine that computes nothing."""
    served = adapted(folder, **options)
    resolved = served.service.resolved
    lora = resolved.lora.model_copy(update={"resolver_folder": str(store)})
    spec, _ = read_config(json.loads((locate(MODEL) / "config.json").read_text()))
    files = resolved.model_files.model_copy(update={"spec": spec})
    served.service.resolved = resolved.model_copy(update={"lora": lora, "model_files": files})
    served.service.adapters.__init__(served.service.resolved, served.engine)  # type: ignore[misc]
    return served


def write(store: Path, name: str, adapter: Path, time: int) -> None:
    """Files of the folder `store`, with this time in seconds."""
    shutil.rmtree(store / name, ignore_errors=True)
    shutil.copytree(adapter, store / name)
    for file in (store / name).iterdir():
        os.utime(file, (time, time))


def test_an_adapter_of_the_folder_is_loaded_again_when_its_files_have_changed(
    folder: Path, adapters: Path, tmp_path: Path
) -> None:
    """Once it had left the memory, each request failed until the server was started again."""
    write(tmp_path, "now", adapters / "sql", 1)
    served = stored(folder, tmp_path)

    async def run() -> None:
        async with served.client() as http:

            async def ask() -> httpx.Response:
                return await http.post("/v1/completions", json={"model": "now", "prompt": "a", "max_tokens": 2})

            found: list[str] = []
            for change in (
                lambda: None,
                lambda: write(tmp_path, "now", adapters / "math", 2),
                (tmp_path / "now" / "adapter_model.safetensors").unlink,  # it is served as long as the engine has it
                lambda: shutil.rmtree(tmp_path / "now"),
                lambda: write(tmp_path, "now", adapters / "sql", 3),
            ):
                change()
                for _ in range(2):
                    assert (await ask()).status_code == 200
                    await asyncio.gather(*served.service.adapters._forgetting)
                    (digest,) = served.engine.adapters
                    assert served.engine.requests[-1].inputs.scope.adapter == digest
                    found.append(digest)
            assert [digest == found[0] for digest in found] == [True] * 2 + [False] * 6 + [True] * 2
            assert len(set(found)) == 2
            (tmp_path / "now" / "adapter_config.json").write_text("{}")
            assert await error(await ask()) == (400, "invalid_adapter")
            write(tmp_path, "now", adapters / "sql", 3)
            assert (await ask()).status_code == 200

    asyncio.run(run())


def test_a_name_of_the_folder_is_unknown_while_it_is_unloaded(folder: Path, adapters: Path, tmp_path: Path) -> None:
    """Requests waited with the call, up to an hour, and loaded the adapter again."""
    write(tmp_path, "now", adapters / "sql", 1)
    names = stored(folder, tmp_path).service.adapters

    async def run() -> None:
        async with asyncio.timeout(60):
            adapter = await names.find("now")
            assert adapter is not None
            with names.used(adapter):
                unloading = [asyncio.ensure_future(names.unload("now", 3600)) for _ in range(2)]
                while adapter in list(names):
                    await asyncio.sleep(0)
                assert await names.find("now") is await names.look_up("now") is None
            assert await unloading[0] is None
            with pytest.raises(ApiError, match="there is no adapter 'now'"):
                await unloading[1]
            again = await names.find("now")
            assert again is not None
            with names.used(again), pytest.raises(ApiError, match="used by 1 requests"):
                await names.unload("now", 0)
            assert await names.find("now") is again

    asyncio.run(run())


def test_files_of_the_folder_that_cannot_be_used_are_read_once(
    folder: Path, adapters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request read and hashed them, and got an error about `lora_path` with a path of the server."""
    write(tmp_path, "broken", adapters / "sql", 1)
    (tmp_path / "broken" / "adapter_config.json").write_text("{}")
    write(tmp_path, "refused", adapters / "sql", 1)
    served = stored(folder, tmp_path)
    reads: list[str] = []

    def described(name: str, path: str) -> AdapterRef:
        reads.append(name)
        return Adapters._described(served.service.adapters, name, path)

    monkeypatch.setattr(served.service.adapters, "_described", described)

    def ask(name: str) -> tuple[int, str, str, str]:
        answer = served.post("/v1/completions", {"model": name, "prompt": "a"})
        found = answer.json()["error"]
        return answer.status_code, found["code"], found["param"], found["message"]

    status, code, param, message = ask("broken")
    assert (status, code, param) == (400, "invalid_adapter", "model")
    assert message.startswith("adapter 'broken': broken/adapter_config.json: ")
    assert ask("broken") == (status, code, param, message)
    assert reads == ["broken"]
    served.engine.adapter_error = AdapterError("tensor `x` has NaN")
    for time in 1, 1, 2, 2:
        os.utime(tmp_path / "refused" / "adapter_config.json", (time, time))
        assert ask("refused") == (400, "invalid_adapter", "model", "tensor `x` has NaN")
    assert reads == ["broken", "refused", "refused"]
    served.engine.adapter_error = AdapterError("no memory", code="adapter_memory")
    os.utime(tmp_path / "refused" / "adapter_config.json", (3, 3))
    for _ in range(2):
        assert ask("refused")[:2] == (500, "adapter_memory")
    served.engine.adapter_error = None
    assert served.post("/v1/completions", {"model": "refused", "prompt": "a"}).status_code == 200
    assert reads == ["broken", *["refused"] * 5]


def test_requests_that_generate_nothing_load_no_adapter(folder: Path, adapters: Path, tmp_path: Path) -> None:
    """They could wake an engine that sleeps."""
    write(tmp_path, "now", adapters / "sql", 1)
    served = stored(folder, tmp_path)
    for path, body in {**OTHERS, "/v1/responses/input_tokens": {"input": "a"}}.items():
        for name in "now", "org/tiny:now":
            answer = served.post(path, {**body, "model": name})
            assert answer.status_code == 200, (path, answer.text)
        assert served.post(path, {**body, "model": "nothing"}).status_code == 404
    shown = served.get("/v1/models/now").json()
    assert (shown["id"], shown["root"], shown["parent"]) == ("now", str(tmp_path / "now"), "org/tiny")
    assert served.get("/v1/models/org/tiny:now").json() == shown
    assert served.engine.adapters == {}
    assert [each.name for each in served.service.adapters] == ["sql"]


def test_a_name_of_an_alias_is_no_name_of_an_adapter(folder: Path, adapters: Path, tmp_path: Path) -> None:
    """An adapter that was loaded under it got the requests for the model."""
    for name in "other", "claude-1":
        write(tmp_path, name, adapters / "sql", 1)
    aliases = {"other": "org/tiny", "claude-*": "org/tiny"}
    served = stored(folder, tmp_path, enable_lora_routes=True, model_aliases=aliases)
    body = {"lora_name": "other", "lora_path": str(adapters / "math")}
    answer = served.post("/v1/load_lora_adapter", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "adapter_name_taken")
    assert served.get("/v1/models/other").json()["parent"] is None
    listed = [model["id"] for model in served.get("/v1/models").json()["data"]]
    assert listed == ["org/tiny", "alias", "sql", "claude-1"]
    for name, adapter in ("other", None), ("claude-1", "claude-1"), ("claude-2", None):  # patterns are for other names
        assert served.post("/v1/completions", {"model": name, "prompt": "a", "max_tokens": 2}).status_code == 200
        given = served.engine.requests[-1].inputs.adapter
        assert (given and given.name) == adapter


def test_calls_about_one_name_run_one_after_the_other(folder: Path) -> None:
    """A lock that had been released for the next call was dropped, and a later call had another one."""
    names = adapted(folder).service.adapters
    running: list[str] = []

    async def call(name: str) -> None:
        async with names._turn(name):
            assert name not in running
            running.append(name)
            await asyncio.sleep(0)
            running.remove(name)

    async def run() -> None:
        calls = [call(name) for index in range(2500) for name in ("one", f"name-{index}")]
        await asyncio.gather(*calls)
        assert not names._locks
        assert not names._num_calls

    asyncio.run(run())
