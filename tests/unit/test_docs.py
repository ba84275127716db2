"""docs/: names in the guides exist, the tutorial shows real output, and the site loads nothing from other hosts."""

from __future__ import annotations

import ast
import io
import logging
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from tools.site import hooks, tutorial
from tools.site.check import find, remote_resources
from tools.site.terminal import screen

from stoker.cli.metric_pages import metric_pages
from stoker.config.codes import CODES
from stoker.config.resolve.rules import BY_ID
from stoker.config.schema.options import options, sections

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = sorted(
    str(path.relative_to(ROOT))
    for path in [*DOCS.glob("*.md"), *(DOCS / "guide").rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]
)


def code_spans(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@pytest.mark.parametrize("page", GUIDES)
def test_options_metrics_and_codes_in_a_guide_exist(page: str):
    text = (ROOT / page).read_text("utf-8")
    (listed,) = metric_pages("metrics")
    metrics = {fact.name for fact in listed.facts}
    for span in code_spans(text):
        option = re.match(r"([a-z_]+)\.([a-z0-9_]+)\b(?!\.)", span)
        if option and option[1] in sections() and not option[0].endswith((".md", ".py", ".yaml", ".json")):
            assert option[0] in options(), span
        if metric := re.match(r"stoker_[a-z0-9_]+", span):
            base = re.sub(r"_(bucket|sum|count)$", "", metric[0])
            assert any(name == base or (metric[0].endswith("_") and name.startswith(base)) for name in metrics), span
    for name in re.findall(r"\b[CM][0-9]{3}\b", text):
        assert name in CODES, name
    for name in re.findall(r"\bR[0-9]{3}\b", text):
        assert name in BY_ID, name


@cache
def source_files() -> list[str]:
    folders = [ROOT / folder for folder in ("src", "tests", "tools", "benchmarks")]
    return [
        path.as_posix() for path in [*ROOT.glob("*.py"), *(path for folder in folders for path in folder.rglob("*"))]
    ]


@pytest.mark.parametrize("page", sorted(str(path.relative_to(ROOT)) for path in (DOCS / "design").rglob("*.md")))
def test_source_files_that_a_design_page_names_exist(page: str):
    for span in code_spans((ROOT / page).read_text("utf-8")):
        if re.fullmatch(r"[\w/]+\.(py|cpp|h)", span):
            assert any(file.endswith(f"/{span}") for file in source_files()), span


_MODULE = re.compile(r"(?<![\w./:<*-])(?:\.{1,2}/)*(?:src/)?(\w[\w/]*\.py)\b")


def prose(source: str) -> Iterator[str]:
    """Docstrings and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node, clean=False) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def test_modules_that_docstrings_and_comments_name_exist():
    """Five named modules that had become packages or moved: `refused.py`, `config/quantised.py`."""
    for file in sorted((ROOT / "src").rglob("*.py")):
        source = file.read_text("utf-8")
        for text in prose(source) if ".py" in source else ():
            for name in _MODULE.findall(text):
                assert any(each.endswith(f"/{name}") for each in source_files()), f"{file.relative_to(ROOT)}: {name}"


@pytest.mark.slow
def test_the_tutorial_shows_the_current_output():
    assert tutorial.differences(tutorial.PAGE.read_text("utf-8")) == [], "run `make docs`"


PLAN = """\
deploy.yaml on AMD EPYC, 2 cores: fits
...
memory
  weights       6.8 MiB in bfloat16 kept in 12 bits, exactly
  KV cache      20 MiB in bfloat16 = 8192 tokens of 2.5 KiB
                5 layers keep 512 B per token
..."""
START = """\
stoker 0.1.0
├── model files      0.05 s  .../stoker/builtin/tiny
└── engine           4.73 s
    ├── libraries        2.61 s
    └── server           1.32 s  at the same time
  reasoning <think>..</think>: `<think>` in the template
  kernels   linear: c++ avx512_bf16: the best that this CPU runs
            sampling: c++ avx512_bf16: the best that this CPU runs
ready in 4.9 s; try:"""


def test_of_a_plan_and_a_start_the_labels_are_compared():
    """The page showed a start without three of its lines: its output was not compared at all."""
    assert tutorial.compared("engine plan deploy.yaml", PLAN) == [
        "deploy.yaml on ...: fits", "...", "memory", "weights", "KV cache", "..."
    ]  # fmt: skip
    assert tutorial.compared("engine up deploy.yaml", START) == [
        "stoker N", "model files", "engine", "libraries", "server",
        "reasoning <think>..</think>: `<think>` in the template", "kernels", "ready in N s; try:"
    ]  # fmt: skip
    on_another = PLAN.replace("AMD EPYC, 2", "Intel(R) Xeon(R) 8592, 64").replace("6.8 MiB", "9 MiB")
    compiling = "12:01:59 info engine: compiling the C++ kernels\n" + START
    assert tutorial.compared("engine up x", compiling) == tutorial.compared("engine up x", START)
    assert tutorial.compared("engine plan x", on_another) == tutorial.compared("engine plan x", PLAN)


def test_of_an_answer_all_but_its_id_and_time_is_compared():
    answer = '{"id":"chatcmpl-1","created":17,"usage":{"completion_tokens":29}}'
    assert tutorial.compared("curl x", answer) == ['{"id":...,"created":...,"usage":{"completion_tokens":29}}']


def test_what_is_left_on_a_terminal_is_the_last_update():
    first = "\x1b[1mstoker\x1b[0m\r\n└── engine  1 s"
    then = "\r\x1b[2K\x1b[1A\x1b[2Kstoker\r\n├── engine  2 s\r\n└── server\r\n\x1b[?25h"
    assert screen(first + then) == ["stoker", "├── engine  2 s", "└── server", ""]


def rendered(markdown: str, source_url: str = "") -> str:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="design/page.md"))
    config = {"docs_dir": str(DOCS), "extra": {"source_url": source_url}}
    return hooks.on_page_markdown(markdown, page=page, config=config, files=None)


def test_links_to_source_files_become_text_or_addresses_of_the_repository():
    link = "see [`serve.py`](../../src/server/http/serve.py#L7) and [plan](../guide/plan.md)"
    assert rendered(link) == "see `serve.py` and [plan](../guide/plan.md)"
    in_repository = "see [`serve.py`](https://host/blob/main/src/server/http/serve.py#L7) and [plan](../guide/plan.md)"
    assert rendered(link, "https://host/blob/main/") == in_repository


def test_a_link_to_a_missing_source_file_is_a_warning(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "mkdocs.hooks"):
        rendered("[gone](../../src/gone.py)")
    assert "design/page.md links to src/gone.py, which does not exist" in caplog.text


def test_a_generated_page_starts_with_its_heading():
    assert rendered("<!-- Written by `make docs`. -->\n\n# Status\n") == "# Status\n"


@pytest.mark.parametrize(
    ("text", "suffix", "remote"),
    [
        ('<script src="https://cdn.example/a.js"></script>', ".html", ["https://cdn.example/a.js"]),
        ('<link rel="stylesheet" href="//fonts.example/css">', ".html", ["//fonts.example/css"]),
        ("<style>@import url(https://a.example/b.css)</style>", ".html", ["https://a.example/b.css"]),
        ('<p style="background: url(http://a.example/c.png)">', ".html", ["http://a.example/c.png"]),
        ("@font-face { src: url('https://a.example/d.woff2') }", ".css", ["https://a.example/d.woff2"]),
        ('<a href="https://a.example/">read</a><script src="../local.js"></script>', ".html", []),
        ('<link rel="canonical" href="https://a.example/"><code>https://a.example</code>', ".html", []),
    ],
)
def test_only_what_a_browser_loads_from_another_host_is_found(text: str, suffix: str, remote: list[str]):
    assert remote_resources(text, suffix) == remote


def test_every_page_and_style_sheet_of_a_site_is_checked(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "page.html").write_text('<img src="https://x.example/i.png">')
    (tmp_path / "style.css").write_text("@import 'https://x.example/s.css';")
    assert list(find(tmp_path)) == [
        "a/page.html loads https://x.example/i.png",
        "style.css loads https://x.example/s.css",
    ]
