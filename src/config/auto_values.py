"""Constants that decide `auto`: resolve/decide.py computes with them, and descriptions of options show them.

One definition, so that what is documented is what is decided.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..model.cache_groups import BLOCK_SIZES

KVLimit: TypeAlias = Literal["sequences", "ceiling", "room"]

MAX_NUM_SEQS = {"cpu": 64, "cuda": 256}
MAX_NUM_BATCHED_TOKENS = {"cpu": 2048, "cuda": 8192}
BLOCK_SIZE = {"cpu": 16, "cuda": 64}  # 64: the number of tokens that the attention kernels of a GPU read in one access
MAX_AUTO_KV_BYTES = 4 << 30  # on a CPU more is seldom filled, and other programs would lack this memory
MAX_KEPT_STATE_BYTES = 1 << 30  # recurrent states for later requests
STATES_SHARE = 4  # recurrent states of running sequences take at most this part of what the weights leave
KEPT_STATES_PER_SEQUENCE = 8  # at most: small states are many before they need that much
QUEUED_PER_KV_TOKEN = 16  # prompt tokens that may wait, per token that the KV cache holds
MAX_DRAFT_TOKENS = 16
LONGEST_LOOKUP = 16  # trailing tokens that are compared with earlier ones
SHORTEST_LOOKUP = 2  # of those, how many must agree
PAST_OUTPUT_TOKENS = 1 << 16  # of earlier answers, in which continuations are found: 768 KiB with their index
LONG_PROMPT_SHARE = 0.04  # of the context, above which a prompt is a long one
INCOMPLETE_HEADER_FACTOR = 2  # max_incomplete_header_bytes, as a multiple of max_header_bytes
MAX_CONNECTIONS = 8192  # about 64 KiB each
RESERVED_FILES = 64  # of the open files of the API process: listeners, logs, the engine's sockets, a restart of it
CLIENT_SHARE = 0.75  # of max_connections: enough for a proxy, through which all clients have one address
TOTAL_REQUEST_FACTOR = 8  # max_total_request_bytes, as a multiple of max_request_bytes


def auto_block_size(device: str, tokens_of_vector: int) -> int:
    """Tokens of a KV block. tokens_of_vector: of the longest group that has one vector in the cache (ModelSpec)."""
    sizes = [size for size in BLOCK_SIZES if size >= BLOCK_SIZE[device] and size % tokens_of_vector == 0]
    return sizes[0] if sizes else BLOCK_SIZE[device]


def auto_num_seqs(most: int, state_bytes: int, room: int, *, has_drafts: bool = False) -> int:
    """max_num_seqs. most: without states. state_bytes: of one sequence. room: bytes that the weights leave."""
    each = state_bytes * (1 + has_drafts)
    return max(1, min(most, room // STATES_SHARE // each)) if state_bytes else most


def auto_kv_bytes(max_num_seqs: int, longest_bytes: int, room: int, *, is_len_written: bool) -> tuple[int, KVLimit]:
    """Bytes of the KV cache on a CPU (R221), and what limits them: all sequences at full length, the maximum for auto,
    or what the weights leave.

    longest_bytes: of one sequence of `max_model_len` tokens. is_len_written: whether a user has written that length,
    which the cache then holds if there is room.
    """
    ceiling = max(MAX_AUTO_KV_BYTES, longest_bytes if is_len_written else 0)
    limits: dict[KVLimit, int] = {"sequences": max_num_seqs * longest_bytes, "ceiling": ceiling, "room": room}
    limit = min(limits, key=lambda name: limits[name])
    return limits[limit], limit


def num_kept_states(state_bytes: int, max_num_seqs: int, interval: int) -> int:
    """Recurrent states that are kept for later requests.

    state_bytes: of one sequence. interval: `cache.prefix_cache_retention_interval`; 0 without prefix caching.
    """
    if not state_bytes or not interval:
        return 0
    return max(1, min(KEPT_STATES_PER_SEQUENCE * max_num_seqs, MAX_KEPT_STATE_BYTES // state_bytes))


def most_drafts(num_rows: int, max_step_tokens: int, max_drafted: int) -> int:
    """How many drafts each decode row of a step gets at most: prompts have half of what the rows leave of the step.

    max_step_tokens: tokens of a step. max_drafted: tokens that may be drafted for a sequence.
    """
    return max(0, min(max_drafted, (max_step_tokens - num_rows) // (2 * num_rows)))


def most_drafted_tokens(max_num_seqs: int, max_step_tokens: int, max_drafted: int, num_steps: int = 1) -> int:
    """Tokens of the rows with drafts in the steps that are in flight, at most. num_steps: of different sequences."""
    of_step = max(
        rows * (1 + most_drafts(rows, max_step_tokens, max_drafted))
        for rows in range(1, min(max_num_seqs, max_step_tokens) + 1)
    )
    return min(num_steps * of_step, max_num_seqs * (1 + max_drafted)) if max_drafted else 0


def past_output_places(num_tokens: int) -> int:
    """Size of the index of this number of earlier tokens: a power of two, and at least twice as much, so that few of
    their hashes share a place."""
    return 1 << (2 * num_tokens - 1).bit_length()


def past_output_bytes(num_tokens: int) -> int:
    """Memory of the tokens of earlier answers and of their index."""
    return 4 * (num_tokens + 1 + past_output_places(num_tokens)) if num_tokens else 0


def by_device(values: dict[str, int]) -> str:
    """Text for descriptions: `16 on a CPU, 64 on a GPU`."""
    return f"{values['cpu']} on a CPU, {values['cuda']} on a GPU"


def gibibytes(num_bytes: int) -> str:
    """Text for descriptions: `4 GiB`."""
    return f"{num_bytes >> 30} GiB"
