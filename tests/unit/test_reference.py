"""docs/reference: written by tools/reference.py, every link in it leads somewhere."""

from __future__ import annotations

import re

import pytest
from tools.reference import FOLDER, _anchor, pages

from stoker.config.resolve.rules import BY_ID

PAGES = pages()
LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")


def anchors(text: str) -> set[str]:
    headings = {_anchor(line.lstrip("# ")) for line in text.splitlines() if line.startswith("#")}
    return headings | set(re.findall(r'<a id="([^"]+)"></a>', text))


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_page_and_an_anchor(name: str) -> None:
    for target, anchor in LINK.findall(PAGES[name]):
        page = target or name
        assert page in PAGES, (name, target)
        assert not anchor or anchor in anchors(PAGES[page]), (name, target, anchor)


def test_a_section_begins_with_a_list_of_its_options_and_their_rules_are_links() -> None:
    assert "| [block_size](#cacheblock_size) | " in PAGES["cache.md"]
    assert "multimodal.md" not in PAGES, "all of its options are refused"
    assert "| lora | `fully_sharded_loras` | " in PAGES["status.md"]
    assert "enable_prompt_embeds" not in PAGES["model.md"]
    assert "[R105](rules.md#r105) " in PAGES["scheduler.md"]


def test_every_rule_has_one_row_with_an_anchor_and_links_to_its_options() -> None:
    rows = [line for line in PAGES["rules.md"].splitlines() if line.startswith('| <a id="')]
    assert sorted(rule for row in rows for rule in re.findall(r"</a>(R\d+)", row)) == list(BY_ID)
    row = next(row for row in rows if "R104" in row)
    assert row.startswith('| <a id="r104"></a>R104 | error | ')
    assert "[model.max_model_len](model.md#modelmax_model_len)" in row
    assert "or `scheduler.enable_chunked_prefill: true` |" in row
    assert "`api_key: {env: API_KEY}`" in next(row for row in rows if ">R201 " in row)


def test_the_committed_pages_are_fresh() -> None:
    written = {path.relative_to(FOLDER).as_posix(): path.read_text("utf-8") for path in FOLDER.rglob("*.md")}
    assert written == pages(), "run `make docs`"


def test_every_page_is_listed() -> None:
    assert {target for target, _ in LINK.findall(PAGES["README.md"])} == PAGES.keys() - {"README.md"}
