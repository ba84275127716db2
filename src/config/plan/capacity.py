"""How many sequences of each length the KV cache holds, and an estimate of the speed."""

from __future__ import annotations

from ...model.record import Record
from .ask import Ask
from .devices import DeviceProfile
from .estimate import Estimate
from .model import PlannedModel


class Capacity(Record):
    """sequences: context -> number of sequences that fit; longest: number of sequences -> maximum context of each."""

    sequences: dict[int, int]
    longest: dict[int, int]


class Speed(Record):
    """Estimated tokens per second, lowest and highest, for one context length and number of sequences."""

    context: int
    num_seqs: int
    decode_one: tuple[float, float]
    decode_all: tuple[float, float]
    prefill: tuple[float, float]


def capacity(found: Estimate, ask: Ask) -> Capacity:
    longest = max(0, found.max_model_len)
    contexts = [length for power in range(10, 31) if (length := 1 << power) < longest]
    contexts = [*contexts[-7:], longest] if longest else []
    counts = sorted({count for count in (1, 8, 32, ask.max_num_seqs) if count <= ask.max_num_seqs})
    most = found.kv_cache_bytes
    limit = ask.max_num_seqs if found.state_bytes else most  # there are no more states than that
    return Capacity(
        sequences={length: min(limit, found.kv.num_sequences(most, length)) for length in contexts},
        longest={count: found.kv.longest(most // count, longest) for count in counts if longest},
    )


# Shares of a device's peak that engines reach: decode of the memory bandwidth, prefill of the arithmetic.
_DECODE_SHARE, _PREFILL_SHARE = (0.45, 0.85), (0.25, 0.65)
_LINK_SHARE = (0.6, 0.9)  # of the bus to the host, which copies of weights in pinned memory reach
# Products of int8 by int8, in those of bfloat16: 256 and 1024 rows of Qwen3-0.6B's linear layers, with AVX512-VNNI.
_INT8_SPEED = 1.9
# Minimum seconds per layer of a step on a GPU: about twelve kernel launches, without and with a captured graph.
_GPU_LAYER_S = (50e-6, 15e-6)


def speed(model: PlannedModel, device: DeviceProfile, ask: Ask, found: Estimate) -> Speed | None:
    """Computed from bytes and operations per token; None if no sequence fits."""
    context = min(found.max_model_len, 2048)
    fitting = found.kv.num_sequences(found.kv_cache_bytes, context)
    if context < 1 or not fitting:
        return None
    seqs = min(ask.max_num_seqs, fitting)
    parts, bandwidth = ask.tensor_parallel_size, device.bandwidth_gb_per_s * 1e9
    weights = model.weights_bytes(ask.dtype, ask.held_in, layout=ask.codes_layout) / parts
    one = model.active_bytes(ask.dtype, ask.held_in, layout=ask.codes_layout) / parts
    touched = min(weights, one * seqs)  # a large batch uses most experts of a sparse model
    is_fp8 = ask.quantization == "fp8" and device.fp8_tflops is not None
    operations = (device.fp8_tflops or 0.0 if is_fp8 else device.bf16_tflops) * 1e12 * parts
    if ask.dtype == "float32":
        operations /= 2 if device.is_gpu else 1.5
    if ask.activations == "int8" and not device.is_gpu:
        operations *= _INT8_SPEED
    per_token = 2 * model.parameters.active
    copied = found.weight_offload.host_bytes if found.weight_offload is not None else 0
    copies = [copied / (device.host_link_gb_per_s * 1e9 * share) for share in _LINK_SHARE]  # while layers compute
    low, high = 1 / device.uncertainty, min(device.uncertainty, 1.5)
    launches = [seconds * model.spec.num_layers * device.is_gpu for seconds in _GPU_LAYER_S]

    def decode(num_bytes: float, num_seqs: int) -> tuple[float, float]:
        compute = num_seqs * per_token / operations
        seconds = [
            max(num_bytes / (bandwidth * share * factor), compute / (share * factor), copy) + fixed
            for share, factor, fixed, copy in zip(_DECODE_SHARE, (low, high), launches, copies, strict=True)
        ]
        return num_seqs / seconds[0], num_seqs / seconds[1]

    kept = found.kv.of(context) + 2 * found.state_bytes // max(1, found.num_states)  # a state is read and written
    step = ask.max_num_batched_tokens
    prefill = [
        step / (max(step * per_token / (operations * share * factor), copy) + fixed)
        for share, factor, fixed, copy in zip(_PREFILL_SHARE, (low, high), launches, copies, strict=True)
    ]
    return Speed(
        context=context,
        num_seqs=seqs,
        decode_one=decode(one + kept, 1),
        decode_all=decode(touched + seqs * kept, seqs),
        prefill=(prefill[0], prefill[1]),
    )
