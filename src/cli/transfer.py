"""Files of a batch at a URL: read with GET, written with PUT."""

from __future__ import annotations

import http.client
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

TIMEOUT_S = 60.0  # for the next piece
UPLOAD_ATTEMPTS = 3


class TransferError(Exception):
    """The message is one line for the user."""


def is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def shown(url: str) -> str:
    """The URL without query and user, which may contain signatures and passwords."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def download(url: str, target: BinaryIO) -> None:
    """Raises TransferError."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            shutil.copyfileobj(response, target)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise TransferError(f"cannot read {shown(url)}: {_reason(error)}") from None


def upload(path: Path, url: str, *, wait: Callable[[float], None] = time.sleep) -> None:
    """Retries after errors of the server. Raises TransferError."""
    for attempt in range(1, UPLOAD_ATTEMPTS + 1):
        with path.open("rb") as file:
            headers = {"Content-Type": "application/jsonl", "Content-Length": str(path.stat().st_size)}
            request = urllib.request.Request(url, data=file, headers=headers, method="PUT")
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                    return
            except (OSError, http.client.HTTPException, ValueError) as error:
                is_final = isinstance(error, urllib.error.HTTPError) and error.code < 500
                reason = _reason(error)
        if is_final or attempt == UPLOAD_ATTEMPTS:
            raise TransferError(f"cannot write {shown(url)}: {reason}")
        wait(2.0**attempt)


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"the server answered {error.code} {error.reason}"
    cause = getattr(error, "reason", error)
    return str(getattr(cause, "strerror", None) or cause or type(error).__name__).lower()
