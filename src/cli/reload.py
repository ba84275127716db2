"""`engine reload`: a running server reads its keys file again."""

from __future__ import annotations

from urllib.parse import urlsplit

from .console import print_message, print_result
from .remote import Remote, RemoteError


def run(url: str, *, api_key: str | None) -> int:
    """url: of the API, as for the other verbs that ask a server; its path is not used. Returns the exit code."""
    parts = urlsplit(url)
    try:
        answer = Remote(f"{parts.scheme}://{parts.netloc}", api_key).command("/reload")
    except RemoteError as error:
        print_message(f"error: {error}")
        return 1
    print_result(f"the server uses the {answer.get('num_keys', 0)} keys of its file")
    return 0
