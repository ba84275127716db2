"""What kernels are compared with, written plainly in torch."""

from __future__ import annotations

import torch

from stoker.engine.kernels.allow_tokens import allow_tokens_reference
from stoker.engine.kernels.attention_variant import PLAIN, AttentionVariant
from stoker.engine.kernels.gpu.finish_step import MOST
from stoker.engine.kernels.gpu.prepare_step import StepRows, StepTensors
from stoker.engine.kernels.gpu.sample_row import SamplingColumns
from stoker.engine.kernels.paged_attention import AttentionStep


def attention_reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    step: AttentionStep,
    scale: float,
    variant: AttentionVariant = PLAIN,
) -> torch.Tensor:
    """Computes paged_attention_reference with every variant. Returns [T, num_heads * D] float64."""
    num_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = k_cache.shape
    group = num_heads // num_kv_heads
    out = torch.zeros(num_tokens, num_heads, head_dim, dtype=torch.float64, device=q.device)
    starts = step.query_start.tolist()
    for row, length in enumerate(step.context_lens.tolist()):
        start, end = starts[row], starts[row + 1]
        if start == end:
            continue
        blocks = step.block_tables[row, : -(-length // block_size)].long()
        keys, values = (
            cache[blocks].double().transpose(1, 2).flatten(0, 1)[:length].repeat_interleave(group, 1) * factor
            for cache, factor in ((k_cache, variant.k_scale), (v_cache, variant.v_scale))
        )
        scores = torch.einsum("qhd,khd->hqk", q[start:end].double(), keys) * scale
        if variant.softcap is not None:
            scores = variant.softcap * torch.tanh(scores / variant.softcap)
        key_positions = torch.arange(length, device=q.device)
        positions = torch.arange(length - (end - start), length, device=q.device)[:, None]
        distance = key_positions - positions
        if variant.slopes is not None:
            scores = scores + variant.slopes.double()[:, None, None] * distance
        is_hidden = distance > 0
        if variant.window is not None and variant.is_chunked:
            is_hidden |= key_positions // variant.window != positions // variant.window
        elif variant.window is not None:
            is_hidden |= distance <= -variant.window
        scores = scores.masked_fill(is_hidden, -torch.inf)
        if variant.sinks is not None:
            sinks = variant.sinks.double()[:, None, None].expand(-1, end - start, 1)
            weights = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        out[start:end] = torch.einsum("hqk,khd->qhd", weights, values)
    return out.flatten(1)


def sampling_columns(num_slots: int, vocab_size: int, device: torch.device | str) -> SamplingColumns:
    """Columns of slots that are all greedy, with everything else off."""

    def floats(value: float) -> torch.Tensor:
        return torch.full((num_slots,), value, dtype=torch.float32, device=device)

    def words() -> torch.Tensor:
        return torch.zeros(num_slots, dtype=torch.int32, device=device)

    return SamplingColumns(
        temperature=floats(0),
        top_k=words(),
        top_p=floats(1),
        min_p=floats(0),
        seed_low=words(),
        seed_high=words(),
        repetition=floats(1),
        frequency=floats(0),
        presence=floats(0),
        has_bias=words(),
        has_penalties=words(),
        bias=torch.zeros(num_slots, vocab_size, device=device),
        counts=torch.zeros(num_slots, vocab_size, dtype=torch.int16, device=device),
    )


def prepare_step_reference(
    rows: StepRows, token_table: torch.Tensor, block_table: torch.Tensor, block_size: int, out: StepTensors
) -> None:
    out.token_ids.zero_()
    out.positions.zero_()
    out.slot_mapping.fill_(-1)
    out.context_lens.zero_()
    out.last_tokens.fill_(-1)
    starts = rows.query_start.tolist()
    for row, (slot, computed) in enumerate(zip(rows.slots.tolist(), rows.num_computed.tolist(), strict=True)):
        start, end = starts[row], starts[row + 1]
        if slot < 0:
            continue
        positions = torch.arange(computed, computed + end - start, device=out.positions.device)
        held = -(-(computed + end - start) // block_size)
        blocks = block_table[slot, positions // block_size].long()
        out.token_ids[start:end] = token_table[slot, positions].long()
        out.positions[start:end] = positions
        out.slot_mapping[start:end] = blocks * block_size + positions % block_size
        out.context_lens[row] = computed + end - start
        out.block_tables[row, :held] = block_table[slot, :held]
        if end > start:
            out.last_tokens[row] = end - 1


def finish_step_reference(
    token_ids: torch.Tensor,
    slots: torch.Tensor,
    context_lens: torch.Tensor,
    is_sampled: torch.Tensor,
    token_table: torch.Tensor,
    has_penalties: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    for row in ((slots >= 0) & (is_sampled != 0)).nonzero()[:, 0].tolist():
        slot, token = int(slots[row]), max(int(token_ids[row]), 0)
        token_table[slot, int(context_lens[row])] = token
        if has_penalties[slot] and int(counts[slot, token]) & MOST < MOST:
            counts[slot, token] += 1


def allowed_rows_reference(logits: torch.Tensor, rows: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    found = logits[rows.long()]
    allow_tokens_reference(found, torch.arange(len(rows)), masks)
    return found
