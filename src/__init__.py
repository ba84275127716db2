"""Stoker: declare an LLM deployment in one YAML file, check it, and serve it.

Importing this package imports no torch; `LLM` and its parameters are loaded when they are first named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .beam_search import BeamSearchParams
    from .engine.api import SamplingParams
    from .offline.adapters import LoRARequest
    from .offline.llm import LLM
    from .offline.pooling import PoolingParams

__all__ = ["LLM", "BeamSearchParams", "LoRARequest", "PoolingParams", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from .offline.llm import LLM

        return LLM
    if name == "LoRARequest":
        from .offline.adapters import LoRARequest

        return LoRARequest
    if name == "PoolingParams":
        from .offline.pooling import PoolingParams

        return PoolingParams
    if name == "SamplingParams":
        from .engine.api import SamplingParams

        return SamplingParams
    if name == "BeamSearchParams":
        from .beam_search import BeamSearchParams

        return BeamSearchParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
