"""The model class of each architecture, by its name in `architectures` of config.json."""

from __future__ import annotations

from ...config import ModelFilesError, ModelSpec
from .decoder import Decoder

ARCHITECTURES: dict[str, type[Decoder]] = {
    "LlamaForCausalLM": Decoder,
    "MistralForCausalLM": Decoder,
    "Qwen2ForCausalLM": Decoder,
    "Qwen3ForCausalLM": Decoder,
}


def model_class(model_spec: ModelSpec) -> type[Decoder]:
    """Raises ModelFilesError, with the supported ones, for an unknown architecture."""
    try:
        return ARCHITECTURES[model_spec.architecture]
    except KeyError:
        supported = ", ".join(sorted(ARCHITECTURES))
        raise ModelFilesError(
            f"{model_spec.model_path}/config.json: architecture `{model_spec.architecture}` is not supported; "
            f"supported: {supported}"
        ) from None
