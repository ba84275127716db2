"""Connector: a class of the user's own that stores KV blocks, anywhere (`kv_transfer.kv_connector`).

It stores bytes by key, and has no part in models, layers or tokens. The engine decides what is stored and read,
checks what it gets (connector_store.py), and computes what it does not get. Example: docs/guide/kv-connector.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ...config import Resolved
from ..plugins import check_settings, import_class, make, named_by

MEMBERS = ("load", "save", "close")
_SECTION, _OPTION, _SETTINGS = "kv_transfer", "kv_transfer.kv_connector", "kv_connector_extra_config"


class Connector(Protocol):
    """Made before weights are loaded, with the values of `kv_connector_extra_config` as keyword arguments. What its
    constructor raises ends the start. A class attribute `settings_schema`, a JSON Schema, checks the values before.

    Threads: the calls of `load` follow one another in one thread, and those of `save` in another one, so that a `load`
    and a `save` may run at the same time. The constructor runs in the thread that starts the engine, and `close` after
    all other calls.

    Failures: what `load` and `save` raise costs the blocks alone, whose tokens are computed. So does a call that is
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
        """Nothing is loaded or saved any more. Not called if another call does not return, or if the engine is
        killed: a server that stops gives it a second."""


def connector_of(resolved: Resolved) -> Connector:
    """Imports the class and makes it. Raises PluginError, with the place of the option or of a setting."""
    path, settings = resolved.kv_transfer.own_connector, resolved.kv_transfer.kv_connector_extra_config

    def place_of(setting: str) -> str:
        """Where a setting was written; all of them for a key that is missing."""
        return str(resolved.origins.get(f"{_SECTION}.{setting}") or resolved.origin(f"{_SECTION}.{_SETTINGS}"))

    with named_by(_OPTION, str(resolved.origin(_OPTION))):
        found = import_class(path, MEMBERS)
        check_settings(_SETTINGS, found, settings, place_of)
        connector: Connector = make(path, found, **settings)
    return connector
