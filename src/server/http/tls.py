"""TLS: the server's certificate, verification of client certificates, and reloading of the files."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from dataclasses import dataclass
from typing import Any

from ...config import ServerConfig
from ...input_file import read_file
from ...logs import HTTP_LOGGER
from .address import reason_of

WATCH_INTERVAL_S = 1.0
_MAX_PEM_BYTES = 4 << 20  # a bundle of all public authorities has 0.3 MB
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_KEY = b"PRIVATE KEY-----"
_ENCRYPTED = (b"-----BEGIN ENCRYPTED PRIVATE KEY-----", b"Proc-Type: 4,ENCRYPTED")
logger = logging.getLogger(HTTP_LOGGER)


class TlsProblem(Exception):
    """A key or certificate that cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files. client_certificates: 0 not requested, 1 verified if the client sends one, 2 required.

    ciphers: of TLS 1.2, as a list for OpenSSL; None is Python's selection.
    """

    certificate: str
    key: str
    authorities: str | None = None
    client_certificates: int = 0
    ciphers: str | None = None

    @classmethod
    def of(cls, server: ServerConfig) -> TlsFiles | None:
        """Files of TLS; None if the deployment uses plain HTTP."""
        if server.ssl_certfile is None or server.ssl_keyfile is None:
            return None
        return cls(
            certificate=server.ssl_certfile,
            key=server.ssl_keyfile,
            authorities=server.ssl_ca_certs,
            client_certificates=server.ssl_cert_reqs,
            ciphers=server.ssl_ciphers,
        )

    @property
    def state(self) -> list[tuple[int, int, int] | None]:
        """Changes when a file is written or replaced; symbolic links are followed."""
        found: list[tuple[int, int, int] | None] = []
        for path in (self.certificate, self.key, self.authorities):
            try:
                status = os.stat(path) if path is not None else None
            except OSError:
                status = None
            found.append(status and (status.st_ino, status.st_size, status.st_mtime_ns))
        return found


class _ReloadableContext(ssl.SSLContext):
    """Starts each connection with the newest context. Each version of the files gets a new context.

    Loading changed files into an existing context could leave it with parts of both versions. Choosing the context
    during the handshake would be too late: a resumed TLS 1.2 session is not verified against the changed files.
    """

    newest: ssl.SSLContext

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.newest.wrap_bio(*args, **kwargs)


class Tls:
    """`context` is for the listener; each handshake uses the newest valid files. Raises TlsProblem."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = files.state
        self.context = _ReloadableContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.newest = load_context(files)

    async def watch(self) -> None:
        """Reload the files whenever they change. Invalid files are reported, and the previous ones remain in use."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            state = self._files.state
            if state == self._seen:
                continue
            self._seen = state
            try:
                self.context.newest = load_context(self._files)
            except TlsProblem as problem:
                logger.error("the changed TLS files are invalid, the previous ones remain in use: %s", problem)
            else:
                logger.info("new connections use the changed TLS files")


def load_context(files: TlsFiles) -> ssl.SSLContext:
    """Raises TlsProblem with the option and the file."""
    certificate = _read(files.certificate, "ssl_certfile")
    key = _read(files.key, "ssl_keyfile")
    if _CERTIFICATE not in certificate:
        raise TlsProblem(f"`server.ssl_certfile`: {files.certificate} contains no PEM certificate")
    if _KEY not in key:
        raise TlsProblem(f"`server.ssl_keyfile`: {files.key} contains no PEM private key")
    if any(mark in key for mark in _ENCRYPTED):
        hint = "the server cannot ask for it: store the key without one, readable by this user only"
        raise TlsProblem(f"`server.ssl_keyfile`: {files.key} is encrypted with a passphrase, and {hint}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.ciphers is not None:
        try:
            context.set_ciphers(files.ciphers)
        except ssl.SSLError:
            problem = "contains no cipher suite that OpenSSL has for TLS 1.2; `openssl ciphers` lists them"
            raise TlsProblem(f"`server.ssl_ciphers`: {files.ciphers!r} {problem}") from None
    context.set_alpn_protocols(["http/1.1"])
    # No session tickets: a resumed session skips the verification of the client certificate.
    context.options |= ssl.OP_NO_TICKET
    # A client of TLS 1.2 could ask for handshake after handshake, which cost the server more than it.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    try:
        context.load_cert_chain(files.certificate, files.key)
    except (ssl.SSLError, OSError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            problem = f"is not the key of the first certificate in {files.certificate}"
        else:
            problem = f"cannot be used with {files.certificate}: {_reason(error)}"
        raise TlsProblem(f"`server.ssl_keyfile`: {files.key} {problem}") from None
    if files.authorities is not None:
        _read(files.authorities, "ssl_ca_certs")
        try:
            context.load_verify_locations(files.authorities)
        except (ssl.SSLError, OSError):
            raise TlsProblem(f"`server.ssl_ca_certs`: {files.authorities} contains no PEM certificate") from None
    context.verify_mode = ssl.VerifyMode(files.client_certificates)
    return context


def _read(path: str, option: str) -> bytes:
    try:
        return read_file(path, _MAX_PEM_BYTES)
    except OSError as error:
        raise TlsProblem(f"`server.{option}`: {path}: {reason_of(error)}") from None


def _reason(error: OSError) -> str:
    reason: str = getattr(error, "reason", "") or "OpenSSL cannot read it"
    return reason.lower().replace("_", " ")
