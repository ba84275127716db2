"""Hyper-connections against the modules of transformers, whose formulas they are."""

import pytest
import torch
from transformers import DeepseekV4Config, HYV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HyperConnection, DeepseekV4HyperHead
from transformers.models.hy_v4.modeling_hy_v4 import HYV4HyperConnection, HYV4HyperHead

from stoker.engine.kernels import Connection

from .levels import LEVEL_NAMES, assert_close, kernels_of

SIZES = {"hc_mult": 3, "hc_eps": 1e-3, "rms_norm_eps": 1e-2}
LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
HIDDEN = pytest.mark.parametrize("hidden", [8, 100])


def library_module(kind: str, hidden: int) -> torch.nn.Module:
    config = (
        HYV4Config(hidden_size=hidden, hc_magnitude=1.5, **SIZES)
        if kind.startswith("independent")
        else DeepseekV4Config(hidden_size=hidden, hc_sinkhorn_iters=4, **SIZES)
    )
    modules = {
        "mixed": DeepseekV4HyperConnection,
        "mixed head": DeepseekV4HyperHead,
        "independent": HYV4HyperConnection,
        "independent head": HYV4HyperHead,
    }
    module = modules[kind](config)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter.data)
    return module


def connection_of(kind: str, module: torch.nn.Module) -> Connection:
    parts = [parameter.detach() for _, parameter in sorted(module.named_parameters(), key=_order)]
    more = {"output_scale": 1.5, "output_eps": 1e-3} if kind == "independent" else {}
    return Connection(*parts, 3, norm_eps=1e-2, eps=1e-3, **more, iterations=4 if kind == "mixed" else 0)


def _order(item):
    return [part in item[0] for part in ("fn", "base", "scale")].index(True)


@LEVELS
@DTYPES
@HIDDEN
@pytest.mark.parametrize("kind", ["mixed", "independent"])
@torch.no_grad()
def test_a_block_reads_and_adds_what_it_does_in_the_library(level, dtype, hidden, kind):
    module, kernels = library_module(kind, hidden), kernels_of(level, dtype)
    connection = connection_of(kind, module)
    for num_tokens in (1, 7, 40):
        streams = torch.randn(num_tokens, 3 * hidden, dtype=dtype)
        added = torch.randn(num_tokens, hidden, dtype=dtype)
        wide = streams.float().view(1, num_tokens, 3, hidden)
        post, *mix, expected = module(wide)
        total, gains = kernels.read_streams(streams, connection)
        assert_close(total, expected[0].double(), absolute=1e-5)
        assert gains.shape == (num_tokens, 12 if mix else 3)
        before = mix[0].transpose(-1, -2) @ wide if mix else wide
        after = post.unsqueeze(-1) * added.float().unsqueeze(-2) + before
        assert_close(kernels.write_streams(added, 3, streams, gains), after[0].flatten(1).double(), absolute=1e-5)


@LEVELS
@DTYPES
@HIDDEN
@pytest.mark.parametrize("kind", ["mixed head", "independent head"])
@torch.no_grad()
def test_heads_read_a_weighted_sum(level, dtype, hidden, kind):
    module = library_module(kind, hidden)
    streams = torch.randn(5, 3 * hidden, dtype=dtype)
    total, gains = kernels_of(level, dtype).read_streams(streams, connection_of(kind, module))
    assert_close(total, module(streams.float().view(1, 5, 3, hidden))[0].double(), absolute=1e-5)
    assert gains.shape == (5, 0)


@LEVELS
@DTYPES
def test_a_step_may_have_no_tokens(level, dtype):
    kernels, connection = kernels_of(level, dtype), connection_of("mixed", library_module("mixed", 8))
    total, gains = kernels.read_streams(torch.empty(0, 24, dtype=dtype), connection)
    assert (total.shape, gains.shape) == ((0, 8), (0, 12))
    assert kernels.write_streams(total, 3, torch.empty(0, 24, dtype=dtype), gains).shape == (0, 24)


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
def test_streams_of_other_shapes_are_refused(level):
    kernels, connection = kernels_of(level, torch.float32), connection_of("mixed", library_module("mixed", 8))
    with pytest.raises(ValueError, match="the matrix"):
        kernels.read_streams(torch.zeros(2, 8), connection)
    with pytest.raises(ValueError, match="streams of"):
        kernels.write_streams(torch.zeros(2, 8), 3, torch.zeros(2, 8), torch.zeros(2, 3))


@LEVELS
@DTYPES
def test_the_first_layer_has_the_embedding_in_each_stream(level, dtype):
    added = torch.randn(3, 20, dtype=dtype)
    assert torch.equal(kernels_of(level, dtype).write_streams(added, 4), torch.cat([added] * 4, 1))
