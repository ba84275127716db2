"""MixerParts: makes the mixers of a model: attention of each kind, and layers with a recurrent state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ...model.mixer_tensors import (
    COMPRESSORS,
    CONVOLUTIONS,
    DISTANCE_BIASES,
    HEAD_GATES,
    KIMI_EXPANSIONS,
    LAMBDAS,
    MAMBA_NORMS,
    RG_LRU_GATES,
    RG_LRU_INPUTS,
    UNBIASED,
    attention_parts,
    compressed_parts,
    gated_delta_convolutions,
    gated_delta_ends,
    gated_delta_parts,
    head_norm_shape,
    kimi_delta_parts,
    kimi_rates_shape,
    lightning_parts,
    mamba2_parts,
    mamba_parts,
)
from ...model.mixers import Attention as AttentionSpec
from ...model.mixers import CompressedAttention as CompressedSpec
from ...model.mixers import GatedDelta as GatedDeltaSpec
from ...model.mixers import KimiDelta as KimiDeltaSpec
from ...model.mixers import LatentAttention as LatentSpec
from ...model.mixers import LightningAttention as LightningSpec
from ...model.mixers import Mamba as MambaSpec
from ...model.mixers import Mamba2 as Mamba2Spec
from ...model.mixers import Mixer as MixerSpec
from ...model.mixers import RgLru as RgLruSpec
from ...model.mixers import ShortConvolution as ShortConvolutionSpec
from ...model.spec import Norm as NormSpec
from ..kernels import HeadVariant
from ..layers.attention import (
    Attention,
    AttentionShape,
    alibi_slopes,
    order_of_gates,
    order_of_groups,
    order_of_parts,
    order_with_zeros,
)
from ..layers.block_index import BlockIndex
from ..layers.block_matrix import BlockMatrix
from ..layers.compressed_attention import CompressedAttention, Compressor, PositionBias
from ..layers.convolution import ShortConvolution, Taps
from ..layers.difference import Difference, Lambda, order_of_pairs
from ..layers.distance_biases import DistanceBiases
from ..layers.gated_delta import GatedDelta, order_by_part
from ..layers.kimi_delta import KimiDelta
from ..layers.latent_attention import HeadMatrices, LatentAttention, gates_after_queries
from ..layers.lightning_attention import LightningAttention, order_of_lightning
from ..layers.linear import Linear
from ..layers.mamba import HeadProjections, Mamba, Rates, StepProjections, order_of_channels
from ..layers.mamba2 import Mamba2, gates_after_inputs
from ..layers.mixer import Mixer
from ..layers.norm import LayerNorm, Norm, RMSNorm
from ..layers.rg_lru import DecayRates, RgLru
from ..layers.rotary import query_scales
from ..layers.token_index import TokenIndex
from ..layers.vector import Vector
from .parts import Parts

_INDEX_INPUTS = "indexer.wk", "indexer.weights_proj"  # projections of the layer's input, without a bias


def _order_of(spec: AttentionSpec) -> torch.Tensor | None:
    """The order of the outputs of a projection whose checkpoint has another, or fewer."""
    sizes = spec.num_heads, spec.num_kv_heads, spec.head_dim
    if spec.lambda_start is not None:
        return order_of_pairs(*sizes)
    if spec.value_dim is not None:
        return order_with_zeros(*sizes, spec.value_dim)
    if spec.gate == "element":
        return order_of_gates(*sizes, 0 if spec.index is None else (spec.index.heads + 1) * spec.index.dim)
    if spec.qkv_parts:
        return order_of_parts(spec.num_heads, spec.head_dim, spec.qkv_parts)
    return order_of_groups(*sizes) if spec.is_grouped else None


def _num_gates(spec: AttentionSpec) -> int:
    if spec.gate == "none":
        return 0
    return spec.num_heads * (spec.head_dim if spec.gate == "element" else 1)


class MixerParts(Parts):
    """Makes mixers from their descriptions in the ModelSpec."""

    def mixer(self, prefix: str, spec: MixerSpec) -> Mixer:
        match spec:
            case AttentionSpec():
                return self.attention(f"{prefix}.self_attn", spec)
            case LatentSpec():
                return self.latent_attention(f"{prefix}.self_attn", spec)
            case CompressedSpec():
                return self.compressed_attention(f"{prefix}.self_attn", spec)
            case GatedDeltaSpec():
                return self.gated_delta(f"{prefix}.linear_attn", spec)
            case KimiDeltaSpec():
                return self.kimi_delta(f"{prefix}.self_attn", spec)
            case LightningSpec():
                return self.lightning_attention(f"{prefix}.self_attn", spec)
            case ShortConvolutionSpec():
                return self.short_convolution(f"{prefix}.conv", spec)
            case RgLruSpec():
                return self.rg_lru(f"{prefix}.recurrent", spec)
            case MambaSpec():
                return self.mamba(f"{prefix}.mamba", spec)
            case Mamba2Spec():
                return self.mamba2(f"{prefix}.mamba", spec)
        raise AssertionError(f"support.py accepts layers with {spec}")

    def attention(
        self, prefix: str, spec: AttentionSpec, inputs: int | None = None, weights_of: Attention | None = None
    ) -> Attention:
        """inputs: of its first linear layer; None: as wide as the model. weights_of: has its linear layers already."""
        if weights_of is None:
            inputs = inputs or self._spec.hidden_size
            parts, order = attention_parts(spec), _order_of(spec)
            in_proj = self.linear(prefix, parts, inputs, spec.has_bias, order, unbiased=UNBIASED)
            out_proj = self.summed(prefix, "o_proj", spec.num_heads * spec.output_dim, spec.has_out_bias)
        else:
            in_proj, out_proj = weights_of.in_proj, weights_of.out_proj
        slopes: torch.Tensor | None = None
        if spec.alibi != "none":
            slopes = self._of_heads(alibi_slopes, spec.num_heads).to(self._device)
            if spec.alibi == "before_scale":
                slopes = slopes * spec.head_dim**-0.5
        q_norm, k_norm = (
            self.head_norm(f"{prefix}.{name}", spec, heads)
            for name, heads in (("q_norm", spec.num_heads), ("k_norm", spec.num_projected[0]))
        )
        heads = HeadVariant(
            is_interleaved=spec.lambda_start is not None or (spec.rope is not None and spec.rope.is_interleaved),
            is_over_all_heads=spec.head_norm == "whole",
            is_norm_last=spec.head_norm in ("head_after_rope", "bare_after_rope"),
            has_value_norm=spec.has_value_norm,
            values_are_keys=not spec.has_own_values,
            query_scales=self.query_scales(spec),
        )
        return Attention(
            AttentionShape(
                spec.num_heads if spec.lambda_start is None else spec.num_heads // 2,
                spec.num_projected[0],
                spec.head_dim,
                spec.window,
                spec.is_chunked,
                softcap=spec.softcap,
                scale=spec.scale,
                value_dim=spec.value_dim,
                is_causal=spec.is_causal,
            ),
            in_proj,
            out_proj,
            q_norm,
            k_norm,
            None if spec.rope is None else self.rotation(spec.rope, spec.query_dim, spec.head_dim // spec.query_dim),
            self._kernels,
            sinks=self.sinks(prefix, spec),
            slopes=slopes,
            biases=self.distance_biases(prefix, spec),
            heads=heads,
            num_gates=_num_gates(spec),
            difference=self.difference(prefix, spec),
            index=self.block_index(f"{prefix}.indexer", spec),
        )

    def sinks(self, prefix: str, spec: AttentionSpec | LatentSpec) -> Vector | None:
        return Vector(f"{prefix}.sinks", spec.num_heads, self._dtype, self._device) if spec.has_sinks else None

    def distance_biases(self, prefix: str, spec: AttentionSpec) -> DistanceBiases | None:
        if spec.bias_buckets is None:
            return None
        return DistanceBiases(
            f"{prefix}.{DISTANCE_BIASES}.weight", spec.bias_buckets, spec.num_heads, self._dtype, self._device
        )

    def difference(self, prefix: str, spec: AttentionSpec) -> Difference | None:
        if (start := spec.lambda_start) is None:
            return None
        names = [f"{prefix}.{name}" for name in LAMBDAS]
        factor = Lambda(names, spec.query_dim, start, self._dtype, self._device)
        return Difference(factor, start, spec.head_dim, self._spec.norm.eps, self._kernels)

    def block_index(self, prefix: str, spec: AttentionSpec) -> BlockIndex | None:
        if spec.index is None:
            return None
        assert spec.rope is not None
        q_norm, k_norm = (
            self._norm(self._spec.norm, f"{prefix}.{name}", spec.index.dim) for name in ("q_layernorm", "k_layernorm")
        )
        assert isinstance(q_norm, RMSNorm)
        assert isinstance(k_norm, RMSNorm)
        table = self.rotation(spec.rope, spec.head_dim).table
        return BlockIndex(spec.index, q_norm, k_norm, table, self._kernels)

    def _of_heads(self, make: Callable[[int], torch.Tensor], num_heads: int) -> torch.Tensor:
        """What `make` returns for all heads, for this process's heads."""
        if self._ranks is None:
            return make(num_heads)
        return make(num_heads * self._ranks.size).chunk(self._ranks.size)[self._ranks.rank]

    def head_norm(self, name: str, spec: AttentionSpec, num_heads: int) -> Norm | None:
        if spec.head_norm == "none" or not num_heads:
            return None
        norm = self._spec.norm
        if spec.head_norm == "bare_after_rope":
            return RMSNorm(name, spec.head_dim, norm.eps, self._dtype, self._device, has_weight=False)
        if spec.head_norm == "layer_each":
            names = [f"{name}.{head}" for head in range(num_heads)]
            return LayerNorm(names, num_heads * spec.head_dim, norm.eps, self._dtype, self._device)
        if spec.head_norm == "layer":
            norm = NormSpec(kind="layer", eps=norm.eps)
        return self._norm(norm, name, head_norm_shape(spec, num_heads))

    def query_scales(self, spec: AttentionSpec) -> torch.Tensor | None:
        """Scales of queries by position, shared by layers whose queries grow alike; None if all positions are alike."""
        rope, growth = spec.rope, spec.query_growth
        if rope is not None and rope.llama_4_scaling_beta is not None:
            trained = rope.original_max_position_embeddings or self._spec.max_position_embeddings
            found = float(trained), rope.llama_4_scaling_beta, 0
        elif rope is None and growth is not None:
            found = growth.interval, growth.weight, 1
        else:
            return None
        if found not in self._query_scales:
            self._query_scales[found] = query_scales(self._max_model_len, *found).to(self._device)
        return self._query_scales[found]

    def latent_attention(self, prefix: str, spec: LatentSpec) -> LatentAttention:
        assert spec.rope is not None
        hidden, dtype, device = self._spec.hidden_size, self._dtype, self._device
        queries = spec.num_heads * (spec.plain_dim + spec.rope_dim)
        inputs = {"q_a_proj": spec.query_rank} if spec.query_rank else {"q_proj": queries}
        inputs["kv_a_proj_with_mqa"] = spec.rank + spec.rope_dim
        rotations = self.rotation(spec.rope, spec.rope_dim).table
        index: TokenIndex | None = None
        if spec.index_heads:
            if not spec.shares_index:
                inputs |= dict(zip(_INDEX_INPUTS, (spec.index_dim, spec.index_heads), strict=True))
            index = self.token_index(f"{prefix}.indexer", spec, rotations)
        if spec.num_gates and spec.gate != "with_queries":
            inputs[HEAD_GATES] = spec.num_gates
        q_norm: RMSNorm | None = None
        q_proj: Linear | None = None
        key_norm: RMSNorm | None = None
        if spec.has_key_norm:
            key_norm = RMSNorm(f"{prefix}.k_rope_only_layernorm", spec.rope_dim, spec.norm_eps, dtype, device)
        if spec.query_rank:
            name, scale = f"{prefix}.q_a_layernorm", spec.query_scale
            q_norm = RMSNorm(name, spec.query_rank, spec.norm_eps, dtype, device, scale=scale)
            q_proj = self.query_projection(prefix, spec)
        return LatentAttention(
            spec,
            self.linear(prefix, inputs, hidden, spec.has_bias, unbiased=("q_proj", HEAD_GATES, *_INDEX_INPUTS)),
            self.summed(prefix, "o_proj", spec.num_heads * spec.value_dim, spec.has_bias),
            q_norm,
            q_proj,
            RMSNorm(f"{prefix}.kv_a_layernorm", spec.rank, spec.norm_eps, dtype, device, scale=spec.latent_scale),
            key_norm,
            HeadMatrices(f"{prefix}.kv_b_proj", spec, dtype, device),
            index,
            self.sinks(prefix, spec),
            rotations,
            self._kernels,
        )

    def query_projection(self, prefix: str, spec: LatentSpec) -> Linear:
        """The queries of all heads from their compressed vectors, and then their gates if these come with them."""
        width = spec.plain_dim + spec.rope_dim
        if spec.gate != "with_queries":
            return self.linear(prefix, {"q_b_proj": spec.num_heads * width}, spec.query_rank, has_bias=False)
        sizes = {"q_b_proj": spec.num_heads * width + spec.num_gates}
        order = gates_after_queries(spec.num_heads, width, spec.value_dim)
        return self.linear(prefix, sizes, 2 * spec.query_rank, has_bias=False, order=order)

    def token_index(self, prefix: str, spec: LatentSpec, rotations: torch.Tensor) -> TokenIndex:
        if spec.shares_index:
            return TokenIndex(spec, None, None, rotations, self._kernels)
        queries = self.linear(prefix, {"wq_b": spec.index_heads * spec.index_dim}, spec.query_rank, has_bias=False)
        norm = NormSpec(kind="layer", eps=spec.index_eps, has_bias=True)
        k_norm = self._norm(norm, f"{prefix}.k_norm", spec.index_dim)
        assert isinstance(k_norm, LayerNorm)
        return TokenIndex(spec, queries, k_norm, rotations, self._kernels)

    def compressed_attention(self, prefix: str, spec: CompressedSpec) -> CompressedAttention:
        dtype, device, eps = self._dtype, self._device, spec.norm_eps
        queries = spec.num_heads * spec.head_dim
        return CompressedAttention(
            spec,
            self.linear(prefix, compressed_parts(spec), self._spec.hidden_size, has_bias=False),
            self.output_groups(f"{prefix}.o_a_proj.weight", spec),
            self.summed(prefix, "o_b_proj", spec.out_groups * spec.out_rank, has_bias=False),
            RMSNorm(f"{prefix}.q_a_norm", spec.query_rank, eps, dtype, device),
            self.linear(prefix, {"q_b_proj": queries}, spec.query_rank, has_bias=False),
            RMSNorm(f"{prefix}.kv_norm", spec.head_dim, eps, dtype, device),
            Vector(f"{prefix}.sinks", spec.num_heads, dtype, device, is_exact=True),
            tuple(
                self.compressor(f"{prefix}.{name}", spec, width)
                for name, width in zip(COMPRESSORS, spec.input_widths, strict=False)
            ),
            self.rotation(spec.rope, spec.head_dim).table,
            self._kernels,
        )

    def output_groups(self, name: str, spec: CompressedSpec) -> BlockMatrix:
        shape = spec.out_groups, spec.group_width, spec.out_rank
        return BlockMatrix(name, shape, self._dtype, self._device, has_outputs_first=True, is_flat=True)

    def compressor(self, prefix: str, spec: CompressedSpec, width: int) -> Compressor:
        """width: of what a token adds to a vector."""
        dtype, device = self._dtype, self._device
        index_proj: Linear | None = None
        if prefix.endswith(COMPRESSORS[1]):
            queries = spec.index_heads * spec.index_dim
            index_proj = self.linear(prefix, {"q_b_proj": queries}, spec.query_rank, has_bias=False)
        return Compressor(
            PositionBias(f"{prefix}.position_bias", (spec.rate, width), dtype, device),
            RMSNorm(f"{prefix}.kv_norm", width // (1 + spec.overlaps), spec.norm_eps, dtype, device),
            index_proj,
        )

    def taps(self, prefix: str, convolutions: Mapping[str, int], width: int) -> Taps:
        """convolutions: name -> channels."""
        parts = {f"{prefix}.{name}.weight": channels for name, channels in convolutions.items()}
        return Taps(parts, width, self._dtype, self._device)

    def gated_delta(self, prefix: str, spec: GatedDeltaSpec) -> GatedDelta:
        heads, dtype, device = spec.num_value_heads, self._dtype, self._device
        hidden, eps = self._spec.hidden_size, self._spec.norm.eps if spec.norm_eps is None else spec.norm_eps
        norm, out_proj = gated_delta_ends(spec)
        return GatedDelta(
            self.linear(prefix, gated_delta_parts(spec), hidden, has_bias=False, order=order_by_part(spec)),
            self.summed(prefix, out_proj, heads * spec.value_dim, has_bias=False),
            self.taps(prefix, gated_delta_convolutions(spec), spec.conv_width),
            Vector(f"{prefix}.A_log", heads, dtype, device, is_exact=True),
            Vector(f"{prefix}.dt_bias", heads, dtype, device, is_exact=True),
            RMSNorm(f"{prefix}.{norm}", spec.value_dim, eps, dtype, device),
            spec,
            self._kernels,
        )

    def kimi_delta(self, prefix: str, spec: KimiDeltaSpec) -> KimiDelta:
        dtype, device, width = self._dtype, self._device, spec.num_heads * spec.head_dim
        decay_proj, gate_proj = (
            self.linear(prefix, {name: width}, spec.rank, has_bias=False) if spec.rank else None
            for name in KIMI_EXPANSIONS
        )
        return KimiDelta(
            spec,
            self.linear(prefix, kimi_delta_parts(spec), self._spec.hidden_size, has_bias=False),
            self.summed(prefix, "o_proj", width, has_bias=False),
            decay_proj,
            gate_proj,
            self.taps(prefix, dict.fromkeys(CONVOLUTIONS, width), spec.conv_width),
            Vector(f"{prefix}.A_log", kimi_rates_shape(spec), dtype, device, is_exact=True),
            Vector(f"{prefix}.dt_bias", width, dtype, device, is_exact=True),
            RMSNorm(f"{prefix}.o_norm", spec.head_dim, self._spec.norm.eps, dtype, device),
            self._kernels,
        )

    def lightning_attention(self, prefix: str, spec: LightningSpec) -> LightningAttention:
        order = order_of_lightning(spec.num_heads, spec.head_dim)
        return LightningAttention(
            self.linear(prefix, lightning_parts(spec), self._spec.hidden_size, has_bias=False, order=order),
            self.summed(prefix, "out_proj", spec.width, has_bias=False),
            Vector(f"{prefix}.norm.weight", spec.width, self._dtype, self._device),
            self._kernels,
            spec,
            self._device,
        )

    def short_convolution(self, prefix: str, spec: ShortConvolutionSpec) -> ShortConvolution:
        hidden, dtype, device = self._spec.hidden_size, self._dtype, self._device
        return ShortConvolution(
            self.linear(prefix, {"in_proj": 3 * spec.width}, hidden, spec.has_bias),
            self.summed(prefix, "out_proj", spec.width, spec.has_bias),
            self.taps(prefix, {"conv": spec.width}, spec.conv_width),
            Vector(f"{prefix}.conv.bias", spec.width, dtype, device) if spec.has_bias else None,
            self._kernels,
        )

    def rg_lru(self, prefix: str, spec: RgLruSpec) -> RgLru:
        dtype, device, width = self._dtype, self._device, spec.width
        of_inputs, of_decays = (f"{prefix}.rg_lru.{name}" for name in RG_LRU_GATES)
        heads = spec.num_heads, spec.head_dim
        matrix = *heads, spec.head_dim
        return RgLru(
            self.linear(prefix, dict.fromkeys(RG_LRU_INPUTS, width), self._spec.hidden_size, has_bias=True),
            self.summed(prefix, "linear_out", width, has_bias=True),
            self.taps(prefix, {"conv_1d": width}, spec.conv_width),
            Vector(f"{prefix}.conv_1d.bias", width, dtype, device),
            (
                BlockMatrix(f"{of_inputs}_weight", matrix, dtype, device),
                BlockMatrix(f"{of_decays}_weight", matrix, dtype, device),
            ),
            (
                DecayRates(f"{prefix}.rg_lru.recurrent_param", width, dtype, device),
                Vector(f"{of_inputs}_bias", heads, dtype, device),
                Vector(f"{of_decays}_bias", heads, dtype, device),
            ),
            self._kernels,
            spec,
        )

    def mamba(self, prefix: str, spec: MambaSpec) -> Mamba:
        hidden, dtype, device, heads = self._spec.hidden_size, self._dtype, self._device, spec.num_heads
        projections: StepProjections | HeadProjections
        channels: tuple[int, ...]
        if heads is None:
            bias, channels, order = "dt_proj.bias", (spec.width,), None
            projections = self.step_projections(prefix, spec)
        else:
            bias, channels, order = "dt_proj_bias", (heads, spec.width // heads), order_of_channels(spec.width)
            projections = self.head_projections(prefix, spec, heads)
        dt_bias, skip = (Vector(f"{prefix}.{name}", channels, dtype, device, is_exact=True) for name in (bias, "D"))
        return Mamba(
            self.linear(prefix, {"in_proj": 2 * spec.width}, hidden, spec.has_bias, order),
            self.summed(prefix, "out_proj", spec.width, spec.has_bias),
            self.taps(prefix, {"conv1d": spec.width}, spec.conv_width),
            Vector(f"{prefix}.conv1d.bias", spec.width, dtype, device) if spec.has_conv_bias else None,
            projections,
            (Rates(f"{prefix}.A_log", (*channels, spec.state_size), dtype, device), dt_bias, skip),
            self._kernels,
        )

    def head_projections(self, prefix: str, spec: MambaSpec, heads: int) -> HeadProjections:
        size, width = spec.width // heads, sum(mamba_parts(spec))
        x_proj, dt_proj = (
            BlockMatrix(f"{prefix}.{name}", (heads, *shape), self._dtype, self._device, has_outputs_first=True)
            for name, shape in (("x_proj_weight", (size, width)), ("dt_proj_weight", (spec.step_rank, size)))
        )
        return HeadProjections(x_proj, dt_proj, self._kernels, spec)

    def step_projections(self, prefix: str, spec: MambaSpec) -> StepProjections:
        dtype, device, parts = self._dtype, self._device, mamba_parts(spec)
        norm: Vector | None = None
        if spec.norm == "weighted":
            names = [f"{prefix}.{name}.weight" for name in MAMBA_NORMS]
            norm = Vector(names, [(size,) for size in parts], dtype, device)
        x_proj, dt_proj = (
            Linear({f"{prefix}.{name}": size}, width, False, self._kernels, dtype, device, finish=finish)
            for name, size, width, finish in (
                ("x_proj", sum(parts), spec.width, self._sum),
                ("dt_proj", spec.width, spec.step_rank, None),
            )
        )
        return StepProjections(x_proj, norm, dt_proj, self._kernels, spec)

    def mamba2(self, prefix: str, spec: Mamba2Spec) -> Mamba2:
        hidden, dtype, device = self._spec.hidden_size, self._dtype, self._device
        order, sizes = gates_after_inputs(spec), {"in_proj": sum(mamba2_parts(spec))}
        exact = (
            Vector(f"{prefix}.{name}", spec.num_heads, dtype, device, is_exact=True)
            for name in ("A_log", "dt_bias", "D")
        )
        a_log, dt_bias, skip = exact
        return Mamba2(
            self.linear(prefix, sizes, hidden, spec.has_bias, order),
            self.summed(prefix, "out_proj", spec.width, spec.has_out_bias),
            self.taps(prefix, {"conv1d": spec.conv_channels}, spec.conv_width),
            Vector(f"{prefix}.conv1d.bias", spec.conv_channels, dtype, device) if spec.has_conv_bias else None,
            (a_log, dt_bias, skip),
            None if spec.norm == "none" else Vector(f"{prefix}.norm.weight", spec.width, dtype, device),
            self._kernels,
            spec,
            self._spec.norm.eps if spec.norm_eps is None else spec.norm_eps,
        )
