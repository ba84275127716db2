"""The URL of a server, from the address that it listens on."""

from __future__ import annotations


def base_url(host: str, port: int, *, is_tls: bool = False) -> str:
    """The URL for a client on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if is_tls else 'http'}://{name}" + (f":{port}" if port else "")
