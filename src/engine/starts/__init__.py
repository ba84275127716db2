"""The ways to start an engine, of which `startup` chooses one. They import torch when called.

`on_cpu`, `on_gpus`, `on_ranks`, `on_launched_rank` and `beside_replicas` are the ways; `prepared` and `scheduler` are
what they have in common.
"""
