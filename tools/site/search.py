"""The search of the documentation: a defect of lunr that the build corrects, and queries to the built site.

lunr merges equal nodes of its tree of words. It compares them by a text: for each edge its letter, followed by the
number of the node that it leads to. In words with digits this is ambiguous ("1" and "23", "12" and "3"): nodes that
differ are merged, and a query whose words begin like such a word fails: it finds nothing. A comma after each number
makes the text unambiguous.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from py_mini_racer import MiniRacer

_EDGE = re.compile(r"(\b\w)=\1\+(\w)\+(\w)\.id\b")  # of TokenSet.prototype.toString, minified
_SETUP, _QUERY = 0, 2  # messages of the worker
_BROWSER = """
var self = this, window = this, location = {href: "http://site/"}, listeners = [], warnings = [], answer
var console = {log() {}, warn(...words) { warnings.push(words.join(" ")) }, error(...words) { console.warn(...words) }}
function addEventListener(type, listener) { listeners.push(listener) }
function postMessage(message) { answer = message }
function importScripts() {}
function send(message) { answer = null; warnings = []; listeners.forEach(listener => listener({data: message})) }
"""


def worker_of(site: Path) -> Path:
    """The script that searches, in a built site."""
    (worker,) = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    return worker


def corrected(worker: str) -> str:
    """The script without the defect. Raises ValueError if it has another form: a new release may have corrected it."""
    text, count = _EDGE.subn(r'\1=\1+\2+\3.id+","', worker)
    if count != 1:
        raise ValueError(f"the search worker has {count} places where lunr describes an edge, not 1: see {__name__}")
    return text


class SiteSearch:
    """Runs the search of a built site, as a browser does."""

    def __init__(self, worker: str, index: dict[str, object]) -> None:
        self._engine = MiniRacer()
        self._engine.eval(_BROWSER)
        self._engine.eval(worker)
        self._send(_SETUP, {**index, "options": {"suggest": True}})

    @classmethod
    def of(cls, site: Path) -> SiteSearch:
        index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
        return cls(worker_of(site).read_text("utf-8"), index)

    def find(self, words: str) -> int:
        """How many pages have the words. Raises ValueError if the search fails."""
        self._send(_QUERY, words)
        if warnings := self._engine.eval("warnings.join('; ')"):
            raise ValueError(str(warnings))
        return int(str(self._engine.eval("answer.data.items.length")))

    def _send(self, kind: int, content: object) -> None:
        self._engine.eval(f"send({json.dumps({'type': kind, 'data': content})})")
