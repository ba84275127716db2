"""The files of the built-in web page: which path serves which file, and the headers that each is sent with.

The page is plain HTML, CSS and ES modules. It contains nothing about the deployment, so it needs no key; what it shows
comes from routes that do. `/` and `/docs` are one document; an attribute of it lists the views of the deployment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ...config.schema.server import ServerConfig

FOLDER = "/page"  # path of the files that the document names
DOCUMENT = "index.html"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# 'none' for trusted-types: no script of the page can turn a string into HTML, whatever a model writes.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    content: bytes
    content_type: str
    tag: str  # ETag: changes with the content


def page_paths(settings: ServerConfig) -> Iterator[str]:
    """Every path of the page in this deployment. None needs a key."""
    if not settings.disable_web_page:
        yield "/"
    if not settings.disable_docs:
        yield "/docs"
    if not (settings.disable_web_page and settings.disable_docs):
        names = sorted(each.name for each in files(__package__).iterdir() if _ending(each.name) in _TYPES)
        yield from (f"{FOLDER}/{name}" for name in names)


@cache
def asset(name: str) -> PageFile:
    return _page_file(files(__package__).joinpath(name).read_bytes(), _TYPES[_ending(name)])


@cache
def document(views: tuple[str, ...]) -> PageFile:
    """The document, with the views that it offers, of which the first one is shown."""
    text = files(__package__).joinpath(DOCUMENT).read_text("utf-8").replace("{views}", " ".join(views))
    return _page_file(text.encode(), "text/html; charset=utf-8")


def _page_file(content: bytes, content_type: str) -> PageFile:
    return PageFile(content, content_type, f'"{hashlib.sha256(content).hexdigest()[:24]}"')


def _ending(name: str) -> str:
    return name[name.rfind(".") :]
