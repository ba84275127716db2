"""The values that messages of rules show: options as they are written, and numbers with their units.

A message names them in braces, such as `{num_cores}`. Names that are not here are properties of Values.
"""

from __future__ import annotations

from typing import Any

from ...model.quantised import scheme_of
from ...model.rope import SCALINGS
from ...model.sizes import DTYPE_BYTES
from ..checkpoint.settings import settings_problem
from ..memory.memory_plan import MemoryPlan
from ..schema.options import options
from ..schema.types import format_about, format_size
from .resolved import Resolved
from .values import Values


def message_values(v: Values) -> dict[str, Any]:
    """Every value that a message may name: options of the first section that has the name, and the values here. The
    mapping looks up other names as properties of `v`."""
    said = _Named(v)
    for section in Resolved.sections():
        for name, value in getattr(v, section):
            if name not in said:  # `max_model_len` is the model's, not that of drafts
                said[name] = options()[f"{section}.{name}"].show(value)
    said |= {
        "num_cores": v.machine.num_cores,
        "max_open_files": v.machine.max_open_files,
        "available": format_about(v.decisions.available_memory_bytes) + _for_each(v),
        "where": f"the {v.decisions.gpu.name}" if v.decisions.gpu else "this machine",
        "num_replicas": v.topology.num_replicas,
        "num_processes": v.topology.num_processes,
        "num_ranks": v.topology.num_ranks,
        "no_placement": "one process computes each layer"
        if v.parallel.tensor_parallel_size * v.parallel.data_parallel_size == 1
        else "the model has no experts",
        "expert_window": v.parallel.expert_balance.window_size,
        "expert_interval": v.parallel.expert_balance.step_interval,
        "ways_of_replicas": " and ".join(v.ways_of_replicas),
        "tokens_of_vector": v.decisions.tokens_of_vector,
        "block_part": v.parallel.decode_context_parallel_size * v.parallel.cp_kv_cache_interleave_size,
        "num_machine_cores": v.decisions.whole_machine.num_cores,
        "num_gpus": v.decisions.gpu.num_visible if v.decisions.gpu else 0,
        "graph_sizes": ", ".join(map(str, v.scheduler.cuda_graph_sizes)) or "none",
        **_gpu_numbers(v),
        "loader_problem": settings_problem(v.load.load_format, v.load.model_loader_extra_config),
        "rope_kinds": ", ".join(("default", *SCALINGS)),
        "architecture": v.files.spec.architecture if v.files else "",
        "no_states": "without prefix caching" if v.has_states else "for this model: no layer keeps a state",
    }
    said["kv_host"] = format_about(v.kv_host_bytes)
    said["free_for_kv"] = format_about(max(0, v.machine.available_memory_bytes - v.offloaded_bytes))
    if (offload := v.weight_offload) is not None:
        said |= {
            "offloaded": format_about(offload.host_bytes),
            "free_host": format_about(v.machine.available_memory_bytes),
        }
    if v.decisions.memory is not None and v.files is not None:
        said |= _memory_values(v, v.decisions.memory)
    return said


def _memory_values(v: Values, memory: MemoryPlan) -> dict[str, Any]:
    """Texts about the memory that the model and its caches take."""
    one = memory.kv.in_blocks(v.model.max_model_len)
    room = max(0, v.decisions.available_memory_bytes - memory.fixed_bytes - memory.activation_bytes)
    return {
        "num_kv_blocks": memory.num_kv_blocks,
        "max_cached_len": memory.max_cached_len,
        "one_sequence": format_about(one),
        "one_sequence_exact": format_size(-(-one // 1024**2) * 1024**2),
        "one_block": format_size(memory.kv_block_bytes),
        "one_stored_block": format_size(v.stored_block_bytes),
        "written_kv_cache": format_size(v.cache.kv_cache_memory_bytes),
        "kv_cache": format_about(memory.kv_cache_bytes),
        "weights": format_about(memory.weights_bytes),
        "budget": format_about(memory.budget_bytes),
        "total": format_about(memory.total_bytes),
        "others": "".join(
            f", {name} {format_about(size)}"
            for name, size in (
                *(("states", memory.state_bytes), ("steps", memory.activation_bytes)),
                ("tokens with drafts", memory.drafted_bytes),
                ("blocks for other engines", 0 if memory.is_on_host else memory.transfer_bytes),
                ("blocks beside the KV cache", 0 if memory.is_on_host else memory.kept_bytes),
                ("experts that move", memory.moving_bytes),
            )
            if size
        ),
        "fewer_states": _fewer_states(v, memory),
        "kv_room": format_size(room // 1024**2 * 1024**2),
        "smaller_weights": _smaller_weights(v),
    }


def _for_each(v: Values) -> str:
    """Words that follow an amount of memory which replicas, or the processes of one, divide among them."""
    what = "replicas" if v.topology.num_local_ranks == 1 else "processes"
    if v.decisions.gpu is not None and not v.decisions.is_interpreted:
        return ""
    where = " on its NUMA node" if v.decisions.numa_places else ""
    return (f" for each of {v.topology.num_processes} {what}" if v.topology.num_processes > 1 else "") + where


def _gpu_numbers(v: Values) -> dict[str, Any]:
    """Texts about the GPU and the memory that `gpu_memory_utilization` is a share of."""
    gpu, free = v.decisions.gpu, v.decisions.available_memory_bytes
    memory = f"{format_about(free)} available{_for_each(v)}"
    if gpu is None:
        return {"no_gpu": v.machine.no_gpu or "none was found", "memory": memory}
    if not gpu.is_interpreted:
        is_short = free < v.cache.gpu_memory_utilization * gpu.total_memory_bytes
        others = f", as far as they are free ({format_about(free)})," if is_short else ""
        memory = f"{format_about(gpu.total_memory_bytes)} of the {gpu.name}{others}"
    return {"gpu": gpu.name, "capability": ".".join(map(str, gpu.compute_capability)), "memory": memory}


def _fewer_states(v: Values, memory: MemoryPlan) -> str:
    """What recurrent states need, as text; empty if there are none."""
    if not memory.num_states:
        return ""
    one = format_about(memory.state_bytes // memory.num_states)
    seqs = v.scheduler.max_num_seqs
    return f"or set `scheduler.max_num_seqs` below {seqs}: the states of each sequence need {one}"


def _smaller_weights(v: Values) -> str:
    """The memory that the next smaller format needs, as text; empty if there is none."""
    model_files, is_on_gpu = v.files, v.decisions.gpu is not None
    scheme = scheme_of(v.model.quantization)
    if model_files is None or scheme == "int4_pure" or (is_on_gpu and DTYPE_BYTES[v.model.dtype] == 2):
        return ""
    if DTYPE_BYTES[v.model.dtype] == 2 or scheme is not None:
        smaller = {None: "int8", "int8": "int4", "int4": "int4_pure"}[scheme]
        size = format_about(model_files.weights_bytes(v.model.dtype, smaller))
        return f"or `model.quantization: {smaller}`, in which the weights need {size}"
    half = format_about(model_files.weights_bytes("bfloat16"))
    smaller = "float16" if v.decisions.is_interpreted else "bfloat16"
    return f"or `model.dtype: {smaller}`, in which the weights need {half} and the KV cache half as much"


class _Named(dict[str, Any]):
    """Values of messages by name; those that are missing are properties of `Values`."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self._values = values

    def __missing__(self, name: str) -> Any:
        return getattr(self._values, name)
