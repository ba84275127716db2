"""What a layer with a recurrent state keeps of tokens that may be taken back: the outputs of its input projection."""

from __future__ import annotations

from .mixer_tensors import compressed_parts, gated_delta_parts, kimi_delta_parts, lightning_parts, mamba2_parts
from .mixers import (
    CompressedAttention,
    GatedDelta,
    KimiDelta,
    LightningAttention,
    Mamba,
    Mamba2,
    Mixer,
    RgLru,
    ShortConvolution,
)
from .sizes import DTYPE_BYTES
from .spec import LayerSpec, ModelSpec


def state_input_bytes(spec: ModelSpec, dtype: str) -> int:
    """Bytes of what all parts with a state computed from, of one token. dtype: of the model."""
    return DTYPE_BYTES[dtype] * sum(_of_layer(layer) for layer in spec.layers)


def _of_layer(layer: LayerSpec) -> int:
    of_ngrams = 0 if layer.ngrams is None else layer.ngrams.channels
    return of_ngrams + sum(map(_of_mixer, layer.mixers))


def _of_mixer(mixer: Mixer) -> int:
    """Elements of a token; 0 of a mixer without a recurrent state."""
    match mixer:
        case CompressedAttention():
            return sum(compressed_parts(mixer).values())
        case GatedDelta():
            return sum(gated_delta_parts(mixer).values())
        case KimiDelta():
            return sum(kimi_delta_parts(mixer).values())
        case LightningAttention():  # and a zero for each head, which the kernel reads as the time step
            return sum(lightning_parts(mixer).values()) + mixer.num_heads
        case Mamba2():
            return sum(mamba2_parts(mixer))
        case Mamba() | RgLru():
            return 2 * mixer.width
        case ShortConvolution():
            return 3 * mixer.width
    return 0
