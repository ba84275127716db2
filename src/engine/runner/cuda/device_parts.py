"""The parts of a runner on a CUDA device, for `load_runner`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...sampling.logits_processor import LogitsProcessor
from ..block_transfer import TransferOf
from ..body import HostBody
from ..heads import MakeHead
from ..inputs import HostInputs
from ..load_runner import PartsOf, copies_of
from ..materials import Materials
from ..runner import Parts
from ..sample_head import sample
from .buckets import Buckets
from .device_body import DeviceBody
from .device_heads import DeviceFollowHead, DeviceHead, DeviceSampleHead, LeaderChoice, OtherRanks
from .device_inputs import DeviceInputs
from .device_step import DeviceStep
from .slot_arena import SlotArena

MakeDeviceHead = Callable[[Materials, DeviceInputs, DeviceStep, Buckets], DeviceHead]


def sampling_parts(
    processors: Sequence[LogitsProcessor] = (),
    transfer_of: TransferOf | None = None,
    *,
    host_head: MakeHead | None = None,
    others: OtherRanks | None = None,
) -> PartsOf:
    """Parts of a process that samples.

    Args:
        processors: applied to the logits of all requests.
        host_head: of steps that are computed on the host; None for one that samples with these processors.
        others: the ranks on other GPUs; None if there are none.
    """

    def head(made: Materials, inputs: DeviceInputs, step: DeviceStep, buckets: Buckets) -> DeviceSampleHead:
        return DeviceSampleHead(made.resolved, inputs, step, buckets, others, has_processors=bool(processors))

    return _device_parts(head, host_head or sample(processors), transfer_of)


def following_parts(leader: LeaderChoice, host_head: MakeHead) -> PartsOf:
    """Parts of another rank than 0. host_head: of steps that are computed on the host."""
    return _device_parts(lambda _, inputs, step, buckets: DeviceFollowHead(leader, inputs, step), host_head)


def _device_parts(make_head: MakeDeviceHead, host_head: MakeHead, transfer_of: TransferOf | None = None) -> PartsOf:
    def make(made: Materials) -> Parts:
        resolved, loaded = made.resolved, made.loaded
        scheduler, model_len, block_size = resolved.scheduler, resolved.model.max_model_len, resolved.cache.block_size
        max_rows, groups, device = scheduler.max_num_seqs, loaded.cache.groups, loaded.device
        arena = SlotArena(max_rows, model_len, block_size, resolved.model_spec.vocab_size, device, groups.num_groups)
        step = DeviceStep(
            loaded.whole,
            loaded.cache,
            arena,
            max_rows,
            scheduler.max_num_batched_tokens,
            model_len,
            block_size,
            device,
            has_guides=made.slots.sampling.guides is not None,
            ranks=loaded.ranks,
            features=made.features,
        )
        inputs = DeviceInputs(made.slots, arena, made.features)
        flags = [each.flag for each in made.features]
        buckets = Buckets(scheduler.cuda_graph_sizes, max_rows, scheduler.max_num_batched_tokens, feature_flags=flags)
        head, host = make_head(made, inputs, step, buckets), HostBody(made, HostInputs(made), host_head(made))
        capture = loaded.kernels.capture if loaded.whole.is_capturable else None
        body = DeviceBody(step, inputs, head, host, buckets, capture, is_alone=loaded.ranks is None)
        return Parts(inputs, body, copies_of(made, transfer_of))

    return make
