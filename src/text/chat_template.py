"""Chat templates: the form of messages they expect, and their execution.

A template is a program from a model folder. It runs in the environment of template_environment.py, on plain JSON values
only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jinja2
import jinja2.meta

from ..engine.api import InvalidRequest
from .json_text import has_surrogate, object_of
from .template_environment import RenderingStopped, TemplateEnvironment
from .template_probe import DEVELOPER, SYSTEM, TemplateProbe
from .template_syntax import asks_whether_string, compared_texts, loops_over_content, writes_arguments

ContentFormat = Literal["auto", "string", "openai"]
# Names of a message's reasoning that clients and templates use. A template reads one of them.
_REASONING = ("reasoning", "reasoning_content", "thinking")
INCOMPLETE = "incomplete_arguments"  # the key of arguments that are not an object, where only an object can be written
_MARK = "\ue000end of the final message\ue001"  # private-use characters: not used in messages


class CannotCompile(Exception):
    """The template is wrong, at `line` if that is known."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem, line)
        self.problem = problem
        self.line = line

    def message(self, template: str) -> str:
        """template: its name."""
        return f"{template}{'' if self.line is None else f', line {self.line}'}: {self.problem}"


class LimitExceeded(InvalidRequest):
    """The template took too long, or too much memory."""

    def __init__(self, limit: str) -> None:
        super().__init__(f"the chat template exceeded a limit: {limit}", param="messages")
        self.limit = limit


class ChatTemplate:
    """One compiled template, and the form of messages it expects."""

    def __init__(self, environment: TemplateEnvironment, source: str, content_format: ContentFormat = "auto") -> None:
        """
        content_format: pass content as one text (string), as typed parts (openai), or as the template reads it (auto).
        Raises CannotCompile.
        """
        try:
            tree = environment.parse(source)
            compared = compared_texts(tree)  # first: what follows replaces constant expressions by their values
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(tree))
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise CannotCompile(error.message or "a syntax error", error.lineno) from None
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            # limits of Python's compiler for blocks, parentheses and numbers
            raise CannotCompile("it is nested too deeply, or too large, to be compiled") from None
        self._probe = TemplateProbe(self._written, compared)
        self._reasoning_names = [name for name in _REASONING if re.search(rf"\.{name}\b|['\"]{name}['\"]", source)]
        self._takes_arguments_as_text = writes_arguments(tree)
        if content_format == "auto":
            self._takes_parts = loops_over_content(tree)
            self._takes_strings = not self._takes_parts or asks_whether_string(tree)
        else:
            self._takes_parts = content_format == "openai"
            self._takes_strings = not self._takes_parts
        self._environment = environment

    def _shape(self, message: Mapping[str, Any], place: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The message in this template's form: its own roles, content as text or parts, arguments as objects.

        place: where the request has it, such as `messages[0]`. Raises InvalidRequest for a role that the template does
        not write.
        """
        shaped = self._with_content({key: value for key, value in message.items() if value is not None})
        role = shaped.get("role")
        if role == DEVELOPER and not self._probe.has_developer(variables):
            role = shaped["role"] = SYSTEM  # OpenAI's newer name of the system role
        if isinstance(role, str) and not self._probe.writes(role, variables):
            known = ", ".join(self._probe.roles(variables))
            raise InvalidRequest(
                f"`{place}.role` is {role!r}, but this model's chat template does not write messages of this role; "
                f"it writes those of: {known}",
                param=f"{place}.role",
            )
        if shaped.get("tool_calls"):
            shaped["tool_calls"] = [
                self._with_arguments(call, f"{place}.tool_calls[{index}].function", variables)
                for index, call in enumerate(shaped["tool_calls"])
            ]
        return shaped

    def _with_content(self, shaped: dict[str, Any]) -> dict[str, Any]:
        reasoning = next((given for name in _REASONING if (given := shaped.pop(name, None))), None)
        if reasoning is not None:
            shaped |= dict.fromkeys(self._reasoning_names, reasoning)
        content = shaped.get("content")
        if isinstance(content, list) and not self._takes_parts:
            shaped["content"] = "\n".join(part["text"] for part in content)
        elif isinstance(content, str) and not self._takes_strings:
            shaped["content"] = [{"type": "text", "text": content}]
        return shaped

    def _with_arguments(self, call: Mapping[str, Any], place: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """A tool call as templates read it: the arguments are JSON text in OpenAI's API, an object in most templates.

        Whatever a model wrote as arguments is accepted: its client sends it in every later request.
        """
        function = call.get("function") or {}
        if not isinstance(function, Mapping):
            raise InvalidRequest(f"`{place}` must be an object", param=place)
        given = function.get("arguments")
        arguments: Any
        if self._takes_arguments_as_text:
            arguments = given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)
        else:
            text = given if isinstance(given, str) else json.dumps(given)
            arguments = given if isinstance(given, Mapping) else object_of(text) if given and text.strip() else {}
            if arguments is None:
                arguments = text if self._probe.takes_text_arguments(variables) else {INCOMPLETE: text}
        return {**call, "function": {**function, "arguments": arguments}}

    def _written(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str | None:
        """The prompt of a small conversation; None if the template raises an error. Raises LimitExceeded."""
        shaped = [self._with_content(dict(message)) for message in messages]
        # a request may have a megabyte of tools
        lists = {name: variables.get(name) for name in ("tools", "documents")}
        few = {name: value[:1] for name, value in lists.items() if isinstance(value, list)}
        try:
            return self._generate({**variables, **few, "messages": shaped})
        except LimitExceeded:
            raise
        except InvalidRequest:
            return None

    def render(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], *, continues: bool = False
    ) -> str:
        """The prompt for these messages.

        continues: it ends within the last message, so that the model continues it.
        Raises InvalidRequest for messages that the template refuses, LimitExceeded for too much time or memory.
        """
        shaped = [self._shape(message, f"messages[{index}]", variables) for index, message in enumerate(messages)]
        if not continues:
            return self._generate({**variables, "messages": shaped})
        shaped[-1] = _mark_end(shaped[-1])
        text = self._generate({**variables, "messages": shaped})
        end = text.rfind(_MARK)
        if end < 0:
            raise InvalidRequest(
                "the chat template does not write the final message, so it cannot be continued",
                param="continue_final_message",
            )
        return text[:end]

    def _generate(self, variables: Mapping[str, Any]) -> str:
        chunks: list[str] = []
        size = 0
        self._environment.start_clock()
        try:
            for chunk in self._template.generate(variables):
                size += len(chunk)
                if size > self._environment.max_chars:
                    raise RenderingStopped(f"more than {self._environment.max_chars} characters")
                self._environment.check_clock()
                chunks.append(chunk)
            self._environment.check_clock()  # an operation after the last chunk can be the one that took long
            text = "".join(chunks)
        except RenderingStopped as error:
            raise LimitExceeded(str(error)) from None
        except MemoryError:
            raise LimitExceeded("more memory than it may use") from None
        except jinja2.TemplateError as error:
            raise InvalidRequest(
                f"the chat template refused the messages: {_first_line(error)}", param="messages"
            ) from None
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            # A bug of the template, or messages it does not expect. The text may contain class names: not shown.
            raise InvalidRequest(
                f"the chat template cannot render these messages ({type(error).__name__})", param="messages"
            ) from None
        if has_surrogate(text):
            raise InvalidRequest(
                "the chat template cannot render these messages (half of a surrogate pair)", param="messages"
            )
        return text


def _mark_end(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list) and content:
        last = {**content[-1], "text": content[-1]["text"] + _MARK}
        return {**message, "content": [*content[:-1], last]}
    return {**message, "content": (content or "") + _MARK}


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
