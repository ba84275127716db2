"""The jobs of an isolated process, and the process: `python -m stoker.server.isolated_jobs`. See isolation.py.

compile, render: a chat template, with messages or with the body of a request that has them.
grammar: what an answer must obey, as a grammar that can be compiled.
parse: the body of a request, as its protocol model; what the server does not need of it stays here.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from ..engine.api import InvalidRequest
from .agents.normalise import normalised
from .isolated.isolation import CannotCompile
from .isolated.wire import pack, packed_ids, read, unpack, write
from .protocol import json
from .protocol.chat import ChatRequest, Dialogue, with_earlier
from .protocol.completions import CompletionRequest
from .protocol.errors import ApiError
from .protocol.generate import GenerateRequest
from .protocol.messages import CountTokensRequest, MessagesRequest
from .protocol.responses import ResponsesRequest
from .protocol.tokenize import DetokenizeRequest, TokenizeRequest
from .protocol.wire import Wire
from .text.chat_template import ChatTemplate, ContentFormat, LimitExceeded, TemplateEnvironment
from .text.length import TextLimit

MODELS: dict[str, type[Wire]] = {
    model.__name__: model
    for model in (
        ChatRequest,
        CompletionRequest,
        GenerateRequest,
        TokenizeRequest,
        DetokenizeRequest,
        ResponsesRequest,
        MessagesRequest,
        CountTokensRequest,
    )
}
MAX_NAMES, MAX_NAME_CHARS = 256, 100  # of unknown fields, in an answer
MAX_TEMPLATES = 8  # compiled ones that are kept
_GRACE_S = 0.5  # of processor time, beyond the limit of a rendering: to decode, to compile and to encode


class Jobs:
    def __init__(self, time_limit_s: float) -> None:
        self._environment = TemplateEnvironment(time_limit_s, time.process_time)
        self._compiled: dict[tuple[str, ContentFormat], ChatTemplate] = {}
        self._functions: dict[str, Callable[[dict[str, Any], bytes], Any]] = {
            "compile": self._compile,
            "render": self._render,
            "parse": self._parse,
            "has": self._has,
            "grammar": self._grammar,
        }

    def answer(self, job: dict[str, Any], body: bytes) -> dict[str, Any]:
        try:
            return {"kind": "result", "result": self._functions[job["do"]](job, body)}
        except CannotCompile as error:
            return {"kind": "cannot compile", "message": error.problem, "line": error.line}
        except LimitExceeded as error:
            return {"kind": "limit", "message": error.limit}
        except MemoryError:
            return {"kind": "limit", "message": "more memory than it may use"}
        except InvalidRequest as error:
            return {"kind": "invalid", "message": str(error), "param": error.param, "code": error.code}
        except ApiError as error:
            return {"kind": "error", "status": error.status, "message": error.message, "param": error.param,
                    "code": error.code}  # fmt: skip

    def _compile(self, job: dict[str, Any], _: bytes) -> list[str]:
        """The names of the variables that the template reads."""
        return sorted(self._template(job).variables)

    def _render(self, job: dict[str, Any], body: bytes) -> dict[str, Any]:
        """The prompt, and what the rules removed from the messages.

        With a body, its messages follow those of the job; its tools, documents and variables replace those of the job.
        """
        template, messages, variables = self._template(job), job["messages"], job["variables"]
        removed: Mapping[str, int] = {}
        if body:
            request = json.read(MODELS[job["model"]], body)
            assert isinstance(request, Dialogue)
            conversation = request.conversation()
            messages, tools, removed = normalised(
                with_earlier(messages, conversation.plain_messages()), conversation.plain_tools(), job["rules"]
            )
            given = {
                **(conversation.chat_template_kwargs or {}),
                "tools": variables["tools"] and tools,
                "documents": variables["documents"] and conversation.documents,
            }
            variables = {name: given.get(name, value) for name, value in variables.items()}
        text = template.render(messages, variables, continues=job["continues"])
        if job["limit"] is not None:
            TextLimit(*job["limit"]).check(text, param="messages")
        return {"text": text, "removed": removed}

    def _parse(self, job: dict[str, Any], body: bytes) -> dict[str, Any]:
        """What the server needs of a request."""
        request = json.read(MODELS[job["model"]], body, job["max_values"])
        request.refuse_unsupported()
        if job["limit"] is not None:
            for text in request.texts_to_encode:
                TextLimit(*job["limit"]).check(text, param="prompt")
        unknown = request.unknown_fields
        shown = [name[:MAX_NAME_CHARS] for name in unknown[:MAX_NAMES]]
        kept = {**request.essentials(), **{name: getattr(request, name) for name in job["keep"]}}
        fields = {name: _packed(name, value) for name, value in kept.items()}
        return {"fields": fields, "unknown": shown, "num_unknown": len(unknown)}

    def _has(self, job: dict[str, Any], body: bytes) -> bool:
        """Whether the object in the body has a field."""
        return job["name"] in json.parse(body)

    def _grammar(self, job: dict[str, Any], _: bytes) -> str:
        """The grammar of an answer. Imported here: the other jobs need no grammars."""
        return import_module(".grammars.build", __package__).build(job)  # type: ignore[no-any-return]

    def _template(self, job: dict[str, Any]) -> ChatTemplate:
        key = (job["source"], job["content_format"])
        template = self._compiled.pop(key, None) or ChatTemplate(self._environment, *key)
        while len(self._compiled) >= MAX_TEMPLATES:
            del self._compiled[next(iter(self._compiled))]  # the one that was not used for longest
        self._compiled[key] = template
        return template


def _packed(name: str, value: Any) -> Any:
    """Long lists of token ids are encoded and decoded as a block."""
    if name == "prompt":
        return [packed_ids(prompt) if isinstance(prompt, list) else prompt for prompt in value]
    return packed_ids(value) if name in ("tokens", "token_ids", "allowed_token_ids") else value


def main(argv: Sequence[str]) -> int:
    time_limit_s, memory_bytes, niceness = float(argv[1]), int(argv[2]), int(argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    with contextlib.suppress(ValueError, OSError):  # macOS has no limit of the address space
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(niceness)
    jobs = Jobs(time_limit_s)
    with socket.socket(fileno=0) as connection, connection.makefile("rwb") as stream:
        write(stream, b"")  # ready
        while head := read(stream):
            job = unpack(head)
            body = read(stream)
            # At its end the kernel ends the process with SIGPROF, also within an operation, and without a server.
            signal.setitimer(signal.ITIMER_PROF, time_limit_s + _GRACE_S)
            answer = pack(jobs.answer(job, body))
            signal.setitimer(signal.ITIMER_PROF, 0)
            write(stream, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
