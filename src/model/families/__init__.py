"""The architectures that are described exactly: their parts, and the defaults of their classes in transformers.

A module for each maker; `FAMILIES` has all.
"""

from collections.abc import Mapping

from . import (
    cohere,
    deepseek,
    dots,
    ernie,
    exaone,
    falcon,
    gemma,
    glm,
    gpt,
    granite,
    hunyuan,
    kimi,
    liquid,
    llama,
    mamba,
    minimax,
    mistral,
    nemotron,
    olmo,
    others,
    phi,
    qwen,
    skt,
    xiaomi,
    zyphra,
)
from .family import Family, FusedExperts, Setting

__all__ = ["FAMILIES", "Family", "FusedExperts", "Setting"]

_MAKERS = (
    llama,
    mistral,
    qwen,
    gemma,
    deepseek,
    kimi,
    glm,
    granite,
    hunyuan,
    cohere,
    olmo,
    nemotron,
    gpt,
    falcon,
    phi,
    ernie,
    liquid,
    mamba,
    xiaomi,
    zyphra,
    minimax,
    exaone,
    skt,
    dots,
    others,
)
FAMILIES: Mapping[str, Family] = {name: family for maker in _MAKERS for name, family in maker.FAMILIES.items()}
