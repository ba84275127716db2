"""The device's sampler, compared with the host's on the same parameters, and with a simple one in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from stoker.engine.api import SamplingParams
from stoker.engine.kernels import KernelSet, noise
from stoker.engine.sampling.sampler import Sampler
from stoker.engine.sampling.sampling_table import SamplingTable

pytest.importorskip("triton")

from tests.kernels.references import sampling_columns
from tests.slow_cases import slow

from stoker.engine.kernels.gpu.sample import sample, sampling_workspace
from stoker.engine.kernels.gpu.sample_row import SamplingColumns

LENGTH = 12  # of the longest sequence
NUM_PROMPT = 2


@dataclass
class Batch:
    table: SamplingTable
    columns: SamplingColumns
    tokens: np.ndarray  # [S, LENGTH] int32
    lengths: np.ndarray  # [S] int64
    logits: torch.Tensor  # [S, V] float32, the beginning of longer rows that end in NaN


def words(values: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int32)).to(device)


def batch_of(asked: list[SamplingParams], logits: torch.Tensor, seed: int = 0) -> Batch:
    """Sequences of random tokens with these parameters, one for each slot."""
    rng, device = np.random.default_rng(seed), logits.device
    num_slots, vocab_size = logits.shape
    table = SamplingTable(num_slots, vocab_size, eos_token_ids=(0,))
    tokens = rng.integers(0, vocab_size, (num_slots, LENGTH)).astype(np.int32)
    lengths = rng.integers(NUM_PROMPT, LENGTH + 1, num_slots)
    columns = sampling_columns(num_slots, vocab_size, device)
    for slot, params in enumerate(asked):
        table.admit(slot, params, int(rng.integers(2**63)), tokens[slot, : lengths[slot]].tolist(), NUM_PROMPT)
        ids, values = table.bias.get(slot, (np.zeros(0, np.int64), np.zeros(0, np.float32)))
        columns.bias[slot, torch.from_numpy(ids).to(device)] = torch.from_numpy(values).to(device)
        if lengths[slot] < table.end_allowed_at[slot]:
            columns.bias[slot, torch.from_numpy(table.ending_ids[slot]).to(device)] = -torch.inf
        if table.has_penalties[slot]:
            counts = table.counts[slot].astype(np.uint16)
            counts[tokens[slot, :NUM_PROMPT]] |= 0x8000
            columns.counts[slot] = torch.from_numpy(counts.view(np.int16)).to(device)
    columns.has_bias.copy_(words(table.has_bias | (lengths < table.end_allowed_at), device))
    columns.temperature.copy_(torch.from_numpy(np.where(table.is_greedy, np.float32(0), table.temperature)))
    seeds = words(table.seed.view(np.int32).reshape(-1, 2), device)
    columns.seed_low.copy_(seeds[:, 0])
    columns.seed_high.copy_(seeds[:, 1])
    for name in ("top_k", "top_p", "min_p", "repetition", "frequency", "presence", "has_penalties"):
        getattr(columns, name).copy_(torch.from_numpy(getattr(table, name)))
    longer = torch.full((num_slots, vocab_size + 5), torch.nan, device=device)
    longer[:, :vocab_size] = logits
    return Batch(table, columns, tokens, lengths, longer[:, :vocab_size])


def sampled_by(batch: Batch, block: int = 256, capacity: int = 512, *, is_fast_path: bool = False) -> list[int]:
    """Slots from the last to the first, and a padding row after every second one."""
    num_slots, vocab_size = batch.logits.shape
    slots = np.arange(num_slots)[::-1]
    rows = np.insert(slots, np.arange(2, num_slots, 2), -1)
    workspace = sampling_workspace(len(rows), vocab_size, batch.logits.device, block, capacity)
    workspace.counts.fill_(3)  # left by a previous step, with candidates that would be sampled
    workspace.candidates.fill_(0x7E000000 << 32)
    out = torch.full((len(rows),), 77, dtype=torch.int32, device=batch.logits.device)
    logits = torch.full((len(rows), vocab_size + 5), torch.nan, device=out.device)[:, :vocab_size]
    logits[torch.from_numpy(rows >= 0).to(out.device)] = batch.logits.flip(0)
    positions = words(batch.lengths[rows], out.device)
    sample(logits, words(rows, out.device), positions, batch.columns, out, workspace, is_fast_path=is_fast_path)
    found = out.cpu().numpy()
    assert (found[rows < 0] == -1).all()
    assert not workspace.tickets.any()
    return found[rows >= 0][::-1].tolist()


def expected_of(batch: Batch) -> list[int]:
    """The sampler of the host."""
    sampler = Sampler(batch.table, KernelSet())
    slots = np.arange(len(batch.logits), dtype=np.int32)
    found = sampler.sample(batch.logits.contiguous(), slots, batch.lengths, batch.tokens)
    return [-1 if row in found.errors else token for row, token in enumerate(found.token_ids.tolist())]


def in_float64(batch: Batch) -> list[int]:
    """Row by row, from the definition."""
    sampled = []
    table = batch.table
    for slot, row in enumerate(batch.logits.double().cpu().numpy()):
        values = np.where(np.isnan(row), -np.inf, row) + batch.columns.bias[slot].double().cpu().numpy()
        if table.has_penalties[slot]:
            seen = batch.tokens[slot, : batch.lengths[slot]]
            scaled = np.where(values > 0, values / table.repetition[slot], values * table.repetition[slot])
            scaled -= table.frequency[slot] * table.counts[slot] + table.presence[slot] * (table.counts[slot] > 0)
            values[seen] = scaled[seen]
        order = np.argsort(-values, kind="stable")
        best = values[order[0]]
        if table.is_greedy[slot] or best == -np.inf:
            sampled.append(int(order[0]) if best > -np.inf else -1)
            continue
        logarithms = (values[order] - best) / float(table.temperature[slot])
        weights = np.exp(logarithms)
        weights[weights < table.min_p[slot]] = 0
        if table.top_k[slot]:
            weights[table.top_k[slot] :] = 0
        if table.top_p[slot] < 1:
            before = np.cumsum(weights) - weights
            weights[(before >= table.top_p[slot] * weights.sum()) & (before > 0)] = 0
        keys = noise.row_keys(table.seed[slot : slot + 1], batch.lengths[slot : slot + 1])
        exponential = noise.exponential_noise(keys, torch.from_numpy(order)[None])[0].double().numpy()
        scores = np.where(weights > 0, logarithms - np.log(exponential), -np.inf)
        sampled.append(int(order[scores.argmax()]))
    return sampled


def random_params(rng: np.random.Generator, vocab_size: int) -> SamplingParams:
    def one_of(share: float, *values: float) -> float:
        """The first value switches the parameter off."""
        return values[0] if rng.random() > share else values[int(rng.integers(1, len(values)))]

    bias = {int(rng.integers(vocab_size)): float(rng.normal() * 5) for _ in range(4)}
    return SamplingParams(
        temperature=one_of(0.85, 0.0, 0.01, 0.6, 0.8, 1.0, 1.7, 50.0),
        top_k=int(one_of(0.4, 0, 1, 2, 5, 20, vocab_size // 2 + 1, max(1, vocab_size - 1), vocab_size)),
        top_p=one_of(0.4, 1.0, 1e-6, 0.1, 0.5, 0.95, 0.9999),
        min_p=one_of(0.3, 0.0, 1e-4, 0.05, 0.3, 1.0),
        repetition_penalty=one_of(0.3, 1.0, 1.3, 0.7),
        frequency_penalty=one_of(0.3, 0.0, 0.5, -0.5),
        presence_penalty=one_of(0.3, 0.0, 0.7, -0.7),
        logit_bias=bias if rng.random() < 0.3 else {},
        min_tokens=int(one_of(0.3, 0, 5)),
    )


def random_batch(rows: int, vocab_size: int, seed: int, device: torch.device) -> Batch:
    """Some rows are flat, where every cut has an effect, and some as peaked as those of language."""
    rng = np.random.default_rng(seed)
    spread = rng.choice([0.3, 1.0, 3.0], (rows, 1))
    logits = torch.from_numpy(rng.normal(size=(rows, vocab_size)) * spread).float().to(device)
    logits[::2] = (logits[::2] * 2).round() / 2  # equal logits, which are common in bfloat16
    logits[1::7, :: vocab_size // 3 + 1] = -torch.inf
    return batch_of([random_params(rng, vocab_size) for _ in range(rows)], logits, seed)


@pytest.mark.parametrize(
    ("rows", "vocab_size", "block", "capacity"),
    [(6, 1, 64, 64), slow(36, 7, 64, 64), slow(30, 190, 64, 20), slow(36, 1000, 512, 3), slow(24, 2051, 4096, 4096)],
)
def test_tokens_are_those_of_the_hosts_sampler(device, rows, vocab_size, block, capacity):
    batch = random_batch(rows, vocab_size, rows + capacity, device)
    found = sampled_by(batch, block, capacity)
    assert found == in_float64(batch)
    assert found == expected_of(batch)


CUTS = [
    {"top_k": 1}, {"top_k": 5}, {"top_k": 60}, {"top_p": 0.05}, {"top_p": 0.3}, {"top_p": 0.6}, {"min_p": 0.7},
    {"top_k": 40, "top_p": 0.4}, {"top_p": 0.5, "min_p": 0.5}, {"top_k": 30, "min_p": 0.6, "top_p": 0.9},
]  # fmt: skip


@pytest.mark.slow
def test_cuts_change_tokens_where_logits_are_flat(device):
    """A sampler that keeps too many tokens soon samples one of those."""
    asked = [SamplingParams(temperature=1.0, **each) for each in CUTS for _ in range(2)]
    batch = batch_of(asked, torch.randn(len(asked), 500, device=device) * 0.5)
    expected = in_float64(batch)
    assert sampled_by(batch, 256, 500) == expected
    assert sampled_by(batch, 256, 3) == expected


def test_the_fast_path_samples_what_the_full_sampler_does(device):
    asked = [SamplingParams(temperature=each) for each in (0.0, 1e-3, 0.5, 1.0, 30.0) * 2]
    batch = batch_of(asked, torch.randn(10, 600, device=device))
    assert sampled_by(batch, is_fast_path=True) == sampled_by(batch) == expected_of(batch)


ALL_KINDS = [{}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 4, "top_p": 0.7, "min_p": 0.1}]


@pytest.mark.slow
def test_rows_without_valid_logits_give_no_token(device):
    for temperature in (0.0, 1.0):
        asked = [SamplingParams(temperature=temperature, **each) for each in ALL_KINDS]
        for value in (torch.nan, -torch.inf):
            assert sampled_by(batch_of(asked, torch.full((5, 300), value, device=device))) == [-1] * 5
        for value in (torch.nan, -torch.inf):
            logits = torch.full((5, 300), value, device=device)
            logits[:, 270] = -5
            assert sampled_by(batch_of(asked, logits)) == [270] * 5
        logits = torch.full((5, 300), 1.0, device=device)
        logits[:, 280] = torch.inf
        assert sampled_by(batch_of(asked, logits)) == [280] * 5


@pytest.mark.slow
def test_of_equal_logits_the_first_are_kept(device):
    kinds = [{"top_k": 5}, {"top_p": 0.01}, {"top_k": 10, "top_p": 0.5}]
    asked = [SamplingParams(temperature=1.0, **kind) for kind in kinds for _ in range(2)]
    logits = torch.zeros(len(asked), 400, device=device)
    logits[:, 200:] = -0.0
    for capacity in (1000, 4):
        batch = batch_of(asked, logits)
        found = sampled_by(batch, 512, capacity)
        assert found == expected_of(batch)
        for begin, kept in ((0, 5), (2, 4), (4, 5)):
            assert max(found[begin : begin + 2]) < kept


@pytest.mark.parametrize("temperature", [slow(2e-5), slow(1e-3), slow(1e8)])
def test_extreme_temperatures(device, temperature):
    """At 2e-5, logit / temperature is so large that adding the noise to it would not change it."""
    asked = [SamplingParams(temperature=temperature, **each) for each in ALL_KINDS * 2]
    logits = torch.randn(10, 300, device=device)
    logits[:, 7] = logits[:, 250] = 900.0
    batch = batch_of(asked, logits)
    assert sampled_by(batch) == sampled_by(batch, capacity=1) == in_float64(batch)


@pytest.mark.slow
def test_a_row_does_not_depend_on_the_others(device):
    batch = random_batch(10, 500, 5, device)
    together = sampled_by(batch)
    workspace = sampling_workspace(1, 500, device, 256, 512)
    for slot in range(10):
        out = torch.zeros(1, dtype=torch.int32, device=device)
        row, position = words(np.array([slot]), device), words(batch.lengths[slot : slot + 1], device)
        sample(batch.logits[slot : slot + 1], row, position, batch.columns, out, workspace, is_fast_path=False)
        assert out.tolist() == together[slot : slot + 1]


def test_there_are_few_candidates(device):
    """Ranked rows are fast because their lists of candidates are short."""
    kinds = [{"top_k": 5}, {"top_k": 1}, {"top_p": 0.9}, {"top_k": 20, "top_p": 0.95}, {"top_p": 0.9, "min_p": 0.05}]
    asked = [SamplingParams(temperature=1.0, **each) for each in kinds]
    batch = batch_of(asked, torch.randn(5, 4000, device=device) * 5)
    workspace = sampling_workspace(5, 4000, device, 1024, 4096)
    out, slots = torch.zeros(5, dtype=torch.int32, device=device), words(np.arange(5), device)
    sample(batch.logits, slots, slots, batch.columns, out, workspace, is_fast_path=False)
    limits = zip(workspace.counts.tolist(), (5, 1, 2, 20, 2), (7, 1, 60, 30, 40), strict=True)
    assert all(least <= found <= most for found, least, most in limits)


@pytest.mark.slow
def test_samples_have_the_probabilities_of_the_softmax(device):
    rows, values = 200, np.array([1.0, 0.0, 2.0, -1.0, 1.5])
    logits = torch.from_numpy(values).float().to(device).expand(rows, 5)
    found = np.bincount(sampled_by(batch_of([SamplingParams(temperature=0.8)] * rows, logits), 64, is_fast_path=True))
    expected = rows * np.exp(values / 0.8) / np.exp(values / 0.8).sum()
    assert ((found - expected) ** 2 / expected).sum() < 18.5  # 0.1 % of four degrees of freedom
