"""Hashes of the parts of a step plan, by which ranks that plan the same steps see whether they do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from stoker.engine.api import InvalidRequest, RequestInputs, SamplingParams
from stoker.engine.step import StepPlan
from stoker.engine.transport.rank_messages import Operation

_HASH_BYTES = 8
PARTS = (  # causes before their effects
    "prompts of the sequences that begin",
    "sampling parameters or cache scope of the sequences that begin",
    "sequences that end",
    "sequences that compute",
    "tokens to compute",
    "forced tokens",
    "slots of adapters",
    "KV blocks",
    "recurrent states",
)


def operation_of(plan: StepPlan) -> Operation:
    begins = plan.admissions
    parts: tuple[Iterable[Any], ...] = (
        [each for begun in begins for each in (begun.num_prompt_tokens, begun.token_ids)],
        [_canonical((replace(begun.inputs, prompt_token_ids=[]), begun.seed)).encode() for begun in begins],
        [plan.released_slots],
        [[begun.slot for begun in begins], plan.slots],
        [plan.num_computed, plan.num_tokens, plan.num_outputs],
        [each for slot, tokens in plan.forced for each in (slot, tokens)],
        [
            [begun.adapter_slot for begun in begins],
            *(each for load in plan.adapter_loads for each in (load.slot, load.ref.digest.encode())),
        ],
        [plan.block_slots, plan.block_ids, *(blocks for begun in begins for blocks in begun.block_ids)],
        [plan.restored_states, plan.kept_states],
    )
    hashes = b"".join(map(_hash, parts))
    return Operation(f"step {plan.step}", hashes, f"{len(begins)} of {plan.num_rows} sequences begin")


def check_comparable(sampling: SamplingParams) -> None:
    """Raises InvalidRequest for parameters that a rank cannot compare with another rank's."""
    for call in sampling.logits_processors:
        try:
            _canonical(call)
        except TypeError as error:
            message = (
                f"the logits processor {call.qualname[:100]!r} {error}: ranks of a launcher compare arguments, which "
                "are numbers, texts, bytes, booleans, None, lists, tuples and mappings"
            )
            raise InvalidRequest(message, param="logits_processors") from None


def difference(own: Operation, other: Operation) -> str:
    """How an operation of this rank differs from rank 0's, by the first cause; empty if it does not."""
    if own == other:
        return ""
    if own.name != other.name:
        return f"it begins {own.name}, and rank 0 {other.name}"
    slices = (slice(at, at + _HASH_BYTES) for at in range(0, len(own.hashes), _HASH_BYTES))
    first = next(name for name, at in zip(PARTS, slices, strict=True) if own.hashes[at] != other.hashes[at])
    return f"{first} differ in {own.name}: {own.size}, on rank 0 {other.size}"


def _canonical(value: Any) -> str:
    """Equal for equal values in all processes. Raises TypeError for other values than plain data."""
    match value:
        case None | bool() | int() | float() | str() | bytes() | np.generic():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(map(_canonical, value))}]"
        case dict():
            return f"{{{', '.join(sorted(f'{_canonical(key)}: {_canonical(each)}' for key, each in value.items()))}}}"
        case _ if is_dataclass(value) and type(value).__module__ == RequestInputs.__module__:
            return type(value).__name__ + _canonical([getattr(value, field.name) for field in fields(value)])
    raise TypeError(f"has a {type(value).__name__} among its arguments")


def _hash(values: Iterable[Any]) -> bytes:
    """Hash arrays, lists of integers, integers and bytes, each with its length."""
    digest = blake2b(digest_size=_HASH_BYTES)
    for value in values:
        data = value if isinstance(value, bytes) else np.asarray(value, np.int64).tobytes()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()
