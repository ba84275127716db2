import pytest
import torch

from .levels import LEVEL_NAMES, assert_close, kernels_of, sums_of_rounding_errors

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
ABSOLUTE = {torch.float32: 2e-5, torch.bfloat16: 1e-3}  # rounding error of sums of these depths


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@LEVELS
@DTYPES
@pytest.mark.parametrize("tokens", [1, 2, 5, 7, 12, 13, 33, 100])
@pytest.mark.parametrize(("width", "depth"), [(16, 32), (7, 64), (100, 96), (272, 64)])
def test_packed_weights_give_the_product(level, dtype, tokens, width, depth):
    x, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((tokens, depth), (width, depth), (width,)))
    kernels = kernels_of(level, dtype)
    out = kernels.linear(x, kernels.pack_linear(weight, None))
    assert_close(out, x.double() @ weight.double().T, absolute=ABSOLUTE[dtype])
    out = kernels.linear(x, kernels.pack_linear(weight, bias))
    assert_close(out, x.double() @ weight.double().T + bias.double(), absolute=ABSOLUTE[dtype])


@LEVELS
@DTYPES
def test_more_rows_than_a_chunk(level, dtype):
    """x is divided into chunks that fit in the cache; together they must cover all rows."""
    x, weight = torch.randn(300, 2048).to(dtype), torch.randn(40, 2048).to(dtype)
    kernels = kernels_of(level, dtype)
    out = kernels.linear(x, kernels.pack_linear(weight, None))
    assert_close(
        out, x.double() @ weight.double().T, absolute=20 * ABSOLUTE[dtype]
    )  # one of 12,000 sums exceeded 10 times


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
@pytest.mark.parametrize("scheme", [None, "int8", "int4"])
@pytest.mark.parametrize("width", [80, 75])
def test_a_large_product_has_the_bits_of_its_parts(level, scheme, width):
    """700 rows of 2048 are too many for the caches, and y is larger than 1 MiB with the larger layer: panels are then
    read in another order and lines written another way. One sum has one order all the same."""
    kernels = kernels_of(level, torch.bfloat16, threads=2)
    for rows, depth, wide in ((700, 2048, width), (700, 64, 10 * width)):
        x, weight = (values.bfloat16() for values in sums_of_rounding_errors(rows, wide, depth))
        bias = (torch.randn(wide) * 2**-20).bfloat16()
        packed = kernels.pack_linear(weight, bias) if scheme is None else kernels.quantise_linear(weight, bias, scheme)
        whole = kernels.linear(x, packed)
        for first in (0, 100, 600):
            assert torch.equal(kernels.linear(x[first : first + 100], packed), whole[first : first + 100])
    kernels_of(level, torch.bfloat16)


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
@DTYPES
@pytest.mark.parametrize("depth", [256, 2048])  # many rows of 2048 are copied, to be in different sets of the cache
def test_a_row_of_x_has_the_same_product_in_any_batch(level, dtype, depth):
    if level in ("amx", "emulated_amx") and dtype == torch.bfloat16:
        pytest.skip("a few rows are multiplied by vectors, more by tiles")
    if level == "portable" and dtype == torch.float32:
        pytest.skip("torch computes this product")
    x, weight = (values.to(dtype) for values in sums_of_rounding_errors(40, 80, 256))
    kernels = kernels_of(level, dtype)
    packed = kernels.pack_linear(weight, None)
    together = kernels.linear(x, packed)
    assert all(torch.equal(kernels.linear(x[row : row + 1], packed)[0], together[row]) for row in range(40))


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
@pytest.mark.parametrize("width", [80, 75])
def test_blocks_of_tiles_that_are_not_full_give_the_sums_of_full_ones(level, width):
    """The lower tiles of a block with 17 to 31 rows begin within the upper ones. Vectors multiply up to four rows."""
    x, weight = (values.bfloat16() for values in sums_of_rounding_errors(64, width, 256))
    kernels = kernels_of(level, torch.bfloat16)
    packed = kernels.pack_linear(weight, None)
    whole = kernels.linear(x, packed)
    for rows in range(5, 64):
        assert torch.equal(kernels.linear(x[:rows], packed), whole[:rows]), rows


@LEVELS
@pytest.mark.parametrize("depth", [1, 10, 33, 64])
def test_float32_weights_may_have_any_depth(level, depth):
    kernels = kernels_of(level, torch.float32)
    x, weight = torch.randn(3, depth), torch.randn(5, depth)
    packed = kernels.pack_linear(weight, None)
    assert packed.is_packed == (level not in ("torch", "portable"))
    assert_close(kernels.linear(x, packed), x.double() @ weight.double().T, absolute=ABSOLUTE[torch.float32])


@LEVELS
@pytest.mark.parametrize(("depth", "dtype"), [(10, torch.bfloat16), (64, torch.float16)])
def test_torch_computes_odd_depths_and_other_types(level, depth, dtype):
    kernels = kernels_of(level, torch.bfloat16)
    x, weight = torch.randn(3, depth).to(dtype), torch.randn(5, depth).to(dtype)
    packed = kernels.pack_linear(weight, None)
    assert not packed.is_packed
    assert torch.equal(kernels.linear(x, packed), torch.nn.functional.linear(x, weight))


@LEVELS
@DTYPES
@pytest.mark.parametrize("width", [1, 16, 50])
def test_rows_of_a_tied_embedding_are_unchanged(level, dtype, width):
    weight = torch.randn(width, 96).to(dtype)
    kernels = kernels_of(level, dtype)
    packed = kernels.pack_linear(weight, None)
    ids = torch.tensor([0, width - 1, width // 2, 0])
    assert torch.equal(kernels.embed(ids, packed), weight[ids])


@LEVELS
@pytest.mark.parametrize("token_id", [-1, 50])
def test_a_token_that_is_not_in_the_vocabulary_is_refused(level, token_id):
    kernels = kernels_of(level, torch.bfloat16)
    packed = kernels.pack_linear(torch.randn(50, 32).bfloat16(), None)
    with pytest.raises(IndexError):
        kernels.embed(torch.tensor([0, token_id]), packed)


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
def test_a_packed_weight_does_not_reference_its_source(level):
    weight = torch.randn(32, 64).bfloat16()
    packed = kernels_of(level, torch.bfloat16).pack_linear(weight, None)
    assert packed.is_packed
    assert packed.weight.data_ptr() != weight.data_ptr()
    assert packed.num_bytes < 1.1 * weight.nbytes
    with pytest.raises(ValueError, match=r"the layer takes rows of 64 elements"):
        kernels_of(level, torch.bfloat16).linear(torch.zeros(1, 32).bfloat16(), packed)
