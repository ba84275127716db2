"""docs/reference: written by tools/reference.py, every link in it leads somewhere."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest
from tools.reference import FOLDER, _anchor, pages

PAGES = pages()
LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")


def anchors(text: str) -> set[str]:
    return {_anchor(line.lstrip("# ")) for line in text.splitlines() if line.startswith("#")}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_page_and_a_heading(name: str) -> None:
    home = PurePosixPath(name).parent
    for target, anchor in LINK.findall(PAGES[name]):
        parts: list[str] = []
        for part in (*home.parts, *PurePosixPath(target).parts) if target else PurePosixPath(name).parts:
            parts = parts[:-1] if part == ".." else [*parts, part]
        page = "/".join(parts)
        assert page in PAGES, (name, target)
        assert not anchor or anchor in anchors(PAGES[page]), (name, target, anchor)


def test_a_section_begins_with_a_list_of_its_options_and_their_rules_are_links() -> None:
    assert "| [block_size](#cacheblock_size) | " in PAGES["cache.md"]
    assert "| [enable_lora](#loraenable_lora) | *refused* " in PAGES["lora.md"]
    assert "[R105](rules/R105.md) a step holds a token of every sequence" in PAGES["scheduler.md"]
    assert "[model.max_model_len](../model.md#modelmax_model_len)" in PAGES["rules/R104.md"]


def test_the_committed_pages_are_fresh() -> None:
    written = {path.relative_to(FOLDER).as_posix(): path.read_text("utf-8") for path in FOLDER.rglob("*.md")}
    assert written == pages(), "run `make docs`"


def test_every_page_is_listed() -> None:
    found = pages()
    for name in found:
        folder, _, page = name.rpartition("/")
        if page == "README.md":
            assert not folder or f"({name})" in found["README.md"]
        else:
            assert f"({page})" in found[f"{folder}/README.md" if folder else "README.md"]
