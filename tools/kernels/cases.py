"""The launches that are compiled: every kernel at the widths of models, in every variant that changes its code."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from tests.kernels.references import sampling_columns
from tests.unit.config.plan.shapes import config_of

from stoker.engine.kernels.activation import ACTIVATIONS
from stoker.engine.kernels.attention_variant import AttentionVariant
from stoker.engine.kernels.causal_convolution import Kind
from stoker.engine.kernels.compressed_attention import Compression
from stoker.engine.kernels.experts import ExpertGate, ExpertWeights
from stoker.engine.kernels.gated_delta import GatedDeltaWeights
from stoker.engine.kernels.gpu.activation import activate_and_mul_gpu, activate_gpu
from stoker.engine.kernels.gpu.add_layer_norm import add_layer_norm_gpu
from stoker.engine.kernels.gpu.add_rms_norm import add_rms_norm_gpu
from stoker.engine.kernels.gpu.allowed_rows import allowed_rows
from stoker.engine.kernels.gpu.attend_whole import attend_whole_gpu
from stoker.engine.kernels.gpu.causal_convolution import causal_convolution_gpu
from stoker.engine.kernels.gpu.choose_compressed import choose_compressed_gpu
from stoker.engine.kernels.gpu.compress_tokens import compress_tokens_gpu
from stoker.engine.kernels.gpu.compressed_attention import attend_compressed_gpu
from stoker.engine.kernels.gpu.decode_attention import decode_attention, decode_workspace
from stoker.engine.kernels.gpu.embed import embed_gpu
from stoker.engine.kernels.gpu.experts import experts_gpu, pack_experts_gpu
from stoker.engine.kernels.gpu.finish_step import finish_step
from stoker.engine.kernels.gpu.gated_delta import gated_delta_gpu
from stoker.engine.kernels.gpu.gated_residual import (
    add_to_streams_gpu,
    average_streams_gpu,
    gate_streams_gpu,
    norm_streams_gpu,
)
from stoker.engine.kernels.gpu.gemv import MAX_TOKENS, gemv
from stoker.engine.kernels.gpu.grouped import grouped_linear_gpu, grouped_rows_gpu
from stoker.engine.kernels.gpu.hyper_connections import read_streams_gpu, write_streams_gpu
from stoker.engine.kernels.gpu.kimi_delta import kimi_delta_gpu
from stoker.engine.kernels.gpu.latent_attention import latent_attention_gpu
from stoker.engine.kernels.gpu.lora_add import lora_add_gpu
from stoker.engine.kernels.gpu.norm_and_turn import norm_and_turn_gpu
from stoker.engine.kernels.gpu.norm_parts import norm_parts_gpu
from stoker.engine.kernels.gpu.prefill_attention import prefill_attention
from stoker.engine.kernels.gpu.prepare_step import StepRows, StepTensors, prepare_step
from stoker.engine.kernels.gpu.rg_lru import rg_lru_gpu
from stoker.engine.kernels.gpu.rms_norm_gated import rms_norm_gated_gpu
from stoker.engine.kernels.gpu.rope_and_store import rope_and_store_gpu
from stoker.engine.kernels.gpu.route_experts import route_experts_gpu
from stoker.engine.kernels.gpu.sample import sample, sampling_workspace
from stoker.engine.kernels.gpu.sample_logprobs import count_above_gpu, logprobs_gpu, softmax_mass_gpu
from stoker.engine.kernels.gpu.scaling import add_scaled_gpu, scale_and_cap_gpu
from stoker.engine.kernels.gpu.selective_scan import selective_scan_gpu
from stoker.engine.kernels.gpu.sparse_attention import sparse_attention_gpu
from stoker.engine.kernels.gpu.state_space import state_space_gpu
from stoker.engine.kernels.gpu.store_latents import store_latents_gpu
from stoker.engine.kernels.grouped import GroupScales
from stoker.engine.kernels.head_variant import HeadVariant
from stoker.engine.kernels.hyper_connections import Connection
from stoker.engine.kernels.kimi_delta import KimiDeltaWeights
from stoker.engine.kernels.lora_add import LoraLayer
from stoker.engine.kernels.norm_parts import PartNormWeights
from stoker.engine.kernels.packed_codes import PackedCodes
from stoker.engine.kernels.rg_lru import RgLruWeights
from stoker.engine.kernels.rms_norm_gated import RMSNormGatedWeights
from stoker.engine.kernels.route_experts import Routing
from stoker.engine.kernels.selective_scan import SelectiveScanWeights
from stoker.engine.kernels.state_space import StateSpaceWeights
from stoker.model.mixer_tensors import mamba_parts
from stoker.model.mixers import CompressedAttention, GatedDelta, KimiDelta, Mamba, Mamba2, RgLru, ShortConvolution
from stoker.model.read import read_config

from .whole_step import OnlyCapturable, steps_of, whole_steps

BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
BLOCK_SIZE, MAX_LENGTH, PROGRAMS = 64, 8192, 132
Cases = Iterator[tuple[str, Callable[[], object]]]  # name, launch


@dataclass(frozen=True, slots=True)
class Model:
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    has_head_norms: bool = False


QWEN3_0_6B = Model(1024, 16, 8, 128, 3072, 151936, has_head_norms=True)
LLAMA_3_1_8B = Model(4096, 32, 8, 128, 14336, 128256)
# Difficult heads: wide, narrow, width not a power of two, many heads per kv head.
GEMMA_2_9B = Model(3584, 16, 8, 256, 14336, 256000)
GPT_OSS_20B = Model(2880, 64, 8, 64, 2880, 201088)
QWEN4_EXP = Model(2048, 16, 2, 256, 512, 248320, has_head_norms=True)
PHI_3_MINI = Model(3072, 32, 32, 96, 8192, 32064)
FALCON_7B = Model(4544, 71, 1, 64, 18176, 65024)
EVERY_VARIANT = {"window": 512, "softcap": 50.0, "has_sinks": True, "has_slopes": True}


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    hidden: int
    inner: int
    routing: Routing
    gate: ExpertGate = field(default_factory=ExpertGate)
    has_bias: bool = False


QWEN3_30B_A3B = ExpertLayer(2048, 768, Routing(128, 8, renormalises=True))
GPT_OSS_EXPERTS = ExpertLayer(
    2880, 2880, Routing(32, 4, "softmax_of_chosen"), ExpertGate("clamped_swiglu"), has_bias=True
)
NEMOTRON_3_NANO = ExpertLayer(
    2688, 1856, Routing(128, 6, "sigmoid", renormalises=True, scale=2.5), ExpertGate("relu2", has_gates=False)
)
PHI_3_5_MOE = ExpertLayer(4096, 6400, Routing(16, 2, "sparse_mixer", tolerance=0.02))
DEEPSEEK_V3 = ExpertLayer(
    7168,
    2048,
    Routing(
        256, 8, "sigmoid", renormalises=True, scale=2.5, num_groups=8, groups_per_token=4, group_score="sum_of_two"
    ),
)


KIMI_LINEAR = KimiDelta(num_heads=32, head_dim=128, rank=128, conv_width=4)
QWEN3_NEXT = GatedDelta(num_key_heads=16, num_value_heads=32, key_dim=128, value_dim=128, conv_width=4)
NEMOTRON_H_8B = Mamba2(num_heads=128, head_dim=64, num_groups=8, state_size=128, conv_width=4)
FALCON_H1_34B = Mamba2(num_heads=32, head_dim=128, num_groups=2, state_size=256, conv_width=4, norm="none")
FALCON_MAMBA_7B = Mamba(width=8192, state_size=16, conv_width=4, step_rank=256, norm="bare")
RECURRENT_GEMMA_2B = RgLru(num_heads=10, head_dim=256, conv_width=4, activation="gelu_pytorch_tanh")
LFM2_1_2B = ShortConvolution(width=2048, conv_width=3)


# One layer of each kind; the experts of the first are listed.
DEEPSEEK_V4, *_ = read_config(
    {**config_of("deepseek-v4-flash"), "num_hidden_layers": 3, "compress_ratios": [0, 4, 128], "num_hash_layers": 1}
)


@dataclass(frozen=True, slots=True)
class RecurrentRows:
    query_start: torch.Tensor
    context_lens: torch.Tensor
    seq_slots: torch.Tensor
    max_query_len: int


@dataclass(frozen=True, slots=True)
class Step:
    query_start: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    max_query_len: int
    max_context_len: int
    plans: dict[Hashable, Any] = field(default_factory=dict)


def quick() -> Cases:
    """Every kernel, and every branch of each at least once."""
    qwen, llama = QWEN3_0_6B, LLAMA_3_1_8B
    for kind in (decode, prefill):
        yield from attention(kind, "qwen", qwen)
        yield from attention(kind, "qwen", qwen, kv_dtype=FP8)
        yield from attention(kind, "qwen", qwen, **EVERY_VARIANT)
        yield from attention(kind, "gemma", GEMMA_2_9B, softcap=50.0, window=4096)
        yield from attention(kind, "qwen", qwen, window=512, is_chunked=True)
    yield from linears("qwen", qwen, 1)
    yield from (case for case in linears("llama", llama, MAX_TOKENS) if re.search("qkv|gate_up", case[0]))
    yield from codes("llama", llama.hidden)
    for name, model in (("qwen", qwen), ("llama", llama)):
        yield from elementwise(name, model)
    yield from samples("qwen", qwen, rows=256)
    yield from steps(qwen, rows=1)
    yield from steps(llama, rows=512)
    yield from experts("qwen3_moe", QWEN3_30B_A3B, 1)
    yield from experts("qwen3_moe", QWEN3_30B_A3B, 1024)
    yield from experts("qwen3_moe", QWEN3_30B_A3B, 8192)
    yield from experts("gpt_oss", GPT_OSS_EXPERTS, 1)
    yield from experts("nemotron", NEMOTRON_3_NANO, 1)
    yield from experts("deepseek", DEEPSEEK_V3, 1)
    yield from experts("phi-moe", PHI_3_5_MOE, 1)
    yield from latents("deepseek", 128, 1536)
    yield from latents("deepseek lite", 16, 0)
    yield from latents("dots 3 with windows", 64, 1024, rank=1024, window=512)
    yield from adapters("qwen", qwen, 32)
    yield from whole_sequences("minilm", 12, 12, 32, 4096)
    yield from whole_sequences("modernbert", 12, 12, 64, 4096)
    yield from whole_sequences("qwen embedding", 16, 8, 128, 4096)
    yield from sparse_attention("qwen4", QWEN4_EXP, 2048 + 15, 64)
    for max_query_len in (1, 1024):
        yield from convolution("lfm2", LFM2_1_2B.width, LFM2_1_2B.conv_width, "gated", max_query_len)
        yield from gated_delta("qwen3_next", QWEN3_NEXT, max_query_len)
        yield from streams("qwen4", 4, 2048, max_query_len)
        yield from kimi_delta("kimi_linear", KIMI_LINEAR, max_query_len)
        yield from mamba("falcon_mamba", FALCON_MAMBA_7B, max_query_len)
        yield from rg_lru("recurrent_gemma", RECURRENT_GEMMA_2B, max_query_len)
        yield from mamba2("nemotron_h", NEMOTRON_H_8B, max_query_len)
        yield from mamba2("falcon_h1", FALCON_H1_34B, max_query_len)
        for layer in DEEPSEEK_V4.layers:
            if isinstance(layer.mixer, CompressedAttention):
                yield from compressed("deepseek_v4", layer.mixer, max_query_len)
    yield from whole_steps(
        "qwen", qwen.hidden, qwen.intermediate, qwen.vocab_size, qwen.num_heads, qwen.num_kv_heads, qwen.head_dim
    )
    yield from steps_of("deepseek_v4", DEEPSEEK_V4)


def full() -> Cases:
    """The quick cases, and the same kernels at the shapes of other models."""
    yield from quick()
    models = {
        "qwen": QWEN3_0_6B, "llama": LLAMA_3_1_8B, "gemma": GEMMA_2_9B, "gpt_oss": GPT_OSS_20B, "phi": PHI_3_MINI,
        "falcon": FALCON_7B,
    }  # fmt: skip
    for name, model in models.items():
        for kind in (decode, prefill):
            for dtype in (BF16, FP16, FP32):
                yield from attention(kind, name, model, dtype=dtype)
            yield from attention(kind, name, model, kv_dtype=FP8)
            for block_size in (16, 32, 128):
                yield from attention(kind, name, model, block_size=block_size)
            for option, value in EVERY_VARIANT.items():
                yield from attention(kind, name, model, **{option: value})
            yield from attention(kind, name, model, **EVERY_VARIANT, kv_dtype=FP8)
        for rows in range(1, MAX_TOKENS + 1):
            yield from linears(name, model, rows)
        for dtype in (BF16, FP16, FP32):
            yield from elementwise(name, model, dtype)
        for rows in (1, 7, 64, 512):
            yield from samples(name, model, rows)
            yield from steps(model, rows)


def empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def words(*shape: int) -> torch.Tensor:
    return empty(*shape, dtype=torch.int32)


def longs(*shape: int) -> torch.Tensor:
    return empty(*shape, dtype=torch.int64)


def named(*parts: object) -> str:
    return " ".join(str(part) for part in parts if part is not None).replace("torch.", "")


def attention(
    kind: Callable[..., None],
    name: str,
    model: Model,
    *,
    dtype: torch.dtype = BF16,
    kv_dtype: torch.dtype | None = None,
    block_size: int = BLOCK_SIZE,
    window: int | None = None,
    is_chunked: bool = False,
    softcap: float | None = None,
    has_sinks: bool = False,
    has_slopes: bool = False,
) -> Cases:
    rows, tokens = 256, 1024
    variant = AttentionVariant(
        window=window,
        is_chunked=is_chunked,
        softcap=softcap,
        sinks=empty(model.num_heads, dtype=FP32) if has_sinks else None,
        slopes=empty(model.num_heads, dtype=FP32) if has_slopes else None,
        k_scale=0.5 if kv_dtype else 1.0,
        v_scale=0.5 if kv_dtype else 1.0,
    )
    q = empty(tokens, model.num_heads, model.head_dim, dtype=dtype)
    caches = [empty(1000, model.num_kv_heads, block_size, model.head_dim, dtype=kv_dtype or dtype) for _ in range(2)]
    step = Step(words(rows + 1), words(rows), words(rows, MAX_LENGTH // block_size), tokens, MAX_LENGTH)
    parts = (
        "chunks" if is_chunked else "window" if window else None, "softcap" if softcap else None,
        "sinks" if has_sinks else None, "slopes" if has_slopes else None,
        f"page {block_size}" if block_size != BLOCK_SIZE else None,
    )  # fmt: skip
    out = empty(tokens, model.num_heads * model.head_dim, dtype=dtype)
    yield (
        named(name, kind.__name__, dtype, kv_dtype and f"kv {kv_dtype}", *parts),
        partial(kind, q, *caches, step, model.head_dim**-0.5, out, variant=variant),
    )


def latents(name: str, num_heads: int, query_rank: int, *, rank: int = 512, window: int | None = None) -> Cases:
    """Kernels of latents. rank: of the compressed vectors, which have 512 elements in most published models. window:
    also with a norm of keys, as in the family that has windows."""
    turned, rows = 64, 64
    cache = empty(1000, 1, BLOCK_SIZE, rank + turned)
    width = query_rank or 192 * num_heads
    yield (
        f"{name} store_latents",
        partial(
            store_latents_gpu, empty(rows, width + rank + turned), empty(width, dtype=FP32) if query_rank else None,
            empty(rank, dtype=FP32), 1e-6, empty(MAX_LENGTH, turned, dtype=FP32), True, longs(rows), longs(rows),
            cache, width, None if window is None else empty(turned, dtype=FP32),
        ),
    )  # fmt: skip
    for tokens in (1, 1024):
        step = Step(words(rows + 1), words(rows), words(rows, MAX_LENGTH // BLOCK_SIZE), tokens, MAX_LENGTH)
        q = empty(tokens, num_heads, rank + turned)
        for sinks in (None, empty(num_heads, dtype=FP32)):
            launch = partial(latent_attention_gpu, q, cache, step, 0.1, rank, 2 * PROGRAMS, sinks, window)
            yield f"{name} latent_attention{' sinks' * (sinks is not None)}, {tokens} tokens", launch


def recurrent_rows(max_query_len: int) -> tuple[int, RecurrentRows]:
    """How many tokens there are, and a step of them."""
    rows = 64
    step = RecurrentRows(words(rows + 1), words(rows), words(rows), max_query_len)
    return rows if max_query_len == 1 else max_query_len, step


def only_launches(op: Callable[..., object], *arguments: object) -> None:
    """Nothing of the op reads the device on the host."""
    with OnlyCapturable():
        op(*arguments)


def convolution(
    name: str, channels: int, width: int, kind: Kind, max_query_len: int, columns: int | None = None
) -> Cases:
    """columns: of its input, 3 * channels if None."""
    tokens, step = recurrent_rows(max_query_len)
    bias = None if columns is None else empty(channels, dtype=FP32)
    yield (
        f"{name} convolution, {tokens} tokens",
        partial(
            only_launches, causal_convolution_gpu, empty(tokens, columns or 3 * channels),
            empty(width, channels, dtype=FP32), bias, empty(100, width - 1, channels), step, kind,
        ),
    )  # fmt: skip


def gated_delta(name: str, spec: GatedDelta, max_query_len: int) -> Cases:
    tokens, step = recurrent_rows(max_query_len)
    columns = spec.conv_channels + spec.num_value_heads * (spec.value_dim + 2)
    yield from convolution(name, spec.conv_channels, spec.conv_width, "silu", max_query_len, columns)
    heads = empty(spec.num_value_heads, dtype=FP32)
    mixed, projected = empty(tokens, spec.conv_channels), empty(tokens, columns)
    weights = GatedDeltaWeights(heads, heads, empty(spec.value_dim, dtype=FP32), 1e-6)
    for dtype in (FP32, BF16):
        state = empty(100, *spec.state.sums, dtype=dtype)
        yield (
            named(name, f"gated_delta, {tokens} tokens", dtype),
            partial(only_launches, gated_delta_gpu, mixed, projected, weights, state, step),
        )


def kimi_delta(name: str, spec: KimiDelta, max_query_len: int) -> Cases:
    tokens, step = recurrent_rows(max_query_len)
    width = spec.num_heads * spec.head_dim
    mixed, projected, other = empty(tokens, 3 * width), empty(tokens, 3 * width + spec.num_heads), empty(tokens, width)
    vectors = (empty(size, dtype=FP32) for size in (spec.num_heads, width, spec.head_dim))
    weights = KimiDeltaWeights(*vectors, 1e-6)
    for dtype in (FP32, BF16):
        state = empty(100, *spec.state.sums, dtype=dtype)
        yield (
            named(name, f"kimi_delta, {tokens} tokens", dtype),
            partial(only_launches, kimi_delta_gpu, mixed, projected, other, other, weights, state, step),
        )


def rg_lru(name: str, spec: RgLru, max_query_len: int) -> Cases:
    tokens, step = recurrent_rows(max_query_len)
    yield from convolution(name, spec.width, spec.conv_width, "plain", max_query_len, 2 * spec.width)
    x, vector = empty(tokens, spec.width), empty(spec.width, dtype=FP32)
    for dtype in (FP32, BF16):
        state = empty(100, *spec.state.sums, dtype=dtype)
        yield (
            named(name, f"rg_lru, {tokens} tokens", dtype),
            partial(only_launches, rg_lru_gpu, x, x, x, RgLruWeights(vector, vector, vector), state, step),
        )


@dataclass(frozen=True, slots=True)
class AdapterRows:
    tokens: torch.Tensor
    starts: torch.Tensor


def adapters(name: str, model: Model, rows: int, dtype: torch.dtype = BF16) -> Cases:
    parts = (model.num_heads * model.head_dim, *[model.num_kv_heads * model.head_dim] * 2)
    for kind, widths in (("qkv", parts), ("o", (model.hidden,))):
        layer = LoraLayer(widths, model.hidden, 8, torch.device("meta"))
        x, out = empty(rows, model.hidden, dtype=dtype), empty(rows, sum(widths), dtype=dtype)
        add = partial(lora_add_gpu, x, out, AdapterRows(words(rows), words(9)), layer)
        yield f"{name} adapters {kind}, {rows} rows", partial(only_launches, add)


def whole_sequences(name: str, num_heads: int, num_kv_heads: int, head_dim: int, tokens: int) -> Cases:
    q, k, v = (empty(tokens, heads, head_dim) for heads in (num_heads, num_kv_heads, num_kv_heads))
    for kind, window, slopes, biases in (
        ("", None, None, None),
        (" window", 64, None, None),
        (" slopes", None, empty(num_heads, dtype=FP32), None),
        (" biases", None, None, empty(num_heads, 257, dtype=FP32)),
    ):
        attend = partial(attend_whole_gpu, q, k, v, words(9), 0.1, window, slopes, biases)
        yield f"{name} whole sequences{kind}, {tokens} tokens", partial(only_launches, attend)


def streams(name: str, count: int, hidden: int, max_query_len: int) -> Cases:
    tokens, _ = recurrent_rows(max_query_len)
    wide, one = empty(tokens, count * hidden), empty(tokens, hidden)
    launches = {
        "norm": partial(norm_streams_gpu, wide, empty(count * hidden, dtype=FP32), count, 1e-6),
        "average": partial(average_streams_gpu, wide, wide, count),
        "add": partial(add_to_streams_gpu, wide, one, empty(tokens, count), 1 / count),
        "gate": partial(gate_streams_gpu, wide, wide, one),
    }
    for op, launch in launches.items():
        yield f"{name} streams {op}, {tokens} tokens", partial(only_launches, launch)


def sparse_attention(name: str, model: Model, num_chosen: int, rows: int) -> Cases:
    caches = (empty(1000, model.num_kv_heads, BLOCK_SIZE, model.head_dim) for _ in "kv")
    q, chosen = empty(rows, model.num_heads, model.head_dim), longs(rows, num_chosen)
    step = Step(words(rows + 1), words(rows), words(rows, MAX_LENGTH // BLOCK_SIZE), 1, MAX_LENGTH)
    attend = partial(sparse_attention_gpu, q, chosen, *caches, step, 0.1)
    yield f"{name} sparse attention, {rows} rows", partial(only_launches, attend)


@dataclass(frozen=True, slots=True)
class CompressedRows(RecurrentRows):
    block_tables: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor


def compressed(name: str, spec: CompressedAttention, max_query_len: int) -> Cases:
    """The largest batch of a kind of step, and a single token, whose keys are divided among programs."""
    tokens, given = recurrent_rows(max_query_len)
    name, dim, block_size = f"{name} rate {spec.rate}", spec.head_dim, 128
    rates, rotated = max(1, spec.rate), int(dim * spec.rope.partial_rotary_factor)
    turns = empty(MAX_LENGTH, rotated, dtype=FP32)
    cache = empty(1000, 1, block_size, (dim + spec.index_dim) // rates) if spec.rate else None
    window, heads = empty(100, spec.window, dim), empty(spec.num_heads, dtype=FP32)
    for rows in (1, tokens) if max_query_len == 1 else (tokens,):
        tables = words(len(given.seq_slots), 512)
        step = CompressedRows(
            given.query_start, given.context_lens, given.seq_slots, max_query_len, tables, longs(rows), longs(rows)
        )
        q, keys, what = empty(rows, spec.num_heads, dim), empty(rows, dim), f"{rows} tokens"
        chosen = longs(rows, spec.index_topk) if spec.index_topk else None
        arguments = q, keys, heads, window, cache, spec.rate, chosen, turns, step, 2 * PROGRAMS
        yield f"{name} attend_compressed, {what}", partial(only_launches, attend_compressed_gpu, *arguments)
        yield (
            f"{name} norm_and_turn, {what}",
            partial(only_launches, norm_and_turn_gpu, q, None, 1e-6, turns, step.positions),
        )
        for width in spec.input_widths:
            compression = Compression(
                spec.rate,
                spec.overlaps,
                empty(spec.rate, width, dtype=FP32),
                empty(width // (1 + spec.overlaps), dtype=FP32),
                1e-6,
            )
            inputs, ring = empty(rows, 2 * width), empty(100, spec.state.sums[0], 2 * width, dtype=FP32)
            yield (
                f"{name} compress_tokens {width}, {what}",
                partial(only_launches, compress_tokens_gpu, inputs, compression, turns, ring, cache, 0, step),
            )
        if spec.index_heads:
            index = empty(rows, spec.index_heads, spec.index_dim), empty(rows, spec.index_heads)
            yield (
                f"{name} choose_compressed, {what}",
                partial(
                    only_launches, choose_compressed_gpu, *index, cache, spec.rate, dim, step, spec.index_topk,
                    2 * PROGRAMS,
                ),
            )  # fmt: skip


def mamba(name: str, spec: Mamba, max_query_len: int) -> Cases:
    tokens, step = recurrent_rows(max_query_len)
    channels, parts = spec.width, mamba_parts(spec)
    x, projected, steps = empty(tokens, channels), empty(tokens, 2 * channels), empty(tokens, channels)
    b, c = empty(tokens, spec.state_size), empty(tokens, spec.state_size)
    vector = empty(channels, dtype=FP32)
    weights = SelectiveScanWeights(empty(spec.state_size, channels, dtype=FP32), vector, vector)
    for dtype in (FP32, BF16):
        state = empty(100, *spec.state.sums, dtype=dtype)
        yield (
            named(name, f"selective_scan, {tokens} tokens", dtype),
            partial(only_launches, selective_scan_gpu, x, projected, steps, b, c, weights, state, step),
        )
    for gains in (None, empty(sum(parts), dtype=FP32)):
        yield (
            f"{name} norm_parts, {tokens} tokens{'' if gains is None else ', with weights'}",
            partial(
                only_launches, norm_parts_gpu, empty(tokens, sum(parts)), PartNormWeights(parts, True, gains, 1e-6)
            ),
        )


def mamba2(name: str, spec: Mamba2, max_query_len: int) -> Cases:
    tokens, step = recurrent_rows(max_query_len)
    columns = spec.conv_channels + spec.width + spec.num_heads
    heads, projected = empty(spec.num_heads, dtype=FP32), empty(tokens, columns)
    mixed = empty(tokens, spec.conv_channels)
    for dtype in (FP32, BF16):
        state = empty(100, *spec.state.sums, dtype=dtype)
        yield (
            named(name, f"state_space, {tokens} tokens", dtype),
            partial(
                only_launches, state_space_gpu, mixed, projected, StateSpaceWeights(heads, heads, heads), state, step
            ),
        )
    norm = RMSNormGatedWeights(
        spec.norm, None if spec.norm == "none" else empty(spec.width, dtype=FP32), 1e-5, spec.num_groups
    )
    x = empty(tokens, spec.width, dtype=FP32)
    yield (
        f"{name} rms_norm_gated, {tokens} tokens",
        partial(only_launches, rms_norm_gated_gpu, x, projected, spec.conv_channels, norm),
    )


def decode(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: Step, scale: float, out: torch.Tensor,
    variant: AttentionVariant,
) -> None:  # fmt: skip
    _, num_heads, head_dim = q.shape
    workspace = decode_workspace(512, num_heads, k_cache.shape[1], head_dim, "meta", 2 * PROGRAMS)
    decode_attention(q, k_cache, v_cache, step, scale, out, workspace, variant)


def prefill(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: Step, scale: float, out: torch.Tensor,
    variant: AttentionVariant,
) -> None:  # fmt: skip
    prefill_attention(q, k_cache, v_cache, step, scale, out, PROGRAMS, variant)


def linears(name: str, model: Model, rows: int) -> Cases:
    """The layers of a block, and the logits."""
    hidden, attended = model.hidden, model.num_heads * model.head_dim
    x = empty(rows, hidden)
    projected = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    table: dict[str, Callable[[], object]] = {
        "qkv": partial(gemv, x, empty(projected, hidden)),
        "qkv bias": partial(gemv, x, empty(projected, hidden), empty(projected)),
        "o": partial(gemv, empty(rows, attended), empty(hidden, attended)),
        "gate_up": partial(gemv, x, empty(2 * model.intermediate, hidden), is_gated=True),
        "gate_up bias": partial(
            gemv, x, empty(2 * model.intermediate, hidden), empty(2 * model.intermediate), is_gated=True
        ),
        "down": partial(gemv, empty(rows, model.intermediate), empty(hidden, model.intermediate)),
        "logits": partial(gemv, x, empty(model.vocab_size, hidden)),
    }
    for what, launch in table.items():
        yield f"{name} {what}, {rows} rows", launch


def codes(name: str, hidden: int) -> Cases:
    """A layer of quantised checkpoints: each width of codes and each kind of levels."""
    bf16, bytes_ = partial(empty, dtype=BF16), partial(empty, dtype=torch.uint8)
    of_32, outer = partial(bytes_, hidden, hidden // 32), empty(hidden, hidden // 256, dtype=FP16)
    kinds: dict[str, dict[str, Any]] = {
        "gptq": {"group": 128, "zeros": bf16(hidden, hidden // 128)},
        "gptq ordered": {"group": 128, "zeros": bf16(hidden, hidden // 128), "order": words(hidden)},
        "q4_k": {"group": 32, "scales": GroupScales(of_32(), outer), "minima": GroupScales(of_32(), outer)},
        "q6_k": {"group": 16, "bits": 6, "scales": GroupScales(bytes_(hidden, hidden // 16), outer)},
        "mxfp4": {"group": 32, "kind": "e2m1"},
        "iq4_nl": {"group": 32, "kind": "table"},
        "fp8": {"group": 128, "bits": 8, "kind": "e4m3"},
        "int8": {"group": hidden, "bits": 8, "kind": "signed"},
    }
    for what, own in kinds.items():
        given = {"bits": 4, "kind": "steps", "zeros": None, "minima": None, "order": None} | own
        weight = PackedCodes(
            codes=bytes_(hidden, hidden if given["bits"] == 8 else hidden // 2),
            upper=bytes_(hidden, hidden // 4) if given["bits"] == 6 else None,
            levels=empty(256, dtype=FP32),
            first=0.0,
            **({"scales": GroupScales(bf16(hidden, hidden // given["group"]))} | given),
        )
        for rows in (1, 16, 512):
            x = empty(rows, hidden)
            yield f"{name} {what} linear, {rows} rows", partial(only_launches, grouped_linear_gpu, x, weight, x[0])
        yield f"{name} {what} embed", partial(only_launches, grouped_rows_gpu, longs(7), weight, BF16)


def elementwise(name: str, model: Model, dtype: torch.dtype = BF16) -> Cases:
    rows, hidden = 100, model.hidden
    x, weight = empty(rows, hidden, dtype=dtype), empty(hidden, dtype=FP32)
    heads = model.num_heads + 2 * model.num_kv_heads
    yield named(name, "norm", dtype), partial(add_rms_norm_gpu, x, None, weight, 1e-6)
    yield named(name, "norm residual", dtype), partial(add_rms_norm_gpu, x, x, weight, 1e-6)
    for activation in ACTIVATIONS:
        inner = empty(rows, 2 * model.intermediate, dtype=dtype)
        yield named(name, "activate_and_mul", activation, dtype), partial(activate_and_mul_gpu, inner, activation)
        yield named(name, "activate", activation, dtype), partial(activate_gpu, inner, activation)
    yield named(name, "add_scaled", dtype), partial(add_scaled_gpu, x, x, 0.22)
    for rows_of_connection, kind in ((8, "independent"), (24, "mixed")):
        matrix = empty(rows_of_connection, 4 * hidden, dtype=FP32)
        factors = empty(rows_of_connection, dtype=FP32)
        connection = Connection(matrix, factors, factors, 4, 1e-6, 1e-6, iterations=20)
        streams, gains = empty(rows, 4 * hidden, dtype=dtype), empty(rows, rows_of_connection - 4, dtype=FP32)
        yield named(name, f"read_streams {kind}", dtype), partial(read_streams_gpu, streams, connection)
        yield named(name, f"write_streams {kind}", dtype), partial(write_streams_gpu, x, 4, streams, gains)
    for softcap in (None, 30.0):
        yield (
            named(name, "scale_and_cap", "softcap" if softcap else None, dtype),
            partial(scale_and_cap_gpu, empty(rows, model.vocab_size, dtype=dtype), 0.5, softcap),
        )
    yield named(name, "layer norm", dtype), partial(add_layer_norm_gpu, x, None, weight, None, 1e-6)
    yield named(name, "layer norm residual bias", dtype), partial(add_layer_norm_gpu, x, x, weight, weight, 1e-6)
    yield (
        named(name, "embed", dtype),
        partial(embed_gpu, longs(rows), empty(model.vocab_size, hidden, dtype=dtype)),
    )
    for kv_dtype in (dtype, FP8):
        head_norms = [empty(model.head_dim, dtype=FP32) if model.has_head_norms else None] * 2
        cache = empty(1000, model.num_kv_heads, BLOCK_SIZE, model.head_dim, dtype=kv_dtype)
        yield (
            named(name, "rope_and_store", dtype, "kv", kv_dtype),
            partial(
                rope_and_store_gpu, empty(rows, heads * model.head_dim, dtype=dtype), *head_norms, 1e-6,
                empty(MAX_LENGTH, model.head_dim, dtype=FP32), longs(rows), longs(rows), cache, cache,
                model.num_heads, model.num_kv_heads,
            ),
        )  # fmt: skip
    yield from variants_of_heads(name, model, dtype)


def variants_of_heads(name: str, model: Model, dtype: torch.dtype) -> Cases:
    rows, heads = 100, (model.num_heads, model.num_kv_heads)
    scales = empty(MAX_LENGTH, dtype=FP32)
    shared, own = [1, 1], list(heads)
    cases: dict[str, tuple[HeadVariant, int | None, list[int] | None]] = {
        "no rotation": (HeadVariant(query_scales=scales), None, None),
        "interleaved, half": (HeadVariant(is_interleaved=True), model.head_dim // 2, None),
        "layer norms": (HeadVariant(is_layer_norm=True), model.head_dim, own),
        "norms over all heads": (HeadVariant(is_over_all_heads=True), model.head_dim, own),
        "norms last": (HeadVariant(is_norm_last=True, has_value_norm=True), model.head_dim, shared),
    }
    for what, (variant, rotary_dim, norms) in cases.items():
        q_norm, k_norm = (None, None) if norms is None else (empty(n * model.head_dim, dtype=FP32) for n in norms)
        cache = empty(1000, model.num_kv_heads, BLOCK_SIZE, model.head_dim, dtype=dtype)
        qkv = empty(rows, (model.num_heads + 2 * model.num_kv_heads) * model.head_dim, dtype=dtype)
        cos_sin = None if rotary_dim is None else empty(MAX_LENGTH, rotary_dim, dtype=FP32)
        yield (
            named(name, "rope_and_store", what, dtype),
            partial(
                rope_and_store_gpu, qkv, q_norm, k_norm, 1e-6, cos_sin, longs(rows), longs(rows), cache, cache, *heads,
                variant,
            ),
        )  # fmt: skip


def experts(name: str, layer: ExpertLayer, rows: int) -> Cases:
    routing = layer.routing
    logits = empty(rows, routing.num_experts)
    bias = empty(routing.num_experts, dtype=FP32) if routing.scoring == "sigmoid" else None
    yield f"{name} route_experts, {rows} rows", partial(route_experts_gpu, logits, bias, routing)
    first = layer.inner * (2 if layer.gate.has_gates else 1)
    one = ExpertWeights(
        empty(first, layer.hidden),
        empty(layer.hidden, layer.inner),
        empty(first) if layer.has_bias else None,
        empty(layer.hidden) if layer.has_bias else None,
    )
    packed = pack_experts_gpu([one] * routing.num_experts, routing.num_experts, layer.gate, None)
    x, shape = empty(rows, layer.hidden), (rows, routing.per_token)
    for has_shared in (False, True):
        shared = (x, empty(rows, 1)) if has_shared else ()
        yield (
            named(name, "experts", "shared" if has_shared else None) + f", {rows} rows",
            partial(experts_gpu, x, words(*shape), empty(*shape, dtype=FP32), packed, *shared),
        )


def samples(name: str, model: Model, rows: int) -> Cases:
    slots = 512
    columns, workspace = (
        sampling_columns(slots, model.vocab_size, "meta"),
        sampling_workspace(slots, model.vocab_size, "meta"),
    )
    logits, sampled, floats = empty(rows, model.vocab_size), words(rows), empty(rows, dtype=FP32)
    for is_fast_path in (True, False):
        for is_keyed in (False, True):
            yield (
                named(
                    name, "sample", "fast path" if is_fast_path else None, "keyed" if is_keyed else None, f"{rows} rows"
                ),
                partial(
                    sample,
                    logits,
                    sampled,
                    sampled,
                    columns,
                    sampled,
                    workspace,
                    is_fast_path=is_fast_path,
                    is_keyed=is_keyed,
                ),
            )
    yield f"{name} logprobs, {rows} rows", partial(logprobs_gpu, logits, sampled, 0)
    yield f"{name} count_above, {rows} rows", partial(count_above_gpu, logits, floats)
    yield f"{name} softmax_mass, {rows} rows", partial(softmax_mass_gpu, logits, floats, floats)


def steps(model: Model, rows: int) -> Cases:
    slots, tokens, tables = 512, 2048, MAX_LENGTH // BLOCK_SIZE
    token_table = words(slots, MAX_LENGTH)
    out = StepTensors(longs(tokens), longs(tokens), longs(tokens), words(rows), words(rows, tables), longs(rows))
    yield (
        f"prepare_step, {rows} rows",
        partial(
            prepare_step, StepRows(words(rows), words(rows), words(rows + 1)), token_table, words(slots, tables),
            BLOCK_SIZE, out,
        ),
    )  # fmt: skip
    yield (
        f"finish_step, {rows} rows",
        partial(
            finish_step, words(rows), words(rows), words(rows), words(rows), token_table, words(slots),
            empty(slots, model.vocab_size, dtype=torch.int16),
        ),
    )  # fmt: skip
    masks = words(rows, -(-model.vocab_size // 32))
    yield f"allowed_rows, {rows} rows", partial(allowed_rows, empty(rows, model.vocab_size), words(rows), masks)
