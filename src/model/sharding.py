"""The part of a model that one of several devices holds: tensor parallel, and pipeline stages.

Tensor parallel (arXiv:1909.08053): each device has some heads of every mixer, some columns of every feed-forward block
and of every expert, and some rows of the vocabulary. Norms, routers, compressed vectors and tables of positions are
held by all. Key-value heads, of which there may be fewer than devices, are held by several then.
A pipeline stage has consecutive layers. The first has the embedding and the output layer too, to which the last one
sends its results: where both are one matrix, it is held once, and the process that samples has the logits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from .sizes import count_parameters
from .spec import (
    MLP,
    Attention,
    Experts,
    FeedForward,
    GatedDelta,
    LatentAttention,
    LayerSpec,
    Mamba2,
    Mixer,
    ModelSpec,
    Placement,
    ShortConvolution,
)
from .tensors import EMBEDDING, OUTPUT, layer_tensors, mamba2_parts, model_shapes, outer_tensors

_NONE = (sys.maxsize, 0)  # no stages are possible
_SUMMED_BIASES = ("o_proj.bias", "out_proj.bias", "down_proj.bias")  # of what is summed over the devices


def not_divisible(spec: ModelSpec, num_devices: int) -> str | None:
    """Why tensor parallel on this number of devices is impossible; None if it is possible."""
    layers = dict.fromkeys(spec.layers)
    if num_devices == 1:
        return next((reason for layer in layers for reason in _unplaceable(layer, 1)), None)
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
            case Attention(head_norm="whole"):
                yield "the norm of its queries is over all heads together"
            case Attention() | LatentAttention() | GatedDelta() | Mamba2() | ShortConvolution():
                pass
            case _:
                yield f"a layer of the kind {mixer.kind}"
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
        case GatedDelta():
            yield "key heads of a recurrent layer", mixer.num_key_heads
            yield "value heads of a recurrent layer", mixer.num_value_heads
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


def not_parted(spec: ModelSpec, num_devices: int, num_parts: int) -> str | None:
    """Why `num_parts` of the devices of tensor parallel cannot share the tokens of each sequence; None if they can."""
    if num_parts == 1:
        return None
    mixers = dict.fromkeys(mixer for layer in spec.layers for mixer in layer.mixers)
    return next((reason for mixer in mixers if (reason := _unparted(mixer, num_devices, num_parts))), None)


def _unparted(mixer: Mixer, num_devices: int, num_parts: int) -> str | None:
    match mixer:
        case Attention(window=int()):
            return "some of its layers attend to a window, whose tokens each process keeps"
        case Attention(has_sinks=True):
            return "attention has sinks, which would be added once for each process"
        case Attention(alibi=alibi) if alibi != "none":
            return "attention depends on the distance of tokens (ALiBi), which a part of them does not have"
        case LatentAttention(index_heads=count) if count:
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
    is what one device with all heads would have; else it is that of all devices."""
    kept = [keeps for keeps in spec.kept_by_layer if keeps is not None]
    if len({(keeps.width, keeps.num_heads) for keeps in kept}) > 1:
        return tuple(range(num_devices)), num_devices == 1
    heads = kept[0].num_heads if kept else 0
    return tuple(range(0, num_devices, max(1, num_devices // heads))) if heads else (0,), True


def not_shared_in_time(spec: ModelSpec) -> str | None:
    """Why devices with the same weights cannot compute different tokens of a prompt; None if they can."""
    mixers = dict.fromkeys(mixer for layer in spec.layers for mixer in layer.mixers)
    return next((reason for mixer in mixers if (reason := _undivided_in_time(mixer))), None)


def _undivided_in_time(mixer: Mixer) -> str | None:
    match mixer:
        case LatentAttention(index_heads=count) if count:
            return "attention is to tokens that are chosen before the others have come"
        case Attention() | LatentAttention():
            return None
        case _:
            return "some of its layers keep a recurrent state, which is of all tokens before"


def of_one_device(spec: ModelSpec, num_devices: int) -> ModelSpec:
    """What each device computes with tensor parallel: the same on all of them, the vocabulary rounded up.

    Only where `not_divisible` returns None.
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
    }
    return layer.model_copy(update=update)


def _mixer(mixer: Mixer, parts: int) -> Mixer:
    match mixer:
        case Attention():
            heads = {"num_heads": mixer.num_heads // parts, "num_kv_heads": max(1, mixer.num_kv_heads // parts)}
            return mixer.model_copy(update=heads)
        case LatentAttention():
            return mixer.model_copy(update={"num_heads": mixer.num_heads // parts})
        case GatedDelta():
            keys, values = mixer.num_key_heads // parts, mixer.num_value_heads // parts
            return mixer.model_copy(update={"num_key_heads": keys, "num_value_heads": values})
        case Mamba2():
            heads = {"num_heads": mixer.num_heads // parts, "num_groups": mixer.num_groups // parts}
            return mixer.model_copy(update=heads)
        case ShortConvolution():
            return mixer.model_copy(update={"width": mixer.width // parts})
    raise AssertionError(f"not_divisible refuses {mixer.kind}")


def _feed_forward(block: FeedForward, parts: int) -> FeedForward:
    if isinstance(block, MLP):
        return block.model_copy(update={"width": block.width // parts})
    beside = block.beside and block.beside.model_copy(update={"width": block.beside.width // parts})
    if block.placement == "divided":
        own = {"width": block.width // parts}
    else:
        own = {"held": -(-(block.count + (block.redundant or 0)) // (parts * block.num_replicas))}
    return block.model_copy(update={**own, "shared_width": block.shared_width // parts, "beside": beside})


def with_placed_experts(
    spec: ModelSpec, placement: Placement, redundant: int | None = None, num_replicas: int = 1
) -> ModelSpec:
    """The model, whose experts several devices share in this way. redundant, num_replicas: as of Experts."""
    update = {"placement": placement, "redundant": redundant, "num_replicas": num_replicas}

    def placed(layer: LayerSpec) -> LayerSpec:
        block = layer.feed_forward
        if not isinstance(block, Experts):
            return layer
        return layer.model_copy(update={"feed_forward": block.model_copy(update=update)})

    layers = {layer: placed(layer) for layer in dict.fromkeys(spec.layers)}
    return spec.model_copy(update={"layers": tuple(layers[layer] for layer in spec.layers)})


def own_experts(block: Experts, num_devices: int, rank: int) -> range:
    """Those that a device has. Where they do not divide evenly the first devices have one more."""
    if block.placement == "divided" or num_devices == 1:
        return range(block.count)
    if block.placement == "round_robin":
        return range(rank, block.count, num_devices)
    few, more = divmod(block.count, num_devices)
    first = rank * few + min(rank, more)
    return range(first, first + few + (rank < more))


Layout = tuple[tuple[int, ...], ...]  # of each device, the experts that it has, in the order of their places


def first_layout(block: Experts, num_devices: int) -> Layout:
    """Where experts that can move are at first: each device has its own ones, and redundant copies of those that follow
    them in the same order. All have equally many, and none twice."""
    places = (block.count + (block.redundant or 0)) // num_devices
    layout: list[tuple[int, ...]] = []
    for rank in range(num_devices):
        own = own_experts(block, num_devices, rank)
        others = sorted(set(range(block.count)) - set(own), key=lambda expert: _distance(expert, own, block.count))
        layout.append((*own, *others)[:places])
    return tuple(layout)


def _distance(expert: int, own: range, count: int) -> tuple[int, int]:
    """From the own experts, in whose order others follow."""
    distance = (expert - own.start) % count
    return distance % own.step, distance


@dataclass(frozen=True, slots=True)
class Slice:
    """What one device has of a tensor of the checkpoint: `ranges` of dimension `dim`, one after the other.

    What its part has more than these is zeros.
    """

    whole: tuple[int, ...]  # the shape of the tensor
    dim: int
    ranges: tuple[range, ...]


def slices(spec: ModelSpec, num_devices: int, rank: int) -> dict[str, Slice]:
    """Of the tensors that device `rank` does not have as a whole, by their names."""
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
        elif rank and name.endswith(_SUMMED_BIASES):
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
    """Of the tensors that are several matrices or vectors, one after the other."""
    found: dict[str, tuple[int, ...]] = {}
    for index, layer in enumerate(spec.layers):
        for mixer in layer.mixers:
            for name, sizes in _mixer_sections(mixer):
                found[f"model.layers.{index}.{name}"] = sizes
    return found


def _mixer_sections(mixer: Mixer) -> Iterator[tuple[str, tuple[int, ...]]]:
    match mixer:
        case GatedDelta():
            keys, values = mixer.num_key_heads * mixer.key_dim, mixer.num_value_heads * mixer.value_dim
            yield "linear_attn.in_proj_qkv.weight", (keys, keys, values)
            yield "linear_attn.conv1d.weight", (keys, keys, values)
        case Mamba2():
            parts = mamba2_parts(mixer)
            for kind in ("weight", "bias"):
                yield f"mamba.in_proj.{kind}", parts
                yield f"mamba.conv1d.{kind}", parts[1:4]
        case ShortConvolution():
            for kind in ("weight", "bias"):
                yield f"conv.in_proj.{kind}", (mixer.width,) * 3


def not_staged(spec: ModelSpec, num_stages: int) -> str | None:
    """Why a pipeline of this number of stages is impossible; None if it is possible."""
    if num_stages > len(_starts(spec)):
        are_bound = ", some of which use what the one before has chosen," * (len(_starts(spec)) < spec.num_layers)
        return f"{spec.num_layers} layers{are_bound} cannot be {num_stages} stages"
    if num_stages > 1 and any(source is not None for source in spec.keys_of):
        return "some layers read the keys and values of others"
    if num_stages > 1 and spec.layer_input is not None:
        return "each layer has an input of its own"
    return None


def _starts(spec: ModelSpec) -> set[int]:
    """The layers that a stage may begin with: none that attends to the tokens that the layer before has chosen."""
    return {
        index
        for index, layer in enumerate(spec.layers)
        if not (isinstance(layer.mixer, LatentAttention) and layer.mixer.shares_index)
    }


def not_divided(spec: ModelSpec, num_devices: int, num_stages: int) -> str | None:
    """Why stages of this number of devices each are impossible; None if they are possible."""
    return not_divisible(spec, num_devices) or not_staged(spec, num_stages)


def stages(spec: ModelSpec, num_stages: int) -> list[range]:
    """The layers of each stage, at least one: those with which the largest stage is smallest, in elements of weights
    that a step reads. Of the first that includes the output layer, and not an embedding beside it."""
    costs = _layer_parameters(spec)
    outer = {tensor.name: tensor.size for tensor in outer_tensors(spec)}
    ends = sum(outer.values()) - (0 if spec.is_tied else outer[EMBEDDING])
    sums = [0, *accumulate(costs)]
    # Of the stages so far, by the layers that they have; none without layers.
    largest = [sys.maxsize, *(ends + total for total in sums[1:])]
    cuts: list[list[int]] = []
    possible = sorted(_starts(spec) - {0})
    for _ in range(1, num_stages):
        best = [
            min(
                ((max(largest[start], sums[stop] - sums[start]), start) for start in possible if start < stop),
                default=_NONE,
            )
            for stop in range(len(sums))
        ]
        largest = [size for size, _ in best]
        cuts.append([start for _, start in best])
    parts: list[range] = []
    stop = spec.num_layers
    for start_of in reversed(cuts):
        parts.append(range(start_of[stop], stop))
        stop = start_of[stop]
    return [range(stop), *reversed(parts)]


def stage_parameters(spec: ModelSpec, num_stages: int) -> list[int]:
    """Elements of the weights of each stage."""
    costs = _layer_parameters(spec)
    found = [sum(costs[layers.start : layers.stop]) for layers in stages(spec, num_stages)]
    found[0] += count_parameters(spec).total - sum(costs)
    return found


def largest_share(spec: ModelSpec, num_stages: int) -> Fraction:
    """Of all weights, in the stage that has most."""
    return Fraction(max(stage_parameters(spec, num_stages)), count_parameters(spec).total)


def of_stages(spec: ModelSpec, num_stages: int) -> list[ModelSpec]:
    """The model with the layers of each stage. Only the first has what is before and after the layers."""
    if num_stages == 1:
        return [spec]
    return [
        spec.model_copy(update={"layers": spec.layers[layers.start : layers.stop]})
        for layers in stages(spec, num_stages)
    ]


def _layer_parameters(spec: ModelSpec) -> list[int]:
    sizes = {
        layer: sum(tensor.copies * tensor.size for tensor in layer_tensors(spec, layer))
        for layer in dict.fromkeys(spec.layers)
    }
    return [sizes[layer] for layer in spec.layers]
