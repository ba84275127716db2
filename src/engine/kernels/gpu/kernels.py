"""The KernelSet of a CUDA device: Triton kernels, and torch's operations where no kernel is needed."""

from __future__ import annotations

from functools import partial

import torch
import triton
from triton.runtime import driver

from ..attention_variant import PLAIN, AttentionVariant
from ..kernel_set import KernelSet
from ..paged_attention import AttentionStep
from ..penalise import after_penalties
from .activation import activate_and_mul_gpu, activate_gpu
from .add_layer_norm import add_layer_norm_gpu
from .add_rms_norm import add_rms_norm_gpu
from .attend_whole import attend_whole_gpu
from .causal_convolution import causal_convolution_gpu
from .choose_compressed import choose_compressed_gpu
from .compress_tokens import compress_tokens_gpu
from .compressed_attention import attend_compressed_gpu
from .cuda_graph import cuda_graph_capture
from .decode_attention import DecodeWorkspace, decode_attention, decode_workspace
from .experts import experts_gpu, pack_experts_gpu
from .gated_delta import gated_delta_gpu
from .gated_residual import add_to_streams_gpu, average_streams_gpu, gate_streams_gpu, norm_streams_gpu
from .gemv import MAX_TOKENS
from .hyper_connections import read_streams_gpu, write_streams_gpu
from .kimi_delta import kimi_delta_gpu
from .latent_attention import latent_attention_gpu
from .launch import early_starts, is_interpreted
from .linear import PackGroupedGpu, embed_packed, linear_gpu, norm_gate_up_gpu
from .lora_add import lora_add_gpu
from .norm_and_turn import norm_and_turn_gpu
from .norm_parts import norm_parts_gpu
from .prefill_attention import prefill_attention
from .recurrent import CHUNK, FEW
from .rg_lru import rg_lru_gpu
from .rms_norm_gated import rms_norm_gated_gpu
from .rope_and_store import rope_and_store_gpu
from .route_experts import route_experts_gpu
from .sample_logprobs import count_above_gpu, softmax_mass_gpu
from .sample_ops import sample_tokens_gpu, sample_top_p_gpu
from .scaling import add_scaled_gpu, scale_and_cap_gpu
from .selective_scan import selective_scan_gpu
from .sparse_attention import sparse_attention_gpu
from .state_space import state_space_gpu
from .store_latents import store_latents_gpu
from .tuned import AttentionLaunch, tuned

_INTERPRETED_MULTIPROCESSORS = 4


def gpu_kernels(device: torch.device, max_rows: int) -> KernelSet:
    """max_rows: maximum number of rows of a step."""
    kernel = f"triton {triton.__version__}"
    return KernelSet(
        add_rms_norm=add_rms_norm_gpu,
        pack_grouped=PackGroupedGpu(device),
        linear=linear_gpu,
        lora_add=lora_add_gpu,
        embed=embed_packed,
        rope_and_store=rope_and_store_gpu,
        paged_attention=PagedAttentionGpu(device, max_rows),
        attend_whole=attend_whole_gpu,
        store_latents=store_latents_gpu,
        latent_attention=LatentAttentionGpu(),
        add_layer_norm=add_layer_norm_gpu,
        add_scaled=add_scaled_gpu,
        read_streams=read_streams_gpu,
        write_streams=write_streams_gpu,
        activate_and_mul=activate_and_mul_gpu,
        activate=activate_gpu,
        scale_and_cap=scale_and_cap_gpu,
        route_experts=route_experts_gpu,
        pack_experts=pack_experts_gpu,
        experts=experts_gpu,
        causal_convolution=causal_convolution_gpu,
        gated_delta=gated_delta_gpu,
        kimi_delta=kimi_delta_gpu,
        state_space=state_space_gpu,
        rms_norm_gated=rms_norm_gated_gpu,
        norm_parts=norm_parts_gpu,
        selective_scan=selective_scan_gpu,
        rg_lru=rg_lru_gpu,
        sparse_attention=sparse_attention_gpu,
        norm_and_turn=norm_and_turn_gpu,
        compress_tokens=compress_tokens_gpu,
        choose_compressed=partial(choose_compressed_gpu, programs=2 * _multiprocessors()),
        attend_compressed=partial(attend_compressed_gpu, programs=2 * _multiprocessors()),
        has_compressed=True,
        norm_streams=norm_streams_gpu,
        average_streams=average_streams_gpu,
        add_to_streams=add_to_streams_gpu,
        gate_streams=gate_streams_gpu,
        fused_norm_gate_up=norm_gate_up_gpu,
        sample_tokens=after_penalties(sample_tokens_gpu),
        sample_top_p=after_penalties(sample_top_p_gpu),
        softmax_mass=softmax_mass_gpu,
        count_above=count_above_gpu,
        capture=cuda_graph_capture() if device.type == "cuda" else None,
        layout="triton",
        table={
            "add_rms_norm": kernel,
            "linear": f"{kernel} up to {MAX_TOKENS} tokens; torch for more",
            "grouped_linear": f"{kernel}, over the own codes of quantised checkpoints",
            "rope_and_store": f"{kernel}, with the heads' norms",
            "paged_attention": f"{kernel}: one kernel for rows with one query, one for prompts",
            "compressed_vectors": f"{kernel}: in decode steps several programs for the keys of a query",
            "activation": f"{kernel}; a gate with silu up to {MAX_TOKENS} tokens part of the linear layer before it",
            "recurrent_state": f"{kernel}: up to {FEW.value} tokens of a row one by one, more by {CHUNK.value}",
            "sampling": f"{kernel}; torch.topk for the best tokens of log-probabilities",
            "launches": early_starts(),
            "tiles": tuned().summary,
        },
    )


class PagedAttentionGpu:
    """Rows of one query use the decode kernel, the others the prefill kernel. All launches must be on one stream."""

    def __init__(self, device: torch.device, max_rows: int) -> None:
        self._device = device
        self._max_rows = max_rows
        self._multiprocessors = _multiprocessors()
        self._workspaces: dict[tuple[int, int, int], DecodeWorkspace] = {}

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: AttentionStep,
        scale: float,
        variant: AttentionVariant = PLAIN,
    ) -> torch.Tensor:
        num_tokens, num_heads, head_dim = q.shape
        out = torch.empty(num_tokens, num_heads * head_dim, dtype=q.dtype, device=q.device)
        workspace = self._workspace(num_heads, k_cache.shape[1], head_dim)
        decode_attention(q, k_cache, v_cache, step, scale, out, workspace, variant)
        if step.max_query_len > 1:
            programs = self._programs(tuned().prefill_attention)
            prefill_attention(q, k_cache, v_cache, step, scale, out, programs, variant)
        return out

    def _programs(self, launch: AttentionLaunch) -> int:
        return launch.programs_per_multiprocessor * self._multiprocessors

    def _workspace(self, num_heads: int, num_kv_heads: int, head_dim: int) -> DecodeWorkspace:
        """One per shape, never released: graphs contain its addresses, and its tickets must begin as zero."""
        shape = num_heads, num_kv_heads, head_dim
        found = self._workspaces.get(shape)
        if found is None:
            if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise RuntimeError(f"no step with heads of {shape} has run yet: run one before capturing a graph")
            found = decode_workspace(self._max_rows, *shape, self._device, self._programs(tuned().decode_attention))
            self._workspaces[shape] = found
        return found


class LatentAttentionGpu:
    def __init__(self) -> None:
        self._programs = 2 * _multiprocessors()

    def __call__(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        step: AttentionStep,
        scale: float,
        rank: int,
        sinks: torch.Tensor | None = None,
        window: int | None = None,
    ) -> torch.Tensor:
        return latent_attention_gpu(q, cache, step, scale, rank, self._programs, sinks, window)


def _multiprocessors() -> int:
    if is_interpreted():
        return _INTERPRETED_MULTIPROCESSORS
    found = driver.active.utils.get_device_properties(driver.active.get_current_device())
    return int(found["multiprocessor_count"])
