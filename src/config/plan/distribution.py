"""A model on several devices: which numbers of them hold it, what they exchange, and which numbers to choose.

Tensor parallel stays within a node, whose devices are connected fastest; where a node is not enough, nodes become the
stages of a pipeline; the devices that are left hold further replicas. Times are estimates from the speeds of the links.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...model.feed_forwards import Experts
from ...model.pipeline_stages import pipeline_problem
from ...model.record import Record
from ...model.sizes import DTYPE_BYTES
from ...model.spec import ModelSpec
from ...model.tensor_parallel import tensor_parallel_problem
from ..schema.types import format_about as about
from .ask import Ask
from .capacity import Speed, speed
from .devices import DeviceProfile
from .estimate import Estimate, Status, estimate, with_sizes
from .model import PlannedModel

Times = tuple[float, float]  # the lowest and the highest
# Seconds of a collective of a few KiB, and of one message to another node: estimates, not measured with this engine.
_COLLECTIVE_S, _MESSAGE_S = (5e-6, 20e-6), (5e-6, 40e-6)
_CHOICE_BYTES = 8  # of an expert and its weight
_LINK_SHARE = (0.9, 0.6)  # of a link's speed that large messages reach


class Exchange(Record):
    """What the devices of one replica send in one step."""

    num_all_reduces: int  # sums of vectors of the model's width, over the devices of a stage
    num_sends: int  # from stage to stage
    bytes_per_token: int  # that each device sends in the all-reduces, a ring; of each token of the step
    sent_per_token: int  # from stage to stage

    def seconds(self, num_tokens: int, device: DeviceProfile, *, crosses_nodes: bool) -> Times:
        between = device.network_gb_per_s if crosses_nodes else device.to_neighbours_gb_per_s
        low, high = (
            self.num_all_reduces * collective
            + self.num_sends * message
            + num_tokens * self.bytes_per_token / (device.to_neighbours_gb_per_s * 1e9 * share)
            + num_tokens * self.sent_per_token / (between * 1e9 * share)
            for collective, message, share in zip(_COLLECTIVE_S, _MESSAGE_S, _LINK_SHARE, strict=True)
        )
        return low, high


class Sharing(Record):
    """What replicas that share experts exchange in one step."""

    num_exchanges: int  # all replicas wait for each other in each
    bytes_per_token: int  # that all of them write, of each token of a replica


class Placement(Record):
    """One way to place the model. Bytes are of one device, numbers of sequences of one replica."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    status: Status
    reason: str
    weights_bytes: int
    kv_cache_bytes: int
    max_model_len: int
    num_sequences: int  # of that length
    max_num_seqs: int
    exchange: Exchange
    of_decode: Times | None  # share of the time of a step that the exchange takes: one sequence
    of_prefill: Times | None  # and one full step of a prompt

    @property
    def num_devices(self) -> int:
        """Number of devices of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


class Distribution(Record):
    """placements: fewest devices first. chosen: its index; None if the model fits in none of them.
    obstacle: why the model is not divided over more devices of a node; None if it can be."""

    num_devices: int
    devices_per_node: int
    placements: tuple[Placement, ...]
    chosen: int | None
    why: str
    obstacle: str | None

    @property
    def shown(self) -> Placement:
        """The one whose details a plan shows."""
        return self.placements[-1 if self.chosen is None else self.chosen]


def distribute(
    model: PlannedModel, device: DeviceProfile, ask: Ask, num_devices: int, devices_per_node: int, num_replicas: int = 1
) -> Distribution:
    """num_replicas: the smallest number of them that is asked for. Devices must be full nodes, or part of one."""
    found = [
        _placement(model, device, ask, tensor, stages, num_devices, devices_per_node)
        for tensor, stages in _ways(model.spec, num_devices // num_replicas, num_devices, devices_per_node)
    ]
    chosen = next(
        (
            index
            for wanted in ("fits", "fits with less context", "may not fit")
            for index, placement in enumerate(found)
            if placement.status == wanted
        ),
        None,
    )
    return Distribution(
        num_devices=num_devices,
        devices_per_node=devices_per_node,
        placements=tuple(found),
        chosen=chosen,
        why=_why(found, chosen, devices_per_node) if chosen is not None else found[-1].reason,
        obstacle=tensor_parallel_problem(model.spec, min(num_devices // num_replicas, devices_per_node)),
    )


def _ways(spec: ModelSpec, most: int, num_devices: int, devices_per_node: int) -> Iterator[tuple[int, int]]:
    """Tensor-parallel and pipeline-parallel sizes of at most `most` devices together."""
    within = min(most, devices_per_node)
    sizes = [
        size for size in range(1, within + 1) if num_devices % size == 0 and not tensor_parallel_problem(spec, size)
    ]
    yield from ((size, 1) for size in sizes)
    largest = sizes[-1]
    for stages in range(2, most // largest + 1):
        if num_devices % (largest * stages) == 0 and not pipeline_problem(spec, stages):
            yield largest, stages


def _placement(
    model: PlannedModel,
    device: DeviceProfile,
    ask: Ask,
    tensor: int,
    stages: int,
    num_devices: int,
    devices_per_node: int,
) -> Placement:
    ask = with_sizes(model, device, ask, tensor_parallel_size=tensor, pipeline_parallel_size=stages)
    found = estimate(model, device, ask)
    exchange = exchange_of(model.spec, ask)
    of_decode, of_prefill = _shares(
        exchange, device, ask, speed(model, device, ask, found), crosses_nodes=tensor * stages > devices_per_node
    )
    return Placement(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=stages,
        data_parallel_size=num_devices // (tensor * stages),
        status=found.status,
        reason=found.reason,
        weights_bytes=found.weights_bytes,
        kv_cache_bytes=found.kv_cache_bytes,
        max_model_len=found.max_model_len,
        num_sequences=_num_sequences(found, ask),
        max_num_seqs=ask.max_num_seqs,
        exchange=exchange,
        of_decode=of_decode,
        of_prefill=of_prefill,
    )


def _num_sequences(found: Estimate, ask: Ask) -> int:
    if not found.max_model_len:
        return 0
    return min(ask.max_num_seqs, found.kv.num_sequences(found.kv_cache_bytes, found.max_model_len))


def exchange_of(spec: ModelSpec, ask: Ask) -> Exchange:
    """One sum after each mixer and each feed-forward block, and one for the rows of the embedding that others hold; two
    in a layer with n-grams.
    """
    parts, stages = ask.tensor_parallel_size, ask.pipeline_parallel_size
    sums = 1 + sum(len(layer.mixers) + (layer.feed_forward is not None) for layer in spec.layers)
    with_ngrams = sum(layer.ngrams is not None for layer in spec.layers)  # their keys and values
    vector, wide = (width * DTYPE_BYTES[ask.dtype] for width in (spec.hidden_size, spec.stream_width))
    return Exchange(
        num_all_reduces=sums + 2 * with_ngrams if parts > 1 else 0,
        num_sends=stages if stages > 1 else 0,  # the first one samples
        bytes_per_token=(sums * vector + with_ngrams * (wide + vector)) * 2 * (parts - 1) // parts,
        # The residual, and what the last layer adds to it; several streams are sent as they are.
        sent_per_token=(stages - 1) * (2 * vector if spec.has_residual else wide),
    )


def sharing_of(spec: ModelSpec, dtype: str) -> Sharing | None:
    """What replicas exchange in a step; None if each replica has all experts.

    A step begins with the number of tokens of each replica. In each layer of experts all replicas read a token and its
    choice of experts, and each adds to its output.
    """
    num_replicas, vector = spec.num_sharing_experts, spec.hidden_size * DTYPE_BYTES[dtype]
    if num_replicas == 1:
        return None
    blocks = [layer.feed_forward for layer in spec.layers if isinstance(layer.feed_forward, Experts)]
    choices = sum(block.per_token * _CHOICE_BYTES for block in blocks)
    return Sharing(
        num_exchanges=1 + 2 * len(blocks), bytes_per_token=len(blocks) * (1 + num_replicas) * vector + choices
    )


def _shares(
    exchange: Exchange, device: DeviceProfile, ask: Ask, estimated: Speed | None, *, crosses_nodes: bool
) -> tuple[Times | None, Times | None]:
    if estimated is None or ask.num_devices == 1:
        return None, None
    step = ask.max_num_batched_tokens
    rates = ((1, estimated.decode_one), (step, estimated.prefill))
    found: list[Times] = []
    for num_tokens, (slow, fast) in rates:
        low, high = exchange.seconds(num_tokens, device, crosses_nodes=crosses_nodes)
        found.append((low / (low + num_tokens / slow), high / (high + num_tokens / fast)))
    return found[0], found[1]


def _why(placements: list[Placement], chosen: int, devices_per_node: int) -> str:
    placement, smaller = placements[chosen], placements[:chosen]
    number = placement.num_devices
    if placement.status == "fits":
        why = f"{number} device{'s' * (number > 1)} hold{'s' * (number == 1)} the model with all of its context"
    else:
        why = f"{placement.status}: {placement.reason}"
    if smaller:
        before = smaller[-1]
        others = "one does not" if before.num_devices == 1 else f"{before.num_devices} do not"
        why += f"; {others}: {before.reason}" if before.reason else ""
    elif number == 1:
        why += ", and nothing is exchanged"
    if placement.pipeline_parallel_size > 1:
        nodes = -(-number // devices_per_node)
        why += f"; a node has {devices_per_node}, so {nodes} nodes are stages, which exchange least"
    return why


def manifest_of(placement: Placement) -> str:
    """The options of section `parallel`."""
    sizes = {
        "tensor_parallel_size": placement.tensor_parallel_size,
        "pipeline_parallel_size": placement.pipeline_parallel_size,
        "data_parallel_size": placement.data_parallel_size,
    }
    return ", ".join(f"{name}: {size}" for name, size in sizes.items() if size > 1) or "nothing: one device"


def exchange_text(exchange: Exchange) -> list[str]:
    """What each device sends in a step, in words."""
    lines: list[str] = []
    if exchange.num_all_reduces:
        lines.append(
            f"{exchange.num_all_reduces} all-reduces a step, in which each device sends "
            f"{about(exchange.bytes_per_token)} a token"
        )
    if exchange.num_sends:
        lines.append(
            f"{exchange.num_sends} messages a step from stage to stage, {about(exchange.sent_per_token)} a token"
        )
    return lines
