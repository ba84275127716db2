from __future__ import annotations

from tools.reference import FOLDER, pages


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
