"""Attention over chosen tokens, compared with its reference."""

from __future__ import annotations

import pytest
import torch

from stoker.engine.kernels.block_index import sparse_attention_reference

pytest.importorskip("triton")
from stoker.engine.kernels.gpu.sparse_attention import sparse_attention_gpu

from .batches import ALL_DTYPES, LIMITS, Batch, batch

ROWS = [(1, 70), (5, 40), (0, 0), (1, 1), (3, 3), (1, 33)]


def chosen_of(made: Batch, count: int) -> torch.Tensor:
    """Some tokens of the context of each query, in any order, with gaps; the newest always."""
    rows = []
    for queries, context in ROWS:
        for query in range(queries):
            seen = context - queries + query + 1
            row = torch.full((count,), -1)
            order = torch.randperm(seen)[: count - 1]
            row[torch.randperm(count - 1)[: len(order)]] = order
            row[-1] = seen - 1 if seen - 1 not in order.tolist() else -1
            rows.append(row)
    return torch.stack(rows).to(made.q.device)


@ALL_DTYPES
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(6, 2, 24), (4, 1, 64)])
@pytest.mark.parametrize("count", [40, 9])
def test_queries_attend_to_chosen_tokens(device, dtype, num_heads, num_kv_heads, head_dim, count):
    sizes = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    made = batch(ROWS, device=device, dtype=dtype, **sizes)
    arguments = chosen_of(made, count), made.k_cache, made.v_cache, made, 0.3
    found = sparse_attention_gpu(made.q, *arguments)
    expected = sparse_attention_reference(made.q, *arguments)
    torch.testing.assert_close(found, expected, atol=LIMITS[dtype], rtol=LIMITS[dtype])


def test_queries_after_the_last_row_see_nothing(device):
    made = batch(ROWS, device=device, dtype=torch.float32, num_heads=2, num_kv_heads=1, head_dim=16)
    chosen = chosen_of(made, 9)
    padded, more = torch.cat((made.q, made.q)), torch.cat((chosen, chosen))
    found = sparse_attention_gpu(padded, more, made.k_cache, made.v_cache, made, 0.3)
    assert not found[len(chosen) :].any()
    assert found[: len(chosen)].isfinite().all()


def test_other_shapes_are_refused(device):
    made = batch(ROWS, device=device, dtype=torch.float32, num_heads=3, num_kv_heads=2, head_dim=16)
    with pytest.raises(ValueError, match="chosen"):
        sparse_attention_gpu(made.q, made.q[:, 0, :4].long(), made.k_cache, made.v_cache, made, 0.3)
