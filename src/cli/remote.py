"""Client of a running server for the verbs: its models and streamed answers. Uses the standard library only."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from .console import print_message
from .defaults import DEFAULT_URL

CONNECT_LIMIT_S = 10.0
ANSWER_LIMIT_S = 600.0  # for the next part of an answer: the request may be queued
KEY_VARIABLE = "OPENAI_API_KEY"


class RemoteError(Exception):
    """The server cannot be reached or refused; the message is one line for the user."""


class Remote:
    def __init__(self, url: str, api_key: str | None = None) -> None:
        """url: base URL of the API, such as http://localhost:8000/v1. api_key: else from OPENAI_API_KEY."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RemoteError(f"--url {url}: expected a URL such as {DEFAULT_URL}")
        self._url = url.rstrip("/")
        self._address = parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        self._connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._api_key = api_key or os.environ.get(KEY_VARIABLE)

    def read(self, path: str) -> dict[str, Any]:
        """The body of a GET. Raises RemoteError."""
        with self._request("GET", path, None) as response:
            return _json(response.read())

    def command(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer to a POST, by default of an empty object. Raises RemoteError."""
        with self._request("POST", path, body or {}) as response:
            return _json(response.read())

    def first_model(self) -> str:
        """The first one that the server lists."""
        models = self.read("/models").get("data") or []
        if not models:
            raise RemoteError(f"{self._url} serves no model")
        return str(models[0]["id"])

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The first choice of each event of a streamed answer. Raises RemoteError, also in the middle."""
        for event in self.events(path, body):
            if event.get("choices"):
                yield event["choices"][0]

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Each event of a streamed answer. Raises RemoteError, also in the middle."""
        with self._request("POST", path, {**body, "stream": True}) as response:
            ended = False
            for line in _lines(response):
                if not line.startswith(b"data:"):
                    continue
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    ended = True
                    break
                event = _json(data)
                if "error" in event:
                    raise RemoteError(str(event["error"].get("message", "the server reported an error")))
                yield event
            if not ended:
                raise RemoteError("the server closed the connection before the answer was complete")

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json", "Connection": "close"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        payload = None
        if body is not None:
            payload = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        connection = self._connect(*self._address, timeout=CONNECT_LIMIT_S)
        try:
            connection.connect()
            connection.sock.settimeout(ANSWER_LIMIT_S)
            connection.request(method, self._path + path, payload, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise RemoteError(f"cannot reach {self._url}: {str(reason).lower()}") from None
        if response.status == 200:
            return response
        with response:
            raise RemoteError(_refusal(response))


def connect(url: str, model_name: str | None, api_key: str | None) -> tuple[Remote, str] | None:
    """The server and the model to ask: the given one, or its first. None after an error message."""
    try:
        remote = Remote(url, api_key)
        return remote, model_name or remote.first_model()
    except RemoteError as error:
        print_message(f"error: {error}")
        return None


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        yield from response
    except (OSError, http.client.HTTPException):
        return  # reported as the missing end of the stream


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        raise RemoteError("the server answered something that is not JSON") from None
    return value if isinstance(value, dict) else {}


def _refusal(response: http.client.HTTPResponse) -> str:
    try:
        message = json.loads(response.read())["error"]["message"]
    except (ValueError, KeyError, TypeError, OSError):
        message = response.reason
    return f"the server answered {response.status}: {message}"
