"""Encoding of the messages between the API process and the engine process: msgpack, never code.

A message is a msgpack array whose first entry is its tag. Numbers that come in rows (the outputs of a step, a prompt)
are little-endian columns inside it: the plain tokens of a step are two columns, for any number of tokens.
`decode` trusts no input: anything that is not exactly one of the messages in messages.py raises WireError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

import msgpack
import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from .api import (
    EngineInfo,
    EngineOutput,
    EngineRequest,
    EngineStats,
    FinishReason,
    SamplingParams,
    StoredBlocks,
    TokenLogprobs,
)
from .messages import (
    Abort,
    ExitReason,
    FreeMemory,
    Heartbeat,
    Hello,
    Int32,
    MemoryFreed,
    MemoryTaken,
    Message,
    Outputs,
    Phase,
    Profile,
    Profiled,
    Ready,
    Refused,
    Stats,
    Submit,
    TakeMemory,
)

MAX_MESSAGE_BYTES = 1 << 30
_INT32 = np.dtype("<i4")
_FLOAT64 = np.dtype("<f8")  # exact for every float of the sampler
_FINISH = (None, *FinishReason)
_FINISH_CODE = {reason: code for code, reason in enumerate(_FINISH)}
_ROW_COLUMNS = 6  # handle, number of tokens, finish code, stop reason or -1, cached prompt tokens, time in the queue
_MAX_MICROSECONDS = 2**31 - 1  # of the time in the queue, 35 minutes; -1 is none


class WireError(ValueError):
    """The bytes are not a message of this protocol; the text says what was found where."""


def encode(message: Message) -> bytes:
    """One message as bytes. Raises OverflowError when a token id does not fit 32 bits."""
    tag, write, _ = _CODECS[type(message)]
    packed: bytes = msgpack.packb([tag, *write(message)], use_bin_type=True)
    return packed


def decode(data: bytes) -> Message:
    """The message in `data`. Raises WireError for anything else."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(f"message of {len(data)} bytes, at most {MAX_MESSAGE_BYTES} are read")
    try:
        parts = msgpack.unpackb(data, raw=False, strict_map_key=False, use_list=True)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise WireError(f"not msgpack: {error or type(error).__name__}") from None
    if not isinstance(parts, list) or not parts or not isinstance(parts[0], str):
        raise WireError("not a message: an array that starts with a tag is expected")
    codec = _BY_TAG.get(parts[0])
    if codec is None:
        raise WireError(f"unknown tag {parts[0][:32]!r}")
    try:
        return codec(parts[1:])
    except WireError as error:
        raise WireError(f"{parts[0]}: {error}") from None


# ---------------------------------------------------------------------------------------- reading untrusted input

T = TypeVar("T")


def _take(parts: list[Any], *kinds: type | tuple[type, ...]) -> list[Any]:
    """Returns the parts if their number and types are right. A bool is not an int here."""
    if len(parts) != len(kinds):
        raise WireError(f"{len(parts)} parts, {len(kinds)} are expected")
    for position, (part, kind) in enumerate(zip(parts, kinds, strict=True)):
        allowed = kind if isinstance(kind, tuple) else (kind,)
        if type(part) not in allowed:
            names = " or ".join(allowed_kind.__name__ for allowed_kind in allowed)
            raise WireError(f"part {position} is {type(part).__name__}, expected {names}")
    return parts


def _column(data: bytes, dtype: np.dtype[Any], what: str) -> npt.NDArray[Any]:
    if type(data) is not bytes or len(data) % dtype.itemsize:
        raise WireError(f"{what} is not a column of {dtype.itemsize}-byte numbers")
    return np.frombuffer(data, dtype)


def _ints(data: bytes, what: str) -> list[int]:
    numbers: list[int] = _column(data, _INT32, what).tolist()
    return numbers


def _int_bytes(numbers: Sequence[int]) -> bytes:
    return np.asarray(numbers, _INT32).tobytes()


def _column_bytes(numbers: Int32) -> bytes:
    return numbers.astype(_INT32, copy=False).tobytes()


def _record(kind: type[T], values: Mapping[str, Any]) -> T:
    """A dataclass from a map of its fields. Raises WireError for unknown names and wrong types."""
    known = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise WireError(f"{kind.__name__} has no field {str(name)[:32]!r}")
    try:
        return _ADAPTERS[kind].validate_python(values)  # type: ignore[no-any-return]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"])
        raise WireError(f"{kind.__name__}.{place}: {first['msg']}") from None


_ADAPTERS: dict[type, TypeAdapter[Any]] = {
    kind: TypeAdapter(kind) for kind in (SamplingParams, EngineInfo, EngineStats)
}
_SAMPLING_DEFAULTS = SamplingParams()
_SAMPLING_FIELDS = tuple(entry.name for entry in fields(SamplingParams))


def _write_submit(message: Submit) -> list[Any]:
    request = message.request
    sampling = {
        name: value
        for name in _SAMPLING_FIELDS
        if (value := getattr(request.sampling, name)) != getattr(_SAMPLING_DEFAULTS, name)
    }
    if request.sampling.logits_processors:
        sampling["logits_processors"] = [asdict(call) for call in request.sampling.logits_processors]
    for name in ("constraint", "reasoning"):
        if name in sampling:
            sampling[name] = asdict(sampling[name])
    prompt = _int_bytes(request.prompt_token_ids)
    return [
        message.handle,
        request.request_id,
        prompt,
        sampling,
        request.priority,
        request.cache_salt,
        request.cache_epoch,
        request.is_for_others,
        _write_stored(request.source),
    ]


def _read_submit(parts: list[Any]) -> Submit:
    handle, request_id, prompt, sampling, priority, salt, epoch, is_for_others, source = _take(
        parts, int, str, bytes, dict, int, str, int, bool, (list, type(None))
    )
    request = EngineRequest(
        request_id=request_id,
        prompt_token_ids=_ints(prompt, "prompt"),
        sampling=_record(SamplingParams, sampling),
        priority=priority,
        cache_salt=salt,
        cache_epoch=epoch,
        is_for_others=is_for_others,
        source=_read_stored(source),
    )
    return Submit(handle, request)


def _write_stored(stored: StoredBlocks | None) -> list[Any] | None:
    return None if stored is None else [list(stored.hashes), stored.host, stored.port]


def _read_stored(parts: list[Any] | None) -> StoredBlocks | None:
    if parts is None:
        return None
    hashes, host, port = _take(parts, list, str, int)
    if not all(type(block_hash) is bytes for block_hash in hashes):
        raise WireError("a block hash is not bytes")
    return StoredBlocks(tuple(hashes), host, port)


def _write_logprobs(entries: Sequence[TokenLogprobs | None]) -> list[Any]:
    """[ids of all positions, log-probabilities of all, how many per position (-1: none), rank per position]"""
    ids: list[int] = []
    values: list[float] = []
    widths: list[int] = []
    ranks: list[int] = []
    for entry in entries:
        if entry is None:
            widths.append(-1)
            ranks.append(0)
            continue
        ids += entry.token_ids
        values += entry.logprobs
        widths.append(len(entry.token_ids))
        ranks.append(entry.rank)
    return [_int_bytes(ids), np.asarray(values, _FLOAT64).tobytes(), _int_bytes(widths), _int_bytes(ranks)]


def _read_logprobs(parts: Any) -> list[TokenLogprobs | None]:
    if not isinstance(parts, list):
        raise WireError("log-probabilities are not an array")
    raw_ids, raw_values, raw_widths, raw_ranks = _take(parts, bytes, bytes, bytes, bytes)
    ids, widths, ranks = _ints(raw_ids, "ids"), _ints(raw_widths, "widths"), _ints(raw_ranks, "ranks")
    values: list[float] = _column(raw_values, _FLOAT64, "log-probabilities").tolist()
    if len(ids) != len(values) or len(widths) != len(ranks) or any(width < -1 for width in widths):
        raise WireError("columns of log-probabilities do not fit together")
    if sum(width for width in widths if width > 0) != len(ids):
        raise WireError("widths of log-probabilities do not add up")
    entries: list[TokenLogprobs | None] = []
    start = 0
    for width, rank in zip(widths, ranks, strict=True):
        if width < 0:
            entries.append(None)
            continue
        entries.append(TokenLogprobs(ids[start : start + width], values[start : start + width], rank))
        start += width
    return entries


def _write_outputs(message: Outputs) -> list[Any]:
    rows: list[int] = []
    tokens: list[int] = []
    extras: dict[int, list[Any]] = {}
    for row, (handle, output) in enumerate(zip(message.record_handles, message.records, strict=True)):
        stop = -1 if output.stop_reason is None else output.stop_reason
        queued = -1 if output.queued_s is None else min(round(output.queued_s * 1e6), _MAX_MICROSECONDS)
        finish = _FINISH_CODE[output.finish_reason]
        rows += (handle, len(output.token_ids), finish, stop, output.num_cached_tokens, queued)
        tokens += output.token_ids
        more = (output.logprobs, output.prompt_logprobs, output.error, output.stored)
        if any(value is not None for value in more):
            extras[row] = [
                None if output.logprobs is None else _write_logprobs(output.logprobs),
                None if output.prompt_logprobs is None else _write_logprobs(output.prompt_logprobs),
                output.error,
                _write_stored(output.stored),
            ]
    plain = [_column_bytes(message.handles), _column_bytes(message.token_ids)]
    return [*plain, _int_bytes(rows), _int_bytes(tokens), extras]


def _read_outputs(parts: list[Any]) -> Outputs:
    raw_handles, raw_plain, raw_rows, raw_tokens, extras = _take(parts, bytes, bytes, bytes, bytes, dict)
    handles, token_ids = _column(raw_handles, _INT32, "handles"), _column(raw_plain, _INT32, "plain tokens")
    if len(handles) != len(token_ids):
        raise WireError(f"{len(token_ids)} plain tokens for {len(handles)} handles")
    numbers, tokens = _column(raw_rows, _INT32, "rows"), _ints(raw_tokens, "tokens")
    if len(numbers) % _ROW_COLUMNS:
        raise WireError("rows are not complete")
    rows = numbers.reshape(-1, _ROW_COLUMNS)
    counts, finishes = rows[:, 1], rows[:, 2]
    if (rows[:, [1, 2, 4]] < 0).any() or (finishes >= len(_FINISH)).any():
        raise WireError("a count or a finish code is out of range")
    if counts.sum(dtype=np.int64) != len(tokens):
        raise WireError(f"{len(tokens)} tokens, the rows name {counts.sum(dtype=np.int64)}")
    outputs: list[EngineOutput] = []
    start = 0
    for _, count, finish, stop, cached, queued in rows.tolist():
        outputs.append(
            EngineOutput(
                request_id="",
                token_ids=tokens[start : start + count],
                finish_reason=_FINISH[finish],
                stop_reason=None if stop == -1 else stop,
                num_cached_tokens=cached,
                queued_s=None if queued < 0 else queued / 1e6,
            )
        )
        start += count
    for row, extra in extras.items():
        if type(row) is not int or not 0 <= row < len(outputs) or not isinstance(extra, list):
            raise WireError("an extra belongs to no row")
        lists, text = (list, type(None)), (str, type(None))
        logprobs, prompt_logprobs, error, stored = _take(extra, lists, lists, text, lists)
        output = outputs[row]
        output.error, output.stored = error, _read_stored(stored)
        if logprobs is not None:
            entries = _read_logprobs(logprobs)
            output.logprobs = [entry for entry in entries if entry is not None]
            if len(output.logprobs) != len(output.token_ids) or len(entries) != len(output.token_ids):
                raise WireError(f"row {row}: {len(entries)} log-probabilities for {len(output.token_ids)} tokens")
        if prompt_logprobs is not None:
            output.prompt_logprobs = _read_logprobs(prompt_logprobs)
    return Outputs(handles, token_ids, rows[:, 0].tolist(), outputs)


def _read_ready(parts: list[Any]) -> Ready:
    return Ready(_record(EngineInfo, _take(parts, dict)[0]))


def _read_stats(parts: list[Any]) -> Stats:
    return Stats(_record(EngineStats, _take(parts, dict)[0]))


def _read_refused(parts: list[Any]) -> Refused:
    return Refused(*_take(parts, int, str, (str, type(None)), str, (float, type(None))))


_Writer = Callable[[Any], list[Any]]
_Reader = Callable[[list[Any]], Message]
_CODECS: dict[type, tuple[str, _Writer, _Reader]] = {
    Hello: ("hello", lambda _: [], lambda parts: Hello(*_take(parts))),
    Submit: ("submit", _write_submit, _read_submit),
    Abort: ("abort", lambda m: [_int_bytes(m.handles)], lambda parts: Abort(_ints(_take(parts, bytes)[0], "handles"))),
    Profile: ("profile", lambda m: [m.is_start], lambda parts: Profile(*_take(parts, bool))),
    FreeMemory: ("free_memory", lambda m: [], lambda parts: FreeMemory(*_take(parts))),
    MemoryFreed: ("memory_freed", lambda m: [m.error], lambda parts: MemoryFreed(*_take(parts, str))),
    TakeMemory: ("take_memory", lambda m: [], lambda parts: TakeMemory(*_take(parts))),
    MemoryTaken: ("memory_taken", lambda m: [m.error], lambda parts: MemoryTaken(*_take(parts, str))),
    Phase: ("phase", lambda m: [m.name], lambda parts: Phase(*_take(parts, str))),
    Ready: ("ready", lambda m: [asdict(m.info)], _read_ready),
    Outputs: ("outputs", _write_outputs, _read_outputs),
    Refused: ("refused", lambda m: [m.handle, m.message, m.param, m.code, m.retry_after_s], _read_refused),
    Stats: ("stats", lambda m: [asdict(m.stats)], _read_stats),
    Profiled: ("profiled", lambda m: [m.path, m.error], lambda parts: Profiled(*_take(parts, str, str))),
    Heartbeat: (
        "heartbeat",
        lambda m: [m.num_steps, m.is_stepping, m.cpu_s],
        lambda p: Heartbeat(*_take(p, int, bool, float)),
    ),
    ExitReason: (
        "exit-reason",
        lambda m: [m.error, m.message, m.exit_code],
        lambda parts: ExitReason(*_take(parts, str, str, int)),
    ),
}
_BY_TAG: dict[str, _Reader] = {tag: read for tag, _, read in _CODECS.values()}
