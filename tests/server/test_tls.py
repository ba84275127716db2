"""HTTPS: the server's certificate, client certificates, and replacing the files while the server runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from stoker.server.http import listener, tls
from stoker.server.http.tls import TlsFiles, TlsProblem, load_context

from ..fakes import FakeEngine
from .deployment import on_a_socket
from .test_interruption import until

GET = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n"


@dataclass
class Identity:
    """A certificate and its key in files, and the authority that issued it."""

    certificate: Path
    key: Path
    authority: trustme.CA

    @property
    def options(self) -> dict[str, str]:
        return {"ssl_certfile": str(self.certificate), "ssl_keyfile": str(self.key)}


def issue(authority: trustme.CA, folder: Path, name: str) -> Identity:
    identity = Identity(folder / f"{name}.pem", folder / f"{name}.key", authority)
    issued = authority.issue_cert("localhost")
    identity.certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(identity.key)
    return identity


@pytest.fixture(scope="module")
def authorities() -> tuple[trustme.CA, trustme.CA]:
    return trustme.CA(), trustme.CA()


@pytest.fixture
def ours(authorities: tuple[trustme.CA, trustme.CA], tmp_path: Path) -> Identity:
    return issue(authorities[0], tmp_path, "ours")


@pytest.fixture
def other(authorities: tuple[trustme.CA, trustme.CA], tmp_path: Path) -> Identity:
    return issue(authorities[1], tmp_path, "other")


def client_context(*trusted: Identity, own: Identity | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for identity in trusted:
        identity.authority.configure_trust(context)
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context


async def connect(port: int, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The status line; empty if the connection was cut."""
    try:
        writer.write(GET)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"}")
    except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
        return b""
    return head.split(b"\r\n")[0]


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def call(port: int, context: ssl.SSLContext) -> bytes:
    reader, writer = await connect(port, context)
    answer = await ask(reader, writer)
    await leave(writer)
    return answer


@pytest.mark.effect("server.ssl_keyfile", "server.ssl_certfile")
def test_the_server_uses_https_with_its_certificate_and_no_plain_http(folder: Path, ours: Identity, other: Identity):
    async def run() -> None:
        async with on_a_socket(folder, FakeEngine(), **ours.options) as (port, _):
            assert await call(port, client_context(ours)) == b"HTTP/1.1 200 "
            with pytest.raises(ssl.SSLCertVerificationError):
                await connect(port, client_context(other))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await ask(reader, writer) == b""
            await leave(writer)

    asyncio.run(run())


@pytest.mark.effect("server.ssl_ca_certs", "server.ssl_cert_reqs")
@pytest.mark.parametrize(
    ("requirement", "served"),
    [(0, {"no certificate", "trusted", "untrusted"}), (1, {"no certificate", "trusted"}), (2, {"trusted"})],
    ids=["ignored", "verified", "required"],
)
@pytest.mark.quick_cases(1)
def test_a_client_certificate_is_ignored_verified_or_required(
    folder: Path, tmp_path: Path, ours: Identity, other: Identity, requirement: int, served: set[str]
):
    trusted = tmp_path / "clients.pem"
    ours.authority.cert_pem.write_to_path(trusted)
    certificates = {"no certificate": None, "trusted": ours, "untrusted": other}

    async def run() -> set[str]:
        options = {**ours.options, "ssl_ca_certs": str(trusted), "ssl_cert_reqs": requirement}
        async with on_a_socket(folder, FakeEngine(), **options) as (port, _):
            return {name for name, own in certificates.items() if await call(port, client_context(ours, own=own))}

    assert asyncio.run(run()) == served


@pytest.mark.effect("server.enable_ssl_refresh")
@pytest.mark.parametrize("refreshes", [True, False])
def test_replaced_files_are_used_for_new_connections_and_open_ones_continue(
    folder: Path, ours: Identity, other: Identity, monkeypatch: pytest.MonkeyPatch, refreshes: bool
):
    monkeypatch.setattr(tls, "WATCH_INTERVAL_S", 0.01)

    async def run() -> None:
        context = client_context(ours, other)
        async with on_a_socket(folder, FakeEngine(), **ours.options, enable_ssl_refresh=refreshes) as (port, _):

            async def shown() -> bytes:
                _, writer = await connect(port, context)
                certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
                await leave(writer)
                return certificate

            before = await shown()
            reader, writer = await connect(port, context)
            for mine, theirs in ((ours.certificate, other.certificate), (ours.key, other.key)):
                mine.write_bytes(theirs.read_bytes())
            assert is_running("Tls.watch") == refreshes
            if refreshes:
                async with asyncio.timeout(60):
                    while await shown() == before:
                        await asyncio.sleep(0.01)
            else:
                assert await shown() == before
            assert await ask(reader, writer) == b"HTTP/1.1 200 "
            await leave(writer)

    asyncio.run(run())


@pytest.mark.slow
def test_a_client_is_verified_against_the_replaced_authorities(
    folder: Path, tmp_path: Path, ours: Identity, other: Identity, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tls, "WATCH_INTERVAL_S", 0.01)
    trusted = tmp_path / "clients.pem"
    ours.authority.cert_pem.write_to_path(trusted)
    options = {**ours.options, "ssl_ca_certs": str(trusted), "ssl_cert_reqs": 2, "enable_ssl_refresh": True}

    async def run() -> None:
        context = client_context(ours, own=ours)
        async with on_a_socket(folder, FakeEngine(), **options) as (port, _):
            assert await call(port, context)
            other.authority.cert_pem.write_to_path(trusted)
            async with asyncio.timeout(60):
                while await call(port, context):
                    await asyncio.sleep(0.01)
            assert await call(port, client_context(ours, own=other))

    asyncio.run(run())


@pytest.mark.slow
def test_a_tls_session_cannot_be_resumed_after_its_authority_was_removed(
    folder: Path, tmp_path: Path, ours: Identity, other: Identity, monkeypatch: pytest.MonkeyPatch
):
    """A client with a TLS 1.2 session could connect after its authority had been removed."""
    monkeypatch.setattr(tls, "WATCH_INTERVAL_S", 0.01)
    trusted = tmp_path / "clients.pem"
    ours.authority.cert_pem.write_to_path(trusted)
    options = {**ours.options, "ssl_ca_certs": str(trusted), "ssl_cert_reqs": 2, "enable_ssl_refresh": True}
    context = client_context(ours, own=ours)
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def resumed(port: int, session: ssl.SSLSession | None) -> ssl.SSLSession | None:
        """The session of a call that resumes `session`; None if the server refuses it."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=session) as wrapped,
        ):
            wrapped.sendall(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
            while wrapped.recv(1 << 16):
                pass
            found = wrapped.session
            wrapped.unwrap()
            return found
        return None

    async def run() -> None:
        async with on_a_socket(folder, FakeEngine(), **options) as (port, _):
            session = await asyncio.to_thread(resumed, port, None)
            assert session is not None
            assert await asyncio.to_thread(resumed, port, session) is not None
            other.authority.cert_pem.write_to_path(trusted)
            async with asyncio.timeout(60):
                while await asyncio.to_thread(resumed, port, session) is not None:
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_with_invalid_files_the_previous_ones_remain_in_use(
    folder: Path, ours: Identity, other: Identity, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(tls, "WATCH_INTERVAL_S", 0.01)

    async def run() -> None:
        async with on_a_socket(folder, FakeEngine(), **ours.options, enable_ssl_refresh=True) as (port, _):
            ours.key.write_bytes(other.key.read_bytes())
            await until(lambda: "the previous ones remain in use" in caplog.text)
            assert await call(port, client_context(ours)) == b"HTTP/1.1 200 "

    asyncio.run(run())
    assert "is not the key of the first certificate" in caplog.text
    assert [record.levelno for record in caplog.records if "the previous ones" in record.message] == [logging.ERROR]


def is_running(coroutine: str) -> bool:
    return any(task.get_coro().__qualname__ == coroutine for task in asyncio.all_tasks())


@pytest.mark.slow
def test_a_client_that_does_not_answer_the_tls_shutdown_does_not_delay_the_exit(
    folder: Path, ours: Identity, monkeypatch: pytest.MonkeyPatch
):
    """asyncio's own limit is 30 s."""
    monkeypatch.setattr(listener, "TLS_SHUTDOWN_S", 0.05)

    def silent(port: int) -> ssl.SSLSocket:
        sock = socket.create_connection(("127.0.0.1", port))
        return client_context(ours).wrap_socket(sock, server_hostname="localhost")

    async def run() -> None:
        async with on_a_socket(folder, FakeEngine(), **ours.options, drain_timeout=3600) as (port, shutdown):
            sock = await asyncio.to_thread(silent, port)
            shutdown.request()
            await until(lambda: not is_running("run_server"), limit_s=25)
        sock.close()

    asyncio.run(run())


@pytest.mark.slow
def test_a_client_that_does_not_begin_the_tls_handshake_does_not_delay_the_exit(folder: Path, ours: Identity):
    """asyncio's own limit is 60 s."""

    async def run() -> None:
        async with on_a_socket(folder, FakeEngine(), **ours.options, drain_timeout=3600) as (port, shutdown):
            sock = socket.create_connection(("127.0.0.1", port))
            assert await call(port, client_context(ours))  # the first connection has been accepted by now
            shutdown.request()
            await until(lambda: not is_running("run_server"), limit_s=50)
        sock.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("no certificate file", "`server.ssl_certfile`: {certificate}: no such file or directory"),
        ("no key file", "`server.ssl_keyfile`: {key}: no such file or directory"),
        ("no certificate", "`server.ssl_certfile`: {certificate} contains no PEM certificate"),
        ("no key", "`server.ssl_keyfile`: {key} contains no PEM private key"),
        ("another key", "`server.ssl_keyfile`: {key} is not the key of the first certificate in {certificate}"),
        ("an encrypted key", "`server.ssl_keyfile`: {key} is encrypted with a passphrase"),
        ("an incomplete key", "`server.ssl_keyfile`: {key} cannot be used with {certificate}"),
        ("no authorities", "`server.ssl_ca_certs`: {authorities} contains no PEM certificate"),
    ],
)
def test_files_that_cannot_be_used_are_reported_with_their_option(
    ours: Identity, other: Identity, tmp_path: Path, broken: str, message: str
):
    authorities = tmp_path / "authorities.pem"
    ours.authority.cert_pem.write_to_path(authorities)
    match broken:
        case "no certificate file":
            ours.certificate.unlink()
        case "no key file":
            ours.key.unlink()
        case "no certificate":
            ours.certificate.write_text("nothing")
        case "no key":
            ours.key.write_text("nothing")
        case "another key":
            ours.key.write_bytes(other.key.read_bytes())
        case "an encrypted key":
            ours.key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
        case "an incomplete key":
            ours.key.write_bytes(ours.key.read_bytes()[:60])
        case "no authorities":
            authorities.write_text("nothing")
    files = TlsFiles(certificate=str(ours.certificate), key=str(ours.key), authorities=str(authorities))
    with pytest.raises(TlsProblem) as caught:
        load_context(files)
    paths = {"certificate": ours.certificate, "key": ours.key, "authorities": authorities}
    assert str(caught.value).startswith(message.format_map(paths))


@pytest.mark.effect("server.ssl_ciphers")
@pytest.mark.slow
def test_connections_with_tls_1_2_use_the_named_cipher_suites(folder: Path, ours: Identity):
    suite, others = "ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-RSA-AES128-GCM-SHA256"
    if b"BEGIN EC" in ours.key.read_bytes():
        suite, others = suite.replace("RSA", "ECDSA"), others.replace("RSA", "ECDSA")

    async def run() -> tuple[str, bytes, bytes]:
        async with on_a_socket(folder, FakeEngine(), **ours.options, ssl_ciphers=suite) as (port, _):
            old = client_context(ours)
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            reader, writer = await connect(port, old)
            used = writer.get_extra_info("cipher")[0]
            answer = await ask(reader, writer)
            await leave(writer)
            old.set_ciphers(others)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await connect(port, old)
            reader, writer = await connect(port, client_context(ours))  # TLS 1.3 has its own suites
            newer = await ask(reader, writer)
            await leave(writer)
        return used, answer, newer

    assert asyncio.run(run()) == (suite, b"HTTP/1.1 200 ", b"HTTP/1.1 200 ")


def test_an_unknown_cipher_suite_ends_the_start(ours: Identity):
    files = TlsFiles(certificate=str(ours.certificate), key=str(ours.key), ciphers="none-such")
    with pytest.raises(TlsProblem, match=r"`server.ssl_ciphers`: 'none-such' contains no cipher suite"):
        load_context(files)


def test_a_client_cannot_renegotiate(ours: Identity):
    """OpenSSL 3 refuses it by default, older ones do not."""
    files = TlsFiles(certificate=str(ours.certificate), key=str(ours.key))
    assert load_context(files).options & ssl.OP_NO_RENEGOTIATION
