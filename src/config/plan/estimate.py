"""The memory of a device by use, and whether it is enough.

Weights and KV cache are computed exactly. Process, activations and graphs are estimates, given as a range, because the
formulas leave things out. The source of each constant is in a comment next to it.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Literal

from ...model.cache_groups import groups_of_stage, model_cache_groups
from ...model.offload import WeightOffload, weight_offload
from ...model.pipeline_stages import largest_share, most_state_bytes, of_stages
from ...model.record import Record
from ...model.sizes import DTYPE_BYTES, activation_elements, count_parameters, moving_bytes
from ...model.spec import ModelSpec
from ...model.tensor_parallel import of_one_device
from ..auto_values import auto_kv_bytes, auto_num_seqs, num_states
from ..resolve.gpu_memory import CONTEXT_BYTES, GRAPHS_BYTES, staging_bytes, step_bytes
from ..schema.types import format_about as about
from .ask import Ask
from .devices import DeviceProfile
from .kv import KVCost, kv_cost, kv_cost_of_groups
from .model import PlannedModel

Status = Literal["fits", "fits with less context", "may not fit", "does not fit"]
MIB = 1 << 20
LOGIT_ROWS = 128  # of one pass, as in engine/runner/sample_head.py
CAPTURED_ROWS = 128  # for each replica that shares experts, as in engine/collectives/shared_experts.py
GRAPH_BYTES = 4 << 10  # of each layer in a captured step on a CPU: measured, twelve calls with 300 bytes each


class Range(Record):
    """Bytes; `likely` is the result of the formula."""

    low: int
    likely: int
    high: int

    def __add__(self, other: Range | int) -> Range:
        if isinstance(other, int):
            return Range(low=self.low + other, likely=self.likely + other, high=self.high + other)
        return Range(low=self.low + other.low, likely=self.likely + other.likely, high=self.high + other.high)


NOTHING = Range(low=0, likely=0, high=0)


class Estimate(Record):
    """Bytes of one device; with several stages, of the largest stage."""

    status: Status
    reason: str  # why it does not fit, or only in part; empty if it fits
    memory_bytes: int
    budget_bytes: int  # memory_share of it
    weights_bytes: int
    weight_offload: WeightOffload | None = None  # in the host's memory, not counted in `weights_bytes`
    num_states: int  # recurrent states: of max_num_seqs sequences, and those kept for later requests
    state_bytes: int  # of all of them
    transfer_bytes: int = 0  # blocks that other engines may read; on a GPU they are in the host's memory
    kept_bytes: int = 0  # blocks beside the KV cache; on a GPU they are in the host's memory
    is_on_host: bool = False  # these two, and not counted
    moving_bytes: int = 0  # experts on their way to this process
    process: Range
    activations: Range
    graphs: Range
    grammars: Range  # vocabulary of structured outputs; on a GPU it is in the host's memory
    kv: KVCost
    kv_cache_bytes: int
    max_model_len: int

    @property
    def peak(self) -> Range:
        """The highest total at any time."""
        return (
            self.process
            + self.activations
            + self.graphs
            + self.grammars
            + (self.weights_bytes + self.state_bytes + self.beside_bytes + self.moving_bytes + self.kv_cache_bytes)
        )

    @property
    def beside_bytes(self) -> int:
        """Bytes on the device for blocks outside the KV cache."""
        return 0 if self.is_on_host else self.transfer_bytes + self.kept_bytes

    @property
    def is_blocked(self) -> bool:
        """Whether it does not fit by exact computation, estimates left out."""
        return self.status == "does not fit"


def with_sizes(model: PlannedModel, device: DeviceProfile, ask: Ask, **sizes: int) -> Ask:
    """The same of a device among several. Recurrent states take a share of what the weights leave, so the number of
    sequences follows from the device's own part of both.

    sizes: the fields of Ask that say how the model is divided.
    """
    ask = ask.model_copy(update=sizes)
    if not ask.has_auto_num_seqs or model.files is None:
        return ask
    one_state = _one_state(of_one_device(model.spec, ask.tensor_parallel_size), ask)
    room = int(ask.memory_share * device.memory) - held_weights(model, ask)
    number = auto_num_seqs("cuda" if device.is_gpu else "cpu", one_state, room)
    return ask.model_copy(update={"max_num_seqs": number})


def held_weights(model: PlannedModel, ask: Ask) -> int:
    """Bytes of weights of the device with most of them."""
    return ceil(model.weights_bytes(ask.dtype, ask.held_in, layout=ask.codes_layout) * weights_share(model.spec, ask))


def estimate(model: PlannedModel, device: DeviceProfile, ask: Ask) -> Estimate:
    spec = of_one_device(model.spec, ask.tensor_parallel_size)
    weights = held_weights(model, ask)
    offload = _offload(model, device, ask, weights)
    weights -= 0 if offload is None else offload.saved_bytes
    one_state = 0
    if model.files is None:
        kv = _kv_of_layers(spec, ask)
    else:
        groups = model_cache_groups(spec, model.limit, ask.has_cache_groups)
        kv = kv_cost_of_groups(
            groups_of_stage(spec, groups, ask.pipeline_parallel_size),
            spec,
            ask.kv_dtype,
            ask.block_size,
            step_tokens=ask.max_num_batched_tokens,
            num_parts=ask.decode_context_parallel_size,
        )
        one_state = _one_state(spec, ask)
    places = num_states(one_state, ask.max_num_seqs, ask.retention_interval)
    states = places * one_state
    budget = int(ask.memory_share * device.memory)
    process, activations = process_memory(model, device, ask), activation_memory(model, device, ask)
    if device.is_gpu and ask.stores_blocks:
        activations += staging_bytes(kv.block_bytes)
    graphs = graph_memory(ask) if device.is_gpu else captured_memory(model.spec, ask)
    grammars = NOTHING if device.is_gpu else grammar_memory(model, ask)
    extra = process + activations + graphs + grammars
    written = _written_kv(ask, kv)
    beside = 0 if device.is_gpu else ask.transfer_bytes + ask.kept_bytes
    moving = moving_bytes(spec, ask.dtype, ask.held_in)
    fixed = weights + states + beside + moving
    room = budget - fixed - (extra.likely if device.is_gpu else 0)  # a CPU's budget is for weights and KV cache only
    cache = max(0, room if written is None and device.is_gpu else _auto_kv(model, ask, kv, room, written))
    held = kv.longest(cache, model.limit)
    length = ask.max_model_len if ask.max_model_len is not None else held
    if written is None and device.is_gpu:  # the same without subtracting what is only estimated
        at_best = max(0, budget - fixed)
    else:
        at_best = cache
    status, reason = _status(model, device, ask, kv, fixed, cache, at_best, held)
    if status in ("fits", "fits with less context") and fixed + cache + extra.likely > device.memory:
        status = "may not fit"
        reason = f"all together is estimated at {about(fixed + cache + extra.likely)} of {about(device.memory)}"
    return Estimate(
        status=status,
        reason=reason,
        memory_bytes=device.memory,
        budget_bytes=budget,
        weights_bytes=weights,
        weight_offload=offload,
        num_states=places,
        state_bytes=states,
        transfer_bytes=ask.transfer_bytes,
        kept_bytes=ask.kept_bytes,
        is_on_host=device.is_gpu,
        moving_bytes=moving,
        process=process,
        activations=activations,
        graphs=graphs,
        grammars=grammars,
        kv=kv,
        kv_cache_bytes=cache,
        max_model_len=length,
    )


def weights_share(spec: ModelSpec, ask: Ask) -> Fraction:
    """The part of all weights that the device with most of them holds."""
    if ask.num_devices == 1 and spec.num_sharing_experts == 1:
        return Fraction(1)
    own = of_one_device(spec, ask.tensor_parallel_size)
    share = largest_share(own, ask.pipeline_parallel_size)
    return share * Fraction(count_parameters(own).total, count_parameters(spec).total)


def _one_state(spec: ModelSpec, ask: Ask) -> int:
    return most_state_bytes(spec, ask.pipeline_parallel_size, ask.dtype, ask.state_dtype)


def _kv_of_layers(spec: ModelSpec, ask: Ask) -> KVCost:
    """KV cost of the stage that keeps most of each token, in a model that this build cannot run."""
    costs = (
        kv_cost(part, ask.kv_dtype, ask.block_size, ask.decode_context_parallel_size)
        for part in of_stages(spec, ask.pipeline_parallel_size)
    )
    return max(costs, key=lambda cost: cost.to_admit(spec.max_position_embeddings))


def _offload(model: PlannedModel, device: DeviceProfile, ask: Ask, weights: int) -> WeightOffload | None:
    is_native = model.files is None or model.files.implementation == "native"
    if not (device.is_gpu and is_native and ask.pipeline_parallel_size == 1):
        return None
    return weight_offload(
        of_one_device(model.spec, ask.tensor_parallel_size),
        ask.dtype,
        weights,
        ask.cpu_offload_gb,
        ask.offload_prefetch_step,
    )


def _status(
    model: PlannedModel,
    device: DeviceProfile,
    ask: Ask,
    kv: KVCost,
    fixed: int,
    cache: int,
    at_best: int,
    held: int,
) -> tuple[Status, str]:
    """fixed: bytes of weights and states."""
    budget = int(ask.memory_share * device.memory)
    weights = "weights and states" if model.spec.has_states else "weights"
    if ask.kv_cache_bytes is not None or ask.num_kv_blocks is not None:
        if fixed + cache > device.memory:
            return "does not fit", f"{weights} and KV cache need {about(fixed + cache)} of {about(device.memory)}"
    elif at_best < kv.to_admit(1) or fixed > budget:
        return "does not fit", f"the {weights} alone need {about(fixed)} of the {about(budget)} that may be used"
    wanted = ask.max_model_len
    if wanted is not None and kv.to_admit(wanted) > at_best:
        one = about(kv.to_admit(wanted))
        return "does not fit", f"one sequence of {wanted} tokens needs {one}; the {weights} leave {about(at_best)}"
    if wanted is not None and kv.to_admit(wanted) > cache:
        reason = (
            f"one sequence of {wanted} tokens needs {about(kv.to_admit(wanted))}; about {about(cache)} are left for it"
        )
        return "may not fit", reason
    if cache < kv.to_admit(1):
        return "may not fit", f"{weights} ({about(fixed)}) and the memory of a step leave nothing for the KV cache"
    if wanted is None and held < model.limit:
        return "fits with less context", f"{held} of the {model.limit} tokens that the model goes to"
    return "fits", ""


def _written_kv(ask: Ask, kv: KVCost) -> int | None:
    block = kv.block_bytes
    if ask.num_kv_blocks is not None:
        return ask.num_kv_blocks * block
    return None if ask.kv_cache_bytes is None else ask.kv_cache_bytes // block * block


def _auto_kv(model: PlannedModel, ask: Ask, kv: KVCost, room: int, written: int | None) -> int:
    if written is not None:
        return written
    block = kv.block_bytes
    one = -(-kv.to_admit(ask.max_model_len or model.limit) // block) * block
    return auto_kv_bytes(ask.max_num_seqs, one, room, is_len_written=ask.max_model_len is not None)[0] // block * block


def process_memory(model: PlannedModel, device: DeviceProfile, ask: Ask) -> Range:
    """Memory besides the model: libraries, the device's context, tables by position."""
    if device.is_gpu:  # communication buffers between cards: 400 MiB
        links = (ask.num_devices > 1) * 400 * MIB
        return Range(low=300 * MIB, likely=CONTEXT_BYTES + links, high=1300 * MIB + 2 * links)
    # Measured with torch's CPU build on Linux: 234 MiB after the libraries, 26 more once it has run.
    # Packed matrices are aligned to pages of 2 MiB: 0.8 MiB lost per matrix over the 4 x 28 of Qwen3-0.6B.
    length = ask.max_model_len or model.limit
    turns = length * model.spec.rotary_dim * 4
    packed = ask.dtype == "bfloat16" and model.spec.hidden_size >= 1024
    pages = 4 * model.spec.num_layers * (8 * MIB // 10) if packed else 0
    fixed = Range(low=235 * MIB, likely=262 * MIB, high=520 * MIB)  # high: torch's CUDA build
    return fixed + Range(low=turns, likely=turns + pages, high=2 * turns + 2 * pages)


def _step_elements(spec: ModelSpec, ask: Ask) -> int:
    """Activation elements of a step, for each token of a replica."""
    whole, shared = activation_elements(spec)
    if (num_replicas := spec.num_sharing_experts) > 1:  # tokens of all, what its experts add to each, and sums
        whole += num_replicas * spec.hidden_size * (2 + 4 // DTYPE_BYTES[ask.dtype])
    return whole + shared // ask.tensor_parallel_size


def activation_memory(model: PlannedModel, device: DeviceProfile, ask: Ask) -> Range:
    """Activations of the largest step, as resolve/gpu_memory.py reserves them on a GPU.

    On a CPU: the tensors of one layer that are live at the same time, and the logits of one pass. Measured peaks were
    between 0.7 and 2.3 times this.
    """
    spec, size = model.spec, DTYPE_BYTES[ask.dtype]
    tokens = ask.max_num_batched_tokens * _step_elements(spec, ask) * size
    if device.is_gpu:
        sizes = ask.max_num_seqs, ask.max_num_batched_tokens
        likely = step_bytes(spec, ask.dtype, *sizes, num_devices=ask.tensor_parallel_size)
    else:
        rows = min(ask.max_num_seqs, LOGIT_ROWS)
        likely = tokens + rows * spec.vocab_size * (size + 4) + 24 * MIB  # logits in their own dtype and in float32
    return Range(low=tokens // 2, likely=likely, high=round(2.3 * likely))


def graph_memory(ask: Ask) -> Range:
    """CUDA graphs: one per batch size, each with its own copy of every launch's arguments. Users of such engines report
    0.3 to 1 GiB for an 8B model."""
    return Range(low=GRAPHS_BYTES // 2, likely=GRAPHS_BYTES, high=4 * GRAPHS_BYTES) if ask.has_graphs else NOTHING


def captured_memory(spec: ModelSpec, ask: Ask) -> Range:
    """Memory of captured steps on a CPU whose replicas share experts: their arguments, and the memory that they share.

    The captured steps of one process need a few MiB, which `process_memory` includes.
    """
    if spec.num_sharing_experts == 1:
        return NOTHING
    graphs = num_captured_steps(ask.max_num_seqs, spec.num_sharing_experts) * spec.num_layers * GRAPH_BYTES
    shared = CAPTURED_ROWS * _step_elements(spec, ask) * DTYPE_BYTES[ask.dtype]
    return Range(low=shared // 2, likely=graphs // 2 + shared, high=graphs + 2 * shared)


def num_captured_steps(max_num_seqs: int, num_replicas: int) -> int:
    """The most that one of several replicas captures: of each number of own tokens, none too, with each power of two
    that the tokens of all are rounded up to."""
    sizes = [1 << exponent for exponent in range((CAPTURED_ROWS * num_replicas - 1).bit_length() + 1)]
    return sum(size >= own for own in range(min(max_num_seqs, LOGIT_ROWS) + 1) for size in sizes)


def grammar_memory(model: PlannedModel, ask: Ask) -> Range:
    """llguidance's copy of the vocabulary, in the engine process.

    Measured with byte-level vocabularies of 32,000 and 152,000 tokens: 710 to 930 bytes per token remain allocated, and
    1050 to 1080 are needed while it is built; the allocator keeps the difference.
    """
    tokens = model.spec.vocab_size if ask.has_grammars else 0
    return Range(low=700 * tokens, likely=1050 * tokens, high=1600 * tokens)
