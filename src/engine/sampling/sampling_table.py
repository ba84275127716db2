"""SamplingTable: the sampling parameters of every running sequence, in columns by slot.

A slot's entries are set when a sequence takes it; the counts for penalties are updated with each sampled token.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..api import ProcessorCall, SamplingParams
from ..structured.grammars import Grammars
from ..structured.guide_table import GuideTable
from .logits_processor import LogitsProcessor
from .named_processors import make_named

Slots = npt.NDArray[np.int32]  # [R] the slot of each row


class SamplingTable:
    """One entry per slot in each column. A slot's values stay until the slot is used again."""

    def __init__(
        self, num_slots: int, vocab_size: int, eos_token_ids: tuple[int, ...], grammars: Grammars | None = None
    ) -> None:
        """grammars: None if no request has a constraint."""
        self.vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self.is_greedy = np.ones(num_slots, bool)
        self.temperature = np.ones(num_slots, np.float32)
        self.top_k = np.zeros(num_slots, np.int64)  # 0: off
        self.top_p = np.ones(num_slots, np.float32)
        self.min_p = np.zeros(num_slots, np.float32)
        self.presence = np.zeros(num_slots, np.float32)
        self.frequency = np.zeros(num_slots, np.float32)
        self.repetition = np.ones(num_slots, np.float32)
        self.seed = np.zeros(num_slots, np.uint64)
        self.num_logprobs = np.full(num_slots, -1, np.int64)  # -1: none requested
        self.num_prompt_logprobs = np.full(num_slots, -1, np.int64)
        self.has_processed_logprobs = np.zeros(num_slots, bool)  # by request, not by the deployment
        self.end_allowed_at = np.zeros(num_slots, np.int64)  # sequence length from which ending tokens may be sampled
        self.has_penalties = np.zeros(num_slots, bool)
        self.has_bias = np.zeros(num_slots, bool)  # an entry in `bias` or `allowed`
        self.bias: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]] = {}  # slot -> ids, values
        self.allowed: dict[int, npt.NDArray[np.int64]] = {}  # slot -> the only ids that may be sampled
        self.has_bad_words = np.zeros(num_slots, bool)  # of more than one token; others are in `bias`
        self.bad_words: dict[int, list[tuple[npt.NDArray[np.int32], int]]] = {}  # slot -> first tokens, last token
        self.ending_ids: dict[int, npt.NDArray[np.int64]] = {}  # slot -> eos and stop ids, if it has min_tokens
        self.num_prompt_tokens = np.zeros(num_slots, np.int64)
        self.has_processors = np.zeros(num_slots, bool)
        self.guides = None if grammars is None else GuideTable(grammars, num_slots)
        self._named: dict[int, tuple[ProcessorCall, ...]] = {}  # slot -> processors named by its request
        self._processors: dict[int, list[LogitsProcessor]] = {}  # slot -> the created processors
        # Generated tokens by (slot, token id). Pages that are never written take no memory, and only slots with
        # penalties write.
        self.counts = np.zeros((num_slots, vocab_size), np.int32)

    def admit(
        self, slot: int, sampling: SamplingParams, seed: int, token_ids: list[int], num_prompt_tokens: int
    ) -> None:
        """Stores a request's parameters. token_ids after the prompt were generated before a preemption."""
        self.release(slot)
        self.is_greedy[slot] = sampling.is_greedy
        self.temperature[slot] = sampling.temperature
        self.top_k[slot] = sampling.top_k if 0 < sampling.top_k < self.vocab_size else 0
        self.top_p[slot] = sampling.top_p
        self.min_p[slot] = sampling.min_p
        self.seed[slot] = seed % 2**64
        self.num_logprobs[slot] = -1 if sampling.logprobs is None else sampling.logprobs
        self.num_prompt_logprobs[slot] = -1 if sampling.prompt_logprobs is None else sampling.prompt_logprobs
        self.has_processed_logprobs[slot] = sampling.processed_logprobs
        self._admit_penalties(slot, sampling, token_ids[num_prompt_tokens:])
        self._admit_bias(slot, sampling)
        self.num_prompt_tokens[slot] = num_prompt_tokens
        self.has_processors[slot] = bool(sampling.logits_processors)
        if sampling.logits_processors:
            self._named[slot] = sampling.logits_processors
        if self.guides is not None:
            self.guides.admit(slot, sampling, token_ids[num_prompt_tokens:])
        self.end_allowed_at[slot] = num_prompt_tokens + sampling.min_tokens
        if sampling.min_tokens:
            ending = sorted({*self._eos_token_ids, *sampling.stop_token_ids})
            self.ending_ids[slot] = np.array(ending, np.int64)

    def admit_pooled(self, slot: int) -> None:
        """Nothing is sampled for this sequence, so only what decides about logits is reset."""
        self.release(slot)
        self.num_prompt_logprobs[slot] = -1

    def _admit_bias(self, slot: int, sampling: SamplingParams) -> None:
        bias = {**sampling.logit_bias, **{ids[0]: -np.inf for ids in sampling.bad_word_ids if len(ids) == 1}}
        if bias:
            self.bias[slot] = np.array([*bias], np.int64), np.array([*bias.values()], np.float32)
        if sampling.allowed_token_ids:
            self.allowed[slot] = np.unique(np.array(sampling.allowed_token_ids, np.int64))
        self.has_bias[slot] = bool(bias or sampling.allowed_token_ids)
        longer = [(np.array(ids[:-1], np.int32), ids[-1]) for ids in sampling.bad_word_ids if len(ids) > 1]
        self.has_bad_words[slot] = bool(longer)
        if longer:
            self.bad_words[slot] = longer

    def _admit_penalties(self, slot: int, sampling: SamplingParams, generated: list[int]) -> None:
        self.presence[slot], self.frequency[slot] = sampling.presence_penalty, sampling.frequency_penalty
        self.repetition[slot] = sampling.repetition_penalty
        self.has_penalties[slot] = sampling.has_penalties
        if self.has_penalties[slot]:
            self.counts[slot] = np.bincount(np.array(generated, np.int64), minlength=self.vocab_size)

    def release(self, slot: int) -> None:
        """Drops the objects of a sequence that are not in columns."""
        self.bias.pop(slot, None)
        self.allowed.pop(slot, None)
        self.bad_words.pop(slot, None)
        self.ending_ids.pop(slot, None)
        self._named.pop(slot, None)
        self._processors.pop(slot, None)
        if self.guides is not None:
            self.guides.release(slot)

    def rows_with_guides(self, slots: Slots) -> npt.NDArray[np.int64]:
        """The rows whose sequences have a constraint, or a budget of reasoning."""
        return np.empty(0, np.int64) if self.guides is None else np.flatnonzero(self.guides.has_guide[slots])

    def processors(self, slot: int) -> list[LogitsProcessor]:
        """The processors that the slot's request named, created at the first call. Raises PluginError."""
        if slot not in self._processors:
            self._processors[slot] = [make_named(call) for call in self._named[slot]]
        return self._processors[slot]

    def take_forced(self, slot: int, token_ids: list[int]) -> None:
        """Tokens that the sequence continues with, without being sampled."""
        if self.has_penalties[slot]:
            np.add.at(self.counts[slot], token_ids, 1)
        if self.guides is not None:
            self.guides.take_forced(slot, token_ids)

    def record(self, slots: npt.NDArray[np.int32], token_ids: npt.NDArray[np.int32]) -> None:
        """Counts the sampled tokens of the slots that have penalties. Each slot at most once."""
        counted = self.has_penalties[slots]
        if counted.any():
            self.counts[slots[counted], token_ids[counted]] += 1
