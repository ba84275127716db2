"""Jobs about chat templates in an isolated process, and the process: `python -m stoker.text.template_jobs`.

compile, render: a chat template, with messages.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..engine.api import InvalidRequest
from ..isolated.isolation import JobModule
from ..isolated.process import answer_jobs
from .chat_template import CannotCompile, ChatTemplate, ContentFormat, LimitExceeded
from .length import TextLimit
from .template_environment import TemplateEnvironment
from .user_text import unmarked_errors, without_marks

MAX_TEMPLATES = 8  # compiled ones that are kept


class TemplateJobs:
    def __init__(self, time_limit_s: float) -> None:
        """time_limit_s: processor time of a rendering."""
        self._environment = TemplateEnvironment(time_limit_s, time.process_time)
        self._compiled: dict[tuple[str, ContentFormat], ChatTemplate] = {}
        self._functions: dict[str, Callable[[dict[str, Any], bytes], Any]] = {
            "compile": self._compile,
            "render": self._render,
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

    def _compile(self, job: dict[str, Any], _: bytes) -> list[str]:
        """The names of the variables that the template reads."""
        return sorted(self._template(job).variables)

    def _render(self, job: dict[str, Any], _: bytes) -> dict[str, Any]:
        return self._rendered(job, job["messages"], job["variables"], job["mark"])

    def _rendered(
        self, job: dict[str, Any], messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], mark: str
    ) -> dict[str, Any]:
        """The prompt, and the places in it where marks were."""
        with unmarked_errors(mark):
            text = self._template(job).render(messages, variables, continues=job["continues"])
        text, breaks = without_marks(text, mark)
        if job["limit"] is not None:
            TextLimit(*job["limit"]).check(text, param="messages")
        return {"text": text, "breaks": breaks}

    def _template(self, job: dict[str, Any]) -> ChatTemplate:
        key = (job["source"], job["content_format"])
        template = self._compiled.pop(key, None) or ChatTemplate(self._environment, *key)
        while len(self._compiled) >= MAX_TEMPLATES:
            del self._compiled[next(iter(self._compiled))]  # the one that was not used for longest
        self._compiled[key] = template
        return template


def error_of(answer: Mapping[str, Any]) -> Exception:
    if answer["kind"] == "cannot compile":
        return CannotCompile(answer["message"], answer["line"])
    return InvalidRequest(answer["message"], param=answer["param"], code=answer["code"])


TEMPLATE_JOBS = JobModule(f"{__package__}.template_jobs", error_of)

if __name__ == "__main__":
    sys.exit(answer_jobs(sys.argv, TemplateJobs))
