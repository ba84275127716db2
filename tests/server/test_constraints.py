"""Constraints of requests: the options that change them, the processes that make them, and what is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import llguidance
import pytest

from stoker.config.schema.structured_outputs import StructuredOutputsConfig
from stoker.engine.api import Constraint, Reasoning
from stoker.formats.registry import find
from stoker.isolated.isolation import IsolatedProcesses, JobEnded
from stoker.server.constraints import FINAL_CHANNEL, Constraints
from stoker.server.grammars.compile import byte_tokens
from stoker.server.protocol.errors import ApiError
from stoker.server.protocol.structured import OutputGrammar
from stoker.server.request_jobs import REQUEST_JOBS
from stoker.text.tokenizer import Tokenizer

from .deployment import PROCESSES, Served, resolved

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}}


def constraints(folder: Path, tokenizer: Tokenizer | None, **options: Any) -> Constraints:
    made = resolved(folder).model_copy(update={"structured_outputs": StructuredOutputsConfig(**options)})
    found = Constraints(made, tokenizer)
    found._processes = PROCESSES  # those of all tests: starting one takes long
    return found


def accepts(constraint: Constraint | None, text: str) -> bool:
    assert constraint is not None
    matcher = llguidance.LLMatcher(byte_tokens(("<think>",)), constraint.grammar)
    return matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()


def checked(made: Constraints, kind: Any, source: Any, **options: Any) -> Constraint | None:
    return asyncio.run(made.checked(OutputGrammar(kind, source, "field", **options)))


@pytest.mark.effect(
    "structured_outputs.backend",
    "structured_outputs.disable_any_whitespace",
    "structured_outputs.disable_additional_properties",
)
def test_options_of_the_deployment_apply_to_every_request(folder: Path, tokenizer: Tokenizer):
    usual = checked(constraints(folder, tokenizer, backend="guidance"), "json", OBJECT)
    assert accepts(usual, '{"a": 1}')
    assert accepts(usual, '{"b":1}')
    compact = checked(constraints(folder, tokenizer, disable_any_whitespace=True), "json", OBJECT)
    assert accepts(compact, '{"a":1}')
    assert not accepts(compact, '{"a": 1}')
    closed = checked(constraints(folder, tokenizer, disable_additional_properties=True), "json", OBJECT)
    assert accepts(closed, '{"a": 1}')
    assert not accepts(closed, '{"b":1}')


@pytest.mark.effect("structured_outputs.enable_in_reasoning")
def test_a_grammar_begins_after_the_reasoning_or_with_it(folder: Path, tokenizer: Tokenizer):
    made, prompt = find("hermes"), {"prompt_text": "<|im_start|>assistant\n<think>\n", "continued": ""}
    assert made.reasoning is not None
    usual, inside = constraints(folder, tokenizer), constraints(folder, tokenizer, enable_in_reasoning=True)
    expected = Reasoning(end="</think>", start="<think>")
    assert usual.reasoning(made, **prompt, has_constraint=True, budget=None) == expected
    assert inside.reasoning(made, **prompt, has_constraint=True, budget=None) is None
    assert usual.reasoning(made, **prompt, has_constraint=False, budget=None) is None
    limited = usual.reasoning(made, **prompt, has_constraint=False, budget=7)
    assert limited == Reasoning(end="</think>", start="<think>", budget=7)
    undecided = usual.reasoning(made, prompt_text="assistant\n", continued="", has_constraint=True, budget=None)
    assert undecided == Reasoning(end="</think>", start="<think>", is_open=False)
    # Where the prompt has closed it, a model must not open it again: it thought to max_tokens, without an answer.
    closed = {"prompt_text": "<think>\n\n</think>\n\n", "continued": ""}
    assert usual.reasoning(made, **closed, has_constraint=True, budget=7) is None
    harmony = usual.reasoning(find("openai"), **prompt, has_constraint=True, budget=None)
    assert harmony is not None
    assert (harmony.end, harmony.is_open) == (FINAL_CHANNEL, True)
    assert harmony.forced_end.endswith(FINAL_CHANNEL)
    with pytest.raises(ApiError, match="not known"):
        usual.reasoning(None, **prompt, has_constraint=False, budget=7)


@pytest.mark.parametrize(
    ("kind", "source", "yes", "no"),
    [
        ("choice", ["yes", 'a "b"\\n'], 'a "b"\\n', "no"),
        ("regex", r"^\d{2}$", "12", "123"),
        ("regex", r"a\$", "a$", "a"),
        ("lark", 'start: "a" /[0-9]/', "a7", "7"),
        ("gbnf", 'root ::= "a" [0-9]+ | "b"', "a77", "ab"),
        ("json_object", None, '{"x": [1]}', "[]"),
        ("structural_tag", {"structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}],
                            "triggers": ["<f"]}, "so <f>1</f> it is", "so <f>x</f>"),
        ("structural_tag", {"format": {"type": "sequence", "elements": [
            {"type": "const_string", "value": "x/"},
            {"type": "or", "elements": [{"type": "regex", "pattern": "[0-9]/"}, {"type": "grammar", "grammar":
                                                                               'root ::= "k"'}]},
            {"type": "tag", "begin": "(", "content": {"type": "any_text"}, "end": ")"},
            {"type": "repeat", "content": {"type": "json_schema", "json_schema": {"type": "null"}}, "min": 1,
             "max": 2}]}}, "x/7/(a (b)nullnull", "x/7/(a)"),
        ("structural_tag", {"format": {"type": "tags_with_separator", "separator": ";", "at_least_one": True, "tags": [
            {"begin": "<a>", "content": {"type": "const_string", "value": "1"}, "end": "</a>"}]}},
         "<a>1</a>;<a>1</a>", "<a>1</a><a>1</a>"),
    ],
)  # fmt: skip
def test_each_way_to_say_a_grammar_is_obeyed(
    folder: Path, tokenizer: Tokenizer, kind: Any, source: Any, yes: str, no: str
):
    found = checked(constraints(folder, tokenizer), kind, source)
    assert accepts(found, yes)
    assert not accepts(found, no)


@pytest.mark.parametrize(
    ("kind", "source", "place"),
    [
        ("lark", "start: missing", "field"),
        ("gbnf", 'root ::= "a', "field"),
        ("regex", "(?=a)b", "field"),
        ("regex", "(", "field"),
        ("regex", "a" * 70_000, "field"),
        ("choice", ["a" * 70_000, "b"], "field"),
        ("json", {"const": "a" * 70_000}, "field"),
        ("json", {"properties": {"a" * 70_000: {}}}, "field"),
        ("lark", "start: " + " | ".join(f'"k{i}" start' for i in range(2001)), "field"),
        ("json", {"properties": {"a": {"not": {}}}}, "field#/properties/a/not"),
        ("structural_tag", {"format": {"type": "qwen_xml_parameter"}}, "field#/format/type"),
        ("structural_tag", {"structures": [{"begin": "<f>"}], "triggers": ["<g"]}, "field#/tags/0/begin"),
        ("structural_tag", {"format": {"type": "tag", "begin": "a", "end": "b", "content":
                                       {"type": "json_schema", "json_schema": {"uniqueItems": True}}}},
         "field#/format/content/json_schema#/uniqueItems"),
    ],
)  # fmt: skip
def test_what_cannot_be_obeyed_is_a_400_with_its_place(
    folder: Path, tokenizer: Tokenizer, kind: Any, source: Any, place: str
):
    with pytest.raises(ApiError) as refused:
        checked(constraints(folder, tokenizer), kind, source)
    assert (refused.value.status, refused.value.param) == (400, place)


def test_a_grammar_is_made_once_for_all_who_ask(folder: Path, tokenizer: Tokenizer):
    made = constraints(folder, tokenizer)
    jobs: list[Any] = []

    class Counting:
        async def answer(self, job: Any) -> str:
            jobs.append(job)
            await asyncio.sleep(0)
            return "start: /a/"

    made._processes = Counting()  # type: ignore[assignment]

    async def ask() -> None:
        await asyncio.gather(*(made.checked(OutputGrammar("regex", "a", "field")) for _ in range(3)))
        await made.checked(OutputGrammar("regex", "a", "field"))

    asyncio.run(ask())
    assert len(jobs) == 1


def test_grammars_that_nobody_waits_for_do_not_delay_others(folder: Path, tokenizer: Tokenizer):
    """Their clients had left, and each was still checked, two seconds of processor time for the worst."""
    made = constraints(folder, tokenizer)
    asked: list[str] = []

    class Busy:
        async def answer(self, job: Any) -> str:
            asked.append(job["source"])
            await is_free.wait()
            return "start: /a/"

    made._processes = Busy()  # type: ignore[assignment]
    is_free = asyncio.Event()

    async def run() -> None:
        def ask(source: str) -> asyncio.Task[Any]:
            return asyncio.ensure_future(made.checked(OutputGrammar("regex", source, "field")))

        left, staying, other = ask("a"), ask("a"), ask("b")
        await asyncio.sleep(0)
        for task in (left, other):
            task.cancel()
        await asyncio.sleep(0)
        assert len(made._kept) == 1  # the one that is still waited for
        again = ask("b")
        await asyncio.sleep(0)
        is_free.set()
        await asyncio.gather(staying, again)
        assert other.cancelled()
        assert len(made._kept) == 2

    asyncio.run(run())
    assert asked == ["a", "b", "b"]
    assert made._num_chars == 2 * len("start: /a/")


def test_schemas_that_differ_in_the_order_of_properties_are_two(folder: Path, tokenizer: Tokenizer):
    made = constraints(folder, tokenizer)
    for names in (["a", "b"], ["b", "a"]):
        schema = {"type": "object", "properties": {name: {"type": "null"} for name in names}, "required": names}
        found = checked(made, "json", schema)
        assert accepts(found, "{" + ", ".join(f'"{name}": null' for name in names) + "}")


def test_a_schema_that_exceeds_a_limit_is_a_400(folder: Path, tokenizer: Tokenizer):
    made = constraints(folder, tokenizer)

    class Ending(IsolatedProcesses):
        async def answer(self, job: Any, body: Any = b"") -> Any:
            raise JobEnded("more than 2 s")

    made._processes = Ending(REQUEST_JOBS, 0)
    for _ in range(2):  # a failure is not kept
        with pytest.raises(ApiError) as refused:
            checked(made, "regex", "a")
        assert (refused.value.status, refused.value.code) == (400, "grammar_too_complex")
    assert not made._kept


def test_without_a_tokenizer_nothing_can_be_constrained(folder: Path):
    with pytest.raises(ApiError, match="no tokenizer"):
        checked(constraints(folder, None), "regex", "a")


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": OBJECT}}},
        {"structured_outputs": {"json": OBJECT}},
        {"guided_json": '{"type": "object", "properties": {"a": {"type": "integer"}}}'},
        {"json_schema": OBJECT},
    ],
)
def test_a_schema_in_any_field_is_the_same_constraint(served: Served, fields: dict[str, Any]):
    assert served.complete(max_tokens=1, **fields).status_code == 200
    constraint = served.engine.requests[-1].inputs.sampling.constraint
    assert accepts(constraint, '{"a": 1}')
    assert not accepts(constraint, '{"a": "x"}')


@pytest.mark.parametrize("field", ["guided_json", "json_schema"])
@pytest.mark.parametrize("schema", ["[" * 3000, '{"items": ' * 100 + "{}" + "}" * 100, '{"const": ' + "9" * 5000 + "}"])
def test_a_schema_as_text_has_the_limits_of_a_body(served: Served, field: str, schema: str):
    answer = served.chat(**{field: schema})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_a_grammar_may_name_the_ids_of_the_model(folder: Path, tokenizer: Tokenizer):
    """It was checked with a vocabulary of bytes, which has fewer."""
    made = constraints(folder, tokenizer)
    last = tokenizer.vocab_size - 1
    assert checked(made, "lark", f"start: <[300-{last}]>* <[0]>") is not None
    with pytest.raises(ApiError, match="too large"):
        checked(made, "lark", f"start: <[{last + 1}]>")
