"""Client of an LMCache server: the store for `kv_transfer.kv_connector: LMCacheMPConnector` of Stoker.

The engine imports LmcacheBlocks when a deployment sets this connector. Nothing of LMCache itself is imported.
"""

from .blocks import LmcacheBlocks

__all__ = ["LmcacheBlocks"]
