"""`model.batch_invariant`: the bits of a row's result do not depend on the other rows or on the row's position."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slow_cases import slow

from stoker.engine.kernels.activation import ACTIVATIONS
from stoker.engine.kernels.attention_variant import PLAIN, AttentionVariant
from stoker.engine.kernels.head_variant import HeadVariant
from stoker.engine.kernels.hyper_connections import Connection

from .levels import BEST, LEVEL_NAMES, assert_close, kernels_of, sums_of_rounding_errors
from .test_paged_attention import Step, attended, make_case

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


# Installations compile no batch-invariant kernels of int8 and int4.
SCHEMES = [None, slow("int8"), slow("int4")]


def invariant(level, dtype, head_dim=64, threads=1, scheme=None):
    return kernels_of(level, dtype, head_dim, threads, batch_invariant=True, has_quantised=scheme is not None)


@LEVELS
@DTYPES
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("depth", [33, 256])
def test_the_product_of_a_row_does_not_depend_on_the_number_of_rows(level, dtype, scheme, depth):
    """Few and many rows, more rows than multiply codes directly, more rows than a chunk; an odd number of panels."""
    kernels = invariant(level, dtype, scheme=scheme)
    x, weight = (values.to(dtype) for values in sums_of_rounding_errors(100, 75, depth))
    bias = (torch.randn(75) * 2**-20).to(dtype)
    packed = kernels.pack_linear(weight, bias) if scheme is None else kernels.quantise_linear(weight, bias, scheme)
    whole = kernels.linear(x, packed)
    for rows in (1, 2, 3, 4, 5, 9, 13, 49, 65):
        for first in {0, 35, 100 - rows}:
            part = kernels.linear(x[first : first + rows].clone(), packed)
            assert torch.equal(part, whole[first : first + rows]), f"{rows} rows from {first}"
    assert kernels.linear(x[:0], packed).shape == (0, 75)


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_product_of_a_row_does_not_depend_on_chunks(level, scheme):
    kernels = invariant(level, torch.bfloat16, threads=2, scheme=scheme)
    x, weight = (values.bfloat16() for values in sums_of_rounding_errors(300, 40, 2048))
    packed = kernels.pack_linear(weight, None) if scheme is None else kernels.quantise_linear(weight, None, scheme)
    whole = kernels.linear(x, packed)
    assert all(torch.equal(kernels.linear(x[row : row + 1], packed)[0], whole[row]) for row in (0, 1, 127, 256, 299))
    invariant(level, torch.bfloat16)


def run(kernels, case, row, first, end, variant):
    """Attention of queries [first, end) of a row in a step of their own."""
    context = int(case.step.context_lens[row]) - int(case.step.query_start[row + 1] - case.step.query_start[row])
    begin = int(case.step.query_start[row])
    step = Step(
        torch.tensor([0, end - first], dtype=torch.int32),
        torch.tensor([context + end], dtype=torch.int32),
        case.step.block_tables[row : row + 1],
        end - first,
        context + end,
    )
    return kernels.paged_attention(case.q[begin + first : begin + end], case.k_cache, case.v_cache, step, 0.2, variant)


@LEVELS
@DTYPES
@pytest.mark.parametrize("variant", [AttentionVariant(37, True, 2.0), AttentionVariant(37), PLAIN], ids=str)
@pytest.mark.quick_cases(1)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(cuts=st.lists(st.integers(1, 149), max_size=6))
def test_attention_of_a_token_does_not_depend_on_how_its_prompt_is_chunked(level, dtype, variant, cuts):
    rows = [(1, 70), (150, 160), (33, 33), (1, 1)]
    case = make_case(rows, 6, 2, 48, 16, dtype)
    kernels = invariant(level, dtype, 48)
    whole = kernels.paged_attention(case.q, case.k_cache, case.v_cache, case.step, 0.2, variant)
    edges = sorted({0, 150, *cuts})
    parts = [run(kernels, case, 1, first, end, variant) for first, end in pairwise(edges)]
    assert torch.equal(torch.cat(parts), whole[1:151])
    assert torch.equal(run(kernels, case, 0, 0, 1, variant), whole[:1])


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
@DTYPES
@pytest.mark.parametrize("variant", [PLAIN, AttentionVariant(700), AttentionVariant(700, True, 2.0)], ids=str)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.quick_cases(5)
def test_attention_across_segments_does_not_depend_on_chunks(level, dtype, variant, threads):
    rows = [(150, 1100), (70, 600), (1, 1500)]
    case = make_case(rows, 4, 2, 32, 16, dtype)
    kernels = invariant(level, dtype, 32, threads)
    whole = kernels.paged_attention(case.q, case.k_cache, case.v_cache, case.step, 0.2, variant)
    assert_close(whole, attended(case, 0.2, variant), absolute=1e-5 if dtype == torch.float32 else 0.02)
    for row, start, queries in ((0, 0, (0, 1, 72, 73, 74, 75, 149)), (1, 150, (0, 63, 69)), (2, 220, (0,))):
        for query in queries:  # query 74 of the first row is the first with more than two segments
            assert torch.equal(run(kernels, case, row, query, query + 1, variant)[0], whole[start + query])
    invariant(level, dtype, 32)


@LEVELS
@DTYPES
def test_elementwise_ops_are_computed_row_by_row(level, dtype):
    kernels = invariant(level, dtype, threads=2)
    x, gates, weight = torch.randn(9, 264).to(dtype), torch.randn(9, 528).to(dtype), torch.randn(264)
    cos_sin, positions, scales = torch.randn(50, 64), torch.randint(0, 50, (9,)), torch.rand(50)

    def results(rows):
        cache = torch.zeros(2, 2, 2, 16, 64, dtype=dtype)
        qkv = torch.cat([x[rows], gates[rows]], dim=1)[:, :768].contiguous().view(-1, 768)[:, :384].contiguous()
        slots = torch.arange(9)[rows]
        queries = kernels.rope_and_store(
            qkv, weight[:64], weight[64:128], 1e-6, cos_sin, positions[rows], slots, cache[0], cache[1], 2, 2
        )
        changed = [
            kernels.rope_and_store(
                qkv,
                weight[:128],
                weight[128:256],
                1e-6,
                cos_sin,
                positions[rows],
                slots,
                cache[0],
                cache[1],
                2,
                2,
                each,
            )
            for each in (
                HeadVariant(is_interleaved=True, is_layer_norm=True, query_scales=scales),
                HeadVariant(is_over_all_heads=True),
            )
        ]
        kept = cache[:, 0].transpose(1, 2)[:, :9][:, rows].transpose(0, 1)
        return (*kernels.add_rms_norm(x[rows], x[rows].flip(1).contiguous(), weight, 1e-6),
                kernels.add_layer_norm(x[rows], None, weight, weight, 1e-6)[0],
                kernels.add_scaled(x[rows], x[rows].flip(1).contiguous(), 0.3),
                *(kernels.activate_and_mul(gates[rows], activation) for activation in ACTIVATIONS),
                kernels.activate(x[rows], "gelu"), kernels.scale_and_cap(x[rows].clone(), 0.3, 2.0),
                queries, *changed, kept)  # fmt: skip

    whole = results(slice(0, 9))
    for row in range(9):
        for alone, together in zip(results(slice(row, row + 1)), whole, strict=True):
            assert torch.equal(alone[0], together[row])
    invariant(level, dtype)


@LEVELS
@DTYPES
def test_streams_of_a_token_do_not_depend_on_other_rows(level, dtype):
    """With 40 tokens the threads share parts of the matrix by groups of tokens, with one by columns only."""
    kernels = invariant(level, dtype, threads=2)
    connection = Connection(torch.randn(24, 4 * 300), torch.randn(24), torch.randn(3), 4, 1e-6, 1e-6, iterations=5)
    streams, added = torch.randn(40, 4 * 300).to(dtype), torch.randn(40, 300).to(dtype)

    def results(rows):
        total, gains = kernels.read_streams(streams[rows], connection)
        return total, gains, kernels.write_streams(added[rows], 4, streams[rows], gains)

    whole = results(slice(0, 40))
    for row in (0, 17, 39):
        for alone, together in zip(results(slice(row, row + 1)), whole, strict=True):
            assert torch.equal(alone[0], together[row])
    invariant(level, dtype)


@LEVELS
@DTYPES
def test_samples_and_masses_do_not_depend_on_other_rows(level, dtype):
    """With 70,000 logits torch would sum a single row with two threads, and several rows with one thread each."""
    kernels = invariant(level, dtype, threads=2)
    logits = torch.randn(5, 70_000).to(dtype)
    temperature, min_p = torch.tensor([0, 1, 0.5, 1.5, 1]), torch.tensor([0, 0, 0.1, 0, 0.01])
    keys = torch.randint(-(2**31), 2**31 - 1, (5, 2), dtype=torch.int32)
    sampled = kernels.sample_tokens(logits, temperature, min_p, keys)
    largest, mass = kernels.softmax_mass(logits, torch.ones(5), min_p)
    for row in range(5):
        part = slice(row, row + 1)
        assert kernels.sample_tokens(logits[part], temperature[part], min_p[part], keys[part]) == sampled[row]
        alone = kernels.softmax_mass(logits[part], torch.ones(1), min_p[part])
        assert (alone[0][0], alone[1][0]) == (largest[row], mass[row])
    invariant(level, dtype)


@pytest.mark.slow
def test_the_option_does_not_change_other_kernels_of_the_process():
    """Two engines in one process, one with the option: neither changes what the other computes."""
    level = BEST
    weight, x = torch.randn(64, 256).bfloat16(), torch.randn(40, 256).bfloat16()
    plain = kernels_of(level, torch.bfloat16)
    packed = plain.quantise_linear(weight, None, "int4")
    before = plain.linear(x, packed), plain.linear(x[:1], packed)
    invariant(level, torch.bfloat16, scheme="int4").linear(x, packed)
    assert torch.equal(plain.linear(x, packed), before[0])
    assert torch.equal(plain.linear(x[:1], packed), before[1])
