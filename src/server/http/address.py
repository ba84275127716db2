"""The address a server listens on: a TCP port or a Unix socket, bound before anything is loaded.

Bound, but not yet listening: a port in use is found immediately, the port stays reserved while the weights load, and
clients that connect meanwhile are refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat

from .port_owner import port_owner


class CannotListen(Exception):
    """The address cannot be bound. `reason`: the error text of the operating system."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot listen on {address}: {reason}")
        self.address = address
        self.reason = reason

    @property
    def is_in_use(self) -> bool:
        """Whether another process has the address."""
        return self.reason.startswith(os.strerror(errno.EADDRINUSE).lower())


def take_address(host: str, port: int, uds: str | None = None) -> list[socket.socket]:
    """Bind the Unix socket if `uds` is set, else the TCP port. Raises CannotListen."""
    return bind(host, port) if uds is None else [UnixSocket(uds)]


def bind(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of the host. Port 0 chooses a free port. Raises CannotListen."""
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # a host with IPv4 and IPv6 addresses gets a socket for each
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            # Two sockets with SO_REUSEADDR may bind one address while neither listens: cleared until this one listens.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            sock.setblocking(False)
    except OSError as error:
        for sock in sockets:
            sock.close()
        reason = reason_of(error)
        if error.errno == errno.EADDRINUSE and (owner := port_owner(port)) is not None:
            reason += f" by process {owner[0]} ({owner[1]})"
        raise CannotListen(f"{host}:{port}", reason) from None
    return sockets


def shown(sock: socket.socket) -> str:
    """The address as text."""
    name = sock.getsockname()
    return str(name) if isinstance(name, str) else f"{name[0]}:{name[1]}"


def reason_of(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


class UnixSocket(socket.socket):
    """A Unix socket with exclusive use of its path. Closing it removes the file.

    A lock file distinguishes a server that is still starting from one that was killed: a client that connects is
    refused by both.
    """

    def __init__(self, path: str) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = path
        self._lock: int | None = None
        self._inode: int | None = None
        try:
            self._lock = _lock(f"{path}.lock")
            _remove_stale(path)
            self.bind(path)
            self._inode = os.stat(path).st_ino
            self.setblocking(False)
        except OSError as error:
            self.close()
            raise CannotListen(path, reason_of(error)) from None
        except CannotListen:
            self.close()
            raise

    def close(self) -> None:
        super().close()
        lock, self._lock = self._lock, None
        if lock is None:
            return
        with contextlib.suppress(OSError):
            if self._inode is not None and os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        with contextlib.suppress(OSError):
            os.unlink(f"{self._path}.lock")
        os.close(lock)


def _lock(path: str) -> int:
    while True:
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_ino == os.stat(path).st_ino:
                return lock
        except BlockingIOError:
            os.close(lock)
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)) from None
        except FileNotFoundError:
            pass  # removed by its last owner between open and stat: try again
        os.close(lock)


def _remove_stale(path: str) -> None:
    """Remove the socket of a killed server. Raises CannotListen if it is in use, or if the file is not a socket."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise CannotListen(path, "a file with this name exists and is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise CannotListen(path, os.strerror(errno.EADDRINUSE).lower())
