"""A small server that speaks the hub's protocol: repositories, trees, files with hashes, ranges; and its failures."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

COMMIT = "0f" * 20


class HubServer(ThreadingHTTPServer):
    """One repository, `a/model`. Its .safetensors are large files with SHA-256, the others Git's blobs."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.refusal: tuple[int, str] | None = None  # status and X-Error-Code of every answer
        self.cut_after: dict[str, int] = {}  # file -> bytes after which its first connection breaks
        self.damaged: Counter[str] = Counter()  # file -> how many times it is sent with wrong bytes
        self.ranges: list[tuple[str, str | None]] = []  # file and Range of each transfer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def blob_hash(self, name: str) -> str:
        data = self.files[name]
        if name.endswith(".safetensors"):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.server
        path = self.path.split("?")[0]
        if hub.refusal is not None:
            self._send(hub.refusal[0], b"{}", {"X-Error-Code": hub.refusal[1]})
        elif path.startswith("/api/models/a/model/revision/"):
            siblings = [{"rfilename": name} for name in hub.files]
            self._send(200, json.dumps({"id": "a/model", "sha": COMMIT, "siblings": siblings}).encode())
        elif path.startswith("/api/models/a/model/tree/"):
            self._send(200, json.dumps([self._entry(name) for name in hub.files]).encode())
        elif (name := path.removeprefix(f"/a/model/resolve/{COMMIT}/")) in hub.files:
            self._file(name)
        else:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})

    def _entry(self, name: str) -> dict[str, object]:
        digest, size = self.server.blob_hash(name), len(self.server.files[name])
        entry: dict[str, object] = {"type": "file", "path": name, "size": size, "oid": digest[:40]}
        return entry | ({"lfs": {"oid": digest, "size": size, "pointerSize": 134}} if len(digest) == 64 else {})

    def _file(self, name: str) -> None:
        hub, data = self.server, self.server.files[name]
        headers = {"ETag": f'"{hub.blob_hash(name)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if self.command == "HEAD":
            self._send(200, data, headers)
            return
        wanted = self.headers.get("Range")
        hub.ranges.append((name, wanted))
        if hub.damaged[name]:
            hub.damaged[name] -= 1
            data = bytes(len(data))
        begin = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
        if wanted:
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        self._send(206 if wanted else 200, data[begin:], headers, hub.cut_after.pop(name, None))

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:cut])
        self.close_connection = cut is not None


@contextmanager
def hub_server(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """The server, which huggingface_hub takes for the hub as with HF_ENDPOINT (which it reads when it is imported)."""
    from huggingface_hub import constants

    server = HubServer(files)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
