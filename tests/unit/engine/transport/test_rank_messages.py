"""Messages of ranks: each is decoded to an equal one, and what is none is refused."""

from __future__ import annotations

import contextlib
from dataclasses import fields, replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.engine.api import CacheScope, PoolingParams, RequestInputs, SamplingParams, TokenLogprobs
from stoker.engine.step import Admission, StepPlan, StepResult
from stoker.engine.step.plan import plan_without_rows
from stoker.engine.transport.messages import FreeMemory, TakeMemory
from stoker.engine.transport.rank_messages import (
    CODEC,
    Alive,
    AllReturned,
    Call,
    Capture,
    Computed,
    DeviceStep,
    Failed,
    Finish,
    Join,
    Left,
    Loaded,
    Operation,
    RankMessage,
    Returned,
    Start,
    Tokens,
)
from stoker.engine.transport.records import WireError


@pytest.mark.parametrize(
    "message",
    [
        Start("{}", 7, b"key", [["host", 9], ["", 0]]),
        Join(1, "host", {"version": "1"}, "hash", 7, ["host", 9]),
        Alive(3),
        FreeMemory(),
        TakeMemory(),
        Finish(),
        Tokens(None),
        Loaded(),
        Failed("no memory", 4),
        Operation("step", b"hashes", "2 rows"),
        Computed(None, "no memory"),
        Left(9),
        Call("load", b"arguments"),
        AllReturned([Returned(b"1"), Returned(b"", "no")]),
        Capture(),
    ],
)
def test_each_small_message_is_decoded_to_an_equal_one(message: RankMessage):
    assert CODEC.decode(CODEC.encode(message)) == message


def test_numbers_arrive_as_arrays_that_torch_can_share():
    found = CODEC.decode(CODEC.encode(Tokens(np.array([5, 2**31 - 1], np.int32))))
    assert isinstance(found, Tokens)
    assert found.token_ids is not None
    assert found.token_ids.tolist() == [5, 2**31 - 1]
    assert found.token_ids.flags.writeable


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


POOLED = Admission(2, RequestInputs([8, 9], PoolingParams(("embed", "sparse"), 1, 1)), [[4], [5]], 3)
INPUTS = RequestInputs([5, 6], SamplingParams(prompt_logprobs=3), CacheScope("salt", 2))
PLAN = StepPlan(
    step=7,
    released_slots=[4],
    admissions=[Admission(1, INPUTS, [[0, 1], [2, -1]], 2**63 - 1, [7], "r", 3), POOLED],
    block_slots=ids(2, 0),
    block_ids=ids(8, 9, 10, -1).reshape(2, 2),
    slots=ids(0, 1, 2),
    num_computed=ids(11, 0, 4),
    num_tokens=ids(4, 3, 1),
    num_outputs=ids(4, 0, 1),
    restored_states=ids(1, 2).reshape(1, 2),
    forced=[(2, [3, 4])],
)


def values(plan: StepPlan) -> dict[str, Any]:
    """Arrays as lists, which can be compared."""
    found = {field.name: getattr(plan, field.name) for field in fields(plan)}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in found.items()}


def received(plan: StepPlan) -> StepPlan:
    found = CODEC.decode(CODEC.encode(plan))
    assert isinstance(found, StepPlan)
    return found


@pytest.mark.parametrize("plan", [PLAN, plan_without_rows()])
def test_a_plan_arrives_as_it_was_sent(plan: StepPlan):
    found = received(plan)
    assert values(found) == values(plan)
    assert all(each.flags.writeable for each in (found.slots, found.block_ids))  # torch shares them


def test_other_ranks_see_no_sampling_parameter_but_which_logits_are_computed():
    task = SamplingParams(temperature=0.5, logit_bias={3: 1.0}, prompt_logprobs=3)
    begins = replace(PLAN.admissions[0], inputs=replace(INPUTS, task=task))
    assert values(received(replace(PLAN, admissions=[begins, POOLED]))) == values(PLAN)


def test_a_step_of_devices_has_its_shape_and_its_rows():
    message = DeviceStep(plan_without_rows(), [1, 2], np.array([0, 3], np.int32))
    found = CODEC.decode(CODEC.encode(message))
    assert isinstance(found, DeviceStep)
    assert (found.shape, found.again.tolist(), found.plan.step) == ([1, 2], [0, 3], message.plan.step)


def test_the_result_of_an_operation_arrives():
    found = CODEC.decode(CODEC.encode(Computed(StepResult(np.array([4], np.int32), errors={2: "no"}))))
    assert isinstance(found, Computed)
    assert found.result is not None
    assert (found.result.token_ids.tolist(), found.result.errors) == ([4], {2: "no"})


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (["join", 1, "host", {}], "join: 3 parts, 6 are expected"),
        (["join", 1, "host", {}, 7, 0, []], "join: part 3 is int, expected str"),
        (["tokens", "x"], "tokens: part 0 is str, expected bytes or NoneType"),
        (["tokens", b"abc"], "tokens: token_ids is not a column of 4-byte numbers"),
        (["all_returned", [[b""]]], "all_returned: 1 parts, 2 are expected"),
        (["step_plan", 1], "step_plan: "),
    ],
)
def test_what_is_no_message_is_refused(parts: Any, words: str):
    with pytest.raises(WireError, match=words):
        CODEC.decode(msgpack.packb(parts))


ONE = TokenLogprobs([4], [-0.5], 1)
VALID = [
    CODEC.encode(each)
    for each in (
        plan_without_rows(),
        DeviceStep(plan_without_rows(), [1, 2], np.array([0, 3], np.int32)),
        Computed(StepResult(np.array([4], np.int32), {0: ONE}, {1: [ONE, ONE]}, {2: "no"}, [3], {4: [5]})),
        Join(1, "host", {"version": "1"}, "hash", 7, ["host", 9]),
        AllReturned([Returned(b"1"), Returned(b"", "no")]),
    )
]


@given(st.sampled_from(VALID), st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_message_is_refused_or_is_a_message(valid: bytes, data: st.DataObject):
    pick = data.draw  # words: ok (a method of hypothesis)
    damaged = bytearray(valid[: pick(st.integers(0, len(valid)))] if pick(st.booleans()) else valid)
    for _ in range(pick(st.integers(0, 3))):
        if damaged:
            damaged[pick(st.integers(0, len(damaged) - 1))] = pick(st.integers(0, 255))
    with contextlib.suppress(WireError):
        CODEC.decode(bytes(damaged))


def test_log_probabilities_that_are_missing_are_an_error():
    parts = msgpack.unpackb(VALID[2])
    parts[1][2][1] = np.array([9], np.int32).tobytes()  # of two
    with pytest.raises(WireError, match="computed: log-probabilities of prompts do not add up"):
        CODEC.decode(msgpack.packb(parts))
