"""GET / and /docs, the built-in web page, and GET /page/{name}, the files that it consists of."""

from __future__ import annotations

from collections.abc import Iterator

from ...config.schema.server import ServerConfig
from ..endpoint import Call
from ..page.files import FOLDER, HEADERS, PageFile, asset, document, page_paths
from ..service import Service
from .route_entry import RouteEntry


async def page(call: Call) -> None:
    await _answer(call, document(tuple(_views(call.service))))


async def page_asset(call: Call) -> None:
    await _answer(call, asset(call.scope["path"].removeprefix(f"{FOLDER}/")))


def assets(settings: ServerConfig) -> Iterator[RouteEntry]:
    """One entry for each file of the page, so that a path can name nothing else. They are not part of the API."""
    for path in page_paths(settings):
        if path.startswith(f"{FOLDER}/"):
            yield RouteEntry("GET", path, page_asset, "A file of the web page.", scope="read")


def _views(service: Service) -> Iterator[str]:
    """Views for what the model can do come first."""
    if not service.settings.disable_web_page:
        if "generate" in service.abilities:
            yield "chat"
        if "score" in service.abilities:
            yield "similarity"
        yield from ("live", "config")
    if not service.settings.disable_docs:
        yield "docs"


async def _answer(call: Call, found: PageFile) -> None:
    headers = {**HEADERS, "etag": found.tag}
    if (b"if-none-match", found.tag.encode()) in call.scope["headers"]:
        await call.answer(b"", status=304, headers=headers, content_type=found.content_type)
    else:
        await call.answer(found.content, headers=headers, content_type=found.content_type)
