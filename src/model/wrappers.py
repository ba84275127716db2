"""Models with encoders of images or sound whose language model runs on the library's class for text.

Families of this engine read their language model themselves: `text_in` of families/family.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from .families.common import MULTIMODAL_NAMES, TOWERS

Tensor = TypeVar("Tensor")
TEXT_CLASSES = {"Gemma3nForConditionalGeneration": "Gemma3nForCausalLM"}  # of the whole model -> of its language model
_TEXT, _TOKENS = "text_config", ("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype")


def language_model(values: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of the language model, if that of a whole model is given; else `values`."""
    names, text = values.get("architectures"), values.get(_TEXT)
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str) or name not in TEXT_CLASSES or not isinstance(text, Mapping):
        return dict(values)
    whole = {key: values[key] for key in _TOKENS if values.get(key) is not None}
    return {**text, **whole, "architectures": [TEXT_CLASSES[name]]}


def is_of_encoders(name: str) -> bool:
    """Whether a tensor of a whole model is none of its language model's."""
    return name.startswith(TOWERS)


def of_language_model(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint's tensors without those of encoders, under the names that the language model's own would have."""
    return {_renamed(name): tensor for name, tensor in tensors.items() if not is_of_encoders(name)}


def _renamed(name: str) -> str:
    for old, new in MULTIMODAL_NAMES.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
