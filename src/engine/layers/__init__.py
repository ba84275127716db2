"""Layers of models: their weights, how these are loaded, and which kernels compute them."""
