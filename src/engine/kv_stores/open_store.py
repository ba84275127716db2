"""open_store: the places for blocks that a deployment has, from `cache.kv_offloading_size`, `cache.kv_directory` and
`kv_transfer`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ...config import Resolved
from ..core.block_store import BlockStore
from .block_files import BlockFiles
from .connector import StoreRole, store_of_class
from .connector_store import ConnectorStore
from .engine_blocks import EngineBlocks
from .fingerprint import fingerprint
from .mooncake_mover import MooncakeMover
from .nixl_mover import NixlMover
from .registered_blocks import Mover
from .tiered_store import TieredStore


def open_store(resolved: Resolved) -> TieredStore | None:
    """Open the store; None if only the KV cache keeps blocks. Raises OSError, or PluginError for an own connector."""
    memory_bytes, lasting, engines = resolved.cache.kv_offloading_bytes or 0, _lasting_store(resolved), None
    transfer = resolved.kv_transfer
    if transfer.is_between_engines:
        port = transfer.port_at_rank(resolved.topology.replicas[0])
        block_bytes, size = resolved.stored_block_bytes, transfer.buffer_bytes
        engines = EngineBlocks(transfer.kv_ip, port, fingerprint(resolved), block_bytes, size, _mover(resolved))
    return TieredStore(memory_bytes, lasting, engines) if memory_bytes or lasting or engines else None


def _mover(resolved: Resolved) -> Mover | None:
    """Mover of the contents of blocks between engines; None if TCP moves them. Raises MoverMissing."""
    transfer = resolved.kv_transfer
    if transfer.kv_connector == "NixlConnector":
        return NixlMover()
    if transfer.kv_connector == "MooncakeConnector":
        return MooncakeMover(transfer.kv_ip, transfer.mooncake_protocol)
    return None


def _lasting_store(resolved: Resolved) -> BlockStore | None:
    """Store of blocks that outlive this engine."""
    transfer, folder = resolved.kv_transfer, resolved.cache.kv_directory
    reads, writes = (transfer.reads, transfer.writes) if transfer.is_storage else (True, True)
    if path := transfer.connector_class:
        role = StoreRole(fingerprint(resolved), resolved.stored_block_bytes, reads, writes)
        return store_of_class(resolved, role, partial(ConnectorStore, name=path, role=role))
    if folder is None:
        return None
    size, limit = resolved.stored_block_bytes, resolved.cache.kv_directory_size
    return BlockFiles(Path(folder).expanduser(), fingerprint(resolved), size, limit, reads=reads, writes=writes)
