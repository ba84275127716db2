"""API keys: which one a request sent, what it may call, and until when it is valid.

A key is required on every route except the probes and routes that the deployment opens. The keys of `server.api_key`
have no name and may call everything; the keys of `server.api_keys_file` have a name, scopes and limits (keys_file.py).
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Literal, get_args

from ...config import ServerConfig
from ..protocol.errors import ApiError

Scope = Literal["inference", "read", "metrics", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
_INCLUDED: dict[Scope, frozenset[Scope]] = {
    "inference": frozenset({"inference", "read"}),  # clients list the models before they ask one
    "read": frozenset({"read"}),
    "metrics": frozenset({"metrics"}),
    "admin": frozenset(SCOPES),
}
_PROBES = frozenset({"/health", "/livez", "/readyz", "/ping"})


def open_paths(settings: ServerConfig) -> frozenset[str]:
    """Paths that need no key: the probes and `server.routes_without_key`."""
    return _PROBES.union(settings.routes_without_key)


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits of all requests with keys of one name. None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """One accepted key.

    name: shown in logs and metrics; None for a key of `server.api_key`.
    digest: SHA-256 of the secret.
    expires_at: seconds since 1970; None is never.
    """

    name: str | None
    digest: bytes
    scopes: frozenset[Scope] = frozenset({"admin"})
    limits: KeyLimits = KeyLimits()
    expires_at: float | None = None

    def may(self, scope: Scope) -> bool:
        return any(scope in _INCLUDED[held] for held in self.scopes)


def digest_of(secret: str | bytes) -> bytes:
    return hashlib.sha256(secret.encode() if isinstance(secret, str) else secret).digest()


class Keys:
    """The accepted keys. Stores digests only, and compares them in constant time."""

    def __init__(
        self,
        unnamed: Sequence[str],
        named: Sequence[Key] = (),
        open_paths: Set[str] = _PROBES,
        *,
        open_pages: Set[str] = frozenset(),
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """
        unnamed: the secrets of `server.api_key`.
        open_pages: paths that need no key to be read, such as the web page; another route may have the same path.
        """
        self._open_paths, self._open_pages = open_paths, open_pages
        self._wall_clock = wall_clock
        self._unnamed = [Key(None, digest_of(secret)) for secret in unnamed]
        # To guess a key from a salt is to guess all keys at once, and each guess takes long.
        joined = b"".join(sorted(key.digest for key in self._unnamed))
        self._cache_secret = hashlib.scrypt(joined, salt=b"stoker cache salt", n=1 << 14, r=8, p=1) if joined else b""
        self.replace(named)

    def replace(self, named: Sequence[Key]) -> None:
        """Accept these named keys from now on, instead of the previous ones."""
        self._keys = [*self._unnamed, *named]
        self._are_needed = bool(self._keys) or getattr(self, "_are_needed", False)  # an emptied file opens nothing

    def is_needed(self, path: str, method: str) -> bool:
        """Whether a request to this path needs a key."""
        is_open = path in self._open_paths or (path in self._open_pages and method in ("GET", "HEAD"))
        return self._are_needed and not is_open

    def check(self, path: str, headers: Sequence[tuple[bytes, bytes]], method: str = "GET") -> Key | None:
        """The key that was sent; None if none is needed. Raises ApiError 401.

        path: as the router sees it, never rebuilt from headers.
        """
        if not self.is_needed(path, method):
            return None
        digest = digest_of(_sent(headers))
        matches = [
            key for key in self._keys if hmac.compare_digest(digest, key.digest)
        ]  # compares with every key, whichever matches
        if not matches:
            raise _refused("unknown API key")
        key = matches[0]
        if key.expires_at is not None and self._wall_clock() >= key.expires_at:
            raise _refused("this API key has expired")
        return key

    def index(self, key: Key) -> int:
        """Index in `server.api_key` of a key without a name."""
        return self._unnamed.index(key)

    def owner(self, key: Key | None) -> str:
        """Owner of a key's files, which all keys of one name share; "" without keys."""
        if key is None:
            return ""
        return (key.digest if key.name is None else digest_of(f"name {key.name}")).hex()

    def of_owner(self, owner: str) -> Key | None:
        """A key of this owner, for work that goes on after its request. Raises ApiError 401 if there is none left."""
        if not owner:
            return None
        now = self._wall_clock()
        for key in self._keys:
            if self.owner(key) == owner and (key.expires_at is None or now < key.expires_at):
                return key
        raise _refused("the API key of this batch is not valid any more")

    def cache_salt(self, key: Key | None) -> str:
        """Separates the prefix caches of several keys: else response times would show what other keys have sent.

        Keys of one name share a cache, so that it is kept when one replaces another. Prefill servers get the salt, and
        it must not be of use to guess a key. Servers with the same keys, which may share stored blocks, have the same.
        """
        if len(self._keys) < 2:
            return ""
        return hmac.digest(self._cache_secret, self.owner(key).encode(), "sha256").hex()


def check_scope(key: Key | None, scope: Scope, route: str) -> None:
    """Raises ApiError 403 if the key may not call a route of this scope."""
    if key is not None and not key.may(scope):
        held = ", ".join(sorted(key.scopes))
        message = f"{route} needs a key with the scope `{scope}`; the key {key.name!r} has: {held}"
        raise ApiError(403, message, code="insufficient_scope", kind="permission_error")


def _sent(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The secret, from Authorization or from the header that Anthropic's clients send. Raises ApiError 401."""
    bearers = [value for name, value in headers if name == b"authorization"]
    plain = [value.strip() for name, value in headers if name == b"x-api-key"]
    if len(bearers) > 1 or len(plain) > 1:
        raise _refused("the request has more than one API key")
    secrets = set(plain)
    if bearers:
        scheme, _, secret = bearers[0].partition(b" ")
        if scheme.lower() != b"bearer":
            raise _refused("send an API key as `Authorization: Bearer KEY` or `x-api-key: KEY`")
        secrets.add(secret.strip())
    if not secrets:
        raise _refused("send an API key as `Authorization: Bearer KEY` or `x-api-key: KEY`")
    if len(secrets) > 1:
        raise _refused("`Authorization` and `x-api-key` have different keys: send one of them")
    return secrets.pop()


def _refused(message: str) -> ApiError:
    # LiteLLM takes an `invalid_request_error` for a wrong request, whatever the status.
    return ApiError(
        401, message, code="invalid_api_key", kind="authentication_error", headers={"www-authenticate": "Bearer"}
    )
