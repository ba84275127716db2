"""What a deployment asks of a device: the written values, and what `auto` becomes on it.

These are the values of resolve/decide.py, which has decided for this device. Where it could not, for models that this
build does not run, the few values that memory depends on are filled in here with the device's own defaults.
"""

from __future__ import annotations

from typing import Any

from ...model.quantised import held_in, scheme_of
from ..held_codes import CodesLayout
from ..memory.needs import MemoryNeeds
from ..resolve.decisions import Decisions
from ..resolve.draft_files import MODEL_METHODS
from ..resolve.memory_needs import memory_needs
from ..resolve.precision import own_dtype
from .devices import THIS_MACHINE, DeviceProfile
from .model import PlannedModel


class Ask(MemoryNeeds):
    """What the plan is computed for. max_num_seqs: if `has_auto_num_seqs` is set, what `with_sizes` makes of it."""

    dtype: str
    state_dtype: str = "float32"  # of the sums of recurrent layers
    has_auto_num_seqs: bool = False
    has_network: bool = False  # what drafts has weights
    past_output_tokens: int = 0
    has_grammars: bool = True  # structured outputs: the engine has a tokenizer
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    quantization: str | None = None  # one that the checkpoint does not have
    activations: str | None = None  # `model.activation_quantization`
    keeps_twelve_bits: bool = False
    codes_layout: CodesLayout | None = None  # of a quantised checkpoint

    @property
    def num_devices(self) -> int:
        """Number of devices of one replica of the model."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.prefill_context_parallel_size

    @property
    def held_in(self) -> str | None:
        """The argument `quantization` of PlannedModel.weights_bytes."""
        if self.quantization is not None:
            return self.quantization
        return held_in(self.dtype, None, self.keeps_twelve_bits)


def ask_of(decisions: Decisions, model: PlannedModel, device: DeviceProfile) -> Ask:
    """What a deployment asks of one device.

    decisions: for this device. Of a model that this build cannot run, and of a deployment that is written for another
    kind of device, only written values count; the others are defaults.
    """
    # This machine is of the kind that the deployment has decided, also where a GPU's kernels are interpreted.
    own_kind = decisions.device.device if device.name == THIS_MACHINE else device.kind
    kind = "cpu" if own_kind == "cpu" else "cuda"
    needs = decisions.memory_needs if decisions.device.device == kind else None

    def is_open(path: str) -> bool:
        return decisions.is_auto(path) or (needs is None and not decisions.is_written(path))

    dtype: str = decisions.model.dtype
    if is_open("model.dtype") or (dtype == "float16" and kind == "cpu"):
        dtype, _ = own_dtype(  # CPUs do not compute in float16
            model.checkpoint_dtype,
            is_on_cpu=not device.is_gpu,
            has_bfloat16=device.has_bfloat16,
            is_quantised=model.spec.quantization is not None,
        )
    of_states = ("cache.mamba_ssm_cache_dtype", "cache.mamba_cache_dtype")
    activations = decisions.model.activation_quantization
    is_drafting = kind == "cpu" and not is_open("speculative.method")
    asked = dict(needs or memory_needs(decisions, kind, dtype, model.limit, is_open))
    return Ask(
        **asked | _drafts(decisions, is_drafting=is_drafting),
        dtype=dtype,
        has_auto_num_seqs=not decisions.is_written("scheduler.max_num_seqs"),
        state_dtype=next((decisions.get(path) for path in of_states if not is_open(path)), "float32"),
        quantization=scheme_of(decisions.model.quantization),
        activations=None if activations == "none" else activations,
        keeps_twelve_bits=device.keeps_twelve_bits and not decisions.model.enforce_eager,
        codes_layout=decisions.codes_layout(own_kind, cpu_keeps_codes=device.keeps_codes),
        has_grammars=not decisions.model.skip_tokenizer_init,
    )


def _drafts(decisions: Decisions, *, is_drafting: bool) -> dict[str, Any]:
    own = decisions.speculative
    if own.method is None or not is_drafting:
        return {"max_drafted": 0}
    return {
        "has_network": own.method in MODEL_METHODS,
        "past_output_tokens": own.past_output_tokens * (own.method == "ngram"),
    }
