"""The address a server listens on: a TCP port or a Unix socket, taken before anything is loaded.

Taken, but not yet listening: a port in use is known at once, stays ours while the weights load, and refuses clients.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat


class CannotListen(Exception):
    """The address cannot be had; `reason` is the system's word for why."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot listen on {address}: {reason}")
        self.address = address
        self.reason = reason


def take_address(host: str, port: int, uds: str | None = None) -> list[socket.socket]:
    """The Unix socket if there is one, else the TCP port. Raises CannotListen."""
    return bind(host, port) if uds is None else [UnixSocket(uds)]


def bind(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of the host. Port 0 takes a free one. Raises CannotListen."""
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # a name that has both kinds of address gets a socket for each
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            # Two sockets that both reuse may bind one address as long as none listens: until then nobody else may.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            sock.setblocking(False)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise CannotListen(f"{host}:{port}", reason_of(error)) from None
    return sockets


def shown(sock: socket.socket) -> str:
    """The address for people."""
    name = sock.getsockname()
    return str(name) if isinstance(name, str) else f"{name[0]}:{name[1]}"


def reason_of(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


class UnixSocket(socket.socket):
    """A Unix socket that is ours alone while it is open; its file goes when it is closed.

    A lock file beside it tells a server that is still starting from one that was killed: to a client who tries, both
    refuse alike.
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
            pass  # its last owner removed it between our two steps: again
        os.close(lock)


def _remove_stale(path: str) -> None:
    """Remove what a killed server left behind. Raises CannotListen for what is no socket, or alive."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise CannotListen(path, "there is a file of this name that is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise CannotListen(path, os.strerror(errno.EADDRINUSE).lower())
