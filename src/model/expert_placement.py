"""Expert parallel: the whole experts that each of several devices has."""

from __future__ import annotations

from .feed_forwards import Experts, Placement
from .spec import LayerSpec, ModelSpec


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
    """Experts that a device has. If they do not divide evenly, each of the first devices has one more."""
    if block.placement == "divided" or num_devices == 1:
        return range(block.count)
    if block.placement == "round_robin":
        return range(rank, block.count, num_devices)
    few, more = divmod(block.count, num_devices)
    first = rank * few + min(rank, more)
    return range(first, first + few + (rank < more))


Layout = tuple[tuple[int, ...], ...]  # of each device, the experts that it has, in the order of their places


def first_layout(block: Experts, num_devices: int) -> Layout:
    """Layout of experts that can move, at the start. Each device has its own experts, and redundant copies of the
    experts that follow them in the same order. All have equally many, and none twice."""
    places = (block.count + (block.redundant or 0)) // num_devices
    layout: list[tuple[int, ...]] = []
    for rank in range(num_devices):
        own = own_experts(block, num_devices, rank)
        others = sorted(set(range(block.count)) - set(own), key=lambda expert: _distance(expert, own, block.count))
        layout.append((*own, *others)[:places])
    return tuple(layout)


def _distance(expert: int, own: range, count: int) -> tuple[int, int]:
    """Distance of an expert from the device's own, in whose order others follow."""
    distance = (expert - own.start) % count
    return distance % own.step, distance
