"""KernelSet: the implementation of every op. The default is plain torch; select_kernels.py chooses others.

Models call the ops through the set they are given and never ask which implementation it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .activation import (
    Activate,
    GateInputs,
    LimitGates,
    activate_and_mul_reference,
    activate_reference,
    gate_inputs_reference,
    limit_gates_reference,
)
from .adapt_rows import AdaptRows, adapt_rows_reference
from .add_layer_norm import AddLayerNorm, add_layer_norm_reference
from .add_rms_norm import AddRmsNorm, add_rms_norm_reference
from .allow_tokens import AllowTokens, allow_tokens_reference
from .attend_whole import AttendWhole, attend_whole_reference
from .block_index import (
    ChooseBlocks,
    SparseAttention,
    StoreBlockKeys,
    choose_blocks_reference,
    sparse_attention_reference,
    store_block_keys,
)
from .capture import Capture
from .causal_convolution import CausalConvolution, causal_convolution_reference
from .compressed_attention import (
    AttendCompressed,
    ChooseCompressed,
    CompressTokens,
    NormAndTurn,
    attend_compressed_reference,
    choose_compressed_reference,
    compress_tokens_reference,
    norm_and_turn_reference,
)
from .copy_rows import CopyRows, copy_rows_reference
from .count_above import CountAbove, count_above_reference
from .cpu.machine_speed import MachineSpeed
from .exchange import Exchange
from .experts import (
    Experts,
    PackExperts,
    PlaceExperts,
    RepackExperts,
    experts_reference,
    pack_experts_reference,
    pack_experts_with,
    place_experts_reference,
    repack_experts_reference,
)
from .gated_delta import GatedDelta, gated_delta_reference
from .gated_residual import (
    AddToStreams,
    AverageStreams,
    GateStreams,
    NormStreams,
    add_to_streams_reference,
    average_streams_reference,
    gate_streams_reference,
    norm_streams_reference,
)
from .hyper_connections import ReadStreams, WriteStreams, read_streams_reference, write_streams_reference
from .kimi_delta import KimiDelta, kimi_delta_reference
from .latent_attention import (
    AttendLatentPart,
    LatentAttention,
    attend_latent_part_reference,
    latent_attention_reference,
)
from .latent_heads import AbsorbQueries, ExpandValues, absorb_queries_reference, expand_values_reference
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
    embed_reference,
    join_linear_reference,
    linear_reference,
    pack_linear_reference,
    quantise_linear_reference,
    repack_linear_reference,
    rounding_rows,
)
from .lora_add import (
    AreFinite,
    LoraAdd,
    PackLora,
    are_finite_reference,
    in_panels,
    lora_add_by_row,
    lora_add_reference,
)
from .lora_experts import AdaptedExperts, adapted_experts_reference
from .ngram_rows import NGramRows, ngram_rows_reference
from .norm_parts import NormParts, norm_parts_reference
from .one_row import one_position, one_query, one_row, one_token
from .output_gate import GateOutputs, gate_outputs_reference
from .paged_attention import AttendPart, PagedAttention, attend_part_reference, paged_attention_reference
from .penalise import after_penalties
from .rg_lru import RgLru, rg_lru_reference
from .rms_norm_gated import RMSNormGated, rms_norm_gated_reference
from .rope_and_store import RopeAndStore, rope_and_store_reference
from .route_experts import (
    OwnExperts,
    OwnPlaces,
    RouteExperts,
    WeighExperts,
    own_experts_reference,
    own_places_reference,
    route_experts_reference,
    weigh_experts_reference,
)
from .sample_among import SampleAmong, sample_among_reference
from .sample_tokens import SampleTokens, sample_tokens_reference
from .sample_top_p import SampleTopP, sample_top_p_reference
from .scale_rows import ScaleRows, scale_rows_reference
from .scaling import AddScaled, ScaleAndCap, add_scaled_reference, scale_and_cap_reference
from .selective_scan import SelectiveScan, selective_scan_reference
from .softmax_mass import SoftmaxMass, softmax_mass_reference
from .state_space import StateSpace, state_space_reference
from .store_latents import StoreLatents, store_latents_reference
from .take_columns import (
    JoinColumns,
    PartHalves,
    TakeColumns,
    join_columns_reference,
    part_halves_reference,
    take_columns_reference,
)
from .to_float32 import ToFloat32, to_float32_reference
from .token_index import (
    ChooseTokens,
    SparseLatentAttention,
    StoreIndexKeys,
    choose_tokens_reference,
    sparse_latent_attention_reference,
    store_index_keys,
)
from .top_tokens import TopTokens, top_tokens_reference

_sample_tokens = after_penalties(sample_tokens_reference)
_sample_top_p = after_penalties(sample_top_p_reference)
_top_tokens = after_penalties(top_tokens_reference)
pack_rounding_experts = pack_experts_with(pack_linear_reference, rounding_rows(quantise_linear_reference))


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
    lora_add: LoraAdd = lora_add_reference
    pack_lora: PackLora = in_panels
    are_finite: AreFinite = are_finite_reference
    embed: Embed = embed_reference
    adapt_rows: AdaptRows = adapt_rows_reference
    weight_rows: Embed = embed_reference  # as `embed`, for threads beside that of the steps: no capture has its calls
    copy_rows: CopyRows = copy_rows_reference
    take_columns: TakeColumns = take_columns_reference
    join_columns: JoinColumns = join_columns_reference
    part_halves: PartHalves = part_halves_reference
    rope_and_store: RopeAndStore = rope_and_store_reference
    paged_attention: PagedAttention = paged_attention_reference
    attend_part: AttendPart = attend_part_reference
    attend_whole: AttendWhole = attend_whole_reference
    store_latents: StoreLatents = store_latents_reference
    absorb_queries: AbsorbQueries = absorb_queries_reference
    latent_attention: LatentAttention = latent_attention_reference
    attend_latent_part: AttendLatentPart = attend_latent_part_reference
    expand_values: ExpandValues = expand_values_reference
    store_index_keys: StoreIndexKeys = store_index_keys
    choose_tokens: ChooseTokens = choose_tokens_reference
    sparse_latent_attention: SparseLatentAttention = sparse_latent_attention_reference
    norm_and_turn: NormAndTurn = norm_and_turn_reference
    compress_tokens: CompressTokens = compress_tokens_reference
    choose_compressed: ChooseCompressed = choose_compressed_reference
    attend_compressed: AttendCompressed = attend_compressed_reference
    store_block_keys: StoreBlockKeys = store_block_keys
    choose_blocks: ChooseBlocks = choose_blocks_reference
    sparse_attention: SparseAttention = sparse_attention_reference
    norm_streams: NormStreams = norm_streams_reference
    average_streams: AverageStreams = average_streams_reference
    add_to_streams: AddToStreams = add_to_streams_reference
    gate_streams: GateStreams = gate_streams_reference
    ngram_rows: NGramRows = ngram_rows_reference
    add_layer_norm: AddLayerNorm = add_layer_norm_reference
    add_scaled: AddScaled = add_scaled_reference
    read_streams: ReadStreams = read_streams_reference
    write_streams: WriteStreams = write_streams_reference
    activate_and_mul: Activate = activate_and_mul_reference
    activate: Activate = activate_reference
    limit_gates: LimitGates = limit_gates_reference
    gate_inputs: GateInputs = gate_inputs_reference
    scale_and_cap: ScaleAndCap = scale_and_cap_reference
    to_float32: ToFloat32 = to_float32_reference
    route_experts: RouteExperts = route_experts_reference
    weigh_experts: WeighExperts = weigh_experts_reference
    own_experts: OwnExperts = own_experts_reference
    own_places: OwnPlaces = own_places_reference
    pack_experts: PackExperts = pack_experts_reference
    packs_grouped_experts: bool = False  # whether `pack_experts` takes a checkpoint's own codes
    repack_experts: RepackExperts = repack_experts_reference
    place_experts: PlaceExperts = place_experts_reference
    experts: Experts = experts_reference
    adapted_experts: AdaptedExperts = adapted_experts_reference
    gate_outputs: GateOutputs = gate_outputs_reference
    scale_rows: ScaleRows = scale_rows_reference
    causal_convolution: CausalConvolution = causal_convolution_reference
    gated_delta: GatedDelta = gated_delta_reference
    kimi_delta: KimiDelta = kimi_delta_reference
    state_space: StateSpace = state_space_reference
    rms_norm_gated: RMSNormGated = rms_norm_gated_reference
    norm_parts: NormParts = norm_parts_reference
    selective_scan: SelectiveScan = selective_scan_reference
    rg_lru: RgLru = rg_lru_reference
    fused_norm_gate_up: NormLinear | None = None  # None: norm, linear layer and gate as three ops
    sample_tokens: SampleTokens = _sample_tokens
    sample_top_p: SampleTopP = _sample_top_p
    sample_among: SampleAmong = sample_among_reference
    softmax_mass: SoftmaxMass = softmax_mass_reference
    top_tokens: TopTokens = _top_tokens
    count_above: CountAbove = count_above_reference
    allow_tokens: AllowTokens = allow_tokens_reference
    # Whether attention with an index takes chosen tokens also where it could take all: in a batch-invariant set the
    # longest context of a step does not decide.
    always_chooses: bool = False
    # Whether attention over compressed vectors has kernels, of which a step can be captured. Torch's ops read the
    # tensors of a step on the host.
    has_compressed: bool = False
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
        """Computes norm_linear for gates and ups, followed by activate_and_mul with silu: [T, out_features / 2]."""
        if self.fused_norm_gate_up is not None:
            return self.fused_norm_gate_up(x, residual, norm, eps, packed)
        gate_up, total = self.norm_linear(x, residual, norm, eps, packed)
        return self.activate_and_mul(gate_up), total


ONE_ROW = KernelSet(  # other ops copy, compare or compute each element alone: no result depends on the number of rows
    add_rms_norm=one_row(add_rms_norm_reference, 0, 1),
    linear=one_row(linear_reference, 0),
    lora_add=lora_add_by_row,
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
    choose_blocks=one_query(choose_blocks_reference, 0, 2),
    sparse_attention=one_query(sparse_attention_reference, 0, 1),
    norm_streams=one_row(norm_streams_reference, 0),
    average_streams=one_row(average_streams_reference, 0, 1),
    add_to_streams=one_row(add_to_streams_reference, 0, 1, 2),
    gate_streams=one_row(gate_streams_reference, 0, 1, 2),
    norm_and_turn=one_row(norm_and_turn_reference, 0, 4),
    compress_tokens=one_position(compress_tokens_reference, 0),
    choose_compressed=one_position(choose_compressed_reference, 0, 1),
    attend_compressed=one_position(attend_compressed_reference, 0, 1, 6),
    add_layer_norm=one_row(add_layer_norm_reference, 0, 1),
    read_streams=one_row(read_streams_reference, 0),
    write_streams=one_row(write_streams_reference, 0, 2, 3),
    activate_and_mul=one_row(activate_and_mul_reference, 0),
    activate=one_row(activate_reference, 0),
    gate_inputs=one_row(gate_inputs_reference, 0, 1),
    scale_and_cap=one_row(scale_and_cap_reference, 0),
    experts=one_row(experts_reference, 0, 1, 2, 4, 5),
    adapted_experts=one_row(adapted_experts_reference, 0, 1, 2, 4, 5, 6),
    route_experts=one_row(route_experts_reference, 0),
    weigh_experts=one_row(weigh_experts_reference, 0, 1),
    gate_outputs=one_row(gate_outputs_reference, 0, 1),
    causal_convolution=one_token(causal_convolution_reference, 0),
    gated_delta=one_token(gated_delta_reference, 0, 1),
    kimi_delta=one_token(kimi_delta_reference, 0, 1, 2, 3),
    state_space=one_token(state_space_reference, 0, 1),
    rms_norm_gated=one_row(rms_norm_gated_reference, 0, 1),
    norm_parts=one_row(norm_parts_reference, 0),
    selective_scan=one_token(selective_scan_reference, 0, 1, 2, 3, 4),
    rg_lru=one_token(rg_lru_reference, 0, 1, 2),
    sample_tokens=after_penalties(one_row(sample_tokens_reference, 0, 1, 2, 3)),
    softmax_mass=one_row(softmax_mass_reference, 0, 1, 2),
    always_chooses=True,
)
