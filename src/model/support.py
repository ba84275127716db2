"""What the engine runs: every part of a model is asked, and the first that it does not know is named."""

from __future__ import annotations

from collections.abc import Iterator

from .activations import HIDDEN_ACTS
from .cache_groups import BLOCK_SIZES
from .experts import CLAMPED_SWIGLU
from .families import FAMILIES, family_of
from .feed_forwards import MLP, Experts
from .mixers import (
    Attention,
    CompressedAttention,
    GatedDelta,
    KimiDelta,
    LatentAttention,
    LightningAttention,
    Mamba,
    Mamba2,
    RgLru,
    ShortConvolution,
)
from .rope import ROPE_KINDS
from .spec import LayerSpec, ModelSpec


def support_problem(spec: ModelSpec) -> str:
    """Why the engine cannot run the model; empty if it can."""
    return next(_reasons(spec), "")


def _reasons(spec: ModelSpec) -> Iterator[str]:
    if family_of(spec.architecture) is None:
        known = f"docs/reference/models.md lists the {len(FAMILIES)} that are known"
        yield f"architecture `{spec.architecture}` is not supported; {known}"
    if spec.quantization is not None and spec.quantization.problem:
        yield spec.quantization.problem
    yield from spec.unsupported
    widths = {keeps.width for keeps in spec.kept_by_layer if keeps is not None}
    if any(spec.keeps.width % width for width in widths):
        yield f"keys and values of {', '.join(map(str, sorted(widths)))} elements in one model are not supported"
    if not any(size % spec.tokens_of_vector == 0 for size in BLOCK_SIZES):
        yield f"vectors of groups whose tokens have no common multiple below {BLOCK_SIZES[-1]} are not supported"
    if spec.has_lists and spec.hyper_connections is None:
        yield "experts that are listed by token, in layers without hyper-connections, are not supported"
    for layer in dict.fromkeys(spec.layers):
        yield from _of_layer(layer)
    if any(layer.is_causal for layer in spec.layers) and not spec.is_causal:
        yield "layers whose tokens see later ones, and layers whose tokens do not, in one model are not supported"


def _of_layer(layer: LayerSpec) -> Iterator[str]:
    for mixer in layer.mixers:
        match mixer:
            case Attention(is_causal=False) if what := _only_causal(mixer):
                yield f"attention that sees later tokens with {what} is not supported"
            case Attention(rope=rope) | LatentAttention(rope=rope) | CompressedAttention(rope=rope):
                if rope is not None and rope.kind not in ROPE_KINDS:
                    yield f"rope type {rope.kind} is not supported; supported: {', '.join(ROPE_KINDS)}"
            case RgLru(activation=activation):
                if activation not in HIDDEN_ACTS:
                    yield f"gates with the activation '{activation}' are not supported"
            case GatedDelta() | KimiDelta() | LightningAttention() | Mamba() | Mamba2() | ShortConvolution():
                pass
            case _:
                yield f"layers with {mixer.kind.replace('_', ' ')} are not supported"
    if layer.input is not None and layer.input.activation not in HIDDEN_ACTS:
        yield f"gates of layers' inputs with the activation '{layer.input.activation}' are not supported"
    match layer.feed_forward:
        case MLP(activation=activation):
            if activation not in HIDDEN_ACTS:
                yield f"`hidden_act` '{activation}' is not supported; supported: {', '.join(HIDDEN_ACTS)}"
        case Experts(scales_input=True, per_token=per_token) if per_token > 1:
            yield f"{per_token} experts per token are not supported in a model that scales their inputs"
        case Experts(gate_limit=float(), activation=activation) if HIDDEN_ACTS.get(activation) != "silu":
            yield f"experts with the activation '{activation}' and a limit are not supported"
        case Experts(activation=activation, is_gated=is_gated):
            is_clamped = is_gated and activation == CLAMPED_SWIGLU
            if activation not in HIDDEN_ACTS and not is_clamped:
                yield f"experts with the activation '{activation}' are not supported"


def _only_causal(mixer: Attention) -> str:
    """What of the attention is computed only where it is causal; empty if nothing is."""
    has_growth = mixer.query_growth is not None or (
        mixer.rope is not None and mixer.rope.llama_4_scaling_beta is not None
    )
    features = {
        "a limit of its scores": mixer.softcap is not None,
        "sinks": mixer.has_sinks,
        "chunks": mixer.is_chunked,
        "keys of another layer": mixer.keys_of is not None,
        "an index": mixer.index is not None,
        "pairs of heads": mixer.lambda_start is not None,
        "queries that grow with their position": has_growth,
        "normed values": mixer.has_value_norm,
        "values that are keys": not mixer.has_own_values,
        "values of another size than keys": mixer.value_dim is not None,
        "a norm over all heads": mixer.head_norm == "whole",
    }
    return next((what for what, has_it in features.items() if has_it), "")
