"""The exchanges of GPUs, with a group of one: what they compute, and that a captured step can contain them."""

from __future__ import annotations

import pytest
import torch

from stoker.engine.collectives.connect import ADDRESS, open_store
from stoker.engine.collectives.gloo import Meeting
from stoker.engine.collectives.nccl import NcclRanks
from stoker.engine.kernels.gpu.cuda_graph import cuda_graph_capture

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def test_a_captured_step_contains_the_exchanges():
    store, port = open_store(ADDRESS)
    ranks = NcclRanks(Meeting(ADDRESS, port, ADDRESS, "a"), 0, 1, torch.device("cuda", 0), timeout_s=120)
    ranks.join()
    assert "NCCL" in ranks.table["exchange"]
    x, tokens = torch.ones(2, 3, device="cuda"), torch.tensor([4, 5], dtype=torch.int32, device="cuda")
    ids = torch.tensor([1, 0], device="cuda")

    def step() -> torch.Tensor:
        ranks.from_rank(tokens, 0)
        rows = ranks.rows_of_owners(x[ranks.own_rows(ids, 2)], ids, 2)
        return ranks.gather(ranks.sum(rows + tokens[:, None]), 2)

    graph = cuda_graph_capture()(step)
    x[0], x[1] = 10, 20
    tokens.fill_(1)
    graph.replay()
    assert graph.output.tolist() == [[21, 21], [11, 11]]
    ranks.close()
    del store
