"""Grammars: compiles the constraints of requests in threads, before their sequences are admitted, and keeps them.

A compiled grammar is a matcher at its beginning, of which each sequence gets a copy.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import numpy as np

from ..api import Constraint, InvalidRequest, SamplingParams
from .backend import Backend, GrammarError, Matcher, num_words
from .guide import Guide

MAX_KEPT = 256  # compiled grammars
MAX_KEPT_CHARS = 4 << 20  # of their sources: a compiled one takes some ten times as many bytes
_NUM_THREADS = 2  # so that one that takes long does not delay the others
_FAILED = "the library of grammars failed"
logger = logging.getLogger(__name__)


class Grammars:
    """`prepare` and `guide` may be called from any thread."""

    def __init__(
        self,
        load: Callable[[], Backend],
        vocab_size: int,
        eos_token_ids: Sequence[int],
        *,
        waits: bool = False,
    ) -> None:
        """
        load: the backend, in a thread. Raises GrammarError if it cannot be used with this model.
        waits: `prepare` returns when the request is ready, so that no plan depends on how long a compilation takes.
        """
        self._waits = waits
        self._vocab_size, self._eos_token_ids = vocab_size, eos_token_ids
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grammars")
        self._backend = self._pool.submit(load)
        self._lock = threading.Lock()
        self._kept: OrderedDict[Constraint, Future[Matcher]] = OrderedDict()
        self._num_chars = 0

    def wait_loaded(self) -> None:
        """Wait for the backend. Logs a failure: requests with constraints are refused then."""
        error = self._backend.exception()
        if error is not None and not isinstance(error, GrammarError):
            logger.error("structured outputs are not available", exc_info=error)

    @property
    def problem(self) -> str | None:
        """Why no request can have a constraint."""
        if not self._backend.done() or (error := self._backend.exception()) is None:
            return None
        return str(error) if isinstance(error, GrammarError) else "the backend could not be loaded"

    def prepare(self, sampling: SamplingParams) -> Callable[[], bool] | None:
        """Begins to compile what a request needs. Returns whether it is ready, or None if it needs nothing.

        A grammar that cannot be compiled is ready too: its sequence ends with the error. Raises InvalidRequest.
        """
        if sampling.constraint is None and sampling.reasoning is None:
            return None
        if (problem := self.problem) is not None:
            message = f"this deployment cannot constrain the output: {problem}"
            raise InvalidRequest(message, param="response_format", code="unsupported_parameter")
        constraint = sampling.constraint
        ready: Future[Any] = self._backend if constraint is None else self._compiled(constraint)
        if self._waits:
            wait([ready])
        return ready.done

    def wait_any(self, timeout_s: float) -> bool:
        """Waits until one of the grammars in work is compiled. Returns whether there was one."""
        with self._lock:
            futures: list[Future[Matcher]] = [future for future in self._kept.values() if not future.done()]
        if futures:
            wait(futures, timeout_s, return_when="FIRST_COMPLETED")
        return bool(futures)

    def guide(self, sampling: SamplingParams, token_ids: Sequence[int]) -> Guide:
        """What may follow in a sequence whose answer has these tokens. Waits until its grammar is compiled."""
        backend, matcher, error = self._backend.result(), None, None
        if sampling.constraint is not None:
            try:
                matcher = self._compiled(sampling.constraint).result().copy()
            except GrammarError as failure:
                error = str(failure)
            except BaseException:  # a panic of the library is no Exception
                logger.exception(_FAILED)
                error = _FAILED
        guide = Guide(
            backend,
            self._vocab_size,
            self._eos_token_ids,
            matcher,
            sampling.reasoning,
            forces_runs=not _shapes_tokens(sampling),
        )
        guide.error = error
        guide.take(token_ids)
        self.update([guide])
        return guide

    def update(self, guides: Sequence[Guide]) -> None:
        """Compute the masks of guides, mostly without the GIL."""
        asked = [guide.asked for guide in guides]
        matchers = [matcher for matcher in asked if matcher is not None]
        masks = np.zeros((len(matchers), num_words(self._vocab_size)), np.int32)
        try:
            self._backend.result().fill(matchers, masks)
        except BaseException:  # which of them it was is not known; other requests go on
            logger.exception(_FAILED)
            for guide, matcher in zip(guides, asked, strict=True):
                guide.error = guide.error if matcher is None else _FAILED
            return
        filled = iter(masks)
        for guide, matcher in zip(guides, asked, strict=True):
            guide.update(None if matcher is None else next(filled))

    def _compiled(self, constraint: Constraint) -> Future[Matcher]:
        with self._lock:
            if constraint in self._kept:
                self._kept.move_to_end(constraint)
                return self._kept[constraint]
            future = self._kept[constraint] = self._pool.submit(partial(self._compile, constraint.grammar))
            self._num_chars += len(constraint.grammar)
            while len(self._kept) > 1 and (len(self._kept) > MAX_KEPT or self._num_chars > MAX_KEPT_CHARS):
                dropped, _ = self._kept.popitem(last=False)
                self._num_chars -= len(dropped.grammar)
            return future

    def _compile(self, grammar: str) -> Matcher:
        return self._backend.result().compile(grammar)


def _shapes_tokens(sampling: SamplingParams) -> bool:
    """Other parameters forbid tokens, or ask for the log-probabilities of each."""
    rules = (sampling.logit_bias, sampling.bad_word_ids, sampling.allowed_token_ids, sampling.logits_processors)
    return any(rules) or sampling.min_tokens > 0 or sampling.logprobs is not None
