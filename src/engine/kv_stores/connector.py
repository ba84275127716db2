"""Connector: a class of the user's own that stores KV blocks, anywhere (`kv_transfer.kv_connector`).

It stores bytes by key, and has no part in models, layers or tokens. The engine decides what is stored and read,
checks what it gets (connector_store.py), and computes what it does not get. Example: docs/guide/kv-connector.md.
A StoreClass takes these decisions itself, as packages/stoker-lmcache does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...config import Resolved
from ..core.block_store import BlockStore
from ..plugins import check_members, check_settings, import_class, make, named_by

MEMBERS = ("load", "save", "close")
_SECTION, _OPTION, _SETTINGS = "kv_transfer", "kv_transfer.kv_connector", "kv_connector_extra_config"


class Connector(Protocol):
    """Stores blocks outside of the engine. It is made before weights are loaded, with the values of
    `kv_connector_extra_config` as keyword arguments. What its constructor raises ends the start. A class attribute
    `settings_schema`, a JSON Schema, checks the values before.

    Threads: the calls of `load` follow one another in one thread, and calls of `save` in another one, so that a `load`
    and a `save` may run at the same time. The constructor runs in the thread that starts the engine, and `close` after
    all other calls.

    Failures: what `load` and `save` raise costs only the blocks, whose tokens are computed. So does a call that is
    silent for 10 s; until it returns, nothing else is loaded, or saved. Every replica has an object, in its first
    process, and engines on several machines may use the same storage.
    """

    def load(self, keys: Sequence[str]) -> Iterable[bytes | bytearray | memoryview | None]:
        """The contents of these blocks, in this order, up to the first that is not stored: the rest is of no use.

        A generator may yield each when it is there. None ends the contents too.

        Args:
            keys: of blocks that follow one another in a prompt; at least one. An unknown one is usual, not an error.
        """

    def save(self, key: str, content: bytes) -> None:
        """Stores a block, or replaces it. It may be dropped, now or later.

        Args:
            key: 97 ASCII characters at most: letters a to f, digits, and `-`. Equal keys are equal contents: a key
                depends on the model, the format of the KV cache, and all tokens up to the end of the block.
            content: keys and values of `cache.block_size` tokens in all layers, and four bytes of a checksum. Of one
                length for all blocks of an engine: `engine plan` shows the size of a block.
        """

    def close(self) -> None:
        """Close: nothing is loaded or saved any more. Not called if another call does not return, or if the engine is
        killed: a server that stops gives it a second."""


@dataclass(frozen=True, slots=True)
class StoreRole:
    """What a store needs from its engine.

    Attributes:
        fingerprint: of the model and the format of its KV cache. Engines with equal ones can use each other's blocks.
        block_bytes: of each block.
        reads, writes: whether this engine reads stored blocks, and whether it saves its own (`kv_transfer.kv_role`).
    """

    fingerprint: str
    block_bytes: int
    reads: bool = True
    writes: bool = True


class StoreClass(Protocol):
    """A class for `kv_connector` that has `open_store` instead of the methods of Connector."""

    def open_store(self, role: StoreRole, settings: Mapping[str, Any]) -> BlockStore:
        """A class method: opens a store of blocks by their hashes. Nothing checks its contents, and none of its
        methods may wait.

        Args:
            settings: `kv_connector_extra_config`.
        """
        ...


def store_of_class(resolved: Resolved, role: StoreRole, around: Callable[[Connector], BlockStore]) -> BlockStore:
    """Imports the class and makes its store. Raises PluginError, with the place of the option or of a setting.

    around: makes a store of a connector.
    """
    path, settings = resolved.kv_transfer.connector_class, resolved.kv_transfer.kv_connector_extra_config

    def place_of(setting: str) -> str:
        """Place where a setting was written; the places of all for a key that is missing."""
        return str(resolved.origins.get(f"{_SECTION}.{setting}") or resolved.origin(f"{_SECTION}.{_SETTINGS}"))

    with named_by(_OPTION, str(resolved.origin(_OPTION))):
        found = import_class(path, ())
        check_settings(_SETTINGS, found, settings, place_of)
        if hasattr(found, "open_store"):
            store: BlockStore = make(path, found.open_store, role, settings)
            return store
        check_members(path, found, MEMBERS)
        connector: Connector = make(path, found, **settings)
    return around(connector)
