"""What a request brings passes whole from the client to the ranks of a model."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import msgpack
from tests.fake_adapters import adapters_in_memory

from stoker.engine.api import AdapterRef, CacheScope, EngineRequest, RequestInputs, SamplingParams
from stoker.engine.core import Scheduler, SchedulerSettings
from stoker.engine.step import AdapterLoad, StepPlan
from stoker.engine.transport import wire
from stoker.engine.transport.messages import Submit
from stoker.engine.transport.rank_messages import CODEC
from stoker.engine.transport.records import record, tagged
from stoker.engine.transport.request_parts import REQUEST_PARTS


def test_each_input_of_a_request_reaches_the_ranks():
    adapter = AdapterRef("sql", "a1b2", "/adapters/sql")
    inputs = RequestInputs([5, 6, 7], SamplingParams(prompt_logprobs=2), CacheScope("salt", 3), adapter)
    plain = RequestInputs([], SamplingParams())
    for field in fields(RequestInputs):
        assert getattr(inputs, field.name) != getattr(plain, field.name), f"{field.name} has no value in this test"
    submit = wire.decode(wire.encode(Submit(1, EngineRequest(request_id="r", inputs=inputs))))
    assert isinstance(submit, Submit)
    settings = SchedulerSettings(num_blocks=4, block_size=4, max_num_seqs=1, max_num_batched_tokens=8, max_model_len=16)
    scheduler = Scheduler(replace(settings, adapters=adapters_in_memory(max_loras=1)))
    scheduler.add(submit.request)
    plan = scheduler.schedule()
    assert plan is not None
    sent = CODEC.decode(CODEC.encode(plan))
    assert isinstance(sent, StepPlan)
    assert plan.adapter_loads == sent.adapter_loads == [AdapterLoad(0, adapter)]
    assert [each.inputs for each in (*plan.admissions, *sent.admissions)] == [inputs, inputs]


@dataclass(frozen=True, slots=True)
class Coloured(RequestInputs):
    colours: tuple[int, ...] = ()
    name: str | None = None


def test_an_input_more_needs_no_encoding_unless_its_type_is_new():
    part = record(Coloured, {**REQUEST_PARTS, tuple[int, ...]: REQUEST_PARTS[list[int]]._replace(read=_tuple)})
    for inputs in (
        Coloured([1], SamplingParams(n=2)),
        Coloured([1], SamplingParams(), CacheScope(), None, (4, 5), "red"),
    ):
        assert part.read(msgpack.unpackb(msgpack.packb(part.write(inputs))), "inputs") == inputs


def _tuple(data: bytes, name: str) -> tuple[int, ...]:
    return tuple(REQUEST_PARTS[list[int]].read(data, name))


@dataclass(frozen=True, slots=True)
class Count:
    up_to: int


def test_each_task_is_read_as_its_own_type():
    part = tagged((SamplingParams, Count), {}, {})
    assert part.read(part.write(Count(3)), "task") == Count(3)
    assert part.write(Count(3)) == ["count", 3]
