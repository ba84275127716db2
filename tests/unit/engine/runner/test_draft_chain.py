"""Chains of drafts: the captured ones compute what the others do, and are not kept without a bound."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from tests.unit.engine.kernels.levels import BEST, kernels_of

from stoker.engine.kernels import KernelSet
from stoker.engine.kernels.noise import row_keys
from stoker.engine.kernels.sample_among import Choice
from stoker.engine.layers.step_input import StepInput
from stoker.engine.runner import draft_chain
from stoker.engine.runner.draft_chain import Computed, DraftChain, Links

VOCABULARY, WIDTH, MAX_ROWS, MAX_LEN, BLOCK = 40, 16, 4, 64, 8


@pytest.fixture(scope="module")
def kernels() -> KernelSet:
    found = kernels_of(BEST, torch.float32)
    if found.capture is None:
        pytest.skip("without a C++ compiler nothing is captured")
    return found


def chain(kernels: KernelSet, *, is_captured: bool) -> DraftChain:
    """A network of an embedding, to which its features are added, and of an output layer."""
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(2 * VOCABULARY, WIDTH, generator=generator)
    output = kernels.pack_linear(torch.randn(VOCABULARY, WIDTH, generator=generator), None)
    embedding = kernels.pack_linear(table, None)

    def compute(views: Sequence[StepInput], features: torch.Tensor | None) -> Computed:
        assert features is not None
        hidden = kernels.add_scaled(kernels.embed(views[0].token_ids, embedding), features)
        return Computed(kernels.linear(hidden, output), hidden)

    tables = torch.zeros(1, MAX_ROWS, MAX_LEN // BLOCK, dtype=torch.int32)
    token_ids = torch.arange(0, 2 * VOCABULARY, 2, dtype=torch.int32)
    capture = kernels.capture if is_captured else None
    return DraftChain(compute, kernels.sample_among, token_ids, capture, MAX_ROWS, tables, MAX_LEN)


def links(length: int, rows: int, seed: int) -> Links:
    generator = torch.Generator().manual_seed(seed)
    positions = torch.arange(length)[:, None] + torch.arange(rows)
    step = StepInput(
        token_ids=torch.randint(0, 2 * VOCABULARY, (rows,), generator=generator),
        positions=positions,
        slot_mapping=positions.clone(),
        query_start=torch.arange(rows + 1, dtype=torch.int32),
        context_lens=(positions + 1).to(torch.int32),
        block_tables=torch.zeros(rows, 3, dtype=torch.int32),
        max_query_len=1,
        max_context_len=length + rows,
        seq_slots=torch.arange(rows, dtype=torch.int32),
    )
    temperature = torch.linspace(0.0, 1.5, rows)
    choice = Choice(temperature, torch.zeros(rows), torch.full((rows,), 0.9), torch.full((rows,), 7, dtype=torch.int32))
    seeds = np.full(length * rows, seed, np.uint64)
    keys = row_keys(seeds, positions.reshape(-1).numpy()).view(length, rows, 2)
    return Links((step,), torch.randn(rows, WIDTH, generator=generator), choice, keys)


def test_captured_chains_draft_what_the_others_do(kernels: KernelSet):
    captured, plain = chain(kernels, is_captured=True), chain(kernels, is_captured=False)
    for seed, (length, rows) in enumerate([(1, 1), (5, 1), (5, 4), (2, 3), (5, 1), (1, 1), (5, 4), (3, 6)]):
        own = links(length, rows, seed)
        found, expected = captured.draft(own), plain.draft(own)
        assert found.token_ids.tolist() == expected.token_ids.tolist()
        assert found.features is not None
        torch.testing.assert_close(found.features, expected.features, rtol=0, atol=0)
    assert captured.num_captures == 4  # six rows are too many
    assert plain.num_captures == 0


def test_captured_steps_have_a_limit(kernels: KernelSet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(draft_chain, "_MAX_STEPS", 8)
    captured, plain = chain(kernels, is_captured=True), chain(kernels, is_captured=False)
    for seed, length in enumerate([3, 4, 3, 5, 3, 4]):  # five makes four leave: three was used after it
        own = links(length, 1, seed)
        assert captured.draft(own).token_ids.tolist() == plain.draft(own).token_ids.tolist()
    assert captured.num_captures == 4
