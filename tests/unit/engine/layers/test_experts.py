"""Layers of experts, loaded from the tensors of a checkpoint and compared with the modules of transformers."""

import pytest
import torch
from tests.unit.engine.kernels.levels import BEST, kernels_of
from transformers import DeepseekV3Config, GptOssConfig, MiniMaxM2Config, MixtralConfig, Qwen2MoeConfig, Qwen3MoeConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP
from transformers.models.minimax_m2.modeling_minimax_m2 import MiniMaxM2SparseMoeBlock
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from stoker.engine.kernels import ExpertGate, Routing
from stoker.engine.layers.expert_weights import ExpertNames, Experts, ExpertSizes
from stoker.engine.layers.experts import MixtureOfExperts, Router
from stoker.engine.layers.linear import Linear
from stoker.engine.layers.mlp import GatedMLP
from stoker.engine.layers.norm import RMSNorm
from stoker.engine.layers.vector import Vector

HIDDEN, INNER, COUNT, PER_TOKEN = 64, 32, 8, 3
SIZES = ExpertSizes(COUNT, HIDDEN, INNER)
CPU = torch.device("cpu")
LEVELS = pytest.mark.parametrize("level", sorted({"torch", BEST}))
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


class File:
    """The tensors of a checkpoint; lends views of those that need no conversion, as a mapped file does."""

    def __init__(self, tensors):
        self.tensors = tensors
        self.read_names = []

    def read(self, name, into):
        assert into.is_contiguous()
        assert into.shape == self.tensors[name].shape, name
        self.read_names.append(name)
        into.copy_(self.tensors[name])

    def integers(self, name):
        return None

    def grouped(self, name, dtype):
        """There are no codes."""

    def view(self, name, dtype):
        if self.tensors[name].dtype != dtype:
            return None
        self.read_names.append(name)
        return self.tensors[name]


class Maker:
    """Makes the parts of a block as a model does."""

    def __init__(self, level, dtype, scheme=None):
        self.kernels = kernels_of(level, dtype)
        self.dtype, self.scheme = dtype, scheme

    def linear(self, parts, inputs, has_bias=False, dtype=None):
        return Linear(parts, inputs, has_bias, self.kernels, dtype or self.dtype, CPU, None if dtype else self.scheme)

    def router(self, routing, has_bias=False, bias_name=None, dtype=None):
        bias = None if bias_name is None else Vector(bias_name, COUNT, torch.float32, CPU)
        return Router(self.linear({"gate": COUNT}, HIDDEN, has_bias, dtype), routing, self.kernels, bias)

    def experts(self, layout, gate=None):
        return Experts(layout, SIZES, gate or ExpertGate(), self.kernels, self.dtype, CPU, self.scheme)

    def shared(self, name, inner):
        gate_up = self.linear({f"{name}.gate_proj": inner, f"{name}.up_proj": inner}, HIDDEN)
        return GatedMLP(gate_up, self.linear({f"{name}.down_proj": HIDDEN}, inner), self.kernels)

    def block(self, router, experts, **more):
        return MixtureOfExperts(router, experts, self.kernels, **more)


QWEN = ExpertNames("experts.{}.gate_proj", "experts.{}.up_proj", "experts.{}.down_proj")
MIXTRAL = ExpertNames("experts.{}.w1", "experts.{}.w3", "experts.{}.w2")
GPT_OSS = ExpertNames("experts.{}.gate_proj", "experts.{}.up_proj", "experts.{}.down_proj", has_bias=True)


def one_by_one(tensors, layout):
    """The same weights as a tensor for each projection of each expert."""
    tensors = dict(tensors)
    gate_ups, downs = tensors.pop("experts.gate_up_proj"), tensors.pop("experts.down_proj")
    for expert, (gate_up, down) in enumerate(zip(gate_ups, downs, strict=True)):
        gate, up = gate_up.chunk(2)
        for name, weight in ((layout.gate, gate), (layout.up, up), (layout.down, down)):
            tensors[f"{name.format(expert)}.weight"] = weight.clone()
    return tensors


def of_gpt_oss(tensors):
    """Its tensors have inputs before outputs, and gates and ups in turn."""
    found = {name.replace("router.", "gate."): tensor for name, tensor in tensors.items() if "experts" not in name}
    for expert in range(COUNT):
        weight, bias = tensors["experts.gate_up_proj"][expert].T, tensors["experts.gate_up_proj_bias"][expert]
        for first, name in enumerate(("gate", "up")):
            found[f"experts.{expert}.{name}_proj.weight"] = weight[first::2].contiguous()
            found[f"experts.{expert}.{name}_proj.bias"] = bias[first::2].contiguous()
        found[f"experts.{expert}.down_proj.weight"] = tensors["experts.down_proj"][expert].T.contiguous()
        found[f"experts.{expert}.down_proj.bias"] = tensors["experts.down_proj_bias"][expert]
    return found


def qwen3_moe(maker):
    config = Qwen3MoeConfig(
        hidden_size=HIDDEN, moe_intermediate_size=INNER, num_experts=COUNT, num_experts_per_tok=PER_TOKEN,
        norm_topk_prob=True,
    )  # fmt: skip
    module = Qwen3MoeSparseMoeBlock(config)
    block = maker.block(maker.router(Routing(COUNT, PER_TOKEN, renormalises=True)), maker.experts(QWEN))
    return module, block, lambda tensors: one_by_one(tensors, QWEN)


def qwen2_moe(maker):
    config = Qwen2MoeConfig(
        hidden_size=HIDDEN, moe_intermediate_size=INNER, num_experts=COUNT, num_experts_per_tok=PER_TOKEN,
        shared_expert_intermediate_size=96, norm_topk_prob=False,
    )  # fmt: skip
    block = maker.block(
        maker.router(Routing(COUNT, PER_TOKEN)),
        maker.experts(QWEN),
        shared=maker.shared("shared_expert", 96),
        shared_gate=maker.linear({"shared_expert_gate": 1}, HIDDEN),
    )
    return Qwen2MoeSparseMoeBlock(config), block, lambda tensors: one_by_one(tensors, QWEN)


def mixtral(maker):
    config = MixtralConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=COUNT, num_experts_per_tok=PER_TOKEN
    )
    block = maker.block(maker.router(Routing(COUNT, PER_TOKEN, renormalises=True)), maker.experts(MIXTRAL))
    return MixtralSparseMoeBlock(config), block, lambda tensors: one_by_one(tensors, MIXTRAL)


def gpt_oss(maker):
    config = GptOssConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=COUNT, num_experts_per_tok=PER_TOKEN,
        swiglu_limit=0.7,
    )  # fmt: skip
    block = maker.block(
        maker.router(Routing(COUNT, PER_TOKEN, "softmax_of_chosen"), has_bias=True),
        maker.experts(GPT_OSS, ExpertGate("clamped_swiglu", alpha=1.702, limit=0.7)),
    )
    return GptOssMLP(config), block, of_gpt_oss


def deepseek_v3(maker):
    config = DeepseekV3Config(
        hidden_size=HIDDEN, moe_intermediate_size=INNER, n_routed_experts=COUNT, num_experts_per_tok=PER_TOKEN,
        n_shared_experts=2, n_group=4, topk_group=2, routed_scaling_factor=2.5, norm_topk_prob=True,
    )  # fmt: skip
    routing = Routing(
        COUNT, PER_TOKEN, "sigmoid", renormalises=True, scale=2.5, num_groups=4, groups_per_token=2,
        group_score="sum_of_two",
    )  # fmt: skip
    block = maker.block(
        maker.router(routing, bias_name="gate.e_score_correction_bias", dtype=torch.float32),
        maker.experts(QWEN),
        shared=maker.shared("shared_experts", 2 * INNER),
    )
    return DeepseekV3MoE(config), block, lambda tensors: one_by_one(tensors, QWEN)


def minimax_m2(maker):
    config = MiniMaxM2Config(
        hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=COUNT, num_experts_per_tok=PER_TOKEN
    )
    routing = Routing(COUNT, PER_TOKEN, "sigmoid", renormalises=True)
    block = maker.block(maker.router(routing, bias_name="e_score_correction_bias"), maker.experts(MIXTRAL))
    return MiniMaxM2SparseMoeBlock(config), block, lambda tensors: one_by_one(tensors, MIXTRAL)


FAMILIES = {each.__name__: each for each in (qwen3_moe, qwen2_moe, mixtral, gpt_oss, deepseek_v3, minimax_m2)}


def made(family, level, dtype=torch.float32, scheme=None):
    """The module of transformers with random weights, our block, and the tensors of its checkpoint."""
    return made_by(Maker(level, dtype, scheme), family)


def made_by(maker, family):
    module, block, renamed = FAMILIES[family](maker)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            tensor.copy_(torch.randn(tensor.shape) / (1 if "bias" in name else HIDDEN**0.5))
    return module.eval(), block, renamed(module.state_dict())


def loaded(block, tensors):
    file = File(tensors)
    wanted = [each for part in block.loadables() for each in part.wanted()]
    assert dict(wanted) == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for part in block.loadables():
        part.load(file)
    assert sorted(file.read_names) == sorted(name for name, _ in wanted)  # each once
    for tensor in tensors.values():
        tensor.fill_(torch.nan)  # the file's map is released: nothing may still read it
    return block


def output_of(module, x):
    with torch.no_grad():
        found = module(x[None])
    return (found[0] if isinstance(found, tuple) else found)[0]


@LEVELS
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tokens", [1, 17])
def test_a_block_computes_what_transformers_does(level, family, tokens):
    module, block, tensors = made(family, level)
    x = torch.randn(tokens, HIDDEN)
    expected = output_of(module, x)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    torch.testing.assert_close(loaded(block, tensors).of(x), expected, rtol=2e-5, atol=2e-5)


@LEVELS
def test_a_block_norms_its_input_as_the_other_feed_forward_blocks_do(level):
    module, block, tensors = made("deepseek_v3", level)
    norm = RMSNorm("norm", HIDDEN, 1e-6, torch.float32, CPU)
    norm.load(File({"norm.weight": torch.randn(HIDDEN)}))
    hidden, residual = torch.randn(5, HIDDEN), torch.randn(5, HIDDEN)
    normed, total = norm(kernels_of("torch", torch.float32), hidden, residual)
    expected = output_of(module, normed)
    found, summed = loaded(block, {name: tensor.clone() for name, tensor in tensors.items()})(norm, hidden, residual)
    assert torch.equal(summed, total)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


@LEVELS
def test_a_router_in_float32_does_not_round_its_logits(level):
    """In bfloat16 the logits 1 and 1.0005 are equal, and the expert with the lower index would be chosen."""
    maker = Maker(level, torch.bfloat16)
    weight = torch.zeros(COUNT, HIDDEN)
    weight[5, 0], weight[6, 0], weight[6, 1] = 1, 1, 0.0005
    x = torch.ones(1, HIDDEN).bfloat16()
    chosen = {}
    for dtype in (torch.float32, None):
        router = maker.router(Routing(COUNT, 1), dtype=dtype)
        router.projection.load(File({"gate.weight": weight.to(dtype or torch.bfloat16)}))
        chosen[dtype] = router(x)[1].tolist()
    assert chosen == {torch.float32: [[6]], None: [[5]]}


@LEVELS
@DTYPES
@pytest.mark.parametrize("scheme", [None, "int8", "int4"])
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
@pytest.mark.quick_cases(8)
def test_layouts_and_formats_are_loaded_alike(level, dtype, scheme, family):
    """Converted while it is read, and read as it is stored: the same weights."""
    _, first, tensors = made(family, level, dtype, scheme)
    _, second, _ = made(family, level, dtype, scheme)
    stored = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    wider = {
        name: tensor.to(torch.float64 if dtype == torch.float32 else torch.float32) for name, tensor in stored.items()
    }
    x = torch.randn(3, HIDDEN).to(dtype)
    found = [loaded(first, {n: t.clone() for n, t in stored.items()}).of(x), loaded(second, wider).of(x)]
    assert torch.equal(*found)
    assert found[0].isfinite().all()
    held = first.experts.num_bytes
    elements = 3 * COUNT * HIDDEN * INNER + (COUNT * (2 * INNER + HIDDEN) if family == "gpt_oss" else 0)
    assert held == first.experts.packed.num_bytes if scheme else held <= elements * dtype.itemsize


@DTYPES
def test_weights_are_taken_from_a_model_that_torch_ran(dtype):
    _, before, tensors = made("gpt_oss", "torch", dtype)
    _, after, _ = made("gpt_oss", BEST, dtype)
    loaded(before, {name: tensor.to(dtype) for name, tensor in tensors.items()})
    x = torch.randn(4, HIDDEN).to(dtype)
    expected = before.of(x)
    for mine, its in zip(after.loadables(), before.loadables(), strict=True):
        mine.take_weights(its)
    limit = 1e-5 if dtype == torch.float32 else 4e-2
    torch.testing.assert_close(after.of(x), expected, rtol=limit, atol=limit)
    with pytest.raises(AssertionError, match="used before"):
        before.of(x)


@pytest.mark.skipif(BEST == "torch", reason="no C++ kernels on this machine")
@DTYPES
@pytest.mark.parametrize("family", FAMILIES)
def test_a_block_is_captured_as_native_calls(dtype, family):
    """The decode path has no operation of torch: its step is replayed."""
    maker = Maker(BEST, dtype)
    _, block, tensors = made_by(maker, family)
    loaded(block, {name: tensor.clone() for name, tensor in tensors.items()})
    capture = maker.kernels.capture
    assert capture is not None
    norm = RMSNorm("norm", HIDDEN, 1e-6, dtype, CPU)
    norm.load(File({"norm.weight": torch.ones(HIDDEN)}))
    x, residual = torch.randn(2, HIDDEN).to(dtype), torch.randn(2, HIDDEN).to(dtype)
    with torch.inference_mode():
        captured = capture(lambda: block(norm, x, residual)[0])
        for _ in range(2):
            x.copy_(torch.randn(2, HIDDEN))
            captured.replay()
            found = captured.output.clone()
            assert torch.equal(found, block(norm, x, residual)[0])
