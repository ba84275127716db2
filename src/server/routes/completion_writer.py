"""CompletionWriter: the choices of one text completion, as objects of a complete answer and of chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...engine.api import TokenLogprobs
from ...text.generated_sequence import Delta
from ..endpoint import INLINE_ITEMS
from ..logprobs import CompletionLogprobs, prompt_logprobs
from ..protocol.completions import CompletionRequest
from ..protocol.stream import ChunkWriter
from ..service import Service


class CompletionWriter:
    """Writes the choices of one request."""

    def __init__(
        self, service: Service, body: CompletionRequest, prompts: Sequence[list[int]], num_top: int | None
    ) -> None:
        """prompts: of the request, as token ids. num_top: None if it asks for no log-probabilities."""
        self._prompts = prompts
        self._num_top = num_top
        self._body = body
        self._tokenizer = service.tokenizer
        self._names = service.token_names(body.return_tokens_as_token_ids)
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._shows_ids = bool(body.return_token_ids) or self._tokenizer is None

    def resume(self, index: int, before: Sequence[int], offset: int) -> None:
        """Continue a choice, of which earlier chunks were written elsewhere: as CompletionLogprobs."""
        self._logprobs[index] = CompletionLogprobs(self._names, before, offset)

    def offset(self, index: int) -> int:
        """The length of a choice so far, if its log-probabilities are written."""
        return self._logprobs[index].offset if index in self._logprobs else 0

    def choice(self, delta: Delta, *, is_first: bool = True) -> dict[str, Any]:
        """is_first: the first delta of its sequence, which begins with the prompt if `echo` is set."""
        prompt = self._prompts[delta.index // (self._body.n or 1)]
        echoes = bool(self._body.echo) and is_first
        choice: dict[str, Any] = {
            "index": delta.index,
            "text": self._prompt_text(delta.index) + delta.text if echoes else delta.text,
            "logprobs": None,
            "finish_reason": delta.finish_reason,
        }
        if delta.stop_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        if delta.logprobs is not None and self._num_top is not None:
            entries: list[TokenLogprobs | None] = [*delta.logprobs]
            token_ids = delta.token_ids
            if echoes and delta.prompt_logprobs is not None:
                entries, token_ids = [*delta.prompt_logprobs, *entries], prompt + token_ids
            writer = self._logprobs.setdefault(delta.index, CompletionLogprobs(self._names))
            choice["logprobs"] = writer.block(entries, token_ids, self._num_top)
        if self._body.prompt_logprobs is not None and delta.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(delta.prompt_logprobs, self._tokenizer)
        if self._shows_ids:
            choice["token_ids"] = delta.token_ids
            if is_first and self._body.return_token_ids:
                choice["prompt_token_ids"] = prompt
        return choice

    def num_items(self, delta: Delta, *, is_first: bool = True) -> int:
        """How many tokens and log-probabilities `choice` writes."""
        body = self._body
        num = len(delta.token_ids) * (1 + (self._num_top or 0)) if self._num_top is not None or self._shows_ids else 0
        num += sum(1 if entry is None else len(entry.token_ids) for entry in delta.prompt_logprobs or ())
        if is_first and (body.echo or body.return_token_ids):
            num += len(self._prompts[delta.index // (body.n or 1)])
        return num

    def frame(
        self, writer: ChunkWriter, delta: Delta, is_first: bool, counts: dict[str, Any] | None, num_items: int
    ) -> bytes:
        return writer.choice(self.choice(delta, is_first=is_first), counts, is_long=num_items > INLINE_ITEMS)

    def needs_whole_choice(self, delta: Delta, *, is_first: bool) -> bool:
        """Whether the chunk of this delta holds more than text."""
        if self._num_top is not None or self._shows_ids or delta.finish_reason is not None:
            return True
        return delta.prompt_logprobs is not None or (is_first and bool(self._body.echo))

    def _prompt_text(self, index: int) -> str:
        prompt = self._body.prompt[index // (self._body.n or 1)]
        if isinstance(prompt, str):
            return prompt
        return self._tokenizer.decode(prompt, skip_special_tokens=False) if self._tokenizer else ""
