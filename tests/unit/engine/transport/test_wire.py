"""Encoding of messages: decode reverses encode, and refuses everything else."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.engine.api import (
    AdapterRef,
    CacheScope,
    Constraint,
    EngineInfo,
    EngineOutput,
    EngineRequest,
    EngineStats,
    FinishReason,
    KeyedSpan,
    PoolingParams,
    ProcessorCall,
    Reasoning,
    RequestInputs,
    SamplingParams,
    StoredBlocks,
    TokenLogprobs,
    Vectors,
    VerifiedDraft,
)
from stoker.engine.transport import messages, wire
from stoker.engine.transport.records import WireError

INFO = EngineInfo(
    model="m",
    max_model_len=64,
    vocab_size=7,
    num_blocks=9,
    block_size=4,
    max_cached_len=16,
    max_num_seqs=2,
    max_num_batched_tokens=32,
    eos_token_ids=(1, 2),
    weights_bytes=10,
    kv_cache_bytes=20,
    dtype="float32",
    device="cpu",
    kernels={"attention": "torch: no compiler"},
    phases={"load weights": 1.5},
)

ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)
logprob = st.builds(
    TokenLogprobs, st.just([5, 6]), st.lists(st.floats(-100, 0), min_size=2, max_size=2), st.integers(1, 9)
)

stored_blocks = st.builds(
    StoredBlocks, st.lists(st.binary(max_size=32), max_size=3).map(tuple), st.text(max_size=9), st.integers(0, 65535)
)


def as_vectors(rows: list[tuple[float, float]]) -> Vectors:
    return Vectors(2, np.array(rows, "<f4").tobytes())


vectors = st.dictionaries(
    st.sampled_from(["embed", "token_embed"]),
    st.lists(st.tuples(*[st.floats(width=32)] * 2), max_size=3).map(as_vectors),
    min_size=1,
)


verified_drafts = st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()).map(
    lambda each: VerifiedDraft(each[0] + each[1], each[0], each[2])
)


@st.composite
def outputs(pick: st.DrawFn) -> EngineOutput:
    tokens = pick(ids)
    return EngineOutput(
        request_id="",
        token_ids=tokens,
        logprobs=pick(st.none() | st.lists(logprob, min_size=len(tokens), max_size=len(tokens))),
        prompt_logprobs=pick(st.none() | st.lists(st.none() | logprob, max_size=3)),
        finish_reason=pick(st.none() | st.sampled_from(FinishReason)),
        stop_reason=pick(st.none() | st.integers(0, 9)),
        num_cached_tokens=pick(st.integers(0, 9)),
        num_newly_cached_tokens=pick(st.integers(0, 9)),
        queued_s=pick(st.none() | st.integers(0, 2**31 - 1).map(lambda microseconds: microseconds / 1e6)),
        error=pick(st.none() | st.text(max_size=9)),
        stored=pick(st.none() | stored_blocks),
        vectors=pick(st.none() | vectors),
        drafts=pick(st.none() | st.lists(verified_drafts, max_size=3)),
    )


def int32(*numbers: int) -> messages.Int32:
    return np.array(numbers, np.int32)


def test_a_request_arrives_with_every_parameter():
    sampling = SamplingParams(
        max_tokens=None,
        temperature=0.25,
        logit_bias={3: -100.0, 0: 1.5},
        seed=2**63,
        stop=("a", "é"),
        stop_token_ids=(4,),
        allowed_token_ids=(7, 5),
        bad_word_ids=((1,), (2, 3)),
        logprobs=0,
        processed_logprobs=True,
        ignore_eos=True,
        logits_processors=(ProcessorCall("a.b:C", (1, "x", [2.5]), {"k": {"n": None}}), ProcessorCall("a.f")),
        constraint=Constraint("start: /a+/"),
        reasoning=Reasoning(end="</think>", budget=7),
    )
    request = EngineRequest(
        request_id="r-1",
        inputs=RequestInputs([0, 7, 2**31 - 1], sampling, CacheScope("s", 3, (KeyedSpan(1, 2, "a"),), "d1")),
        priority=-3,
        is_for_others=True,
        prediction=[5, 2**31 - 1],
        source=StoredBlocks((b"\0" * 32, b"\xff" * 16), "10.0.0.4", 5600),
    )
    assert wire.decode(wire.encode(messages.Submit(12, request))) == messages.Submit(12, request)
    pooled = EngineRequest(
        request_id="r-2", inputs=RequestInputs([4, 5, 6], PoolingParams(("embed", "sparse"), first=1, second=2))
    )
    many = messages.SubmitMany([12, 2**31 - 1], [request, pooled])
    assert wire.decode(wire.encode(many)) == many


def test_a_token_id_past_32_bits_is_not_sent():
    request = EngineRequest(request_id="r", inputs=RequestInputs([2**31], SamplingParams()))
    with pytest.raises(OverflowError):
        wire.encode(messages.Submit(1, request))


@pytest.mark.parametrize(
    "message",
    [
        messages.Hello(),
        messages.Abort([1, 2, 3]),
        messages.Phase("load weights"),
        messages.Ready(INFO),
        messages.Stats(EngineStats(num_running=3, step_time_s=0.5, step_tokens=((1.5, 2), (8.0, 3)))),
        messages.Refused(4, "the queue is full", retry_after_s=1.5),
        messages.Refused(4, "too long", "messages", "context_length_exceeded"),
        messages.FreeMemory(),
        messages.MemoryFreed("too little"),
        messages.TakeMemory(),
        messages.MemoryTaken(),
        messages.LoadAdapter(3, AdapterRef("sql", "a1b2", "/adapters/sql")),
        messages.UnloadAdapter(4, "a1b2"),
        messages.AdapterChanged(3, "its rank is 64", "adapter_rank"),
        messages.Heartbeat(7, True, 1.25, is_reading=True),
        messages.ExitReason("ValueError", "no", 3),
    ],
)
def test_each_small_message_is_decoded_to_an_equal_one(message: messages.Message):
    assert wire.decode(wire.encode(message)) == message


@given(st.lists(outputs(), max_size=4))
@settings(max_examples=25, deadline=None)
def test_outputs_of_a_step_are_decoded_to_equal_ones(rows: list[EngineOutput]):
    message = messages.Outputs(int32(7, 9), int32(2**31 - 1, 0), list(range(len(rows))), rows)
    assert wire.decode(wire.encode(message)) == message


def test_plain_tokens_take_eight_bytes_each():
    message = messages.Outputs(np.arange(256, dtype=np.int32), np.full(256, 9, np.int32))
    assert len(wire.encode(message)) < 256 * 8 + 32
    assert wire.decode(wire.encode(message)) == message


VALID = [
    wire.encode(messages.Submit(1, EngineRequest(request_id="r", inputs=RequestInputs([1, 2], SamplingParams(n=2))))),
    wire.encode(messages.Ready(INFO)),
    wire.encode(
        messages.Outputs(
            int32(5),
            int32(8),
            [3],
            [EngineOutput(request_id="", token_ids=[1], logprobs=[TokenLogprobs([1], [-0.5], 1)])],
        )
    ),
]


@given(st.binary(max_size=64))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_refused_or_are_a_message(data: bytes):
    with contextlib.suppress(WireError):
        wire.decode(data)


@given(st.sampled_from(VALID), st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_message_is_refused_or_is_a_message(valid: bytes, data: st.DataObject):
    pick = data.draw  # words: ok (a method of hypothesis)
    damaged = bytearray(valid[: pick(st.integers(0, len(valid)))])
    for _ in range(pick(st.integers(0, 3))):
        if damaged:
            damaged[pick(st.integers(0, len(damaged) - 1))] = pick(st.integers(0, 255))
    with contextlib.suppress(WireError):
        wire.decode(bytes(damaged))


NO_TOKENS = (b"", b"")  # no handles and no tokens of them


def column(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little", signed=True) for number in numbers)


ONE_RECORD = ["outputs", *NO_TOKENS, column(1, 0, 0, -1, 0, 0, -1), b"", {}]  # and the vectors, which are missing


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"tag": "hello"}, "an array that starts with a tag"),
        ([], "an array that starts with a tag"),
        (["steal"], "unknown tag 'steal'"),
        (["hello", 1], "hello: 1 parts, 0 are expected"),
        (["phase", 3], "phase: part 0 is int, expected str"),
        (["heartbeat", True, True, 1.0, False], "heartbeat: part 0 is bool, expected int"),
        (["abort", b"abc"], "abort: handles is not a column of 4-byte numbers"),
        (["outputs", column(1, 2), column(3), b"", b"", {}, []], "outputs: 1 plain tokens for 2 handles"),
        (["outputs", b"abc", b"", b"", b"", {}, []], "outputs: handles is not a column of 4-byte numbers"),
        (["outputs", *NO_TOKENS, column(1, 2, 0, -1), b"", {}, []], "outputs: rows are not complete"),
        (
            ["outputs", *NO_TOKENS, column(1, -1, 0, -1, 0, 0, -1), column(5), {}, []],
            "outputs: a count or a finish code is out of range",
        ),
        (
            ["outputs", *NO_TOKENS, column(1, 1, 9, -1, 0, 0, -1), column(5), {}, []],
            "outputs: a count or a finish code is out of range",
        ),
        (
            ["outputs", *NO_TOKENS, column(1, 1, 0, -1, 0, 0, -1), column(5, 6), {}, []],
            "outputs: 2 tokens, the rows name 1",
        ),
        (
            ["outputs", *NO_TOKENS, column(1, 1, 0, -1, 0, 0, -1), column(5), {4: [None, None, None]}, []],
            "an extra belongs to no row",
        ),
        (
            [
                "outputs",
                *NO_TOKENS,
                column(1, 1, 0, -1, 0, 0, -1),
                column(5),
                {0: [[b"", b"", b"", b""], None, None, None, None]},
                [],
            ],
            "outputs: row 0: 0 log-probabilities for 1 tokens",
        ),
        (
            ["submit", 1, ["r", [column(1), ["sampling_params", {"temprature": 1}], {}, None], 0, False, None, b""]],
            "submit: sampling_params: SamplingParams has no field 'temprature'",
        ),
        (
            ["submit", 1, ["r", [column(1), ["sampling_params", {"top_k": "many"}], {}, None], 0, False, None, b""]],
            "submit: sampling_params: SamplingParams.top_k: ",
        ),
        (
            ["submit", 1, ["r", [column(1), ["sampling_params", {}], {}, None], 0, 1, None, b""]],
            "submit: part 3 is int, expected bool",
        ),
        (
            ["submit", 1, ["r", [column(1), ["sampling_params", {}], {}, None], 0, False, [["a"], "", 0], b""]],
            "submit: a block hash is not bytes",
        ),
        (
            ["submit", 1, ["r", [column(1), ["sampling_params", {}], {}, None], 0, False, [[]], b""]],
            "submit: 1 parts, 3 are expected",
        ),
        (
            ["submit", 1, ["r", [column(1), ["dream", {}], {}, None], 0, False, None, b""]],
            "submit: unknown tag 'dream'",
        ),
        (
            [
                "outputs",
                *NO_TOKENS,
                column(1, 1, 0, -1, 0, 0, -1),
                column(5),
                {0: [None, None, None, [[], "", 1.5], None]},
                [],
            ],
            "outputs: part 2 is float, expected int",
        ),
        (
            [*ONE_RECORD, [["embed", 3, column(0), column(8), bytes(8)]]],
            "outputs: vectors of 3 elements are not complete",
        ),
        (
            [*ONE_RECORD, [["embed", 2, column(0), column(8), bytes(16)]]],
            "outputs: lengths of vectors do not add up to 16 bytes",
        ),
        ([*ONE_RECORD, [["embed", 0, b"", b"", b""]]], "outputs: vectors without a task or a width"),
        ([*ONE_RECORD, [["embed", 2, column(1), column(8), bytes(8)]]], "outputs: vectors belong to no row"),
        ([*ONE_RECORD, [["embed", 2]]], "outputs: not enough values to unpack"),
        (["submit_many", column(1, 2), []], "submit_many: 2 handles for 0 requests"),
        (
            ["outputs", *NO_TOKENS, column(1, 0, 0, -1, 0, 0, -1), b"", {0: [*[None] * 4, column(4, 2)]}, []],
            "outputs: drafts are not complete",
        ),
        (
            ["outputs", *NO_TOKENS, column(1, 0, 0, -1, 0, 0, -1), b"", {0: [*[None] * 4, column(4, 5, 0)]}, []],
            "outputs: a draft has a number that is out of range",
        ),
        (["ready", {"model": "m"}], "ready: EngineInfo.max_model_len: Field required"),
    ],
)
def test_a_malformed_message_is_refused_with_its_position(parts: Any, words: str):
    with pytest.raises(WireError) as caught:
        wire.decode(msgpack.packb(parts))
    assert words in str(caught.value)


def test_extension_types_and_deep_nesting_are_refused():
    for data in (msgpack.packb(["phase", msgpack.ExtType(1, b"x")]), b"\x91" * 100_000):
        with pytest.raises(WireError):
            wire.decode(data)
