"""Ranks that a launcher such as torchrun has started: each has a scheduler of its own, and plans the same steps."""
