"""Engines that serve the same model: a group that shares experts, engines of other machines, and engines that Ray
places.

`remote` and `connection` are how a server reaches the engines of another machine, on which `node` runs them.
"""
