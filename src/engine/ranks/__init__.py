"""Rank 0 of a model and the other ranks: how they compute each step together."""
