"""Devices of tensor parallel with the same keys and values: whether they can share the tokens of a sequence, and which
of them stored blocks are from."""

from __future__ import annotations

from .block_index import BlockIndex
from .mixers import Attention, CompressedAttention, LatentAttention, Mixer
from .spec import ModelSpec


def context_parallel_problem(spec: ModelSpec, num_devices: int, num_parts: int) -> str | None:
    """Why `num_parts` of the devices of tensor parallel cannot share the tokens of each sequence; None if they can."""
    if num_parts == 1:
        return None
    mixers = dict.fromkeys(mixer for layer in spec.layers for mixer in layer.mixers)
    return next((reason for mixer in mixers if (reason := _unparted(mixer, num_devices, num_parts))), None)


def _unparted(mixer: Mixer, num_devices: int, num_parts: int) -> str | None:
    match mixer:
        case Attention(is_causal=False):
            return "tokens see later ones, and nothing is kept of a sequence"
        case Attention(window=int()) | LatentAttention(window=int()):
            return "some of its layers attend to a window, whose tokens each process keeps"
        case Attention(has_sinks=True) | LatentAttention(has_sinks=True):
            return "attention has sinks, which would be added once for each process"
        case Attention(alibi=alibi) if alibi != "none":
            return "attention depends on the distance of tokens (ALiBi), which a part of them does not have"
        case CompressedAttention():
            return "a vector is of several tokens, and each process would keep some of them"
        case LatentAttention(index_heads=count) if count:
            return "attention is to chosen tokens, and each process chooses among all"
        case Attention(index=BlockIndex()):
            return "attention is to chosen tokens, and each process chooses among all"
        case Attention(num_kv_heads=heads):
            copies = max(1, num_devices // heads)
        case LatentAttention(is_expanded=False):
            copies = num_devices
        case LatentAttention():
            copies = 1
        case _:
            return "some of its layers keep a recurrent state, which is of all tokens before"
    if copies % num_parts:
        return f"each of its keys and values is on {copies} of {num_devices} processes, no multiple of {num_parts}"
    return None


def holders_of_blocks(spec: ModelSpec, num_devices: int) -> tuple[tuple[int, ...], bool]:
    """The devices whose keys and values are kept when blocks are stored, in order, and whether what they have together
    is what one device with all heads would have; else it is what all devices have."""
    kept = [keeps for keeps in spec.kept_by_layer if keeps is not None]
    if len({(keeps.width, keeps.num_heads) for keeps in kept}) > 1:
        return tuple(range(num_devices)), num_devices == 1
    heads = kept[0].num_heads if kept else 0
    return tuple(range(0, num_devices, max(1, num_devices // heads))) if heads else (0,), True


def prompt_sharing_problem(spec: ModelSpec) -> str | None:
    """Why devices with the same weights cannot compute different tokens of a prompt; None if they can."""
    mixers = dict.fromkeys(mixer for layer in spec.layers for mixer in layer.mixers)
    return next((reason for mixer in mixers if (reason := _undivided_in_time(mixer))), None)


def _undivided_in_time(mixer: Mixer) -> str | None:
    match mixer:
        case LatentAttention(index_heads=count) if count:
            return "attention is to tokens that are chosen before the others have come"
        case Attention(index=BlockIndex()):
            return "attention is to tokens that are chosen before the others have come"
        case Attention(is_causal=False):
            return "tokens see later ones, which another process would compute"
        case Attention() | LatentAttention():
            return None
        case _:
            return "some of its layers keep a recurrent state, which is of all tokens before"
