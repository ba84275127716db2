"""Web sites as attackers: which sites' pages may change something here, and the names that lead to this server.

A browser sends what any page asks it to send. It hides the answer from pages of other sites, but what the request does
is done. Browsers say where a request comes from: in `Sec-Fetch-Site`, which they omit over plain HTTP to another host
than localhost, and in `Origin`. Pages cannot change either. Other programs send neither.

A page can also give its own name the address of this machine (DNS rebinding): for the browser this server is then a
part of that site. Only `Host` shows it. A server that asks for no key and listens on a loopback address must therefore
be called by a name of this machine.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import MutableMapping, Sequence
from typing import Any

from ...config import ServerConfig
from ...config.loopback import is_loopback
from ..protocol.errors import ApiError

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})  # no route of these changes anything
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(?::\d{1,5})?")
_DEFAULT_PORT = re.compile(r":(?:80|443)$")


class Sites:
    def __init__(self, server: ServerConfig) -> None:
        self._origins = frozenset(server.allowed_origins)
        has_keys = bool(server.api_key) or server.api_keys_file is not None
        is_private = server.uds is None and is_loopback(server.host) and not has_keys
        listed = frozenset(name.lower() for name in server.allowed_hosts)
        self._checks_host = "*" not in listed and bool(listed or is_private)
        self._names = listed | {"localhost", server.host.strip("[]").lower()}
        self._takes_any_address = not is_loopback(server.host)

    def check(self, scope: MutableMapping[str, Any]) -> None:
        """Raises ApiError 403."""
        if self._checks_host:
            self._check_host(_values(scope, b"host"))
        if scope["method"] not in _SAFE_METHODS and "*" not in self._origins:
            self._check_origin(scope)

    def _check_host(self, sent: Sequence[str]) -> None:
        for value in sent:  # browsers send one
            found = _HOST.fullmatch(value)
            if found is None or not self._is_own(found[1].strip("[]").lower()):
                message = f"this server is not called {value[:100]!r} (`server.allowed_hosts`)"
                raise ApiError(403, message, code="host_not_allowed", kind="permission_error")

    def _is_own(self, name: str) -> bool:
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        # an address cannot be rebound, and which ones lead to a server of the network is not known here
        return self._takes_any_address or address.is_loopback

    def _check_origin(self, scope: MutableMapping[str, Any]) -> None:
        origins, relations = _values(scope, b"origin"), _values(scope, b"sec-fetch-site")
        if origins and all(origin in self._origins for origin in origins):
            return
        if relations:
            is_own = all(relation in ("same-origin", "none") for relation in relations)
        else:
            hosts = [_DEFAULT_PORT.sub("", host.lower()) for host in _values(scope, b"host")]
            is_own = all(_DEFAULT_PORT.sub("", origin.lower().partition("://")[2]) in hosts for origin in origins)
        if not is_own:
            message = "web pages of other sites may change nothing here (`server.allowed_origins`)"
            raise ApiError(403, message, code="cross_origin_refused", kind="permission_error")


def _values(scope: MutableMapping[str, Any], name: bytes) -> list[str]:
    return [value.decode("latin-1") for found, value in scope["headers"] if found == name]
