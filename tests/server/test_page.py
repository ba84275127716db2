"""The built-in web page as it is served: its paths, headers, what switches it off, and what its files contain.

What it does in a browser is tested in test_page_in_browser.py.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

from stoker.config.schema.server import ServerConfig
from stoker.model.pooling import PoolHead, Pooling
from stoker.server.page.files import page_paths
from stoker.server.routes.examples import EXAMPLES
from stoker.server.routes.table import routes_of

from .deployment import Served

PAGE = {
    each.name: each.read_text("utf-8")
    for each in files("stoker.server.page").iterdir()
    if not each.name.startswith("__")
}
SCRIPTS = {name: text for name, text in PAGE.items() if name.endswith(".js")}
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
KEY = {"authorization": "Bearer secret"}


def test_every_file_is_served_with_a_strict_policy_and_without_a_key(folder: Path):
    served = Served(folder, api_key=["secret"])
    paths = list(page_paths(ServerConfig()))
    assert {path.removeprefix("/page/") for path in paths} == {"/", "/docs", *PAGE} - {"index.html", "files.py"}
    for path in paths:
        answer = served.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-type"].startswith(TYPES.get(Path(path).suffix, "text/html")), path
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["trusted-types"] == policy["frame-ancestors"] == "'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
    for path in ("/config", "/openapi.json", "/metrics", "/page/files.py", "/page/index.html", "/page/../config"):
        assert served.get(path).status_code == 401, path
        assert served.get(path, headers=KEY).status_code in (200, 404)


def test_a_file_that_the_browser_has_is_not_sent_again(served: Served):
    first = served.get("/page/main.js")
    again = served.get("/page/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert served.get("/page/main.js", headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.effect("server.disable_web_page")
@pytest.mark.parametrize(("page", "docs"), [(True, True), (True, False), (False, True), (False, False)])
def test_the_page_and_the_description_can_be_disabled(folder: Path, page: bool, docs: bool):
    served = Served(folder, disable_web_page=not page, disable_docs=not docs)
    views = " ".join(["chat similarity live config"] * page + ["docs"] * docs)
    for path, is_served in {"/": page, "/docs": docs, "/page/main.js": page or docs}.items():
        answer = served.get(path)
        assert answer.status_code == (200 if is_served else 404), path
        assert path == "/page/main.js" or not is_served or f'data-views="{views}"' in answer.text
    if not page:
        assert "`server.disable_web_page: false` adds it" in served.get("/").json()["error"]["message"]


def test_a_proxy_that_keeps_its_prefix_finds_every_file(folder: Path):
    served = Served(folder, root_path="/llm")
    assert all(served.get(f"/llm{path}").status_code == 200 for path in ("/", "/docs", "/page/main.js"))


def test_the_files_name_each_other_and_nothing_else():
    loaded = re.findall(r'(?:src|href)="([^"]+)"', PAGE["index.html"])
    assert {path for path in loaded if not path.startswith("#")} == {
        "./", "openapi.json", "page/icon.svg", "page/style.css", "page/theme.js", "page/main.js"
    }  # fmt: skip
    imported = {name for text in SCRIPTS.values() for name in re.findall(r'(?:from |import\()"\./([^"]+)"', text)}
    assert imported | {"main.js", "theme.js"} == set(SCRIPTS)
    assert "url(" not in PAGE["style.css"]
    assert "@import" not in PAGE["style.css"]
    for name, text in {**SCRIPTS, "style.css": PAGE["style.css"], "index.html": PAGE["index.html"]}.items():
        addresses = set(re.findall(r"https?://[a-z.]+", text))
        # of elements of SVG and MathML; in texts of the library's warnings
        assert addresses <= {"http://www.w", *["https://github.com"] * (name == "highlight.js")}, name


def test_what_is_not_of_this_project_has_its_licence():
    assert "The MIT License" in PAGE["temml.js"][:400]
    assert "BSD 3-Clause License" in PAGE["highlight.js"][:400]
    loaded_at_once = [name for text in SCRIPTS.values() for name in re.findall(r'from "\./([^"]+)"', text)]
    assert not {"temml.js", "highlight.js"} & set(loaded_at_once), "they are loaded with the first use"


def test_no_script_can_turn_text_into_html():
    """The policy has no trusted types, so that a browser that knows them refuses it; this is for the others."""
    sinks = (
        r"innerHTML|outerHTML|insertAdjacentHTML|createContextualFragment|setHTML|DOMParser|"
        r"document\.write|\beval\b|new Function"
    )
    for name, text in SCRIPTS.items():
        if name != "highlight.js":
            assert not re.search(sinks, text), name
            # of the library, these write HTML
            assert not re.search(r"highlightElement|highlightAll|\.value\b.*highlight\(", text), name
    assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", PAGE["index.html"])


def test_every_example_is_answered(folder: Path):
    tasks = ("embed", "token_embed", "classify", "sparse")
    heads = tuple(PoolHead(task=task, width=width) for task, width in zip(tasks, (8, 4, 3, 1), strict=True))
    served = Served(folder, pooling=Pooling(heads=heads))
    described = served.get("/openapi.json").json()
    for path, example in EXAMPLES.items():
        content = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert content["example"] == example
        schema = {**content["schema"], "components": described["components"]}
        jsonschema.Draft202012Validator(schema).validate(example)
        answer = served.post(path, example)
        assert answer.status_code == 200, answer.text


def test_every_route_with_a_body_has_an_example():
    """Except those whose body names what was created before."""
    with_body = {route.path for route in routes_of(ServerConfig()) if route.body is not None}
    assert with_body <= set(EXAMPLES)


def test_parameters_of_a_path_are_described(served: Served):
    described = served.get("/openapi.json").json()["paths"]
    (parameter,) = described["/v1/models/{model}"]["get"]["parameters"]
    assert (parameter["name"], parameter["in"], parameter["required"]) == ("model", "path", True)


def test_a_form_and_the_parameters_of_a_query_are_described(folder: Path, tmp_path: Path):
    described = Served(folder, files_dir=str(tmp_path)).get("/openapi.json").json()["paths"]
    form = described["/v1/files"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["required"] == ["file", "purpose"]
    places = {(each["name"], each["in"], each["required"]) for each in described["/v1/files"]["get"]["parameters"]}
    assert places == {(name, "query", False) for name in ("after", "limit", "order", "purpose")}


def test_docstrings_are_not_in_the_description(served: Served):
    """It had other descriptions under python -OO."""
    schemas = served.get("/openapi.json").json()["components"]["schemas"]
    assert "ChatRequest" in schemas
    assert [name for name, schema in schemas.items() if "description" in schema] == []
