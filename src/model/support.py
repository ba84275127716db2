"""What the engine runs: every part of a model is asked, and the first that it does not know is named."""

from __future__ import annotations

from collections.abc import Iterator

from .families import FAMILIES
from .rope import ROPE_KINDS
from .spec import MLP, Attention, LayerSpec, ModelSpec, Norm

ACTIVATIONS = ("silu",)


def not_supported(spec: ModelSpec) -> str:
    """Why the engine cannot run the model; empty if it can."""
    return next(_reasons(spec), "")


def _reasons(spec: ModelSpec) -> Iterator[str]:
    if spec.architecture not in FAMILIES:
        yield f"architecture `{spec.architecture}` is not supported; supported: {', '.join(sorted(FAMILIES))}"
    if spec.quantization is not None:
        yield (
            "quantised checkpoints (`quantization_config`) are not supported by this build; `model.quantization` "
            "makes an unquantised one smaller while it loads"
        )
    for layer in dict.fromkeys(spec.layers):
        yield from _of_layer(layer)
    if spec.norm.model_copy(update={"eps": 1e-6}) != Norm():
        yield "norms other than RMS norms are not supported"
    if (spec.embedding_scale, spec.residual_scale, spec.logits_scale, spec.logits_softcap) != (1, 1, 1, None):
        yield "multipliers are not supported"


def _of_layer(layer: LayerSpec) -> Iterator[str]:
    match layer.mixer:
        case Attention() as mixer:
            yield from _of_attention(mixer)
        case mixer:
            yield f"layers with {'no attention' if mixer is None else mixer.kind.replace('_', ' ')} are not supported"
    match layer.feed_forward:
        case MLP(activation=activation, is_gated=True):
            if activation not in ACTIVATIONS:
                yield f"`hidden_act` '{activation}' is not supported; supported: {', '.join(ACTIVATIONS)}"
        case feed_forward:
            yield f"layers with {'no MLP' if feed_forward is None else feed_forward.kind} are not supported"
    if layer.norms != "inputs":
        yield f"norms of {layer.norms} are not supported"


def _of_attention(mixer: Attention) -> Iterator[str]:
    rope = mixer.rope
    if rope is None or rope.partial_rotary_factor != 1 or rope.is_interleaved or rope.llama_4_scaling_beta is not None:
        yield "a `partial_rotary_factor` other than 1 is not supported"
    elif rope.kind not in ROPE_KINDS or rope.kind == "longrope":
        yield f"rope type {rope.kind} is not supported; supported: {', '.join(ROPE_KINDS)}"
    if mixer.head_norm not in ("none", "head") or mixer.softcap is not None or mixer.has_sinks:
        yield "norms of heads, softcaps and sinks are not supported"
    if mixer.scale is not None:
        yield "a scale of attention is not supported"
