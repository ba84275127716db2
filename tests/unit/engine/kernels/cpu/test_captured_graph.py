"""Captured graphs: what was computed op by op is computed again by one native call, with the same result."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from tests.unit.engine.kernels.levels import LEVEL_NAMES, kernels_of

from stoker.engine.kernels import KernelSet
from stoker.engine.kernels.capture import NotCapturable, TooLarge
from stoker.engine.kernels.cpu import captured_graph
from stoker.engine.kernels.cpu.arena import Arena

LEVELS = [name for name in LEVEL_NAMES if name != "torch"]
pytestmark = pytest.mark.skipif(not LEVELS, reason="no compiler")
WIDTH, INNER, VOCAB = 64, 96, 50
REVERSED = torch.tensor([1, 0])


def network(kernels: KernelSet, dtype: torch.dtype, token_ids: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Two gated layers between an embedding and an output layer."""
    generator = torch.Generator().manual_seed(0)

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).mul_(0.2).to(dtype)

    table, norm, output = weight(VOCAB, WIDTH), weight(WIDTH).float(), kernels.pack_linear(weight(VOCAB, WIDTH), None)
    layers = [
        (kernels.pack_linear(weight(2 * INNER, WIDTH), None), kernels.pack_linear(weight(WIDTH, INNER), weight(WIDTH)))
        for _ in range(2)
    ]

    def compute() -> torch.Tensor:
        hidden, residual = kernels.copy_rows(table, token_ids), None
        for gate_up, down in layers:
            hidden, residual = kernels.add_rms_norm(hidden, residual, norm, 1e-6)
            hidden = kernels.linear(kernels.activate_and_mul(kernels.linear(hidden, gate_up)), down)
        return kernels.linear(kernels.add_rms_norm(hidden, residual, norm, 1e-6)[0], output)

    return compute


def multiplies(level: str, dtype: torch.dtype) -> bool:
    return level != "portable" or dtype == torch.bfloat16


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("rows", [1, 7, 100])
def test_a_replay_computes_what_the_ops_compute(level: str, dtype: torch.dtype, threads: int, rows: int):
    if not multiplies(level, dtype):
        pytest.skip("torch multiplies")
    kernels = kernels_of(level, dtype, threads=threads)
    assert kernels.capture is not None
    token_ids = torch.arange(rows) % VOCAB
    compute = network(kernels, dtype, token_ids)
    expected = compute()
    with torch.inference_mode():
        captured = kernels.capture(compute)
    torch.testing.assert_close(captured.output, expected, rtol=0, atol=0)
    for turn in range(3):
        token_ids.copy_((torch.arange(rows) * 7 + turn) % VOCAB)
        captured.replay()
        torch.testing.assert_close(captured.output, compute(), rtol=0, atol=0)


def test_graphs_share_their_memory_and_layers_their_buffers():
    kernels = kernels_of(LEVELS[0], torch.bfloat16)
    assert kernels.capture is not None
    token_ids = torch.tensor([3])
    compute = network(kernels, torch.bfloat16, token_ids)
    first, second = kernels.capture(compute), kernels.capture(compute)
    assert first.output.data_ptr() == second.output.data_ptr()
    for captured in (second, first, second):
        captured.output.zero_()
        captured.replay()
        torch.testing.assert_close(captured.output, compute(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda logits: logits + 1, "torch's add cannot be replayed"),
        (lambda logits: logits.t().contiguous(), "torch's contiguous cannot be replayed"),
        (lambda logits: logits[REVERSED], "torch's __getitem__ cannot be replayed"),
        (lambda logits: logits.new_zeros(2), "torch's new_zeros cannot be replayed"),
    ],
)
def test_what_torch_computes_cannot_be_captured(change: Callable[[torch.Tensor], torch.Tensor], reason: str):
    kernels = kernels_of(LEVELS[0], torch.bfloat16)
    assert kernels.capture is not None
    compute = network(kernels, torch.bfloat16, torch.tensor([3, 4]))
    with torch.inference_mode(), pytest.raises(NotCapturable) as raised:
        kernels.capture(lambda: change(compute()))
    assert str(raised.value) == reason


def test_a_step_that_is_too_large_has_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch):
    """Smaller ones can be captured after it, by the same Capture."""
    monkeypatch.setattr(captured_graph, "Arena", partial(Arena, 1 << 12))
    kernels = kernels_of(LEVELS[0], torch.bfloat16)
    assert kernels.capture is not None
    large, small = (network(kernels, torch.bfloat16, torch.arange(rows) % VOCAB) for rows in (100, 2))
    with torch.inference_mode():
        with pytest.raises(TooLarge, match="activations larger than the arena cannot be replayed") as raised:
            kernels.capture(large)
        torch.testing.assert_close(raised.value.output, large(), rtol=0, atol=0)
        torch.testing.assert_close(kernels.capture(small).output, small(), rtol=0, atol=0)


def test_a_replay_does_not_write_to_large_results_of_later_ops():
    """Large results come from memory that is kept and used again; the output of a graph must not be part of it."""
    kernels = kernels_of(LEVELS[0], torch.bfloat16)
    assert kernels.capture is not None
    rows = torch.arange(100)
    large = torch.randn(100, 1 << 14).bfloat16()  # 3 MB
    captured = kernels.capture(lambda: kernels.activate_and_mul(kernels.copy_rows(large, rows)))
    later = kernels.copy_rows(large, rows)
    rows.fill_(0)
    captured.replay()
    assert torch.equal(later, large)
    assert torch.equal(captured.output, kernels.activate_and_mul(large[:1]).expand(100, -1))


def test_views_can_be_captured():
    kernels = kernels_of(LEVELS[0], torch.bfloat16)
    assert kernels.capture is not None
    token_ids = torch.tensor([3, 4])
    compute = network(kernels, torch.bfloat16, token_ids)
    with torch.inference_mode():
        captured = kernels.capture(lambda: compute().view(-1)[:7].contiguous())
    token_ids[0] = 5
    captured.replay()
    torch.testing.assert_close(captured.output, compute().view(-1)[:7], rtol=0, atol=0)


def test_an_op_without_a_replay_function_cannot_be_captured():
    kernels = kernels_of(LEVELS[0], torch.bfloat16)
    assert kernels.capture is not None
    compute = network(kernels, torch.bfloat16, torch.tensor([3]))
    with pytest.raises(NotCapturable, match="top_tokens_bfloat16 cannot be replayed"):
        kernels.capture(lambda: kernels.top_tokens(compute(), 2)[0])


def test_a_call_that_fails_ends_that_replay_and_no_later_one():
    kernels = kernels_of(LEVELS[0], torch.bfloat16, threads=2)
    assert kernels.capture is not None
    token_ids = torch.tensor([3, 4])
    compute = network(kernels, torch.bfloat16, token_ids)
    captured = kernels.capture(compute)
    token_ids[1] = VOCAB
    with pytest.raises(RuntimeError, match="copy_rows failed in a captured graph"):
        captured.replay()
    token_ids[1] = 4
    captured.replay()
    torch.testing.assert_close(captured.output, compute(), rtol=0, atol=0)


def test_after_a_capture_that_raises_the_next_one_succeeds():
    kernels = kernels_of(LEVELS[0], torch.bfloat16)
    assert kernels.capture is not None
    compute = network(kernels, torch.bfloat16, torch.tensor([VOCAB]))
    with pytest.raises(IndexError, match=r"a row is not in \[0, 50\)"):
        kernels.capture(compute)
    token_ids = torch.tensor([1])
    compute = network(kernels, torch.bfloat16, token_ids)
    again = kernels.capture(compute)
    token_ids[0] = 2
    again.replay()
    torch.testing.assert_close(again.output, compute(), rtol=0, atol=0)


FEWER = f"""
import torch
from tests.unit.engine.kernels.cpu.test_captured_graph import network
from tests.unit.engine.kernels.levels import kernels_of
kernels = kernels_of({LEVELS[0] if LEVELS else ""!r}, torch.bfloat16, threads=4)
compute = network(kernels, torch.bfloat16, torch.arange(40))
captured = kernels.capture(compute)
captured.output.zero_()
captured.replay()
assert torch.equal(captured.output, compute())
"""


@pytest.mark.slow
def test_a_runtime_that_starts_fewer_threads_than_asked_for_gives_the_same_result():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_THREAD_LIMIT": "2"}
    subprocess.run([sys.executable, "-c", FEWER], env=environment, check=True)
