"""GET / and /docs, the built-in web page, and GET /page/{name}, the files that it consists of."""

from __future__ import annotations

from collections.abc import Iterator

from ...config.schema.server import ServerConfig
from ..endpoint import Call
from ..page.files import FOLDER, HEADERS, PageFile, asset, document, page_paths
from .route_entry import RouteEntry


async def page(call: Call) -> None:
    settings, abilities = call.service.settings, call.service.abilities
    has_page, has_docs = not settings.disable_web_page, not settings.disable_docs
    found = document(abilities=abilities, has_page=has_page, has_docs=has_docs)
    await _answer(call, found)


async def page_asset(call: Call) -> None:
    await _answer(call, asset(call.scope["path"].removeprefix(f"{FOLDER}/")))


def assets(settings: ServerConfig) -> Iterator[RouteEntry]:
    """One entry for each file of the page, so that a path can name nothing else. They are not part of the API."""
    for path in page_paths(settings):
        if path.startswith(f"{FOLDER}/"):
            yield RouteEntry("GET", path, page_asset, "A file of the web page.", scope="read")


async def _answer(call: Call, found: PageFile) -> None:
    headers = {**HEADERS, "etag": found.tag}
    if (b"if-none-match", found.tag.encode()) in call.scope["headers"]:
        await call.answer(b"", status=304, headers=headers, content_type=found.content_type)
    else:
        await call.answer(found.content, headers=headers, content_type=found.content_type)
