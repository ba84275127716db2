"""Hashes of the parts of a step plan, by which ranks that plan the same steps see whether they do."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import numpy as np

from ..core import StepPlan
from ..rank_link import Operation

_HASH_BYTES = 8
PARTS = (  # causes before their effects
    "prompts of the sequences that begin",
    "sampling parameters of the sequences that begin",
    "sequences that end",
    "sequences that compute",
    "tokens to compute",
    "forced tokens",
    "KV blocks",
    "recurrent states",
)


def operation_of(plan: StepPlan) -> Operation:
    begins = plan.admissions
    parts: tuple[Iterable[Any], ...] = (
        [each for begun in begins for each in (begun.num_prompt_tokens, begun.token_ids)],
        [repr((begun.sampling, begun.seed)).encode() for begun in begins],
        [plan.released_slots],
        [[begun.slot for begun in begins], plan.slots],
        [plan.num_computed, plan.num_tokens, plan.is_sampled],
        [each for slot, tokens in plan.forced for each in (slot, tokens)],
        [plan.block_slots, plan.block_ids, *(blocks for begun in begins for blocks in begun.block_ids)],
        [plan.restored_states, plan.kept_states],
    )
    hashes = b"".join(map(_hash, parts))
    return Operation(f"step {plan.step}", hashes, f"{len(begins)} of {plan.num_rows} sequences begin")


def difference(own: Operation, other: Operation) -> str:
    """How an operation of this rank differs from that of rank 0, by the first cause; empty if it does not."""
    if own == other:
        return ""
    if own.name != other.name:
        return f"it begins {own.name}, and rank 0 {other.name}"
    slices = (slice(at, at + _HASH_BYTES) for at in range(0, len(own.hashes), _HASH_BYTES))
    first = next(name for name, at in zip(PARTS, slices, strict=True) if own.hashes[at] != other.hashes[at])
    return f"{first} differ in {own.name}: {own.size}, on rank 0 {other.size}"


def _hash(values: Iterable[Any]) -> bytes:
    """Of arrays, lists of integers, integers and bytes, each with its length."""
    digest = blake2b(digest_size=_HASH_BYTES)
    for value in values:
        data = value if isinstance(value, bytes) else np.asarray(value, np.int64).tobytes()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()
