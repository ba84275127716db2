"""Places outside the KV cache that keep blocks: implementations of core/block_store.py. No torch."""
