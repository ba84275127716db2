"""Which file runs which architecture, by the name config.json gives under `architectures`."""

from __future__ import annotations

from ...config import ModelFacts, ModelFilesError
from .decoder import Decoder

ARCHITECTURES: dict[str, type[Decoder]] = {
    "LlamaForCausalLM": Decoder,
    "MistralForCausalLM": Decoder,
    "Qwen2ForCausalLM": Decoder,
    "Qwen3ForCausalLM": Decoder,
}


def model_class(facts: ModelFacts) -> type[Decoder]:
    """Raises ModelFilesError, listing what is supported, for an architecture without a file."""
    try:
        return ARCHITECTURES[facts.architecture]
    except KeyError:
        supported = ", ".join(sorted(ARCHITECTURES))
        raise ModelFilesError(
            f"{facts.model_path}/config.json: architecture `{facts.architecture}` is not supported; "
            f"supported: {supported}"
        ) from None
