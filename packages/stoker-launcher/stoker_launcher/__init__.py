"""Processes that torchrun or another launcher has started for one model of Stoker: `external_launcher`.

Each process has its own scheduler, and plans the same steps as the others. The engine calls `join` when a deployment
sets `parallel.distributed_executor_backend: external_launcher`.
"""

from .place import join

__all__ = ["join"]
