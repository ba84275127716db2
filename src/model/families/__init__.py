"""The architectures that are described exactly: their parts, and the defaults of their classes in transformers.

A module for each maker; `FAMILIES` has all.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from . import (
    cohere,
    deepseek,
    dots,
    encoders,
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
from .family import Family, FusedExperts, HeadLayer, Setting

__all__ = ["FAMILIES", "Family", "FusedExperts", "HeadLayer", "Setting", "family_of", "known_family"]

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
    encoders,
    others,
)
FAMILIES: Mapping[str, Family] = {name: family for maker in _MAKERS for name, family in maker.FAMILIES.items()}

_GENERATE = "ForCausalLM", "LMHeadModel"  # ends of the names of classes of decoders


@lru_cache(maxsize=64)
def family_of(architecture: str) -> Family | None:
    """The description of a class; None if it is not known.

    Decoders have other classes of the same layers: without an output layer, or with one that rates labels instead.
    """
    if (found := FAMILIES.get(architecture)) is not None:
        return found
    for end, changes in _OF_DECODERS.items():
        if not architecture.endswith(end):
            continue
        stem = architecture.removesuffix(end)
        names = (f"{each}{generate}" for each in (stem, stem.removesuffix("Text")) for generate in _GENERATE)
        found = next((FAMILIES[name] for name in names if name in FAMILIES), None)
        if found is not None and found.makes == "tokens" and found.text_in is None:
            return replace(found, **changes)
    return None


def known_family(architecture: str) -> Family:
    """The description of a class that is known."""
    family = family_of(architecture)
    assert family is not None, architecture
    return family


_REWARD = HeadLayer("score.0", outputs="hidden", activation="relu"), HeadLayer("score.2")
# ends of the names of their other classes -> what differs
_OF_DECODERS: Mapping[str, Mapping[str, Any]] = {
    "ForSequenceClassification": {"makes": "labels", "head": (HeadLayer("score", has_bias=False),)},
    "ForTokenClassification": {"makes": "token_labels", "head": (HeadLayer("score"),)},
    "ForRewardModel": {
        "makes": "labels",
        "head": _REWARD,
        "num_labels": 1,
        "is_reward": True,
    },
    "ForProcessRewardModel": {
        "makes": "token_labels",
        "head": _REWARD,
        "step_token": 151651,  # <extra_0> of Qwen 2.5
    },
    "Model": {"makes": "states"},
}
