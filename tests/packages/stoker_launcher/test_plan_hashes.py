"""What ranks compare before each step."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stoker import LLM
from stoker.engine.api import (
    AdapterRef,
    CacheScope,
    Constraint,
    InvalidRequest,
    PoolingParams,
    ProcessorCall,
    Reasoning,
    RequestInputs,
    SamplingParams,
)
from stoker.engine.step.plan import AdapterLoad, Admission, StepPlan
from stoker.engine.transport.rank_messages import Operation
from stoker_launcher.plan_hashes import check_comparable, difference, operation_of


def column(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


BEGUN = Admission(1, RequestInputs([5, 6, 7], SamplingParams(temperature=0)), [[2]], seed=9)
PLAN = StepPlan(
    step=4,
    released_slots=[2],
    admissions=[BEGUN],
    block_slots=column(0),
    block_ids=column(3).reshape(1, 1),
    slots=column(0, 1),
    num_computed=column(8, 0),
    num_tokens=column(1, 3),
    num_outputs=np.array([1, 1], np.int32),
    forced=[(0, [11])],
)


def begun(**inputs: Any) -> StepPlan:
    return replace(PLAN, admissions=[replace(BEGUN, inputs=replace(BEGUN.inputs, **inputs))])


def test_equal_plans_do_not_differ():
    again = replace(PLAN, admissions=[replace(BEGUN, request_id="another")])
    assert difference(operation_of(PLAN), operation_of(again)) == ""


def sampled(**sampling: Any) -> Operation:
    return operation_of(begun(task=SamplingParams(**sampling)))


def processed(*args: object, **kwargs: object) -> Operation:
    return sampled(logits_processors=(ProcessorCall("m:f", args, kwargs),))


def test_the_order_of_a_mapping_is_no_difference():
    assert sampled(logit_bias={7: 1.0, 5: 2.0}) == sampled(logit_bias={5: 2.0, 7: 1.0})
    assert processed(a=1, b={"c": 2, "d": 3}) == processed(b={"d": 3, "c": 2}, a=1)


def test_parameters_that_differ_differ():
    constraint = Constraint("start: /a/")
    different = [
        *(sampled(logit_bias=bias) for bias in ({5: 2.0}, {5: 1.0}, {7: 2.0})),
        *(sampled(stop=stop) for stop in (("a, b",), ("a", "b"), ("'a', 'b'",))),
        *(processed(*args) for args in ((), (1,), ("1",), (b"1",), (True,), (None,), ([],), ({},))),
        *(processed(a=value) for value in (1 << 70, 0.1, float("nan"), [[1], 2], [1, [2]])),
        sampled(constraint=constraint),
        sampled(constraint=constraint, reasoning=Reasoning(end="</think>")),
    ]
    assert len({each.hashes for each in different}) == len(different)


@pytest.mark.parametrize("value", [object(), {1, 2}, np.zeros(2), operation_of, [{"a": object()}]])
def test_arguments_that_cannot_be_compared_are_refused(value: object):
    """The representation of an object has its address: equal scripts differed."""
    check_comparable(SamplingParams(logits_processors=(ProcessorCall("m:f", (1, "a")),)))
    for call in (ProcessorCall("m:f", (value,)), ProcessorCall("m:f", (), {"a": value})):
        with pytest.raises(
            InvalidRequest, match=r"the logits processor 'm:f' has an? .* among its arguments"
        ) as refused:
            check_comparable(SamplingParams(logits_processors=(call,)))
        assert refused.value.param == "logits_processors"


def test_a_script_with_such_arguments_fails_before_anything_runs(monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": str(taken.getsockname()[1])}
    for name, value in (place | {"MASTER_ADDR": "127.0.0.1"}).items():
        monkeypatch.setenv(name, value)
    options = {"distributed_executor_backend": "external_launcher", "logits_processor_pattern": r"tests\.own_code:.*"}
    with LLM("builtin:tiny", max_model_len=256, num_threads=1, **options) as llm:
        call = ProcessorCall("tests.own_code:Ban", (frozenset({5}),))
        with pytest.raises(InvalidRequest, match="has a frozenset among its arguments"):
            llm.generate([[5, 6, 7]], SamplingParams(logits_processors=(call,)))


@pytest.mark.parametrize(
    ("other", "part"),
    [
        (begun(prompt_token_ids=[5, 6, 8]), "prompts of the sequences that begin"),
        (replace(PLAN, admissions=[]), "prompts of the sequences that begin"),
        (
            replace(PLAN, admissions=[replace(BEGUN, seed=8)]),
            "sampling parameters or cache scope of the sequences that begin",
        ),
        (begun(scope=CacheScope("tenant")), "sampling parameters or cache scope of the sequences that begin"),
        (
            begun(task=PoolingParams(("embed",))),
            "sampling parameters or cache scope of the sequences that begin",
        ),
        (replace(PLAN, released_slots=[]), "sequences that end"),
        (replace(PLAN, slots=column(0, 2)), "sequences that compute"),
        (replace(PLAN, num_tokens=column(1, 2)), "tokens to compute"),
        (replace(PLAN, num_outputs=np.array([1, 0], np.int32)), "tokens to compute"),
        (replace(PLAN, forced=[(0, [12])]), "forced tokens"),
        (replace(PLAN, admissions=[replace(BEGUN, adapter_slot=0)]), "slots of adapters"),
        (replace(PLAN, adapter_loads=[AdapterLoad(0, AdapterRef("sql", "a1", "/sql"))]), "slots of adapters"),
        (replace(PLAN, block_ids=column(4).reshape(1, 1)), "KV blocks"),
        (replace(PLAN, admissions=[replace(BEGUN, block_ids=[[1]])]), "KV blocks"),
        (replace(PLAN, kept_states=column(0, 1).reshape(1, 2)), "recurrent states"),
    ],
)
def test_the_first_part_that_differs_is_named(other: StepPlan, part: str):
    assert difference(operation_of(other), operation_of(PLAN)).startswith(f"{part} differ in step 4: ")


def test_another_operation_differs():
    text = difference(operation_of(PLAN), Operation("a call of `norm`"))
    assert text == "it begins step 4, and rank 0 a call of `norm`"
