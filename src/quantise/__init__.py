"""Writes quantised checkpoints that this engine and others read: `engine quantize`."""
