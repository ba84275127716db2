"""API keys, required on every route except the probes and those that the deployment opens."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence, Set

from ..config import ServerConfig
from .protocol.errors import ApiError

_PROBES = frozenset({"/health", "/livez", "/readyz", "/ping"})


def open_paths(settings: ServerConfig) -> frozenset[str]:
    """Paths that need no key: the probes, and those of `server.routes_without_key`."""
    return _PROBES.union(settings.routes_without_key)


class Keys:
    """The accepted keys. Stores digests only, and compares them in constant time."""

    def __init__(self, keys: Sequence[str], open_paths: Set[str] = _PROBES) -> None:
        self._open_paths = open_paths
        self._digests = [_digest(key.encode()) for key in keys]

    def check(self, path: str, headers: Sequence[tuple[bytes, bytes]]) -> int | None:
        """Index of the key that was sent; None if none is needed. Raises ApiError 401.

        path: as the router sees it, never rebuilt from headers.
        """
        if not self._digests or path in self._open_paths:
            return None
        sent = [value for name, value in headers if name == b"authorization"]
        scheme, _, key = sent[0].partition(b" ") if len(sent) == 1 else (b"", b"", b"")
        if scheme.lower() != b"bearer":
            raise _refused("send an API key as `Authorization: Bearer KEY`")
        digest = _digest(key.strip())
        matches = [
            hmac.compare_digest(digest, known) for known in self._digests
        ]  # compares with every key, whichever matches
        if not any(matches):
            raise _refused("unknown API key")
        return matches.index(True)

    def cache_salt(self, index: int | None) -> str:
        """Separates the prefix caches of several keys: else response times would show what other keys have sent."""
        return "" if index is None or len(self._digests) < 2 else self._digests[index].hex()


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _refused(message: str) -> ApiError:
    # LiteLLM takes an `invalid_request_error` for a wrong request, whatever the status.
    return ApiError(
        401, message, code="invalid_api_key", kind="authentication_error", headers={"www-authenticate": "Bearer"}
    )
