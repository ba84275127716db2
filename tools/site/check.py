"""Fail if a page of the built site loads anything from another host, or if its search does not find an option.

    python -m tools.site.check [build/site]

Checks the resources that a browser loads without a click: scripts, style sheets, images, frames, fonts and imports of
style sheets. Links that a reader follows are not checked here; `mkdocs build --strict` checks those inside the site.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from stoker.config.schema.options import options

from .search import SiteSearch

_LOADED = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "object": ("data",),
    "embed": ("src",),
    "use": ("href", "xlink:href"),
    "link": ("href",),
}
_NOT_LOADED = {"canonical", "next", "prev", "alternate"}  # rel of <link>: addresses, not resources
_REMOTE = re.compile(r"^\s*(?:https?:)?//", re.IGNORECASE)
_CSS_ADDRESS = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)


class _Resources(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.remote: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        self.remote += _CSS_ADDRESS.findall(values.get("style", ""))
        if tag == "link" and set(values.get("rel", "").split()) <= _NOT_LOADED:
            return
        self.remote += [values[name] for name in _LOADED.get(tag, ()) if _REMOTE.match(values.get(name, ""))]

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.remote += _CSS_ADDRESS.findall(data)


def remote_resources(text: str, suffix: str) -> list[str]:
    """Addresses on other hosts that a browser loads for this page or style sheet."""
    if suffix == ".css":
        return _CSS_ADDRESS.findall(text)
    resources = _Resources()
    resources.feed(text)
    return resources.remote


def find(site: Path) -> Iterator[str]:
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css"):
            for address in remote_resources(path.read_text("utf-8"), path.suffix):
                yield f"{path.relative_to(site)} loads {address}"


def not_found(site: Path) -> Iterator[str]:
    """Words for which the search fails or has no page: the names of all options, and what a reader types for them."""
    search = SiteSearch.of(site)
    names = [path.rpartition(".")[2] for path in options()]
    for words in dict.fromkeys(("memory", "mem", "gpu memory", "gpu_mem", "prefix caching", *names)):
        try:
            if not search.find(words):
                yield f"the search does not find {words!r}"
        except ValueError as error:
            yield f"the search for {words!r} fails: {error}"


def main() -> int:
    site = Path(sys.argv[1] if len(sys.argv) > 1 else "build/site")
    if not (site / "index.html").is_file():
        print(f"error: {site} does not hold a built site", file=sys.stderr)
        return 1
    findings = [*find(site), *not_found(site)]
    for finding in findings:
        print(finding, file=sys.stderr)
    print(f"{sum(1 for _ in site.rglob('*.html'))} pages, {len(findings)} findings")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
