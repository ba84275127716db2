"""Tensor parallel (arXiv:1909.08053): the part of a layer that one of several devices holds.

Each device has some heads of every mixer, some columns of every feed-forward block, of every expert and of the tables
of n-grams, and some rows of the vocabulary. Norms, routers, gates of streams, compressed vectors and tables of
positions are held by all. Key-value heads, of which there may be fewer than devices, are held by several then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .feed_forwards import MLP, Experts, FeedForward
from .mixer_tensors import attention_parts, mamba2_parts
from .mixers import (
    Attention,
    CompressedAttention,
    GatedDelta,
    KimiDelta,
    LatentAttention,
    Mamba,
    Mamba2,
    Mixer,
    RgLru,
    ShortConvolution,
)
from .spec import LayerSpec, ModelSpec
from .tensors import ADAPTERS, EMBEDDING, NGRAM_PROJECTIONS, OUTPUT, model_shapes

_SUMMED_BIASES = (
    "o_proj.bias",
    "out_proj.bias",
    "linear_out.bias",
    "down_proj.bias",
)  # of what is summed over the devices


def tensor_parallel_problem(spec: ModelSpec, num_devices: int) -> str | None:
    """Why tensor parallel on this number of devices is impossible; None if it is possible."""
    layers = dict.fromkeys(spec.layers)
    if num_devices == 1:
        return next((reason for layer in layers for reason in _unplaceable(layer, 1)), None)
    if spec.pooling is not None and spec.pooling.reads_output:
        return "what it makes of a text comes from its output layer, of which each device has a part"
    obstacles = (reason for layer in layers for reason in _obstacles(layer, num_devices))
    if (found := next(obstacles, None)) is not None:
        return found
    own = of_one_device(spec, num_devices)
    if any(keeps is not None and own.keeps.width % keeps.width for keeps in own.kept_by_layer):
        return f"of {num_devices} devices, layers with few key-value heads keep no divisor of what others keep"
    return None


def _obstacles(layer: LayerSpec, num_devices: int) -> Iterator[str]:
    for mixer in layer.mixers:
        for what, count in _counts(mixer):
            if count % num_devices:
                yield f"{count} {what} cannot be divided by {num_devices}"
        match mixer:
            case Attention(num_kv_heads=heads) if heads % num_devices and num_devices % heads:
                yield f"{heads} key-value heads on {num_devices} devices: neither divides the other"
            case Attention(is_grouped=True, num_kv_heads=heads) if heads % num_devices:
                yield f"{heads} key-value heads, stored with their queries, cannot be divided by {num_devices}"
            case Attention(lambda_start=start, num_kv_heads=heads) if start is not None and heads % num_devices:
                yield f"{heads} pairs of key-value heads cannot be divided by {num_devices}"
            case Attention(qkv_parts=parts) if parts:
                yield "its queries, values and keys are stored in one tensor, in parts"
            case Attention(bias_buckets=int()):
                yield "the biases of its distances are stored for all heads together"
            case Attention(head_norm="whole"):
                yield "the norm of its queries is over all heads together"
            case Attention(head_norm="layer_each"):
                yield "the norms of its heads are stored one by one"
            case Attention() | LatentAttention() | CompressedAttention() | GatedDelta() | KimiDelta() | Mamba():
                pass
            case Mamba2() | RgLru() | ShortConvolution():
                pass
            case _:
                yield f"a layer of the kind {mixer.kind}"
    if layer.ngrams is not None and layer.ngrams.row_width % num_devices:
        yield f"embeddings of n-grams of width {layer.ngrams.row_width} cannot be divided by {num_devices}"
    yield from _unplaceable(layer, num_devices)
    for what, width in _widths(layer.feed_forward):
        if width % num_devices:
            yield f"{what} of width {width} cannot be divided by {num_devices}"


def _unplaceable(layer: LayerSpec, num_devices: int) -> Iterator[str]:
    """What is against whole experts on each device, of one replica."""
    block = layer.feed_forward
    if not isinstance(block, Experts) or block.placement == "divided":
        return
    num_devices *= block.num_replicas
    if block.count < num_devices:
        yield f"{block.count} experts cannot be placed on {num_devices} devices"
    if block.redundant is None:
        return
    if (block.count + block.redundant) % num_devices:
        yield f"{block.count} experts and {block.redundant} redundant ones cannot be divided by {num_devices}"
    if block.redundant > block.count * (num_devices - 1):
        most = block.count * (num_devices - 1)
        yield f"{block.count} experts on {num_devices} devices have at most {most} redundant ones"


def _counts(mixer: Mixer) -> Iterator[tuple[str, int]]:
    """What each device must have an equal number of."""
    match mixer:
        case Attention() | LatentAttention():
            yield "attention heads", mixer.num_heads
        case CompressedAttention():
            yield "groups of heads", mixer.out_groups
        case GatedDelta():
            yield "key heads of a recurrent layer", mixer.num_key_heads
            yield "value heads of a recurrent layer", mixer.num_value_heads
        case KimiDelta() | RgLru():
            yield "heads of a recurrent layer", mixer.num_heads
        case Mamba():
            yield "channels of a recurrent layer", mixer.width
            yield "heads of a recurrent layer", mixer.num_heads or mixer.width
        case Mamba2():
            yield "groups of heads of a recurrent layer", mixer.num_groups
            yield "heads of a recurrent layer", mixer.num_heads
        case ShortConvolution():
            yield "channels of a convolution", mixer.width


def _widths(block: FeedForward | None) -> Iterator[tuple[str, int]]:
    match block:
        case MLP():
            yield "a feed-forward block", block.width
        case Experts():
            if block.placement == "divided":
                yield "an expert", block.width
            yield "a shared expert", block.shared_width
            if block.beside is not None:
                yield "a feed-forward block", block.beside.width


def of_one_device(spec: ModelSpec, num_devices: int) -> ModelSpec:
    """What each device computes with tensor parallel: the same on all of them, the vocabulary rounded up.

    Only where `tensor_parallel_problem` returns None.
    """
    if num_devices == 1 and not _is_shared(spec):
        return spec
    layers = {layer: _layer(layer, num_devices) for layer in dict.fromkeys(spec.layers)}
    vocabulary = -(-spec.vocab_size // num_devices)
    return spec.model_copy(
        update={"layers": tuple(layers[layer] for layer in spec.layers), "vocab_size": vocabulary, "weight_scales": ()}
    )


def _layer(layer: LayerSpec, parts: int) -> LayerSpec:
    update = {
        "mixer": layer.mixer and _mixer(layer.mixer, parts),
        "beside": layer.beside and _mixer(layer.beside, parts),
        "feed_forward": layer.feed_forward and _feed_forward(layer.feed_forward, parts),
        "ngrams": layer.ngrams and layer.ngrams.model_copy(update={"width": layer.ngrams.width // parts}),
    }
    return layer.model_copy(update=update)


def _mixer(mixer: Mixer, parts: int) -> Mixer:
    match mixer:
        case Attention():
            heads = {"num_heads": mixer.num_heads // parts, "num_kv_heads": max(1, mixer.num_kv_heads // parts)}
            return mixer.model_copy(update=heads)
        case LatentAttention() | KimiDelta() | RgLru():
            return mixer.model_copy(update={"num_heads": mixer.num_heads // parts})
        case CompressedAttention():
            heads = {"num_heads": mixer.num_heads // parts, "out_groups": mixer.out_groups // parts}
            return mixer.model_copy(update=heads)
        case GatedDelta():
            keys, values = mixer.num_key_heads // parts, mixer.num_value_heads // parts
            return mixer.model_copy(update={"num_key_heads": keys, "num_value_heads": values})
        case Mamba2():
            heads = {"num_heads": mixer.num_heads // parts, "num_groups": mixer.num_groups // parts}
            return mixer.model_copy(update=heads)
        case Mamba(num_heads=heads) if heads is not None:
            return mixer.model_copy(update={"width": mixer.width // parts, "num_heads": heads // parts})
        case Mamba() | ShortConvolution():
            return mixer.model_copy(update={"width": mixer.width // parts})
    raise AssertionError(f"tensor_parallel_problem refuses {mixer.kind}")


def _feed_forward(block: FeedForward, parts: int) -> FeedForward:
    if isinstance(block, MLP):
        return block.model_copy(update={"width": block.width // parts})
    beside = block.beside and block.beside.model_copy(update={"width": block.beside.width // parts})
    if block.placement == "divided":
        own = {"width": block.width // parts}
    else:
        own = {"held": -(-(block.count + (block.redundant or 0)) // (parts * block.num_replicas))}
    return block.model_copy(update={**own, "shared_width": block.shared_width // parts, "beside": beside})


@dataclass(frozen=True, slots=True)
class Slice:
    """What one device has of a tensor of the checkpoint: `ranges` of dimension `dim`, one after the other.

    What its part has more than these is zeros.
    """

    whole: tuple[int, ...]  # the shape of the tensor
    dim: int
    ranges: tuple[range, ...]


def slices(spec: ModelSpec, num_devices: int, rank: int) -> dict[str, Slice]:
    """Slices of the tensors that device `rank` does not have as a whole, by their names."""
    own = of_one_device(spec, num_devices)
    shapes, sections = model_shapes(own), _sections(spec)
    placed = tuple(f"model.layers.{index}.mlp.experts." for index, layer in enumerate(spec.layers) if _is_placed(layer))
    found: dict[str, Slice] = {}
    for name, whole in model_shapes(spec).items():
        if name.startswith(placed):
            continue
        dim = next((dim for dim, size in enumerate(whole) if size != shapes[name][dim]), None)
        if dim is not None:
            sizes = sections.get(name, (whole[dim],))
            found[name] = Slice(whole, dim, tuple(_ranges(name, sizes, shapes[name][dim], num_devices, rank)))
        elif rank and name.startswith("model.layers.") and name.endswith(_SUMMED_BIASES):
            found[name] = Slice(whole, 0, ())
    return found


def _is_shared(spec: ModelSpec) -> bool:
    """Whether other replicas have some of the experts."""
    blocks = (layer.feed_forward for layer in spec.layers)
    return any(isinstance(block, Experts) and block.num_replicas > 1 for block in blocks)


def _is_placed(layer: LayerSpec) -> bool:
    return isinstance(layer.feed_forward, Experts) and layer.feed_forward.placement != "divided"


def _ranges(name: str, sizes: tuple[int, ...], own: int, num_devices: int, rank: int) -> Iterator[range]:
    """sizes: of the sections, each of which is divided; own: what a device has of all together."""
    if name in (EMBEDDING, OUTPUT, "lm_head.bias"):
        yield range(min(rank * own, sizes[0]), min((rank + 1) * own, sizes[0]))
        return
    start = 0
    num_parts = sum(sizes) // own  # fewer than devices where some have the same key-value heads
    for size in sizes:
        part = size // num_parts
        first = start + rank * num_parts // num_devices * part
        yield range(first, first + part)
        start += size


def _sections(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Sections of the tensors that are several matrices or vectors, one after the other."""
    found: dict[str, tuple[int, ...]] = {}
    for index, layer in enumerate(spec.layers):
        for mixer in layer.mixers:
            for name, sizes in _mixer_sections(mixer):
                found[f"model.layers.{index}.{name}"] = sizes
        if layer.block is not None and isinstance(layer.feed_forward, MLP):
            found[f"model.layers.{index}.{ADAPTERS}.gate_up_proj.1.weight"] = (layer.feed_forward.width,) * 2
        if layer.ngrams is not None:
            rows = (layer.ngrams.row_width,) * len(layer.ngrams.table_sizes)
            for name in NGRAM_PROJECTIONS:
                found[f"model.layers.{index}.{name}.weight"] = rows
    return found


def _mixer_sections(mixer: Mixer) -> Iterator[tuple[str, tuple[int, ...]]]:
    match mixer:
        case Attention(lambda_start=start) if start is not None:
            for name, size in attention_parts(mixer).items():
                for kind in ("weight", "bias"):
                    yield f"self_attn.{name}.{kind}", (size // 2, size // 2)
        case GatedDelta():
            keys, values = mixer.num_key_heads * mixer.key_dim, mixer.num_value_heads * mixer.value_dim
            yield "linear_attn.in_proj_qkv.weight", (keys, keys, values)
            yield "linear_attn.conv1d.weight", (keys, keys, values)
        case Mamba2():
            parts = mamba2_parts(mixer)
            for kind in ("weight", "bias"):
                yield f"mamba.in_proj.{kind}", parts
                yield f"mamba.conv1d.{kind}", parts[1:4]
        case Mamba(num_heads=None):
            for kind in ("weight", "bias"):
                yield f"mamba.in_proj.{kind}", (mixer.width,) * 2
        case ShortConvolution():
            for kind in ("weight", "bias"):
                yield f"conv.in_proj.{kind}", (mixer.width,) * 3
