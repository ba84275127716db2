"""open_store: the places for blocks that a deployment has, from `cache.kv_offloading_size`, `cache.kv_directory` and
`kv_transfer`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ...config import Resolved
from ..core.block_store import BlockStore
from .block_files import BlockFiles
from .both_stores import BothStores
from .connector import connector_of
from .connector_store import ConnectorStore
from .engine_blocks import EngineBlocks
from .fingerprint import fingerprint
from .host_store import HostStore
from .lmcache_blocks import LmcacheBlocks
from .lmcache_connection import LmcacheConnection
from .mooncake_mover import MooncakeMover
from .nixl_mover import NixlMover
from .own_stores import OwnStores
from .registered_blocks import Mover


def open_store(resolved: Resolved) -> BlockStore | None:
    """None if blocks are kept in the KV cache alone. Raises OSError, or PluginError for an own connector."""
    own = _own_store(resolved)
    transfer = resolved.kv_transfer
    if not transfer.is_between_engines:
        return own
    port = transfer.port_at_rank(resolved.parallel.ranks[0])
    block_bytes = resolved.stored_block_bytes
    size, mover = transfer.buffer_bytes, _mover(resolved)
    engines = EngineBlocks(transfer.kv_ip, port, fingerprint(resolved), block_bytes, size, mover)
    return engines if own is None else BothStores(engines, own)


def _mover(resolved: Resolved) -> Mover | None:
    """Of the contents of blocks between engines; None for TCP alone. Raises MoverMissing."""
    transfer = resolved.kv_transfer
    if transfer.kv_connector == "NixlConnector":
        return NixlMover()
    if transfer.kv_connector == "MooncakeConnector":
        return MooncakeMover(transfer.kv_ip, transfer.mooncake_protocol)
    return None


def _own_store(resolved: Resolved) -> BlockStore | None:
    """Of blocks that this engine has computed."""
    memory, lasting = None, _lasting_store(resolved)
    if size := resolved.cache.kv_offloading_bytes:
        memory = HostStore(size)
    return OwnStores(memory, lasting) if memory is not None and lasting is not None else memory or lasting


def _lasting_store(resolved: Resolved) -> BlockStore | None:
    """Of blocks that outlive this engine."""
    transfer, folder = resolved.kv_transfer, resolved.cache.kv_directory
    reads, writes = (transfer.reads, transfer.writes) if transfer.is_storage else (True, True)
    if path := transfer.own_connector:
        connector, size = connector_of(resolved), resolved.stored_block_bytes
        return ConnectorStore(connector, path, fingerprint(resolved), size, reads=reads, writes=writes)
    if transfer.is_lmcache:
        address, limit_s = transfer.lmcache_address, transfer.lmcache_limit_s
        connect = partial(LmcacheConnection, address, fingerprint(resolved), resolved.stored_block_bytes, limit_s)
        return LmcacheBlocks(connect, reads=reads, writes=writes)
    if folder is None:
        return None
    limit = resolved.cache.kv_directory_size
    return BlockFiles(Path(folder).expanduser(), fingerprint(resolved), limit, reads=reads, writes=writes)
