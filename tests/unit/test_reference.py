from __future__ import annotations

from tools.reference import FOLDER, pages


def test_the_committed_pages_are_fresh() -> None:
    written = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.md")}
    assert written == pages(), "run `make docs`"


def test_every_page_is_listed() -> None:
    listed = pages()["README.md"]
    assert all(f"({name})" in listed for name in pages() if name != "README.md")
