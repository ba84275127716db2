"""The attention layer, with the arguments of each family, equals the attention module of transformers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tests.unit.engine.kernels.levels import BEST, kernels_of
from torch import nn

from stoker.engine.kernels import PLAIN_HEADS, AttentionVariant, HeadVariant, KernelSet
from stoker.engine.layers.attention import Attention, AttentionShape
from stoker.engine.layers.linear import Linear
from stoker.engine.layers.norm import LayerNorm, Norm, RMSNorm
from stoker.engine.layers.rotary import RopeParameters, Rotation, cos_sin_table, query_scales
from stoker.engine.layers.step_input import StepInput
from stoker.engine.layers.vector import Vector

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, TOKENS, BLOCK, EPS = 96, 4, 2, 32, 45, 16, 1e-5
CPU = torch.device("cpu")
QUERIES, KEYS = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
THETA = 10_000.0
DEFAULT = {"rope_type": "default", "rope_theta": THETA}
CONFIGS = {"Gemma3": "Gemma3TextConfig"}


@dataclass(frozen=True)
class Family:
    """How one family's attention is written with our layer, and as transformers' module."""

    module: str  # models/<module>/modeling_<module>.py
    name: str  # of its classes
    config: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)  # of AttentionShape
    rotary_dim: int | None = HEAD_DIM  # None: no rotation
    heads: HeadVariant = PLAIN_HEADS
    norm: Callable[[str | list[str], int, torch.dtype], Norm] | None = None
    norm_names: tuple[str | list[str], str | list[str]] = ("q_norm", "k_norm")
    norm_widths: tuple[int, int] = (HEAD_DIM, HEAD_DIM)
    has_bias: bool = False
    output: str = "o_proj"
    hidden: int = HIDDEN


def rms_norm(name: str | list[str], width: int, dtype: torch.dtype) -> Norm:
    return RMSNorm(name, width, EPS, dtype, CPU)


def gemma_norm(name: str | list[str], width: int, dtype: torch.dtype) -> Norm:
    return RMSNorm(name, width, EPS, dtype, CPU, offset=1.0)


def l2_norm(name: str | list[str], width: int, dtype: torch.dtype) -> Norm:
    return RMSNorm(name, width, EPS, dtype, CPU, has_weight=False)


def layer_norm(name: str | list[str], width: int, dtype: torch.dtype) -> Norm:
    return LayerNorm(name, width, EPS, dtype, CPU)


FAMILIES = {
    "llama": Family("llama", "Llama"),
    "qwen3": Family("qwen3", "Qwen3", norm=rms_norm),
    "gemma 2": Family(
        "gemma2",
        "Gemma2",
        {"query_pre_attn_scalar": 20, "attn_logit_softcapping": 1.5, "sliding_window": 16},
        {"scale": 20**-0.5, "softcap": 1.5, "window": 16},
    ),
    "gemma 3": Family(
        "gemma3",
        "Gemma3",
        {
            "query_pre_attn_scalar": 20,
            "layer_types": ["full_attention"],
            "rope_parameters": {"full_attention": DEFAULT},
        },
        {"scale": 20**-0.5},
        norm=gemma_norm,
    ),
    "cohere": Family(
        "cohere",
        "Cohere",
        {"use_qk_norm": True},
        heads=HeadVariant(is_interleaved=True),
        norm=layer_norm,
        norm_widths=(QUERIES, KEYS),
    ),
    "cohere 2 without rotation": Family("cohere2", "Cohere2", {"layer_types": ["full_attention"]}, rotary_dim=None),
    "olmo 2": Family(
        "olmo2", "Olmo2", heads=HeadVariant(is_over_all_heads=True), norm=rms_norm, norm_widths=(QUERIES, KEYS)
    ),
    "glm": Family(
        "glm",
        "Glm",
        {"attention_bias": True},
        rotary_dim=16,
        heads=HeadVariant(is_interleaved=True),
        has_bias=True,
    ),
    "phi": Family("phi", "Phi", rotary_dim=16, has_bias=True, output="dense"),
    "stablelm": Family(
        "stablelm",
        "StableLm",
        {"qk_layernorm": True},
        rotary_dim=8,
        norm=layer_norm,
        norm_names=(
            [f"q_layernorm.norms.{head}" for head in range(HEADS)],
            [f"k_layernorm.norms.{head}" for head in range(KV_HEADS)],
        ),
        norm_widths=(QUERIES, KEYS),
        hidden=QUERIES,  # its heads are as wide as that requires
    ),
    "granite": Family("granite", "Granite", {"attention_multiplier": 0.3}, {"scale": 0.3}),
    "gpt-oss": Family(
        "gpt_oss",
        "GptOss",
        {"sliding_window": 16, "layer_types": ["sliding_attention"], "attention_bias": True},
        {"window": 16},
        has_bias=True,
    ),
    "smollm 3 without rotation": Family("smollm3", "SmolLM3", {"no_rope_layers": [0]}, rotary_dim=None),
    "hunyuan": Family(
        "hunyuan_v1_dense",
        "HunYuanDenseV1",
        heads=HeadVariant(is_norm_last=True),
        norm=rms_norm,
        norm_names=("query_layernorm", "key_layernorm"),
    ),
    "llama 4, chunks": Family(
        "llama4",
        "Llama4Text",
        {"use_qk_norm": True, "no_rope_layers": [1], "attention_chunk_size": 16},
        {"window": 16, "is_chunked": True},
        heads=HeadVariant(is_interleaved=True, is_norm_last=True),
        norm=l2_norm,
    ),
    "llama 4 without rotation": Family(
        "llama4",
        "Llama4Text",
        {"no_rope_layers": [0], "attn_temperature_tuning": True, "floor_scale": 8, "attn_scale": 0.1},
        rotary_dim=None,
        heads=HeadVariant(query_scales=query_scales(TOKENS, interval=8, weight=0.1, first=1)),
    ),
    "ministral 3": Family(
        "ministral3",
        "Ministral3",
        {
            "rope_parameters": DEFAULT | {"llama_4_scaling_beta": 0.2, "original_max_position_embeddings": 8},
        },
        heads=HeadVariant(query_scales=query_scales(TOKENS, interval=8, weight=0.2, first=0)),
    ),
}


class Tensors:
    """A TensorReader of a module's weights."""

    def __init__(self, module: nn.Module) -> None:
        self._tensors = module.state_dict()

    def read(self, name: str, into: torch.Tensor) -> None:
        into.copy_(self._tensors[name].reshape(into.shape))

    def view(self, name: str, dtype: torch.dtype) -> None:
        return None

    def integers(self, name: str) -> None:
        return None

    def grouped(self, name: str, dtype: torch.dtype) -> None:
        """There are no codes."""


def module_of(family: Family, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """transformers' attention with random weights, and its rotary embedding."""
    code = importlib.import_module(f"transformers.models.{family.module}.modeling_{family.module}")
    share = 1.0 if family.rotary_dim is None else family.rotary_dim / HEAD_DIM
    config = getattr(code, CONFIGS.get(family.name, f"{family.name}Config"))(
        hidden_size=family.hidden,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        num_hidden_layers=1,
        **{
            "head_dim": HEAD_DIM,
            "rms_norm_eps": EPS,
            "layer_norm_eps": EPS,
            "max_position_embeddings": 64,
            "rope_parameters": DEFAULT | {"partial_rotary_factor": share},
            **family.config,
        },
    )
    config._attn_implementation = "eager"
    module = getattr(code, f"{family.name}Attention")(config, layer_idx=0).eval()
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape) * (0.2 if weight.dim() == 2 else 0.5))
    return module.to(dtype), getattr(code, f"{family.name}RotaryEmbedding")(config)


@torch.no_grad()
def theirs(family: Family, module: nn.Module, embedding: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The module's result for x, the hidden states of all positions."""
    positions = torch.arange(TOKENS)[None]
    arguments: dict[str, Any] = {"layer_type": "full_attention"} if family.module == "gemma3" else {}
    rotary = embedding(x[None], positions, **arguments)
    variant = AttentionVariant(family.shape.get("window"), family.shape.get("is_chunked", False))
    is_hidden = torch.tensor(
        [[key > query or key < variant.first_visible(query) for key in range(TOKENS)] for query in range(TOKENS)]
    )
    mask = torch.zeros(1, 1, TOKENS, TOKENS, dtype=x.dtype).masked_fill_(is_hidden, torch.finfo(x.dtype).min)
    arguments = {"position_ids": positions} if family.module == "ministral3" else {}
    attended = module(hidden_states=x[None], position_embeddings=rotary, attention_mask=mask, **arguments)
    return attended[0][0]


def ours(family: Family, module: nn.Module, dtype: torch.dtype, kernels: KernelSet) -> Attention:
    parts = {"q_proj": QUERIES, "k_proj": KEYS, "v_proj": KEYS}
    q_norm, k_norm = (
        None if family.norm is None else family.norm(name, width, dtype)
        for name, width in zip(family.norm_names, family.norm_widths, strict=True)
    )
    has_output_bias = getattr(module, family.output).bias is not None
    rotation = None
    if family.rotary_dim is not None:
        rope = RopeParameters(kind="default", theta=THETA, original_max_position=64)
        rotation = Rotation(cos_sin_table(rope, family.rotary_dim, TOKENS))
    sinks = Vector("sinks", HEADS, dtype, CPU) if hasattr(module, "sinks") else None
    layer = Attention(
        AttentionShape(HEADS, KV_HEADS, HEAD_DIM, **{"window": None, **family.shape}),
        Linear(parts, family.hidden, family.has_bias, kernels, dtype, CPU),
        Linear({family.output: family.hidden}, QUERIES, has_output_bias, kernels, dtype, CPU),
        q_norm,
        k_norm,
        rotation,
        kernels,
        sinks=sinks,
        heads=family.heads,
    )
    for part in (layer.in_proj, layer.out_proj, q_norm, k_norm, sinks):
        if part is not None:
            part.load(Tensors(module))
    return layer


def step_of(first: int, end: int) -> StepInput:
    """The tokens [first, end) of a sequence whose blocks are in reverse order."""
    positions = torch.arange(first, end)
    blocks = torch.arange(TOKENS // BLOCK, -1, -1)
    return StepInput(
        token_ids=positions,
        positions=positions,
        slot_mapping=blocks[positions // BLOCK] * BLOCK + positions % BLOCK,
        query_start=torch.tensor([0, end - first], dtype=torch.int32),
        context_lens=torch.tensor([end], dtype=torch.int32),
        block_tables=blocks.int()[None].contiguous(),
        max_query_len=end - first,
        max_context_len=end,
    )


@pytest.mark.parametrize("level", ["torch", BEST])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.quick_cases(20)
def test_attention_equals_transformers(name: str, level: str, dtype: torch.dtype):
    """A prompt in two chunks, then token by token."""
    torch.manual_seed(0)
    family, x = FAMILIES[name], torch.randn(TOKENS, FAMILIES[name].hidden).to(dtype)
    module, embedding = module_of(family, dtype)
    layer = ours(family, module, dtype, kernels_of(level, dtype, HEAD_DIM))
    cache = torch.zeros(2, TOKENS // BLOCK + 1, KV_HEADS, BLOCK, HEAD_DIM, dtype=dtype)
    parts = []
    with torch.inference_mode():
        for first, end in ((0, 20), (20, 40), *((token, token + 1) for token in range(40, TOKENS))):
            step = step_of(first, end)
            parts.append(layer.out_proj(layer(layer.in_proj(x[first:end]), step, (cache[0], cache[1]), None)))
    found, expected = torch.cat(parts), theirs(family, module, embedding, x)
    if dtype == torch.float32:
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
        return
    exact = theirs(family, module.float(), embedding, x.float())
    ours_off, theirs_off = ((each.float() - exact).norm() for each in (found, expected))
    assert ours_off <= 1.25 * theirs_off  # both round some ten values on the way: as close as transformers
