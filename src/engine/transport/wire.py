"""Encoding of the messages between the API process and the engine process.

Numbers that come in rows (the outputs of a step, a prompt) are little-endian columns: the plain tokens of a step take
two of them, whatever their number is.
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np

from ..api import (
    EngineInfo,
    EngineOutput,
    EngineRequest,
    EngineStats,
    FinishReason,
    StoredBlocks,
    TokenLogprobs,
    VerifiedDraft,
)
from ..step.columns import (
    INT32,
    column,
    int_bytes,
    ints,
    read_logprobs,
    read_vectors,
    write_logprobs,
    write_vectors,
)
from .messages import Message, Outputs
from .records import Layout, Part, RecordCodec, WireError, many, record, take
from .request_parts import REQUEST_PARTS, validated

MAX_MESSAGE_BYTES = 1 << 30
_FINISH = (None, *FinishReason)
_FINISH_CODE = {reason: code for code, reason in enumerate(_FINISH)}
# handle, number of tokens, finish code, stop reason or -1, cached and newly cached prompt tokens, time in the queue
_ROW_COLUMNS = 7
_MAX_MICROSECONDS = 2**31 - 1  # of the time in the queue, 35 minutes; -1 is none


def _read_hashes(hashes: list[Any], _: str) -> tuple[bytes, ...]:
    if not all(type(block_hash) is bytes for block_hash in hashes):
        raise WireError("a block hash is not bytes")
    return tuple(hashes)


def _read_logprobs(parts: list[Any]) -> list[TokenLogprobs | None]:
    return read_logprobs(*take(parts, bytes, bytes, bytes, bytes))


def _read_drafts(numbers: bytes) -> list[VerifiedDraft]:
    columns = column(numbers, INT32, "drafts")
    if len(columns) % len(VerifiedDraft._fields):
        raise WireError("drafts are not complete")
    drafts = columns.reshape(-1, len(VerifiedDraft._fields))
    num_tokens, num_accepted, is_predicted = drafts.T
    if (num_accepted < 0).any() or (num_accepted > num_tokens).any() or (is_predicted & ~1).any():
        raise WireError("a draft has a number that is out of range")
    return [VerifiedDraft(tokens, accepted, bool(predicted)) for tokens, accepted, predicted in drafts.tolist()]


_STORED = record(StoredBlocks, {tuple[bytes, ...]: Part(list, list, _read_hashes)})
_PARTS = REQUEST_PARTS | {
    EngineInfo: validated(EngineInfo),
    EngineStats: validated(EngineStats),
    StoredBlocks: _STORED,
}
_PARTS[EngineRequest] = record(EngineRequest, _PARTS, without=("rank", "route", "is_ready"))
_PARTS[list[EngineRequest]] = many(_PARTS[EngineRequest])


def _write_outputs(message: Outputs) -> list[Any]:
    rows: list[int] = []
    tokens: list[int] = []
    extras: dict[int, list[Any]] = {}
    for row, (handle, output) in enumerate(zip(message.record_handles, message.records, strict=True)):
        stop = -1 if output.stop_reason is None else output.stop_reason
        queued = -1 if output.queued_s is None else min(round(output.queued_s * 1e6), _MAX_MICROSECONDS)
        finish = _FINISH_CODE[output.finish_reason]
        cached, newly_cached = output.num_cached_tokens, output.num_newly_cached_tokens
        rows += (handle, len(output.token_ids), finish, stop, cached, newly_cached, queued)
        tokens += output.token_ids
        more = (output.logprobs, output.prompt_logprobs, output.error, output.stored, output.drafts)
        if any(value is not None for value in more):
            extras[row] = [
                None if output.logprobs is None else write_logprobs(output.logprobs),
                None if output.prompt_logprobs is None else write_logprobs(output.prompt_logprobs),
                output.error,
                None if output.stored is None else _STORED.write(output.stored),
                None if output.drafts is None else int_bytes([number for draft in output.drafts for number in draft]),
            ]
    plain = [int_bytes(message.handles), int_bytes(message.token_ids)]
    vectors = write_vectors((row, each.vectors) for row, each in enumerate(message.records) if each.vectors is not None)
    return [*plain, int_bytes(rows), int_bytes(tokens), extras, vectors]


def _read_outputs(parts: list[Any]) -> Outputs:
    raw_handles, raw_plain, raw_rows, raw_tokens, extras, vectors = take(parts, bytes, bytes, bytes, bytes, dict, list)
    handles, token_ids = column(raw_handles, INT32, "handles"), column(raw_plain, INT32, "plain tokens")
    if len(handles) != len(token_ids):
        raise WireError(f"{len(token_ids)} plain tokens for {len(handles)} handles")
    numbers, tokens = column(raw_rows, INT32, "rows"), ints(raw_tokens, "tokens")
    if len(numbers) % _ROW_COLUMNS:
        raise WireError("rows are not complete")
    rows = numbers.reshape(-1, _ROW_COLUMNS)
    counts, finishes = rows[:, 1], rows[:, 2]
    if (rows[:, [1, 2, 4, 5]] < 0).any() or (finishes >= len(_FINISH)).any():
        raise WireError("a count or a finish code is out of range")
    if counts.sum(dtype=np.int64) != len(tokens):
        raise WireError(f"{len(tokens)} tokens, the rows name {counts.sum(dtype=np.int64)}")
    outputs: list[EngineOutput] = []
    start = 0
    for _, count, finish, stop, cached, newly_cached, queued in rows.tolist():
        outputs.append(
            EngineOutput(
                request_id="",
                token_ids=tokens[start : start + count],
                finish_reason=_FINISH[finish],
                stop_reason=None if stop == -1 else stop,
                num_cached_tokens=cached,
                num_newly_cached_tokens=newly_cached,
                queued_s=None if queued < 0 else queued / 1e6,
            )
        )
        start += count
    for row, extra in extras.items():
        if type(row) is not int or not 0 <= row < len(outputs) or not isinstance(extra, list):
            raise WireError("an extra belongs to no row")
        lists, text = (list, type(None)), (str, type(None))
        numbers_or_none = (bytes, type(None))
        logprobs, prompt_logprobs, error, stored, drafts = take(extra, lists, lists, text, lists, numbers_or_none)
        output = outputs[row]
        output.error = error
        output.stored = None if stored is None else _STORED.read(stored, "stored")
        if logprobs is not None:
            entries = _read_logprobs(logprobs)
            output.logprobs = [entry for entry in entries if entry is not None]
            if len(output.logprobs) != len(output.token_ids) or len(entries) != len(output.token_ids):
                raise WireError(f"row {row}: {len(entries)} log-probabilities for {len(output.token_ids)} tokens")
        if drafts is not None:
            output.drafts = _read_drafts(drafts)
        if prompt_logprobs is not None:
            output.prompt_logprobs = _read_logprobs(prompt_logprobs)
    for row, by_task in read_vectors(vectors).items():
        if not 0 <= row < len(outputs):
            raise WireError("vectors belong to no row")
        outputs[row].vectors = by_task
    return Outputs(handles, token_ids, rows[:, 0].tolist(), outputs)


_CODEC: RecordCodec[Message] = RecordCodec(
    get_args(Message), _PARTS, {Outputs: Layout(_write_outputs, _read_outputs)}, MAX_MESSAGE_BYTES
)
encode, decode = _CODEC.encode, _CODEC.decode
