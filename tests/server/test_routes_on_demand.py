"""Routes that an option adds or removes: the load, the tokenizer, and the API description."""

from __future__ import annotations

import asyncio
from pathlib import Path

import jsonschema
import pytest

from stoker.config.schema.server import ServerConfig
from stoker.server.routes.table import routes_of

from ..fakes import FakeEngine
from ..tiny_tokenizer import TEMPLATE, write_tokenizer
from .deployment import MODEL, Served


@pytest.mark.effect("server.enable_server_load_tracking")
def test_the_load_is_the_number_of_running_completions(folder: Path):
    held = asyncio.Event()
    served = Served(folder, FakeEngine(pace=held.wait), enable_server_load_tracking=True)

    async def run() -> list[int]:
        loads = []
        async with served.client() as client:

            async def load() -> None:
                loads.append((await client.get("/load")).json()["server_load"])

            body = {"model": MODEL, "prompt": "Hello", "max_tokens": 1}
            await load()
            bodies = [{**body, "stream": stream} for stream in (False, True)]
            tasks = [asyncio.ensure_future(client.post("/v1/completions", json=one)) for one in bodies]
            while len(served.engine.open_requests) < 2:
                await asyncio.sleep(0)
            await load()
            held.set()
            await asyncio.gather(*tasks)
            await load()
        return loads

    assert asyncio.run(run()) == [0, 2, 0]
    assert Served(folder).get("/load").status_code == 404


@pytest.mark.effect("server.enable_tokenizer_info_endpoint")
def test_the_tokenizer_route_returns_its_settings_and_the_template_in_use(folder: Path, tmp_path: Path):
    assert Served(folder).get("/tokenizer_info").status_code == 404
    shown = Served(folder, enable_tokenizer_info_endpoint=True).get("/tokenizer_info").json()
    assert (shown["eos_token"], shown["vocab_size"], shown["chat_template"]) == ("<|im_end|>", 400, TEMPLATE)
    replaced = Served(folder, enable_tokenizer_info_endpoint=True, chat_template="{{ messages }}")
    assert replaced.get("/tokenizer_info").json()["chat_template"] == "{{ messages }}"
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    several = write_tokenizer(tmp_path, template=None, chat_template=named, model_max_length=float("inf"))
    shown = Served(several, enable_tokenizer_info_endpoint=True).get("/tokenizer_info").json()
    assert (shown["chat_template"], shown["model_max_length"]) == (named, None)


def test_the_tokenizer_route_is_a_404_without_a_tokenizer(folder: Path):
    options = {"enable_tokenizer_info_endpoint": True, "model": {"skip_tokenizer_init": True, "tokenizer": ""}}
    answer = Served(folder, **options).get("/tokenizer_info")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_tokenizer")


@pytest.mark.effect("server.disable_docs")
def test_the_api_description_can_be_disabled(folder: Path):
    for path in ("/openapi.json", "/docs"):
        assert Served(folder).get(path).status_code == 200
        assert Served(folder, disable_docs=True).get(path).status_code == 404
    assert Served(folder, api_key=["secret"]).get("/openapi.json").status_code == 401


def test_the_api_description_has_exactly_the_routes(folder: Path):
    options = {"enable_server_load_tracking": True}
    served = Served(folder, api_key=["secret"], **options)
    described = served.get("/openapi.json", headers={"authorization": "Bearer secret"}).json()
    found = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    routes = routes_of(ServerConfig(**options))
    assert found == {(route.method, route.path.replace("{model:path}", "{model}")) for route in routes}
    operations = [operation for methods in described["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert [path for path, methods in described["paths"].items() if methods.get("get", {}).get("security") == []] == [
        "/health", "/livez", "/readyz", "/ping", "/", "/docs"
    ]  # fmt: skip


def test_a_server_without_keys_describes_no_route_as_one_that_needs_a_key(folder: Path):
    """Each route had the mark of a key on the API page of a server that asks for none."""
    described = Served(folder).get("/openapi.json").json()
    operations = [operation for methods in described["paths"].values() for operation in methods.values()]
    assert [operation["operationId"] for operation in operations if operation["security"]] == []


@pytest.mark.parametrize(
    ("path", "good", "bad"),
    [
        ("/v1/completions", {"model": MODEL, "prompt": [5, 6], "stop": "x"}, {"model": MODEL}),
        ("/v1/completions", {"model": MODEL, "prompt": ["x"]}, {"model": MODEL, "prompt": {}}),
        ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": [{"text": "x"}]}]},
         {"model": MODEL, "messages": []}),
        ("/tokenize", {"prompt": "x"}, {"prompt": 5}),
        ("/detokenize", {"tokens": [5]}, {"tokens": "x"}),
    ],
)  # fmt: skip
def test_the_schema_of_a_body_agrees_with_the_route(folder: Path, path: str, good: object, bad: object):
    served = Served(folder)
    described = served.get("/openapi.json").json()
    reference = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema.Draft202012Validator({**reference, "components": described["components"]})
    assert validator.is_valid(good)
    assert served.post(path, good).status_code == 200
    assert not validator.is_valid(bad)
    assert served.post(path, bad).status_code == 400
