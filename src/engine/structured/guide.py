"""Guide: what may follow in one sequence: its reasoning, the end of that, then what its grammar allows.

A constraint begins at the token after the reasoning. Its end is looked for in the text of the tokens, because a model
may spell it with other tokens than the one that the vocabulary has for it. While the model thinks, all tokens are
allowed but tokens that end the sequence: its answer would disobey the grammar.

Where the text can continue in one way only, as in the names of a JSON object, the guide forces its usual tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto

import numpy as np

from ..api import Reasoning
from .backend import Backend, Bitmask, GrammarError, Matcher, num_words


class _Part(Enum):
    START = auto()  # of an answer that may begin with reasoning
    REASONING = auto()
    ANSWER = auto()


class Guide:
    """Constraint of one sequence. One thread at a time may call `take`, or `update`."""

    def __init__(
        self,
        backend: Backend,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        matcher: Matcher | None,
        reasoning: Reasoning | None,
        *,
        forces_runs: bool = True,
    ) -> None:
        """
        matcher: at its beginning; None if only the reasoning is limited.
        forces_runs: False if another rule of the request may forbid a token that the grammar forces.
        """
        self._backend, self._vocab_size, self._matcher = backend, vocab_size, matcher
        self._eos_token_ids = list(eos_token_ids)
        self._reasoning = reasoning
        self._part = _Part.ANSWER
        if reasoning is not None and (reasoning.is_open or reasoning.start):
            self._part = _Part.REASONING if reasoning.is_open else _Part.START
            self._end = reasoning.end.encode()
        self._tail = b""  # of the reasoning: less than its end has
        self._num_thought = 0  # tokens of reasoning
        self._forces_runs = forces_runs
        self._forced: list[int] = []  # the tokens that follow, where there is one way only
        self._force_end()
        self.error: str | None = None  # why the sequence cannot continue
        self.mask: Bitmask | None = None  # of the next token; None: any may follow. Set by `update`

    @property
    def forced(self) -> list[int]:
        """The tokens that must follow, as far as they are known. After them the grammar allows more."""
        return self._forced if self._forces_runs and self.error is None else []

    @property
    def is_finished(self) -> bool:
        """The grammar allows nothing more."""
        return self._part is _Part.ANSWER and self._matcher is not None and self._matcher.is_finished

    def take(self, token_ids: Iterable[int]) -> None:
        """The sequence continues with these tokens. Sets `error` if the grammar does not allow them."""
        if self.error is not None:
            return
        try:
            for token_id in token_ids:
                self._take(token_id)
        except GrammarError as error:
            self.error = str(error)

    def _take(self, token_id: int) -> None:
        if self._part is _Part.START:
            assert self._reasoning is not None
            opens = self._backend.token_bytes(token_id) == self._reasoning.start.encode()
            self._part = _Part.REASONING if opens else _Part.ANSWER
            if opens:
                self._force_end()
                return
        was_forced = bool(self._forced) and self._forced[0] == token_id
        self._forced = self._forced[1:] if was_forced else []
        if self._part is _Part.REASONING:
            self._think(token_id, is_end=was_forced and not self._forced)
        elif self._matcher is not None and not self._matcher.is_finished:
            self._matcher.consume([token_id])

    def _think(self, token_id: int, *, is_end: bool) -> None:
        self._num_thought += 1
        if is_end:
            self._part = _Part.ANSWER
            return
        text = self._tail + self._backend.token_bytes(token_id)
        at = text.find(self._end)
        if at >= 0:
            self._part = _Part.ANSWER
            rest = text[at + len(self._end) :]
            if self._matcher is not None and rest.strip():  # a token that has the end and the first of the answer
                self._matcher.consume(self._backend.encode(rest.decode("utf-8", "replace")))
            return
        self._tail = text[max(0, len(text) - len(self._end) + 1) :]
        self._force_end()

    def _force_end(self) -> None:
        """Force the end of the reasoning if its budget is used up."""
        budget = None if self._reasoning is None else self._reasoning.budget
        if self._part is _Part.REASONING and budget is not None and not self._forced and self._num_thought >= budget:
            assert self._reasoning is not None
            self._forced = self._backend.encode(self._reasoning.forced_end or self._reasoning.end)

    @property
    def asked(self) -> Matcher | None:
        """The matcher that decides what may follow; None if the grammar does not matter there."""
        needs_none = self._forced or self._part is _Part.REASONING or self.is_finished
        return None if self.error is not None or needs_none else self._matcher

    def update(self, filled: Bitmask | None) -> None:
        """Sets `mask`, or `error` if the grammar cannot be followed. filled: by `asked`."""
        try:
            self.mask = self._allowed_without_grammar() if filled is None else self._allowed(filled)
        except GrammarError as error:
            self.error, self.mask = str(error), None

    def _allowed_without_grammar(self) -> Bitmask | None:
        if self.error is not None:
            return None
        if self._forced:
            return self._only(self._forced[0])
        if self._part is not _Part.REASONING or self._matcher is None:
            return None
        return self._with(np.full(num_words(self._vocab_size), -1, np.int32), self._eos_token_ids, False)

    def _allowed(self, filled: Bitmask) -> Bitmask:
        assert self._matcher is not None
        self._matcher.check()
        if self._part is _Part.START:
            assert self._reasoning is not None
            starts = self._backend.encode(self._reasoning.start)
            if len(starts) == 1:
                self._with(filled, starts, True)
        elif self._forces_runs:
            self._force_run(self._matcher)
        return self._only(self._forced[0]) if self._forced else filled

    def _force_run(self, matcher: Matcher) -> None:
        """Force tokens if the text can continue in one way only. The last one is sampled if it completes the text."""
        run = matcher.forced_tokens()
        if len(run) < 2:
            return
        trial = matcher.copy()  # rollback of tokens that the grammar names by their ids goes to a wrong place
        trial.consume(run)
        completes = trial.is_finished
        self._forced = run[:-1] if completes else run

    def _only(self, token_id: int) -> Bitmask:
        return self._with(np.zeros(num_words(self._vocab_size), np.int32), (token_id,), True)

    def _with(self, mask: Bitmask, token_ids: Iterable[int], is_allowed: bool) -> Bitmask:
        bits = mask.view(np.uint32)
        for token_id in token_ids:
            bit = np.uint32(1 << token_id % 32)
            bits[token_id // 32] = bits[token_id // 32] | bit if is_allowed else bits[token_id // 32] & ~bit
        return mask
