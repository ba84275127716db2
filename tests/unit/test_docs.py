"""docs/: names in the guides exist, the tutorial shows real output, and the site loads nothing from other hosts."""

from __future__ import annotations

import logging
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from tools.site import hooks, tutorial
from tools.site.check import find, remote_resources

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


@pytest.mark.slow
def test_the_tutorial_shows_the_current_output():
    text = tutorial.PAGE.read_text("utf-8")
    assert tutorial.updated(text) == text, "run `make docs`"


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
