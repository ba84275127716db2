"""The search of the documentation, run as a browser runs it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

material = pytest.importorskip("material")
pytest.importorskip("py_mini_racer")
from tools.site.search import SiteSearch, corrected  # noqa: E402

FIELDS = {name: {"boost": 1.0} for name in ("title", "text", "tags")}
CONFIG = {"lang": ["en"], "separator": r"[\s]+", "pipeline": ["stopWordFilter"], "fields": FIELDS}


def index_of(words: list[str]) -> dict[str, object]:
    return {"config": CONFIG, "docs": [{"location": "a/", "title": "a", "text": " ".join(words)}]}


@pytest.fixture(scope="module")
def worker() -> str:
    folder = Path(material.__path__[0], "templates", "assets", "javascripts", "workers")
    (script,) = folder.glob("search.*.js")
    return script.read_text("utf-8")


def test_words_with_digits_do_not_break_the_search(worker: str):
    """The search for `memory` found nothing: lunr had merged nodes of two words, whose texts were the same."""
    random = Random(55)
    words = [
        f"{random.choice('abcdefgh')}{random.randrange(1000)}{random.choice(('x', 'y', ''))}{random.randrange(1000)}"
        for _ in range(100)
    ]
    with pytest.raises(ValueError, match="_index"):
        SiteSearch(worker, index_of(words)).find("h")
    assert SiteSearch(corrected(worker), index_of(words)).find("h") == 1


def test_a_word_that_no_page_has_is_not_found(worker: str):
    search = SiteSearch(corrected(worker), index_of(["memory"]))
    assert (search.find("mem"), search.find("disk")) == (1, 0)


def test_a_worker_of_another_form_fails_the_build():
    with pytest.raises(ValueError, match="has 0 places"):
        corrected("var a = 1")
