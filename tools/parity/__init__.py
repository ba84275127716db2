"""Compares every family of models with transformers: `python -m tools.parity`, about five minutes on two cores."""
