from __future__ import annotations

import pytest
import torch

from stoker.engine.kernels.gpu.latent_attention import latent_attention_gpu
from stoker.engine.kernels.gpu.store_latents import store_latents_gpu
from stoker.engine.kernels.latent_attention import latent_attention_reference
from stoker.engine.kernels.store_latents import store_latents_reference

from .batches import LIMITS, Batch, batch

RANK, TURNED, EXTRA, SCALE = 24, 8, 16, 0.3
ROWS = [(1, 70), (5, 40), (0, 0), (1, 1), (3, 3), (1, 33)]


def latents(rows: list[tuple[int, int]], num_heads: int, device: torch.device) -> tuple[Batch, torch.Tensor]:
    """A step, and a cache whose tokens end with elements that are not read: NaN."""
    made = batch(rows, device=device, dtype=torch.float32, num_heads=num_heads, num_kv_heads=1, head_dim=RANK + TURNED)
    extra = torch.full((*made.k_cache.shape[:3], EXTRA), torch.nan, device=device)
    return made, torch.cat((made.k_cache, extra), dim=3)


@pytest.mark.parametrize(("programs", "num_heads"), [(1, 40), (64, 3), (200, 3)])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.quick_cases(2)
def test_queries_attend_to_latents(device: torch.device, num_heads: int, programs: int, has_sinks: bool):
    """programs: by them the keys of a query are divided or not."""
    made, cache = latents(ROWS, num_heads, device)
    sinks = torch.randn(num_heads, device=device) * 3 if has_sinks else None
    found = latent_attention_gpu(made.q, cache, made, SCALE, RANK, programs, sinks)
    expected = latent_attention_reference(made.q, cache, made, SCALE, RANK, sinks)
    torch.testing.assert_close(found, expected, atol=LIMITS[torch.float32], rtol=LIMITS[torch.float32])


@pytest.mark.parametrize("programs", [1, 200])
@pytest.mark.parametrize("window", [1, 20, 64])
@pytest.mark.quick_cases(2)
def test_queries_attend_to_their_windows(device: torch.device, programs: int, window: int):
    """Tokens before the windows of a row are not read: their blocks may belong to another row."""
    made, cache = latents(ROWS, 3, device)
    for row, (queries, context) in enumerate(ROWS):
        for token in range(max(0, context - queries - window + 1)):
            block = made.block_tables[row, token // cache.shape[2]]
            cache[block, 0, token % cache.shape[2]] = torch.nan
    found = latent_attention_gpu(made.q, cache, made, SCALE, RANK, programs, None, window)
    expected = latent_attention_reference(made.q, cache, made, SCALE, RANK, None, window)
    torch.testing.assert_close(found, expected, atol=LIMITS[torch.float32], rtol=LIMITS[torch.float32])


@pytest.mark.slow
def test_tokens_after_the_last_row_see_nothing(device: torch.device):
    """A captured step has tokens for the largest batch."""
    made, cache = latents([(1, 20), (1, 7)], 4, device)
    padded = torch.cat((made.q, made.q))
    for programs in (1, 64):
        found = latent_attention_gpu(padded, cache, made, SCALE, RANK, programs)
        assert not found[2:].any()
        assert not found[:2].isnan().any()


@pytest.mark.parametrize("is_interleaved", [True, False])
@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize("has_key_norm", [True, False])
def test_latents_are_normed_rotated_and_stored(
    device: torch.device, is_interleaved: bool, has_norm: bool, has_key_norm: bool
):
    tokens, queries = 4, 20
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    projected, q_norm = normal(tokens, queries + RANK + TURNED + 3), normal(queries) if has_norm else None
    kv_norm, cos_sin = normal(RANK), normal(30, TURNED)
    key_norm = normal(TURNED) if has_key_norm else None
    positions, slots = (torch.tensor(each, device=device) for each in ([3, 0, 29, 5], [17, 3, -1, 0]))
    # with a block before the cache, where slot -1 would be
    wholes = [torch.full((3, 1, 16, RANK + TURNED + EXTRA), 9.0, device=device) for _ in range(2)]
    caches = [whole[1:] for whole in wholes]
    arguments = projected, q_norm, kv_norm, 0.1, cos_sin, is_interleaved
    found = store_latents_gpu(*arguments, positions, slots, caches[0], queries, key_norm)
    expected = store_latents_reference(*arguments, positions, slots, caches[1], queries, key_norm)
    caches[1][-1, 0, -1] = 9.0  # the reference does not know slot -1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(wholes[0], wholes[1], atol=1e-5, rtol=1e-5)
