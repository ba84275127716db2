"""The kernel set of a CPU: the ops of the C++ library, and torch's for shapes that the library does not support."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...config.cpu_kernels import HeadDims, stage_table, takes_heads
from ...model.quantised import PANEL_WIDTH
from .activation import activate_and_mul_cpu, activate_cpu, gate_inputs_cpu, limit_gates_cpu
from .adapt_rows import adapt_rows_cpu
from .add_layer_norm import add_layer_norm_cpu
from .add_rms_norm import add_rms_norm_cpu
from .allow_tokens import allow_tokens_cpu
from .attend_whole import attend_whole_by_length, attend_whole_cpu
from .block_index import sparse_attention_cpu
from .causal_convolution import causal_convolution_cpu
from .compressed_attention_cpu import compressed_ops_cpu
from .copy_rows import copy_rows_cpu
from .count_above import count_above_cpu
from .cpu.captured_graph import CallRecorder, native_capture, recorded
from .cpu.library import CpuLibrary
from .cpu.machine_speed import machine_speed
from .exchange import Exchange
from .experts import pack_experts_reference
from .gated_delta import gated_delta_cpu
from .gated_residual import add_to_streams_cpu, average_streams_cpu, gate_streams_cpu, norm_streams_cpu
from .hyper_connections import read_streams_cpu, write_streams_cpu
from .kernel_set import ONE_ROW, KernelSet, pack_rounding_experts
from .kimi_delta import kimi_delta_cpu
from .latent_attention import latent_attention_cpu
from .latent_heads import absorb_queries_cpu, expand_values_cpu
from .linear import Linear, PackedLinear, quantise_linear_reference
from .lora_add import are_finite_cpu, lora_add_cpu, pack_lora_cpu
from .lora_experts import adapted_experts_cpu
from .norm_parts import norm_parts_cpu
from .output_gate import gate_outputs_cpu
from .paged_attention import paged_attention_cpu
from .panel_experts import experts_cpu, pack_experts_cpu, place_experts_cpu, repack_experts_cpu
from .panel_linear import embed_cpu, linear_cpu
from .panel_packing import (
    join_linear_cpu,
    pack_grouped_cpu,
    pack_integers_cpu,
    pack_linear_cpu,
    quantise_linear_cpu,
    repack_linear_cpu,
)
from .rg_lru import rg_lru_cpu
from .rms_norm_gated import rms_norm_gated_cpu
from .rope_and_store import rope_and_store_cpu
from .route_experts import own_experts_cpu, own_places_cpu, route_experts_cpu, weigh_experts_cpu
from .sample_among import sample_among_cpu
from .sample_tokens import sample_tokens_cpu
from .sample_top_p import sample_top_p_cpu
from .scale_rows import scale_rows_cpu
from .scaling import add_scaled_cpu, scale_and_cap_cpu
from .selective_scan import selective_scan_cpu
from .softmax_mass import softmax_mass_cpu
from .state_space import state_space_cpu
from .store_latents import store_latents_cpu
from .take_columns import join_columns_cpu, part_halves_cpu, take_columns_cpu
from .to_float32 import to_float32_cpu
from .top_tokens import top_tokens_cpu


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
    unrecorded, library = library, recorded(library, recorder)
    store_latents = store_latents_cpu(library, dtype)
    latent_attention, attend_latent_part = latent_attention_cpu(library, dtype)
    if kv_dtype in (dtype, torch.int8) and takes_heads(head_dims):
        rope = rope_and_store_cpu(library, dtype, kv_dtype)
        attention, attend_part = paged_attention_cpu(library, dtype, kv_dtype)
    else:
        rope, attention, attend_part = torchs.rope_and_store, torchs.paged_attention, torchs.attend_part
        store_latents, latent_attention = torchs.store_latents, torchs.latent_attention
        attend_latent_part = torchs.attend_latent_part
    attend_whole = torchs.attend_whole if batch_invariant else attend_whole_by_length
    if takes_heads(head_dims):
        attend_whole = attend_whole_cpu(library, dtype)
    takes_compressed = kv_dtype is dtype and takes_heads(head_dims)
    compressed = compressed_ops_cpu(library, dtype) if takes_compressed else torchs
    is_capturable = attention is not torchs.paged_attention and (
        quantization is not None or library.level.multiplies(dtype_name(dtype))
    )
    pack_linear = pack_linear_cpu(library)
    quantise_linear = (
        quantise_linear_cpu(library, rounds_rows=activations is not None)
        if library.spec.has_quantised
        else quantise_linear_reference
    )
    unpacked_experts = pack_experts_reference if activations is None else pack_rounding_experts
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
        lora_add=lora_add_cpu(library, dtype),
        pack_lora=pack_lora_cpu(unrecorded, dtype),
        are_finite=are_finite_cpu(unrecorded, dtype),
        embed=embed_cpu(library),
        adapt_rows=adapt_rows_cpu(library, dtype),
        weight_rows=embed_cpu(unrecorded),
        copy_rows=copy_rows_cpu(library),
        take_columns=take_columns_cpu(library),
        join_columns=join_columns_cpu(library),
        part_halves=part_halves_cpu(library),
        rope_and_store=rope,
        paged_attention=attention,
        attend_part=attend_part,
        attend_whole=attend_whole,
        store_latents=store_latents,
        absorb_queries=absorb_queries_cpu(library, dtype),
        latent_attention=latent_attention,
        attend_latent_part=attend_latent_part,
        expand_values=expand_values_cpu(library, dtype),
        choose_tokens=torchs.choose_tokens,
        sparse_latent_attention=torchs.sparse_latent_attention,
        norm_and_turn=compressed.norm_and_turn,
        compress_tokens=compressed.compress_tokens,
        choose_compressed=compressed.choose_compressed,
        attend_compressed=compressed.attend_compressed,
        has_compressed=takes_compressed,
        choose_blocks=torchs.choose_blocks,
        always_chooses=torchs.always_chooses,
        sparse_attention=sparse_attention_cpu(library, dtype) if kv_dtype is dtype else torchs.sparse_attention,
        norm_streams=norm_streams_cpu(library, dtype),
        average_streams=average_streams_cpu(library, dtype),
        add_to_streams=add_to_streams_cpu(library, dtype),
        gate_streams=gate_streams_cpu(library, dtype),
        add_layer_norm=add_layer_norm_cpu(library, dtype),
        add_scaled=add_scaled_cpu(library, dtype),
        read_streams=read_streams_cpu(library, dtype),
        write_streams=write_streams_cpu(library, dtype),
        activate_and_mul=activate_and_mul_cpu(library, dtype),
        activate=activate_cpu(library, dtype),
        limit_gates=limit_gates_cpu(library, dtype),
        gate_inputs=gate_inputs_cpu(library, dtype),
        scale_and_cap=scale_and_cap_cpu(library, dtype),
        to_float32=to_float32_cpu(library),
        route_experts=route_experts_cpu(library, dtype),
        weigh_experts=weigh_experts_cpu(library, dtype),
        own_experts=own_experts_cpu(library),
        own_places=own_places_cpu(library),
        pack_experts=pack_experts,
        packs_grouped_experts=pack_grouped is not None,
        repack_experts=repack_experts_cpu(pack_experts),
        place_experts=place_experts_cpu(library),
        layout=library.level.name,
        experts=experts_cpu(library, torchs.experts),
        adapted_experts=adapted_experts_cpu(library, torchs.adapted_experts),
        gate_outputs=gate_outputs_cpu(library, dtype),
        scale_rows=scale_rows_cpu(library, dtype),
        causal_convolution=causal_convolution_cpu(library, dtype),
        gated_delta=gated_delta_cpu(library, dtype),
        kimi_delta=kimi_delta_cpu(library, dtype),
        state_space=state_space_cpu(library, dtype),
        rms_norm_gated=rms_norm_gated_cpu(library, dtype),
        norm_parts=norm_parts_cpu(library, dtype),
        selective_scan=selective_scan_cpu(library, dtype),
        rg_lru=rg_lru_cpu(library, dtype),
        sample_tokens=sample_tokens_cpu(library),
        sample_top_p=sample_top_p_cpu(library),
        sample_among=sample_among_cpu(library),
        softmax_mass=softmax_mass_cpu(library),
        top_tokens=top_tokens_cpu(library),
        count_above=count_above_cpu(library),
        allow_tokens=allow_tokens_cpu(library),
        exchange=Exchange(library, dtype),
        capture=native_capture(library, recorder) if is_capturable else None,
        speed=machine_speed(library, dtype if activations is None else torch.int8),
        set_num_threads=_set_num_threads(library),
        table=stage_table(
            library.level,
            reason,
            dtype_name(dtype),
            head_dims,
            dtype_name(kv_dtype),
            quantization,
            activations=activations,
            batch_invariant=batch_invariant,
        ),
    )


def _with_prefetch(linear: Linear, recorder: CallRecorder) -> Linear:
    """Passes the weights that each call reads to the recorder, so that a replay can prefetch them."""

    def linear_with_prefetch(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        if packed.is_packed:
            first = packed.pieces[0] if packed.pieces else packed
            recorder.will_read(first.weight, -(-first.out_features // (2 * PANEL_WIDTH)))
        return linear(x, packed)

    return linear_with_prefetch


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _set_num_threads(library: CpuLibrary) -> Callable[[int], None]:
    def set_num_threads(count: int) -> None:
        torch.set_num_threads(count)
        library.handle.set_num_threads(count)

    return set_num_threads
