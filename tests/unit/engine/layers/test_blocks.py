"""Norms, feed-forward blocks and embeddings equal those of transformers, and layers of every order can be captured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.unit.engine.kernels.levels import BEST, LEVEL_NAMES, kernels_of
from torch import nn
from transformers import Gemma2Config
from transformers.activations import ACT2FN
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma2.modeling_gemma2 import Gemma2MLP, Gemma2RMSNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding
from transformers.models.llama4.modeling_llama4 import Llama4TextL2Norm
from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm

from stoker.engine.kernels import KernelSet
from stoker.engine.kernels.capture import NotCapturable
from stoker.engine.layers.embedding import Embedding, TiedEmbedding, rounded
from stoker.engine.layers.linear import Linear
from stoker.engine.layers.mlp import MLP, GatedMLP
from stoker.engine.layers.norm import LayerNorm, Norm, RMSNorm
from stoker.engine.layers.vector import Vector
from stoker.model.activations import HIDDEN_ACTS

WIDTH, INNER, EPS = 96, 160, 1e-5
CPU = torch.device("cpu")
LEVELS = pytest.mark.parametrize("level", ["torch", BEST])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


class Tensors:
    def __init__(self, **tensors: torch.Tensor) -> None:
        self._tensors = tensors

    def read(self, name: str, into: torch.Tensor) -> None:
        into.copy_(self._tensors[name.replace(".", "_")])

    def view(self, name: str, dtype: torch.dtype) -> None:
        return None

    def integers(self, name: str) -> None:
        return None

    def grouped(self, name: str, dtype: torch.dtype) -> None:
        """There are no codes."""


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def our_norms(dtype: torch.dtype) -> dict[str, tuple[Norm, nn.Module]]:
    def made(kind: type[RMSNorm] | type[LayerNorm], **options: float) -> Norm:
        return kind("norm", WIDTH, EPS, dtype, CPU, **options)

    return {
        "gemma": (made(RMSNorm, offset=1.0), Gemma2RMSNorm(WIDTH, EPS)),
        "llama 4 l2": (made(RMSNorm, has_weight=False), Llama4TextL2Norm(EPS)),
        "cohere": (made(LayerNorm), CohereLayerNorm(WIDTH, EPS)),
        "gpt-neox": (made(LayerNorm, has_bias=True), nn.LayerNorm(WIDTH, EPS)),
        "nemotron": (made(LayerNorm, offset=1.0, has_bias=True), NemotronLayerNorm1P(WIDTH, EPS)),
        "olmo": (made(LayerNorm, has_weight=False), OlmoLayerNorm(WIDTH)),
    }


@LEVELS
@DTYPES
@pytest.mark.parametrize("name", our_norms(torch.float32))
def test_norms_equal_transformers(name: str, level: str, dtype: torch.dtype):
    ours, theirs = our_norms(dtype)[name]
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.copy_(torch.randn(WIDTH))
    theirs = theirs.to(dtype)
    ours.load(Tensors(**{f"norm_{name}": value for name, value in theirs.state_dict().items()}))
    assert [name for name, _ in ours.wanted()] == [f"norm.{name}" for name in theirs.state_dict()]
    x = (torch.randn(7, WIDTH) + 0.5).to(dtype)
    with torch.no_grad():
        found, total = ours(kernels_of(level, dtype), x)
        expected = theirs(x)
        exact = theirs.double()(x.double()) if name in ("gpt-neox", "nemotron") else theirs.float()(x.float())
    assert total is x
    if dtype == torch.float32:
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=2e-6)
    else:  # one rounding of the exact result, as in the modules that compute in float32
        torch.testing.assert_close(found.double(), exact.double(), atol=1e-6, rtol=2**-8)


def test_a_weight_that_is_an_offset_keeps_its_digits():
    """1 + 2**-10 is 1 in bfloat16: held in the model's dtype, the weight would be lost."""
    norm = RMSNorm("norm", 2, EPS, torch.bfloat16, CPU, offset=1.0)
    norm.load(Tensors(norm_weight=torch.tensor([2.0**-10, -1.0]).bfloat16()))
    assert norm.weight.tolist() == [1 + 2**-10, 0.0]
    assert norm.num_bytes == 4


def test_weights_are_rounded_as_in_the_rest_of_the_model():
    vector = Vector("v", 1, torch.bfloat16, CPU)
    vector.load(Tensors(v=torch.tensor([1 + 2**-10])))
    assert vector.values.tolist() == [1.0]


def linear(kernels: KernelSet, dtype: torch.dtype, **weights: torch.Tensor) -> Linear:
    rows = {name: len(weight) for name, weight in weights.items()}
    depth = next(iter(weights.values())).shape[1]
    layer = Linear(rows, depth, False, kernels, dtype, CPU)
    layer.load(Tensors(**{f"{name}_weight": weight for name, weight in weights.items()}))
    return layer


class Doubled:
    """A mix that adds a layer's output once more."""

    def added(self, layer: Linear, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        assert out.shape[1] == sum(layer.parts.values())
        return out + x @ self.weight.T

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def of_experts(self, layer: object) -> None:
        return None

    def adapt_rows(self, token_ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def of_tokens(self, tokens: torch.Tensor) -> Doubled:
        return self


@DTYPES
@pytest.mark.parametrize("scheme", [None, "int8", "int4"])
def test_outputs_that_no_weight_has_are_zeros(dtype: torch.dtype, scheme: str | None):
    """Also with a quantised weight, whose rows of zeros have no largest element, and with adapters."""
    kernels, order = kernels_of(BEST, dtype), torch.tensor([2, -1, 0, 1, -1, 3])
    weight, x = torch.randn(4, WIDTH).to(dtype), torch.randn(3, WIDTH).to(dtype)
    layer = Linear({"a": 3, "b": 1}, WIDTH, False, kernels, dtype, CPU, scheme, order)
    layer.load(Tensors(a_weight=weight[:3], b_weight=weight[3:]))
    plain = Linear({"w": 6}, WIDTH, False, kernels, dtype, CPU, scheme)
    plain.load(Tensors(w_weight=torch.cat((weight, torch.zeros_like(weight[:1])))[order]))
    found = layer(x)
    assert torch.equal(found, plain(x))
    assert not found[:, order < 0].any()
    doubled = layer(x, Doubled(weight)) - found
    torch.testing.assert_close(doubled, (x @ weight.T)[:, order] * (order >= 0), atol=0.1, rtol=0.05)


@LEVELS
@DTYPES
@pytest.mark.parametrize("act", HIDDEN_ACTS)
def test_feed_forward_blocks_equal_their_formulas(act: str, level: str, dtype: torch.dtype):
    """Gated and not; with an RMSNorm, with a LayerNorm, and without a norm."""
    kernels, function = kernels_of(level, dtype), ACT2FN[act]
    up, gate, down = (torch.randn(shape).to(dtype) / 8 for shape in ((INNER, WIDTH), (INNER, WIDTH), (WIDTH, INNER)))
    rms, layer = RMSNorm("norm", WIDTH, EPS, dtype, CPU, has_weight=False), LayerNorm("norm", WIDTH, EPS, dtype, CPU)
    layer.load(Tensors(norm_weight=torch.randn(WIDTH)))
    x, residual = torch.randn(5, WIDTH).to(dtype), torch.randn(5, WIDTH).to(dtype)
    gated = GatedMLP(
        linear(kernels, dtype, gate=gate, up=up), linear(kernels, dtype, down=down), kernels, HIDDEN_ACTS[act]
    )
    plain = MLP(linear(kernels, dtype, up=up), linear(kernels, dtype, down=down), kernels, HIDDEN_ACTS[act])
    # bfloat16 rounds the input, the product, and the sum of 160 products of about 1.
    limit = {"atol": 1e-4, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 0.1, "rtol": 0.05}
    for norm in (rms, layer, None):
        wide = x if norm is None else norm(kernels_of("torch", dtype), x, residual)[0]
        wide = wide.float()
        for block, inner in (
            (gated, function(wide @ gate.float().T) * (wide @ up.float().T)),
            (plain, function(wide @ up.float().T)),
        ):
            if norm is None:
                found = block.of(x)
            else:
                found, total = block(norm, x, residual)
                assert torch.equal(total, x + residual)
            torch.testing.assert_close(found.float(), inner @ down.float().T, **limit)


def test_a_gemma_block_equals_transformers():
    config = Gemma2Config(hidden_size=WIDTH, intermediate_size=INNER)
    theirs, kernels = Gemma2MLP(config).eval(), kernels_of(BEST, torch.float32)
    weights = {name: getattr(theirs, name).weight.detach() for name in ("gate_proj", "up_proj", "down_proj")}
    down = weights.pop("down_proj")
    block = GatedMLP(
        linear(kernels, torch.float32, **weights),
        linear(kernels, torch.float32, down_proj=down),
        kernels,
        HIDDEN_ACTS[config.hidden_activation],
    )
    x = torch.randn(5, WIDTH)
    torch.testing.assert_close(block.of(x), theirs(x).detach(), atol=1e-6, rtol=1e-5)


@LEVELS
@DTYPES
@pytest.mark.parametrize("multiplier", [96**0.5, 12.0, 0.3])
def test_scaled_embeddings_equal_transformers_bit_by_bit(multiplier: float, level: str, dtype: torch.dtype):
    kernels, weight, ids = kernels_of(level, dtype), torch.randn(50, WIDTH).to(dtype), torch.tensor([0, 49, 7])
    theirs = Gemma3TextScaledWordEmbedding(50, WIDTH, padding_idx=None, embed_scale=multiplier).to(dtype)
    with torch.no_grad():
        theirs.weight.copy_(weight)
        gemma, granite = theirs(ids), nn.functional.embedding(ids, weight) * multiplier
    for scale, expected in ((rounded(multiplier, dtype), gemma), (multiplier, granite)):
        separate = Embedding("embed", 50, WIDTH, kernels, dtype, CPU, scale)
        separate.load(Tensors(embed_weight=weight))
        tied = TiedEmbedding(linear(kernels, dtype, embed=weight), kernels, scale)
        assert torch.equal(separate(ids), expected)
        assert torch.equal(tied(ids), expected)
        assert torch.equal(separate.weight, weight)


def orders(kernels: KernelSet) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Layers in the orders of model families, with a linear layer in the place of attention. Each takes and returns the
    sum of the layers before it."""
    dtype = torch.bfloat16
    square = linear(kernels, dtype, o=torch.randn(WIDTH, WIDTH) / 8)
    wide = torch.randn(INNER, WIDTH) / 8
    down = linear(kernels, dtype, down=torch.randn(WIDTH, INNER) / 8)
    gated = GatedMLP(linear(kernels, dtype, gate=wide, up=wide), down, kernels, "gelu_tanh")
    plain = MLP(linear(kernels, dtype, up=wide), down, kernels, "relu2")
    rms = RMSNorm("norm", WIDTH, EPS, dtype, CPU, has_weight=False)
    layer_norm = LayerNorm("norm", WIDTH, EPS, dtype, CPU, has_weight=False)

    def sandwich(x: torch.Tensor) -> torch.Tensor:  # Gemma 2 and 3: norms before and after
        attended, _ = square.of_normed(rms, x, None)
        normed, _ = rms(kernels, square(attended))
        fed, x = gated(rms, normed, x)
        return kernels.add_scaled(rms(kernels, fed)[0], x)

    def post_norm(x: torch.Tensor) -> torch.Tensor:  # OLMo 2
        x = kernels.add_scaled(rms(kernels, square(x))[0], x)
        return kernels.add_scaled(rms(kernels, gated.of(x))[0], x)

    def parallel(x: torch.Tensor) -> torch.Tensor:  # Cohere, Phi, GPT-NeoX
        normed, _ = layer_norm(kernels, x)
        return kernels.add_scaled(plain.of(normed), kernels.add_scaled(square(normed), x))

    def scaled(x: torch.Tensor) -> torch.Tensor:  # Granite
        attended, _ = square.of_normed(rms, x, None)
        x = kernels.add_scaled(attended, x, 0.22)
        return kernels.scale_and_cap(kernels.add_scaled(gated.of(rms(kernels, x)[0]), x, 0.22), 0.5, 30.0)

    return {"sandwich": sandwich, "post-norm": post_norm, "parallel": parallel, "scaled": scaled}


@pytest.mark.parametrize("level", [name for name in LEVEL_NAMES[1:] if name == BEST])
@pytest.mark.parametrize("order", ["sandwich", "post-norm", "parallel", "scaled"])
def test_layers_of_every_order_are_native_and_can_be_replayed(order: str, level: str):
    kernels = kernels_of(level, torch.bfloat16)
    assert kernels.capture is not None
    torch.manual_seed(1)
    run = orders(kernels)[order]
    inputs, other = torch.randn(3, WIDTH).bfloat16(), torch.randn(3, WIDTH).bfloat16()
    expected = [run(inputs).clone(), run(other).clone()]
    graph = kernels.capture(lambda: run(inputs))
    assert torch.equal(graph.output, expected[0])
    inputs.copy_(other)
    graph.replay()
    assert torch.equal(graph.output, expected[1])
    torch.manual_seed(1)
    reference = orders(kernels_of("torch", torch.bfloat16))[order](other)
    torch.testing.assert_close(expected[1].float(), reference.float(), atol=0.1, rtol=0.05)


@pytest.mark.parametrize("level", [name for name in LEVEL_NAMES[1:] if name == BEST])
def test_a_part_without_a_native_kernel_is_named(level: str):
    """A model with such a part needs to declare nothing: the capture fails with its name, and steps run op by op."""
    kernels = kernels_of(level, torch.bfloat16)
    assert kernels.capture is not None
    x = torch.randn(3, WIDTH).bfloat16()
    with pytest.raises(NotCapturable, match="torch's sigmoid cannot be replayed"):
        kernels.capture(lambda: kernels.add_scaled(torch.sigmoid(x), x))
