"""KernelSet: the implementation of every op, chosen once at start, with the reason of each choice.

Models call the ops through the set they are given and never ask which implementation it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from ...config.cpu_features import NoKernels, choose_level, this_cpu, wanted_level
from ...config.cpu_kernels import EAGER, HeadDims, stage_table, takes_heads, torch_table
from ...config.cpu_library import LibrarySpec
from ...model.quantised import PANEL_WIDTH
from .activation import (
    Activate,
    GateInputs,
    activate_and_mul_cpu,
    activate_and_mul_reference,
    activate_cpu,
    activate_reference,
    gate_inputs_cpu,
    gate_inputs_reference,
)
from .add_layer_norm import AddLayerNorm, add_layer_norm_cpu, add_layer_norm_reference
from .add_rms_norm import AddRmsNorm, add_rms_norm_cpu, add_rms_norm_reference
from .allow_tokens import AllowTokens, allow_tokens_cpu, allow_tokens_reference
from .capture import Capture
from .causal_convolution import CausalConvolution, causal_convolution_cpu, causal_convolution_reference
from .copy_rows import CopyRows, copy_rows_cpu, copy_rows_reference
from .count_above import CountAbove, count_above_cpu, count_above_reference
from .cpu.captured_graph import CallRecorder, native_capture, recorded
from .cpu.library import CpuLibrary, load_library
from .cpu.machine_speed import MachineSpeed, machine_speed
from .exchange import Exchange, exchange_cpu
from .experts import (
    Experts,
    PackExperts,
    PlaceExperts,
    RepackExperts,
    experts_cpu,
    experts_reference,
    pack_experts_cpu,
    pack_experts_reference,
    pack_experts_with,
    place_experts_cpu,
    place_experts_reference,
    repack_experts_cpu,
    repack_experts_reference,
)
from .gated_delta import GatedDelta, gated_delta_cpu, gated_delta_reference
from .gated_norm import GatedNorm, gated_norm_cpu, gated_norm_reference
from .latent_attention import (
    AttendLatentPart,
    LatentAttention,
    attend_latent_part_reference,
    latent_attention_cpu,
    latent_attention_reference,
)
from .latent_heads import (
    AbsorbQueries,
    ExpandValues,
    absorb_queries_cpu,
    absorb_queries_reference,
    expand_values_cpu,
    expand_values_reference,
)
from .linear import (
    Embed,
    JoinLinear,
    Linear,
    NormLinear,
    PackedLinear,
    PackGrouped,
    PackIntegers,
    PackLinear,
    QuantiseLinear,
    RepackLinear,
    embed_cpu,
    embed_reference,
    join_linear_cpu,
    join_linear_reference,
    linear_cpu,
    linear_reference,
    pack_grouped_cpu,
    pack_integers_cpu,
    pack_linear_cpu,
    pack_linear_reference,
    quantise_linear_cpu,
    quantise_linear_reference,
    repack_linear_cpu,
    repack_linear_reference,
    rounding_rows,
)
from .one_row import one_query, one_row, one_token
from .output_gate import GateOutputs, gate_outputs_cpu, gate_outputs_reference
from .paged_attention import (
    AttendPart,
    PagedAttention,
    attend_part_reference,
    paged_attention_cpu,
    paged_attention_reference,
)
from .penalise import after_penalties
from .rope_and_store import RopeAndStore, rope_and_store_cpu, rope_and_store_reference
from .route_experts import (
    OwnExperts,
    OwnPlaces,
    RouteExperts,
    own_experts_cpu,
    own_experts_reference,
    own_places_cpu,
    own_places_reference,
    route_experts_cpu,
    route_experts_reference,
)
from .sample_tokens import SampleTokens, sample_tokens_cpu, sample_tokens_reference
from .sample_top_p import SampleTopP, sample_top_p_cpu, sample_top_p_reference
from .scale_rows import ScaleRows, scale_rows_cpu, scale_rows_reference
from .scaling import (
    AddScaled,
    ScaleAndCap,
    add_scaled_cpu,
    add_scaled_reference,
    scale_and_cap_cpu,
    scale_and_cap_reference,
)
from .softmax_mass import SoftmaxMass, softmax_mass_cpu, softmax_mass_reference
from .state_space import StateSpace, state_space_cpu, state_space_reference
from .store_latents import StoreLatents, store_latents_cpu, store_latents_reference
from .to_float32 import ToFloat32, to_float32_cpu, to_float32_reference
from .token_index import (
    ChooseTokens,
    SparseLatentAttention,
    StoreIndexKeys,
    choose_tokens_reference,
    sparse_latent_attention_reference,
    store_index_keys,
)
from .top_tokens import TopTokens, top_tokens_cpu, top_tokens_reference

_sample_tokens = after_penalties(sample_tokens_reference)
_sample_top_p = after_penalties(sample_top_p_reference)
_top_tokens = after_penalties(top_tokens_reference)
_pack_rounding_experts = pack_experts_with(pack_linear_reference, rounding_rows(quantise_linear_reference))


@dataclass(frozen=True, slots=True)
class KernelSet:
    """The ops by name; each file of this package documents its own. The default is plain torch on any device."""

    add_rms_norm: AddRmsNorm = add_rms_norm_reference
    pack_linear: PackLinear = pack_linear_reference
    quantise_linear: QuantiseLinear = quantise_linear_reference
    repack_linear: RepackLinear = repack_linear_reference
    pack_grouped: PackGrouped | None = None  # None: the numbers of quantised checkpoints are computed
    pack_integers: PackIntegers | None = None  # None: inputs are not rounded, whatever a checkpoint's method says
    join_linear: JoinLinear = join_linear_reference
    linear: Linear = linear_reference
    embed: Embed = embed_reference
    copy_rows: CopyRows = copy_rows_reference
    rope_and_store: RopeAndStore = rope_and_store_reference
    paged_attention: PagedAttention = paged_attention_reference
    attend_part: AttendPart = attend_part_reference
    store_latents: StoreLatents = store_latents_reference
    absorb_queries: AbsorbQueries = absorb_queries_reference
    latent_attention: LatentAttention = latent_attention_reference
    attend_latent_part: AttendLatentPart = attend_latent_part_reference
    expand_values: ExpandValues = expand_values_reference
    store_index_keys: StoreIndexKeys = store_index_keys
    choose_tokens: ChooseTokens = choose_tokens_reference
    sparse_latent_attention: SparseLatentAttention = sparse_latent_attention_reference
    add_layer_norm: AddLayerNorm = add_layer_norm_reference
    add_scaled: AddScaled = add_scaled_reference
    activate_and_mul: Activate = activate_and_mul_reference
    activate: Activate = activate_reference
    gate_inputs: GateInputs = gate_inputs_reference
    scale_and_cap: ScaleAndCap = scale_and_cap_reference
    to_float32: ToFloat32 = to_float32_reference
    route_experts: RouteExperts = route_experts_reference
    own_experts: OwnExperts = own_experts_reference
    own_places: OwnPlaces = own_places_reference
    pack_experts: PackExperts = pack_experts_reference
    packs_grouped_experts: bool = False  # whether `pack_experts` takes a checkpoint's own codes
    repack_experts: RepackExperts = repack_experts_reference
    place_experts: PlaceExperts = place_experts_reference
    experts: Experts = experts_reference
    gate_outputs: GateOutputs = gate_outputs_reference
    scale_rows: ScaleRows = scale_rows_reference
    causal_convolution: CausalConvolution = causal_convolution_reference
    gated_delta: GatedDelta = gated_delta_reference
    state_space: StateSpace = state_space_reference
    gated_norm: GatedNorm = gated_norm_reference
    fused_norm_gate_up: NormLinear | None = None  # None: norm, linear layer and gate as three ops
    sample_tokens: SampleTokens = _sample_tokens
    sample_top_p: SampleTopP = _sample_top_p
    softmax_mass: SoftmaxMass = softmax_mass_reference
    top_tokens: TopTokens = _top_tokens
    count_above: CountAbove = count_above_reference
    allow_tokens: AllowTokens = allow_tokens_reference
    exchange: Exchange | None = None  # None: ranks of one model cannot share memory
    capture: Capture | None = None  # None: no step can be captured
    speed: MachineSpeed | None = None  # None: nothing to compare linear layers with
    set_num_threads: Callable[[int], None] = torch.set_num_threads  # of torch and of the kernels
    layout: str = "torch"  # of packed weights: sets with the same name read each other's
    table: dict[str, str] = field(default_factory=dict)  # stage -> "kernel: reason", what start-up prints

    def norm_linear(
        self, x: torch.Tensor, residual: torch.Tensor | None, norm: torch.Tensor, eps: float, packed: PackedLinear
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A linear layer over a normed input.

        Args:
            x, residual, norm, eps: as add_rms_norm takes them: [T, H], [T, H] or None, [H].
            packed: the layer, of H inputs.
        Returns:
            (the layer's output for the normed sum [T, out_features], x + residual [T, H]).
        """
        normed, total = self.add_rms_norm(x, residual, norm, eps)
        return self.linear(normed, packed), total

    def norm_gate_up(
        self, x: torch.Tensor, residual: torch.Tensor | None, norm: torch.Tensor, eps: float, packed: PackedLinear
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As norm_linear, for gates and ups followed by activate_and_mul with silu: [T, out_features / 2]."""
        if self.fused_norm_gate_up is not None:
            return self.fused_norm_gate_up(x, residual, norm, eps, packed)
        gate_up, total = self.norm_linear(x, residual, norm, eps, packed)
        return self.activate_and_mul(gate_up), total


ONE_ROW = KernelSet(  # other ops copy, compare or compute each element alone: no result depends on the number of rows
    add_rms_norm=one_row(add_rms_norm_reference, 0, 1),
    linear=one_row(linear_reference, 0),
    rope_and_store=one_row(rope_and_store_reference, 0, 5, 6),
    paged_attention=one_query(paged_attention_reference, 0),
    attend_part=one_query(attend_part_reference, 0),
    store_latents=one_row(store_latents_reference, 0, 6, 7),
    absorb_queries=one_row(absorb_queries_reference, 0, 4),
    latent_attention=one_query(latent_attention_reference, 0),
    attend_latent_part=one_query(attend_latent_part_reference, 0),
    expand_values=one_row(expand_values_reference, 0),
    choose_tokens=one_query(choose_tokens_reference, 0, 1, 4),
    sparse_latent_attention=one_query(sparse_latent_attention_reference, 0, 1),
    add_layer_norm=one_row(add_layer_norm_reference, 0, 1),
    activate_and_mul=one_row(activate_and_mul_reference, 0),
    activate=one_row(activate_reference, 0),
    gate_inputs=one_row(gate_inputs_reference, 0, 1),
    scale_and_cap=one_row(scale_and_cap_reference, 0),
    experts=one_row(experts_reference, 0, 1, 2, 4, 5),
    route_experts=one_row(route_experts_reference, 0),
    gate_outputs=one_row(gate_outputs_reference, 0, 1),
    causal_convolution=one_token(causal_convolution_reference, 0),
    gated_delta=one_token(gated_delta_reference, 0, 1),
    state_space=one_token(state_space_reference, 0, 1),
    gated_norm=one_row(gated_norm_reference, 0, 1),
    sample_tokens=after_penalties(one_row(sample_tokens_reference, 0, 1, 2, 3)),
    softmax_mass=one_row(softmax_mass_reference, 0, 1, 2),
)


def select_kernels(
    device: torch.device | str,
    dtype: torch.dtype,
    head_dims: HeadDims,
    features: str | None = None,
    *,
    kv_dtype: torch.dtype | None = None,
    is_eager: bool = False,
    quantization: str | None = None,
    activations: str | None = None,
    rounds_as_stored: bool = True,
    batch_invariant: bool = False,
    load: Callable[[LibrarySpec], CpuLibrary] = load_library,
) -> KernelSet:
    """Chooses an implementation for every op.

    CUDA devices have a set of their own: gpu/kernels.py.

    Args:
        device: where the model runs.
        dtype: of weights and activations.
        head_dims: elements per attention head, or all sizes that the layers have.
        features: `auto`, a level of config/cpu_features.py, or `torch`; None for what STOKER_CPU_FEATURES says.
        kv_dtype: of keys and values; None for `dtype`.
        is_eager: use torch's operations alone.
        quantization: `model.quantization`; without it the set has no C++ kernels for quantised weights.
        activations: `int8` if inputs of the layers that are quantised here are rounded.
        rounds_as_stored: whether inputs are rounded too where the method of a checkpoint does so.
        batch_invariant: `model.batch_invariant`: a row's results are bitwise the same in any batch.
        load: returns a library, or raises NoKernels with the reason to use torch. The default compiles a missing one.
    Returns:
        The set; its table names the choice and the reason for every stage.

    Raises ValueError for features that do not exist or that the CPU lacks.
    """
    device = torch.device(device)
    torchs = partial(torch_kernels, quantization=quantization, activations=activations, batch_invariant=batch_invariant)
    if device.type != "cpu":
        return torchs(EAGER if is_eager else f"the only kernels for {device.type}")
    kv_dtype = kv_dtype or dtype
    try:
        if is_eager:
            raise NoKernels(EAGER)
        level, reason = choose_level(features or wanted_level(), this_cpu())
        stage_table(level, reason, _name(dtype), head_dims, _name(kv_dtype))  # raises before anything is compiled
        library = load(LibrarySpec(level, batch_invariant, quantization is not None))
    except NoKernels as error:
        return torchs(str(error))
    if library.compile_seconds is not None:
        reason += f", compiled in {library.compile_seconds:.1f} s"
    return cpu_kernels(
        library,
        dtype,
        head_dims,
        kv_dtype,
        reason,
        quantization,
        activations=activations,
        rounds_as_stored=rounds_as_stored,
        batch_invariant=batch_invariant,
    )


def cpu_kernels(
    library: CpuLibrary,
    dtype: torch.dtype,
    head_dims: HeadDims,
    kv_dtype: torch.dtype,
    reason: str,
    quantization: str | None = None,
    *,
    activations: str | None = None,
    rounds_as_stored: bool = True,
    batch_invariant: bool = False,
) -> KernelSet:
    """The library's ops, and torch's for shapes that the library does not support.

    reason: why this library was chosen, for the table.
    activations, rounds_as_stored: as of `select_kernels`.
    batch_invariant: the library is compiled for it.
    """
    torchs = ONE_ROW if batch_invariant else KernelSet()
    recorder = CallRecorder()
    library = recorded(library, recorder)
    store_latents = store_latents_cpu(library, dtype)
    latent_attention, attend_latent_part = latent_attention_cpu(library, dtype)
    if kv_dtype in (dtype, torch.int8) and takes_heads(head_dims):
        rope = rope_and_store_cpu(library, dtype, kv_dtype)
        attention, attend_part = paged_attention_cpu(library, dtype, kv_dtype)
    else:
        rope, attention, attend_part = torchs.rope_and_store, torchs.paged_attention, torchs.attend_part
        store_latents, latent_attention = torchs.store_latents, torchs.latent_attention
        attend_latent_part = torchs.attend_latent_part
    is_capturable = attention is not torchs.paged_attention and (
        quantization is not None or library.level.multiplies(_name(dtype))
    )
    pack_linear = pack_linear_cpu(library)
    quantise_linear = (
        quantise_linear_cpu(library, rounds_rows=activations is not None)
        if library.spec.has_quantised
        else quantise_linear_reference
    )
    unpacked_experts = pack_experts_reference if activations is None else _pack_rounding_experts
    pack_grouped = pack_grouped_cpu(library) if library.spec.has_quantised else None
    pack_experts = pack_experts_cpu(library, pack_linear, quantise_linear, pack_grouped, dtype, unpacked_experts)
    return KernelSet(
        add_rms_norm=add_rms_norm_cpu(library, dtype),
        pack_linear=pack_linear,
        repack_linear=repack_linear_cpu(library),
        quantise_linear=quantise_linear,
        pack_grouped=pack_grouped,
        pack_integers=pack_integers_cpu if library.spec.has_quantised and rounds_as_stored else None,
        join_linear=join_linear_cpu,
        linear=_with_prefetch(linear_cpu(library, torchs.linear), recorder),
        embed=embed_cpu(library),
        copy_rows=copy_rows_cpu(library),
        rope_and_store=rope,
        paged_attention=attention,
        attend_part=attend_part,
        store_latents=store_latents,
        absorb_queries=absorb_queries_cpu(library, dtype),
        latent_attention=latent_attention,
        attend_latent_part=attend_latent_part,
        expand_values=expand_values_cpu(library, dtype),
        choose_tokens=torchs.choose_tokens,
        sparse_latent_attention=torchs.sparse_latent_attention,
        add_layer_norm=add_layer_norm_cpu(library, dtype),
        add_scaled=add_scaled_cpu(library, dtype),
        activate_and_mul=activate_and_mul_cpu(library, dtype),
        activate=activate_cpu(library, dtype),
        gate_inputs=gate_inputs_cpu(library, dtype),
        scale_and_cap=scale_and_cap_cpu(library, dtype),
        to_float32=to_float32_cpu(library),
        route_experts=route_experts_cpu(library, dtype),
        own_experts=own_experts_cpu(library),
        own_places=own_places_cpu(library),
        pack_experts=pack_experts,
        packs_grouped_experts=pack_grouped is not None,
        repack_experts=repack_experts_cpu(pack_experts),
        place_experts=place_experts_cpu(library),
        layout=library.level.name,
        experts=experts_cpu(library, torchs.experts),
        gate_outputs=gate_outputs_cpu(library, dtype),
        scale_rows=scale_rows_cpu(library, dtype),
        causal_convolution=causal_convolution_cpu(library, dtype),
        gated_delta=gated_delta_cpu(library, dtype),
        state_space=state_space_cpu(library, dtype),
        gated_norm=gated_norm_cpu(library, dtype),
        sample_tokens=sample_tokens_cpu(library),
        sample_top_p=sample_top_p_cpu(library),
        softmax_mass=softmax_mass_cpu(library),
        top_tokens=top_tokens_cpu(library),
        count_above=count_above_cpu(library),
        allow_tokens=allow_tokens_cpu(library),
        exchange=exchange_cpu(library, dtype),
        capture=native_capture(library, recorder) if is_capturable else None,
        speed=machine_speed(library, dtype if activations is None else torch.int8),
        set_num_threads=_set_num_threads(library),
        table=stage_table(
            library.level,
            reason,
            _name(dtype),
            head_dims,
            _name(kv_dtype),
            quantization,
            activations=activations,
            batch_invariant=batch_invariant,
        ),
    )


def torch_kernels(
    reason: str, *, quantization: str | None = None, activations: str | None = None, batch_invariant: bool = False
) -> KernelSet:
    """torch's ops. reason: why there are no others, for the table."""
    table = torch_table(reason, quantization, activations=activations, batch_invariant=batch_invariant)
    chosen = replace(ONE_ROW if batch_invariant else KernelSet(), table=table)
    if activations is None:
        return chosen
    quantise_linear = rounding_rows(quantise_linear_reference)
    return replace(chosen, quantise_linear=quantise_linear, pack_experts=_pack_rounding_experts)


def _with_prefetch(linear: Linear, recorder: CallRecorder) -> Linear:
    """Passes the weights that each call reads to the recorder, so that a replay can prefetch them."""

    def linear_with_prefetch(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        if packed.is_packed:
            first = packed.pieces[0] if packed.pieces else packed
            recorder.will_read(first.weight, -(-first.out_features // (2 * PANEL_WIDTH)))
        return linear(x, packed)

    return linear_with_prefetch


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _set_num_threads(library: CpuLibrary) -> Callable[[int], None]:
    def set_num_threads(count: int) -> None:
        torch.set_num_threads(count)
        library.handle.set_num_threads(count)

    return set_num_threads
