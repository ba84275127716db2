"""The storage of the guide to own connectors: a web server that takes PUT and GET, and the files that it shows."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

GUIDE = Path(__file__).parents[1] / "docs" / "guide" / "kv-connector.md"
MODULE = "own_stores"


def shown(language: str) -> str:
    """The file of this language in the guide."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    return str(text)


class Storage(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.stored: dict[str, bytes] = {}
        self.url = f"http://127.0.0.1:{self.server_port}/kv"


class _Handler(BaseHTTPRequestHandler):
    server: Storage

    def do_GET(self) -> None:
        content = self.server.stored.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def do_PUT(self) -> None:
        self.server.stored[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None: ...


@contextmanager
def storage() -> Iterator[Storage]:
    with Storage() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
