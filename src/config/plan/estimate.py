"""The memory of a device by use, and whether it is enough.

Weights and KV cache are computed exactly, in config/memory. Process, activations and graphs are estimates, given as a
range, because the formulas leave things out. The source of each constant is in a comment next to it.
"""

from __future__ import annotations

from typing import Literal

from ...model.pipeline_stages import of_stages
from ...model.record import Record
from ...model.sizes import DTYPE_BYTES, activation_elements
from ...model.spec import ModelSpec
from ...model.tensor_parallel import of_one_device
from ..auto_values import MAX_NUM_SEQS, auto_num_seqs, past_output_bytes
from ..memory.gpu_reserve import GRAPHS_BYTES, context_bytes, staging_bytes, step_bytes
from ..memory.kv_cost import KVCost
from ..memory.memory_plan import MemoryPlan, memory_of
from ..memory.needs import DeviceRoom, ModelShare
from ..resolve.draft_files import DraftFiles
from ..schema.types import format_about as about
from .ask import Ask
from .devices import DeviceProfile
from .kv import kv_cost
from .model import PlannedModel

Status = Literal["fits", "fits with less context", "may not fit", "does not fit"]
MIB = 1 << 20
LOGIT_ROWS = 128  # of one pass, as in engine/runner/sample_head.py
CAPTURED_ROWS = 128  # for each replica that shares experts, as in engine/collectives/shared_experts.py
CAPTURED_DRAFTS = 70  # steps with drafts that a process captures at most, as in engine/runner/body.py
CAPTURED_OF_NETWORK = (
    256 + 128 + 90
)  # steps of one that drafts: chains, rows, tokens, as in engine/runner/model_drafts.py
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

    @property
    def shown(self) -> str:
        return f"{about(self.low)} to {about(self.high)}, likely {about(self.likely)}"


NOTHING = Range(low=0, likely=0, high=0)


class Estimate(MemoryPlan):
    """Bytes of one device; with several stages, of the largest stage."""

    status: Status
    reason: str  # why it does not fit, or only in part; empty if it fits
    memory_bytes: int
    process: Range
    activations: Range
    graphs: Range
    grammars: Range  # vocabulary of structured outputs; on a GPU it is in the host's memory
    drafts: Range = NOTHING  # what they need beside a deployment without
    max_model_len: int

    @property
    def peak(self) -> Range:
        """The highest total at any time."""
        return self.process + self.activations + self.graphs + self.grammars + self.drafts + self.total_bytes

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
    share, most = _share(model, ask), max(MAX_NUM_SEQS["cuda" if device.is_gpu else "cpu"], ask.max_num_seqs)
    room = device.room.budget(ask.memory_share) - share.weights_bytes
    return ask.model_copy(
        update={"max_num_seqs": auto_num_seqs(most, share.state_bytes, room, has_drafts=ask.has_drafts)}
    )


def estimate(model: PlannedModel, device: DeviceProfile, ask: Ask) -> Estimate:
    memory = memory_of(ask, _share(model, ask), device.room)
    process = process_memory(model.spec, device, ask, ask.max_model_len or model.limit)
    activations = activation_memory(model.spec, device, ask)
    if device.is_gpu and ask.stores_blocks:
        activations += staging_bytes(memory.kv_block_bytes)
    graphs = graph_memory(ask) if device.is_gpu else captured_memory(model.spec, ask)
    grammars = NOTHING if device.is_gpu else grammar_memory(model.spec, ask)
    drafts = draft_memory(model, ask)
    status, reason = _status(model, device.room, ask, memory)
    likely = memory.total_bytes + (process + activations + graphs + grammars + drafts).likely
    if status in ("fits", "fits with less context") and likely > device.room.free_bytes:
        status = "may not fit"
        reason = f"all together is estimated at {about(likely)} of {about(device.room.free_bytes)}"
    return Estimate(
        **dict(memory),
        status=status,
        reason=reason,
        memory_bytes=device.memory,
        process=process,
        activations=activations,
        graphs=graphs,
        grammars=grammars,
        drafts=drafts,
        max_model_len=memory.max_cached_len if ask.max_model_len is None else ask.max_model_len,
    )


def _network(model: PlannedModel, ask: Ask) -> DraftFiles | None:
    """What drafts for the model, if it is a network."""
    return model.files.draft if model.files is not None and ask.has_network else None


def _share(model: PlannedModel, ask: Ask) -> ModelShare:
    draft, num_ranks = _network(model, ask), ask.tensor_parallel_size
    draft_bytes = 0
    if draft is not None:
        draft_bytes = draft.held_bytes(ask.dtype, ask.held_in, ask.max_num_seqs)
        draft_bytes += draft.ends_bytes(model.spec, ask.dtype, ask.held_in, num_ranks)
    return ModelShare(
        spec=model.spec,
        max_context=model.limit,
        can_offload=(model.files is None or model.is_native) and ask.pipeline_parallel_size == 1,
        dtype=ask.dtype,
        held_in=ask.held_in,
        state_dtype=ask.state_dtype,
        rank_weights_bytes=model.rank_bytes(ask.tensor_parallel_size, ask.dtype, ask.held_in, ask.codes_layout),
        num_ranks=num_ranks,
        num_stages=ask.pipeline_parallel_size,
        num_context_parts=ask.decode_context_parallel_size,
        kv_of_layers=_kv_of_layers(model.spec, ask) if model.files is None else None,
        draft_weights_bytes=draft_bytes,
        draft_token_bytes=0 if draft is None else draft.token_bytes(ask.kv_dtype),
    )


def _kv_of_layers(spec: ModelSpec, ask: Ask) -> KVCost:
    """KV cost of the stage that keeps most of each token, in a model that this build cannot run."""
    costs = (
        kv_cost(part, ask.kv_dtype, ask.block_size, ask.decode_context_parallel_size)
        for part in of_stages(of_one_device(spec, ask.tensor_parallel_size), ask.pipeline_parallel_size)
    )
    return max(costs, key=lambda cost: cost.to_admit(spec.max_position_embeddings))


def _status(model: PlannedModel, room: DeviceRoom, ask: Ask, memory: MemoryPlan) -> tuple[Status, str]:
    kv, fixed, cache, wanted = memory.kv, memory.fixed_bytes, memory.kv_cache_bytes, ask.max_model_len
    weights = "weights and states" if model.spec.has_states else "weights"
    # on a GPU, without subtracting what is only estimated
    at_best = max(0, memory.budget_bytes - fixed) if memory.kv_sized_by == "rest" else cache
    if memory.kv_sized_by in ("blocks", "bytes"):
        if memory.total_bytes > room.free_bytes:
            needed = about(memory.total_bytes)
            return "does not fit", f"{weights} and KV cache need {needed} of {about(room.free_bytes)}"
    elif at_best < kv.to_admit(1) or fixed > memory.budget_bytes:
        allowed = about(memory.budget_bytes)
        return "does not fit", f"the {weights} alone need {about(fixed)} of the {allowed} that may be used"
    if wanted is not None and kv.to_admit(wanted) > cache:
        one = f"one sequence of {wanted} tokens needs {about(kv.to_admit(wanted))}"
        if kv.to_admit(wanted) > at_best:
            return "does not fit", f"{one}; the {weights} leave {about(at_best)}"
        return "may not fit", f"{one}; about {about(cache)} are left for it"
    if cache < kv.to_admit(1) or not memory.num_kv_blocks:
        return "may not fit", f"{weights} ({about(fixed)}) and the memory of a step leave nothing for the KV cache"
    if wanted is None and memory.max_cached_len < model.limit:
        return "fits with less context", f"{memory.max_cached_len} of the {model.limit} tokens that the model goes to"
    return "fits", ""


def process_memory(spec: ModelSpec, device: DeviceProfile, ask: Ask, max_model_len: int) -> Range:
    """Memory besides the model: libraries, the device's context, tables by position."""
    if device.is_gpu:
        likely = context_bytes(ask.tensor_parallel_size)
        return Range(low=300 * MIB, likely=likely, high=276 * MIB + 2 * likely)
    # Measured with torch's CPU build on Linux: 234 MiB after the libraries, 26 more once it has run.
    # Packed matrices are aligned to pages of 2 MiB: 0.8 MiB lost per matrix over the 4 x 28 of Qwen3-0.6B.
    turns = max_model_len * spec.rotary_dim * 4
    packed = ask.dtype == "bfloat16" and spec.hidden_size >= 1024
    pages = 4 * spec.num_layers * (8 * MIB // 10) if packed else 0
    fixed = Range(low=235 * MIB, likely=262 * MIB, high=520 * MIB)  # high: torch's CUDA build
    return fixed + Range(low=turns, likely=turns + pages, high=2 * turns + 2 * pages)


def _step_elements(spec: ModelSpec, ask: Ask) -> int:
    """Activation elements of a step, for each token of a replica."""
    whole, shared = activation_elements(spec)
    if (num_replicas := spec.num_sharing_experts) > 1:  # tokens of all, what its experts add to each, and sums
        whole += num_replicas * spec.hidden_size * (2 + 4 // DTYPE_BYTES[ask.dtype])
    return whole + shared // ask.tensor_parallel_size


def activation_memory(spec: ModelSpec, device: DeviceProfile, ask: Ask) -> Range:
    """Activations of the largest step, as memory/gpu_reserve.py reserves them on a GPU.

    On a CPU: the tensors of one layer that are live at the same time, and the logits of one pass. Measured peaks were
    between 0.7 and 2.3 times this.
    """
    size = DTYPE_BYTES[ask.dtype]
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


def grammar_memory(spec: ModelSpec, ask: Ask) -> Range:
    """llguidance's copy of the vocabulary, in the engine process.

    Measured with byte-level vocabularies of 32,000 and 152,000 tokens: 710 to 930 bytes per token remain allocated, and
    1050 to 1080 are needed while it is built; the allocator keeps the difference.
    """
    tokens = spec.vocab_size if ask.has_grammars and spec.generates else 0
    return Range(low=700 * tokens, likely=1050 * tokens, high=1600 * tokens)


def draft_logit_rows(ask: Ask) -> int:
    """Further rows of logits that a step has for drafts, beside those of its sequences."""
    return min(ask.max_num_seqs * (1 + ask.max_drafted), LOGIT_ROWS) - min(ask.max_num_seqs, LOGIT_ROWS)


def draft_memory(model: PlannedModel, ask: Ask) -> Range:
    """Logits of further rows, captured steps with drafts and of the network that makes them, the tokens of running
    sequences, those of earlier answers.

    Tokens take memory once they are known: at most all sequences are full, each with a prediction of the same length.
    """
    if not ask.max_drafted:
        return NOTHING
    spec, max_model_len = model.spec, ask.max_model_len or model.limit
    logits = draft_logit_rows(ask) * spec.vocab_size * (DTYPE_BYTES[ask.dtype] + 4)
    graphs = CAPTURED_DRAFTS * spec.num_layers * GRAPH_BYTES
    if (network := _network(model, ask)) is not None:
        graphs += CAPTURED_OF_NETWORK * network.draft.spec.num_layers * GRAPH_BYTES
    texts, past = ask.max_num_seqs * max_model_len * 4, past_output_bytes(ask.past_output_tokens)
    likely = logits + graphs // 2 + texts // 4
    return Range(low=past, likely=likely + past, high=2 * logits + graphs + 2 * texts + past)
