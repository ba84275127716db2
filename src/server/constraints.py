"""Constraints of requests: what an answer must obey, checked in isolated processes before it is queued, and kept.

A schema or a grammar is a program for the compiler that reads it. The work is done in a process that is ended at a
limit of time or memory; then the request is answered 400 and no other one is delayed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ..config import Resolved
from ..engine.api import Constraint, Reasoning
from ..formats.format import Format, Harmony
from ..formats.initial import starts_in_reasoning
from ..formats.writing.obeyed import unobeyed
from ..isolated.isolation import LOW_PRIORITY, IsolatedProcesses, JobEnded
from ..text.tokenizer import Tokenizer
from .protocol.errors import bad_request, unsupported
from .protocol.structured import MAX_GRAMMAR_CHARS, OutputGrammar, too_large
from .request_jobs import REQUEST_JOBS

MAX_KEPT = 512
MAX_KEPT_CHARS = 8 << 20  # of grammars
_NUM_PROCESSES = 2
_NUM_BYTES = 256  # the first ids of the vocabulary that grammars are checked with; special tokens follow
FINAL_CHANNEL = "<|channel|>final<|message|>"  # of Harmony, where all that comes before counts as reasoning


# Keywords that say which members an object has, beside `properties` and `additionalProperties`.
_MEMBERS = (
    *("patternProperties", "unevaluatedProperties", "dependentSchemas", "minProperties", "required"),
    *("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const"),
)


@dataclass(slots=True, eq=False)
class _Kept:
    """A grammar that is made, or was. num_waiting: requests that wait for it. num_chars: once it is made."""

    task: asyncio.Task[str]
    num_waiting: int = 0
    num_chars: int = 0


class Constraints:
    def __init__(self, resolved: Resolved, tokenizer: Tokenizer | None) -> None:
        self._settings = resolved.structured_outputs
        # Each is started when it is needed first. Many grammars must not take the processor from the engine.
        self._processes = IsolatedProcesses(REQUEST_JOBS, _NUM_PROCESSES, niceness=LOW_PRIORITY)
        self._tokenizer = tokenizer
        self._special_tokens: list[str] | None = None
        if tokenizer is not None:
            added = tokenizer.backend.get_added_tokens_decoder().values()
            self._special_tokens = sorted(token.content for token in added)
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._num_chars = 0

    @property
    def in_reasoning(self) -> bool:
        """Whether grammars begin with the first token, also of an answer that would begin with reasoning."""
        return self._settings.enable_in_reasoning

    async def checked(self, wanted: OutputGrammar | None) -> Constraint | None:
        """The constraint of a request; None if it wants none.

        Raises ApiError 400 with the place of what is wrong, or of what no answer can be made to obey.
        """
        if wanted is None:
            return None
        if self._special_tokens is None:
            raise unsupported(wanted.param, ": this deployment has no tokenizer (`model.skip_tokenizer_init`)")
        if isinstance(wanted.source, str) and len(wanted.source) > MAX_GRAMMAR_CHARS:
            raise too_large(wanted.param)
        wanted = self._with_defaults(wanted)
        # Not with sorted keys: properties are written in the order of the schema.
        key = hashlib.sha256(json.dumps(_plain(wanted)).encode()).digest()
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(asyncio.ensure_future(self._build(wanted)))
            kept.task.add_done_callback(lambda task: self._settle(key, kept))
        self._kept.move_to_end(key)
        kept.num_waiting += 1
        try:
            return Constraint(await asyncio.shield(kept.task))  # other requests may wait for it too
        finally:
            kept.num_waiting -= 1
            if not kept.num_waiting and not kept.task.done():  # clients that left do not delay those that wait
                self._forget(key, kept)
                kept.task.cancel()

    async def tool_schema(
        self, parameters: Mapping[str, Any], param: str, format: Format, *, strict: bool
    ) -> Mapping[str, Any]:
        """The parameters of a tool as they are enforced, with patterns in the notation of llguidance.

        Raises ApiError 400 with the place of what is not a schema of an object, or what a strict tool's calls cannot be
        made to obey; of other tools that is left out.
        """
        kind = parameters.get("type", "object")
        if "object" not in (kind if isinstance(kind, list) else [kind]):
            place = f"{param}#/type"
            message = f"the arguments of a call are an object, not {str(kind)[:40]!r} (at `{place}`)"
            raise bad_request(message, param=place)
        parameters = {**parameters, "type": "object"}
        if not _allows_members(parameters):
            parameters["additionalProperties"] = False
        constraint = await self.checked(OutputGrammar("json" if strict else "obeyable_json", parameters, param))
        assert constraint is not None
        found = json.loads(constraint.grammar)
        if not strict:
            return found  # type: ignore[no-any-return]
        schema: dict[str, Any] = found["grammars"][0]["json_schema"]
        schema.pop("x-guidance", None)
        if format.calls is not None and (pointer := unobeyed(format.calls.style, schema)) is not None:
            place = f"{param}#{pointer}"
            keyword = pointer.rpartition("/")[2]
            message = f"calls of this model, which are not written as JSON, cannot be made to obey `{keyword}`"
            raise bad_request(f"{message} (at `{place}`)", code="grammar_unsupported", param=place)
        return schema

    def reasoning(
        self, format: Format | None, *, prompt_text: str, continued: str, has_constraint: bool, budget: int | None
    ) -> Reasoning | None:
        """Find where the reasoning of an answer ends, if a constraint begins after it or a budget limits it.

        format: of the model's answers. continued: as for `starts_in_reasoning`.
        Raises ApiError for a budget if it is not known how the model thinks.
        """
        is_harmony = format is not None and format.calls is not None and isinstance(format.calls.style, Harmony)
        if format is None or (format.reasoning is None and not is_harmony):
            if budget is not None:
                raise unsupported("thinking_token_budget", ": it is not known how this model writes its reasoning")
            return None
        if budget is None and (not has_constraint or self._settings.enable_in_reasoning):
            return None
        if is_harmony:
            return Reasoning(end=FINAL_CHANNEL, budget=budget, forced_end=f"<|end|><|start|>assistant{FINAL_CHANNEL}")
        assert format.reasoning is not None
        start, end = format.reasoning.begin.strip(), format.reasoning.end.strip()
        is_open = starts_in_reasoning(format, prompt_text, continued=continued)
        if not is_open and (continued or prompt_text.rstrip().endswith(end)):
            return None  # it is over, or the request asked for none
        return Reasoning(end=end, is_open=is_open, start=start, budget=budget)

    async def checked_lark(self, write: Callable[[Mapping[str, int]], str | None], param: str) -> Constraint | None:
        """A grammar that names special tokens by their ids; None if `write` returns none.

        write: gets the ids by the tokens' texts. It is checked with a vocabulary of bytes, which has other ids.
        """
        if self._tokenizer is None or self._special_tokens is None:
            raise unsupported(param, ": this deployment has no tokenizer (`model.skip_tokenizer_init`)")
        grammar = write({text: _NUM_BYTES + index for index, text in enumerate(self._special_tokens)})
        if grammar is None:
            return None
        await self.checked(OutputGrammar("lark", grammar, param))
        ids = self._tokenizer.backend.get_added_tokens_decoder().items()
        grammar = write({token.content: token_id for token_id, token in ids})
        return None if grammar is None else Constraint(grammar)

    def _with_defaults(self, wanted: OutputGrammar) -> OutputGrammar:
        settings = self._settings
        return replace(
            wanted,
            disable_any_whitespace=wanted.disable_any_whitespace or settings.disable_any_whitespace,
            disable_additional_properties=wanted.disable_additional_properties
            or settings.disable_additional_properties,
        )

    async def _build(self, wanted: OutputGrammar) -> str:
        vocab_size = 0 if self._tokenizer is None else self._tokenizer.vocab_size
        more = {"special_tokens": self._special_tokens, "vocab_size": vocab_size}
        job = {"do": "grammar", **_plain(wanted), **more}
        try:
            grammar: str = await self._processes.answer(job)
        except JobEnded as ended:
            message = f"`{wanted.param}` is too complex: reading it exceeded a limit, {ended}"
            raise bad_request(message, code="grammar_too_complex", param=wanted.param) from None
        return grammar

    def _settle(self, key: bytes, kept: _Kept) -> None:
        """Count what a finished task has made, or forget it if it failed; remove the oldest above the limits."""
        if kept.task.cancelled() or kept.task.exception() is not None:
            self._forget(key, kept)
        elif self._kept.get(key) is kept:
            kept.num_chars = len(kept.task.result())
            self._num_chars += kept.num_chars
        while len(self._kept) > 1 and (len(self._kept) > MAX_KEPT or self._num_chars > MAX_KEPT_CHARS):
            _, oldest = self._kept.popitem(last=False)
            self._num_chars -= oldest.num_chars

    def _forget(self, key: bytes, kept: _Kept) -> None:
        if self._kept.get(key) is kept:
            del self._kept[key]


def _plain(wanted: OutputGrammar) -> dict[str, Any]:
    """Fields of the grammar. `asdict` would copy a schema value by value."""
    return {field.name: getattr(wanted, field.name) for field in fields(wanted)}


def _allows_members(parameters: Mapping[str, Any]) -> bool:
    """Whether a tool can get arguments: not if its list of parameters is empty, and nothing else speaks of members."""
    is_empty = "properties" in parameters and not parameters["properties"]
    return not is_empty or "additionalProperties" in parameters or any(parameters.get(key) for key in _MEMBERS)
