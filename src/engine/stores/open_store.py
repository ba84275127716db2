"""open_store: the places for blocks that a deployment has, from `cache.kv_directory` and `kv_transfer`."""

from __future__ import annotations

from pathlib import Path

from ...config import Resolved
from ..core.block_store import BlockStore
from .block_files import BlockFiles
from .both_stores import BothStores
from .engine_blocks import EngineBlocks
from .fingerprint import fingerprint


def open_store(resolved: Resolved) -> BlockStore | None:
    """None if blocks are kept in the KV cache alone. Raises OSError."""
    transfer, folder = resolved.kv_transfer, resolved.cache.kv_directory
    if folder is None and not transfer.is_between_engines:
        return None
    own = fingerprint(resolved)
    files = engines = None
    if folder is not None:
        reads, writes = (transfer.reads, transfer.writes) if transfer.is_shared_folder else (True, True)
        path, size = Path(folder).expanduser(), resolved.cache.kv_directory_size
        files = BlockFiles(path, own, size, reads=reads, writes=writes)
    if transfer.is_between_engines:
        port = transfer.port_at_rank(resolved.parallel.ranks[0])
        block_bytes = resolved.memory.kv_bytes_per_token * resolved.cache.block_size
        with_nixl = transfer.kv_connector == "NixlConnector"
        buffer_bytes = resolved.memory.transfer_bytes
        engines = EngineBlocks(transfer.kv_ip, port, own, block_bytes, buffer_bytes, with_nixl=with_nixl)
    if files is not None and engines is not None:
        return BothStores(engines, files)
    return files or engines
