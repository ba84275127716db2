"""The chat template of a model or of a request, as the server uses it: where it is compiled and rendered.

    template = await Template.compile_async(processes, source, "auto")
    prompt = await template.render_async(Rendering(messages, variables))

Templates are compiled and rendered in isolated processes, with one exception: a harmless template (harmless.py) with
short messages is rendered on the event loop, for at most LOCAL_S, because the processes would cost a few percent of the
throughput. If LOCAL_S is not enough, the prompt is rendered again in a process; a template to which this has happened
MAX_SLOW times is always rendered there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..isolated.isolation import IsolatedProcesses, JobEnded
from .chat_template import CannotCompile, ChatTemplate, ContentFormat, LimitExceeded
from .harmless import MAX_HARMLESS_CHARS, is_harmless
from .length import TextLimit
from .template_environment import TemplateEnvironment
from .user_text import unmarked_errors, without_marks


@dataclass(frozen=True, slots=True)
class Rendering:
    """One prompt to render, and what is found while it is rendered."""

    messages: Sequence[Mapping[str, Any]]
    variables: Mapping[str, Any]
    continues: bool = False  # the prompt ends within the last message, so that the model continues it
    limit: TextLimit | None = None  # longer texts are refused
    # Of a long request: the name of its protocol model, and its body, which has the messages and some of `variables`.
    # The body is read where the template is rendered, by processes that can (server/request_jobs.py).
    model: str = ""
    long_body: bytes | bytearray = b""
    rules: Sequence[str] = ()  # of server/agents/normalise.py, for the messages of `long_body`
    removed: dict[str, int] = field(default_factory=dict)  # found: what the rules have removed
    mark: str = ""  # that messages and variables contain (user_text.py)
    control: Sequence[str] = ()  # control tokens, of which the texts of `long_body` are marked
    answers: Sequence[str] = ()  # the same, in the model's own messages
    breaks: list[int] = field(default_factory=list)  # found: places of the marks in the prompt


LOCAL_S = 0.02
LOCAL_BYTES = 4096  # of a body
MAX_SLOW = 8  # a busy machine may be the reason for some


class Template:
    """variables: the names that the template reads."""

    def __init__(self, processes: IsolatedProcesses, source: str, format: ContentFormat, names: Iterable[str]) -> None:
        self._processes = processes
        self._source, self._format = source, format
        self.variables = frozenset(names)
        self._local: ChatTemplate | None = None
        self._num_slow = 0

    def allow_local(self) -> None:
        """Render short messages on the event loop, if the template is harmless. It has been compiled elsewhere."""
        environment = TemplateEnvironment(LOCAL_S, max_chars=MAX_HARMLESS_CHARS)
        with contextlib.suppress(CannotCompile, RecursionError):  # nested so deeply that it depends on the caller
            # first: compiling another one can take long, because jinja computes constant expressions
            if len(self._source) <= MAX_HARMLESS_CHARS and is_harmless(environment.parse(self._source)):
                self._local = ChatTemplate(environment, self._source, self._format)

    @classmethod
    def compile(cls, processes: IsolatedProcesses, source: str, content_format: ContentFormat = "auto") -> Template:
        """Raises CannotCompile or LimitExceeded."""
        with _limits():
            names = processes.ask(_compiling(source, content_format))
        return cls(processes, source, content_format, names)

    @classmethod
    async def compile_async(cls, processes: IsolatedProcesses, source: str, content_format: ContentFormat) -> Template:
        with _limits():
            names = await processes.answer(_compiling(source, content_format))
        return cls(processes, source, content_format, names)

    def render(self, rendering: Rendering) -> str:
        """The prompt. Raises InvalidRequest for messages that the template refuses, LimitExceeded for its limits."""
        with _limits():
            return _text(rendering, self._processes.ask(self._job(rendering), rendering.long_body))

    async def render_async(
        self, rendering: Rendering, processes: IsolatedProcesses | None = None, *, is_short: bool = False
    ) -> str:
        """processes: they replace the template's own. is_short: the messages have at most LOCAL_BYTES."""
        if self._local is not None and is_short:
            try:
                with unmarked_errors(rendering.mark):
                    text = self._local.render(rendering.messages, rendering.variables, continues=rendering.continues)
                text, rendering.breaks[:] = without_marks(text, rendering.mark)
                return text
            except LimitExceeded:
                self._num_slow += 1
                if self._num_slow == MAX_SLOW:
                    self._local = None
        with _limits():
            found = await (processes or self._processes).answer(self._job(rendering), rendering.long_body)
            return _text(rendering, found)

    def _job(self, rendering: Rendering) -> dict[str, Any]:
        return {
            "do": "render",
            "source": self._source,
            "content_format": self._format,
            "messages": rendering.messages,
            "variables": rendering.variables,
            "continues": rendering.continues,
            "limit": rendering.limit,
            "model": rendering.model,
            "rules": list(rendering.rules),
            "mark": rendering.mark,
            "control": rendering.control if rendering.long_body else (),
            "answers": rendering.answers if rendering.long_body else (),
        }


def _text(rendering: Rendering, found: Mapping[str, Any]) -> str:
    rendering.removed.update(found.get("removed", {}))
    rendering.breaks[:] = found["breaks"]
    text: str = found["text"]
    return text


def _compiling(source: str, content_format: ContentFormat) -> dict[str, Any]:
    return {"do": "compile", "source": source, "content_format": content_format}


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    try:
        yield
    except JobEnded as ended:
        raise LimitExceeded(str(ended)) from None
