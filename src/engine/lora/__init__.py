"""Adapters (LoRA) of a model: what a process has of them, and what they add to the products of a step."""

from .adapters import Adapters
from .mix import AdapterMix
from .places import Places

__all__ = ["AdapterMix", "Adapters", "Places"]
