"""The kernel's memory policy of a thread: the NUMA node that its memory comes from. Linux only.

It is inherited by the threads and processes that the thread starts, and kept by `execve`. The calls are made through
libc's `syscall`: libnuma would be a library to install for three of them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from dataclasses import dataclass

_GENERIC = {"get": 236, "set": 237}  # of architectures that share the kernel's table of calls
_NUMBERS = {"x86_64": {"get": 239, "set": 238}, "aarch64": _GENERIC, "riscv64": _GENERIC}
_BIND = 2  # MPOL_BIND: from these nodes only, see docs/design/decisions/0046
_MODES = 0x1FFF  # the bits above are flags, such as that of numactl --balancing
_NO_MODE = _MODES  # that the kernel does not know
_MAX_NODES = 1024  # the kernel's own limit
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
_Mask = ctypes.c_ulong * (_MAX_NODES // _WORD_BITS)


@dataclass(frozen=True, slots=True)
class Policy:
    mode: int  # with its flags
    nodes: frozenset[int]


def policy() -> Policy:
    """Memory policy of this thread. Raises OSError."""
    mode, mask = ctypes.c_int(), _Mask()
    _call("get", ctypes.byref(mode), mask, _MAX_NODES + 1, None, 0)
    nodes = (node for node in range(_MAX_NODES) if mask[node // _WORD_BITS] >> node % _WORD_BITS & 1)
    return Policy(mode.value, frozenset(nodes))


def set_policy(policy: Policy) -> None:
    """Set the memory policy of this thread, and of threads that it starts. Raises OSError."""
    mask = _Mask()
    for node in policy.nodes:
        mask[node // _WORD_BITS] |= 1 << node % _WORD_BITS
    _call("set", policy.mode, mask, _MAX_NODES + 1)


def bind_memory(node: int) -> None:
    """All further memory of this thread, and of threads that it starts, comes from this node. Raises OSError."""
    set_policy(Policy(_BIND, frozenset({node})))


def bound_nodes() -> set[int] | None:
    """The nodes that the memory of this thread must come from; None without such a limit."""
    try:
        found = policy()
    except OSError:
        return None
    return set(found.nodes) if found.mode & _MODES == _BIND else None


def why_no_policy() -> str:
    """Why this process can set no memory policy; empty if it can. Nothing is changed."""
    try:
        _call("set", _NO_MODE, None, 0)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the kernel has looked at the mode, so the call is permitted
            return (error.strerror or str(error)).lower()
    return ""


def _call(name: str, *arguments: object) -> None:
    """Raises OSError."""
    numbers = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
    if numbers is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    given = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments]
    if ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(numbers[name]), *given) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
