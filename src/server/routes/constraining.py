"""What an answer must obey: a schema or grammar of the request, the choice of its tools, or both in one grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...engine.api import Constraint
from ...formats.grammar import grammar_of
from ...formats.tool_choice import Choice, ToolSchema
from ...formats.writing.rules import regex
from ..answers.reading import Reading
from ..grammars.lark import of_regex
from ..protocol.chat import ChatRequest
from ..protocol.errors import unsupported
from ..protocol.structured import OutputGrammar
from ..protocol.tool_choice import ToolChoice
from ..service import Service


async def constraint_of(service: Service, body: ChatRequest, reading: Reading) -> Constraint | None:
    """Raises ApiError for what cannot be obeyed."""
    wanted, choice = body.output_grammar, body.choice
    constraint = await service.constraints.checked(wanted)
    param = _needs_grammar(body, choice)
    if wanted is not None and choice.reads_calls and choice.mode == "auto" and reading.reads_calls:
        param = param or "tools"  # else the schema of the answer would exclude calls
    if param is None:
        return constraint
    format = reading.format
    if format is None or not reading.reads_calls:
        raise unsupported(param, ": the form of this model's tool calls is not known (`server.tool_call_parser`)")
    tools = [tool.function for tool in body.tools or ()]
    schemas = []
    for index, tool in enumerate(tools):
        strict = bool(tool.strict)
        parameters: Mapping[str, Any] = tool.parameters or {"type": "object", "properties": {}}
        if tool.name in choice.names and (strict or choice.mode != "auto"):
            place = f"tools[{index}].function.parameters"
            parameters = await service.constraints.tool_schema(parameters, place, format, strict=strict)
        schemas.append(ToolSchema(tool.name, parameters, strict))
    content = None
    if wanted is not None and constraint is not None and choice.mode == "auto":
        content = _content_rule(wanted, constraint)

    def write(special_tokens: Mapping[str, int]) -> str | None:
        return grammar_of(
            format,
            schemas,
            choice=_choice(choice),
            parallel=body.parallel_tool_calls is not False,
            answer=content,
            special_tokens=special_tokens,
        )

    return await service.constraints.checked_lark(write, param) or constraint


def _needs_grammar(body: ChatRequest, choice: ToolChoice) -> str | None:
    """The field that a grammar of calls is needed for."""
    if not choice.reads_calls:
        return None
    if choice.mode != "auto" or len(choice.names) < len(body.tools or ()):
        return "tool_choice"
    if body.parallel_tool_calls is False:
        return "parallel_tool_calls"
    return "tools" if any(tool.function.strict for tool in body.tools or ()) else None


def _choice(choice: ToolChoice) -> Choice:
    must_call = choice.mode in ("required", "named")
    return Choice(must_call=must_call, names=frozenset(choice.names), is_named=choice.mode == "named")


def _content_rule(wanted: OutputGrammar, constraint: Constraint) -> str:
    """The body of a rule for the content beside calls.

    constraint: only of `wanted`; its schema is the one that was checked, with limited white space.
    """
    match wanted.kind:
        case "json" | "json_object":
            return "%json " + json.dumps(json.loads(constraint.grammar)["grammars"][0]["json_schema"])
        case "choice":
            return " | ".join(json.dumps(text) for text in wanted.source)
        case "regex":
            return regex(of_regex(wanted.source, wanted.param))
    raise unsupported(wanted.param, " together with `tools`: send a JSON schema, a regular expression or a choice")
