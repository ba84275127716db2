"""Writes checkpoints that this engine and others read: `engine quantize`, `engine save-sharded`."""
