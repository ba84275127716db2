"""A deployment's plan: model, device, memory, capacity, speed, verdict and what would make it fit, in one record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...model.compressed import COMPRESSED_TABLE
from ...model.latent import SPARSE_TABLE
from ...model.quantised import BFLOAT16_ACCURACY, OWN_CODES, SCHEMES, accuracy
from ...model.record import Record
from ...model.through_transformers import through_transformers
from ..cpu_kernels import of_whole_texts, planned_kernels
from ..resolve.decisions import Decisions
from .ask import Ask, ask_of
from .capacity import Capacity, Speed, capacity, speed
from .changes import Change, cheapest_changes
from .devices import THIS_MACHINE, DeviceProfile
from .distribution import Distribution, Sharing, distribute, sharing_of
from .estimate import Estimate, estimate, with_sizes
from .kv import by_kind
from .model import PlannedModel
from .numa import NumaUse, numa_use

FORMAT_VERSION = 1
_OF_STATUS = {"status", "reason", "max_model_len"}  # fields of Estimate in other parts of the plain data
_OF_KV = {"kv", "kv_sized_by", "num_kv_blocks", "max_cached_len", "activation_bytes"}


class Plan(Record):
    """The complete plan. `notes`: assumptions, and where this build behaves differently."""

    model: PlannedModel
    device: DeviceProfile
    ask: Ask
    estimate: Estimate
    capacity: Capacity
    speed: Speed | None
    kernels: dict[str, str]
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    num_replicas: int = 1  # of the server; all else is of one process, of which a replica may have several
    num_on_ray: int = 0  # replicas that Ray places; num_replicas of them share a machine
    num_nodes: int = 1  # machines that have the processes of a replica, each the same number
    numa: NumaUse | None = None  # where all processes of this machine run, if they are bound
    distribution: Distribution | None = None  # over several devices; the rest is of one of them, as it was chosen

    @property
    def sharing(self) -> Sharing | None:
        """What replicas exchange that share experts; None if they do not."""
        return sharing_of(self.model.spec, self.ask.dtype) if self.distribution is None else None

    @property
    def verdict(self) -> str:
        """Whether it fits, for the first line; whether this build runs it at all; and what was not checked."""
        said: str = self.estimate.status
        if self.model.files is None:
            said += ", but this build cannot run the model"
        elif not self.device.is_in_build:
            said += ", but this build does not run on the device"
        if missing := self.model.missing_files:
            are = "are" if "weight files" in missing else "is"
            said += f"; not checked: {' and '.join(missing)} {are} not on this machine"
        return said

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain data; sizes in bytes, speeds in tokens per second."""
        model, found = self.model, self.estimate
        dumped = found.model_dump(mode="json", exclude=_OF_STATUS | _OF_KV)
        return {
            "verdict": found.status,
            "reason": found.reason,
            "not_checked": list(model.missing_files),
            "num_replicas": self.num_replicas,
            "num_on_ray": self.num_on_ray,
            "num_nodes": self.num_nodes,
            "numa": self.numa.model_dump(mode="json") if self.numa is not None else None,
            "sharing": sharing.model_dump(mode="json") if (sharing := self.sharing) is not None else None,
            "distribution": self.distribution.model_dump(mode="json") if self.distribution is not None else None,
            "device": {**self.device.model_dump(mode="json"), "is_in_build": self.device.is_in_build},
            "model": {
                "name": model.name,
                "architecture": model.spec.architecture,
                "num_layers": model.spec.num_layers,
                "num_parameters": model.num_parameters,
                "num_active_parameters": model.num_active_parameters,
                "weights_source": model.weights_source,
                "stored": model.stored.model_dump(mode="json") if model.stored is not None else None,
                "quantization": model.spec.quantization.name if model.spec.quantization is not None else None,
                "stored_as": [each.model_dump(mode="json") for each in model.files.stored_as] if model.files else [],
                "max_position_embeddings": model.limit,
                "is_in_build": model.files is not None,
                "why_not": model.why_not,
            },
            "assumed": self.ask.model_dump(mode="json"),
            "memory": {**dumped, "peak": found.peak.model_dump(mode="json")},
            "kv_cache": {
                "bytes_per_token": found.kv.token_bytes,
                "bytes_per_sequence": found.kv.sequence_bytes,
                "windows": [{"tokens": tokens, "bytes_per_token": size} for tokens, size in found.kv.windows],
                "layers": [
                    {"kind": kind, "count": count, "bytes": size, "window": window}
                    for kind, count, size, window in by_kind(model.spec, self.ask.kv_dtype, self.ask.state_dtype)
                ],
            },
            "max_model_len": found.max_model_len,
            "sequences_by_context": self.capacity.sequences,
            "longest_context_by_sequences": self.capacity.longest,
            "speed": self.speed.model_dump(mode="json") if self.speed is not None else None,
            "kernels": self.kernels,
            "changes": [change.model_dump(mode="json") for change in self.changes],
            "notes": list(self.notes),
        }


def make_plan(
    model: PlannedModel,
    device: DeviceProfile,
    decisions: Decisions,
    broken: Sequence[str] = (),
    devices: tuple[int, int] | None = None,
) -> Plan:
    """
    Plan a deployment.

    Args:
        decisions: all of them; for a model that this build cannot run, only decisions that need no model.
        broken: messages of the broken rules about this machine's memory.
        devices: how many there are, and how many a node has; None for one.
    """
    ask, topology = ask_of(decisions, model, device), decisions.topology
    distribution: Distribution | None = None
    if devices is not None:
        distribution = distribute(model, device, ask, *devices, num_replicas=topology.num_replicas)
        shown = distribution.shown
        sizes = {name: getattr(shown, name) for name in ("tensor_parallel_size", "pipeline_parallel_size")}
    else:
        if (files := decisions.model_files) is not None:  # with its experts as they are placed
            model = model.model_copy(update={"spec": files.spec, "files": files})
        sizes = {
            "tensor_parallel_size": decisions.num_ranks(model.spec),
            "pipeline_parallel_size": decisions.num_stages(model.spec),
            "prefill_context_parallel_size": topology.num_prompt_groups,
            "decode_context_parallel_size": decisions.context_parts(model.spec),
        }
    ask = with_sizes(model, device, ask, **sizes)
    found = estimate(model, device, ask)
    if broken:
        found = found.model_copy(update={"status": "does not fit", "reason": broken[0]})
    is_interpreted = device.name == THIS_MACHINE and decisions.is_interpreted
    return Plan(
        model=model,
        device=device,
        ask=ask,
        estimate=found,
        capacity=capacity(found, ask),
        speed=None if is_interpreted else speed(model, device, ask, found),
        kernels={} if device.is_gpu or is_interpreted else _kernels(model, ask, decisions),
        changes=() if devices is not None else tuple(cheapest_changes(model, device, ask, found)),
        notes=tuple(_notes(model, device, ask, found)),
        num_nodes=topology.num_nodes if distribution is None else 1,
        num_replicas=topology.num_replicas if distribution is None else distribution.shown.data_parallel_size,
        num_on_ray=0 if distribution is not None else topology.num_on_ray,
        numa=numa_use(decisions, found.peak) if device.name == THIS_MACHINE else None,
        distribution=distribution,
    )


def _kernels(model: PlannedModel, ask: Ask, decisions: Decisions) -> dict[str, str]:
    """Kernels of a CPU; none for a model that this build cannot run."""
    files, spec = model.files, model.spec
    if files is None:
        return {}
    found = planned_kernels(
        ask.dtype,
        spec.head_dims,
        ask.kv_dtype,
        is_eager=decisions.model.enforce_eager,
        quantization=ask.quantization or (OWN_CODES if ask.codes_layout and files.own_codes else None),
        activations=ask.activations,
        batch_invariant=decisions.model.batch_invariant,
    )
    if files.implementation == "transformers":
        return found | through_transformers(spec)
    found = found if spec.generates else of_whole_texts(found, is_causal=spec.is_causal)
    found |= SPARSE_TABLE if spec.is_sparse else {}
    has_kernels = not found["rope_and_store"].startswith("torch")
    return found | COMPRESSED_TABLE if spec.is_compressed and not has_kernels else found


def _notes(model: PlannedModel, device: DeviceProfile, ask: Ask, found: Estimate) -> list[str]:
    notes: list[str] = list(model.files.notes) if model.files is not None else []
    if not device.is_in_build:
        notes.append(f"this build does not run on {device.shown}; this is what the model would need there")
    elif ask.num_devices > 1 and device.is_gpu:
        notes.append(f"all numbers are of one of {ask.num_devices} GPUs; no run on several of them was measured")
        if ask.pipeline_parallel_size > 1:
            notes.append("the stages of a pipeline exchange through the host, and their steps are not captured")
        if ask.decode_context_parallel_size > 1:
            notes.append("this build shares the tokens of a sequence on CPUs only; this is what it would save on GPUs")
    elif ask.kv_dtype == "fp8" and device.fp8_tflops is None:
        notes.append(f"this build keeps no keys and values in fp8 on {device.shown}; this is what they would need")
    if model.files is None:
        notes.append(f"this build cannot run the model, but this is what it needs: {model.why_not}")
    if model.spec.quantization is not None and model.files is None:
        notes.append(f"a quantised checkpoint ({model.spec.quantization.name}): sized from what it stores")
    if ask.quantization in SCHEMES:
        loss = accuracy(ask.quantization, ask.activations)
        notes.append(
            f"accuracy, measured with builtin:tiny: perplexity {loss.perplexity:.4f}, in bfloat16 "
            f"{BFLOAT16_ACCURACY.perplexity:.4f}; the largest change of a logit {loss.largest_change:.2f}, in bfloat16 "
            f"{BFLOAT16_ACCURACY.largest_change:.2f}; compare answers of your own model"
        )
    if model.stored is not None:
        notes += model.stored.problems[:3]
        if len(model.stored.problems) > 3:
            notes.append(f"and {len(model.stored.problems) - 3} more files like these")
    elif model.files is None or "weight files" in model.missing_files:
        notes.append("no weight files: the parameters were counted from config.json")
    if any(window is not None for window in model.spec.windows):
        keeps_all = model.files is not None and not ask.has_cache_groups
        kept = "this build keeps every token in them" if keeps_all else "they keep no more than that"
        notes.append(f"some layers attend to a window only; {kept}")
    if model.files is not None and model.spec.has_states:
        num_kept = found.num_kept_states
        reused = f"{num_kept} more are kept for prefixes that are reused" if num_kept else "no prefix is reused"
        notes.append(
            f"some layers keep a recurrent state, allocated for {ask.max_num_seqs} sequences "
            f"(`scheduler.max_num_seqs`); {reused}"
        )
    if ask.max_num_batched_tokens > 16384:
        notes.append(
            "a step of more than 16384 tokens makes the activations large: chunked prefill cuts prompts into steps"
        )
    return [*notes, *(f"assumed: {assumption}" for assumption in model.spec.assumptions)]
