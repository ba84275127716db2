"""SamplingTable: what every running sequence asked of the sampler, in columns by slot, so a step reads it at once.

Filled when a sequence takes a slot; the counts for penalties follow the drawn tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..api import ProcessorCall, SamplingParams
from .logits_processor import LogitsProcessor
from .named_processors import make_named

Slots = npt.NDArray[np.int32]  # [R] the slot of each row
_PENALTIES_OFF = (0.0, 0.0, 1.0)


class SamplingTable:
    """One entry per slot in each column. A slot's values stand until it is admitted again."""

    def __init__(self, num_slots: int, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
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
        self.num_logprobs = np.full(num_slots, -1, np.int64)  # -1: none wanted
        self.num_prompt_logprobs = np.full(num_slots, -1, np.int64)
        self.end_allowed_at = np.zeros(num_slots, np.int64)  # sequence length from which ending tokens may be drawn
        self.has_penalties = np.zeros(num_slots, bool)
        self.has_bias = np.zeros(num_slots, bool)
        self.bias: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]] = {}  # slot -> ids, values
        self.ending_ids: dict[int, npt.NDArray[np.int64]] = {}  # slot -> eos and stop ids, where min_tokens needs them
        self.num_prompt_tokens = np.zeros(num_slots, np.int64)
        self.has_processors = np.zeros(num_slots, bool)
        self._named: dict[int, tuple[ProcessorCall, ...]] = {}  # slot -> processors that its request named
        self._processors: dict[int, list[LogitsProcessor]] = {}  # slot -> those, once they are made
        # Generated tokens by (slot, token id). Zero pages cost nothing until a slot with penalties touches its row.
        self.counts = np.zeros((num_slots, vocab_size), np.int32)

    def admit(
        self, slot: int, sampling: SamplingParams, seed: int, token_ids: list[int], num_prompt_tokens: int
    ) -> None:
        """Takes over a request's parameters. token_ids past the prompt are its own, from before a preemption."""
        self.release(slot)
        self.is_greedy[slot] = sampling.is_greedy
        self.temperature[slot] = sampling.temperature
        self.top_k[slot] = sampling.top_k if 0 < sampling.top_k < self.vocab_size else 0
        self.top_p[slot] = sampling.top_p
        self.min_p[slot] = sampling.min_p
        self.seed[slot] = seed % 2**64
        self.num_logprobs[slot] = -1 if sampling.logprobs is None else sampling.logprobs
        self.num_prompt_logprobs[slot] = -1 if sampling.prompt_logprobs is None else sampling.prompt_logprobs
        self._admit_penalties(slot, sampling, token_ids[num_prompt_tokens:])
        self.has_bias[slot] = bool(sampling.logit_bias)
        if sampling.logit_bias:
            ids = np.fromiter(sampling.logit_bias.keys(), np.int64, len(sampling.logit_bias))
            values = np.fromiter(sampling.logit_bias.values(), np.float32, len(sampling.logit_bias))
            self.bias[slot] = ids, values
        self.num_prompt_tokens[slot] = num_prompt_tokens
        self.has_processors[slot] = bool(sampling.logits_processors)
        if sampling.logits_processors:
            self._named[slot] = sampling.logits_processors
        self.end_allowed_at[slot] = num_prompt_tokens + sampling.min_tokens
        if sampling.min_tokens:
            ending = sorted({*self._eos_token_ids, *sampling.stop_token_ids})
            self.ending_ids[slot] = np.array(ending, np.int64)

    def _admit_penalties(self, slot: int, sampling: SamplingParams, generated: list[int]) -> None:
        penalties = (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty)
        self.presence[slot], self.frequency[slot], self.repetition[slot] = penalties
        self.has_penalties[slot] = penalties != _PENALTIES_OFF
        if self.has_penalties[slot]:
            self.counts[slot] = np.bincount(np.array(generated, np.int64), minlength=self.vocab_size)

    def release(self, slot: int) -> None:
        """Gives back what a sequence held besides its numbers in the columns."""
        self.bias.pop(slot, None)
        self.ending_ids.pop(slot, None)
        self._named.pop(slot, None)
        self._processors.pop(slot, None)

    def processors(self, slot: int) -> list[LogitsProcessor]:
        """Those that the slot's request named, made when they are first asked for. Raises PluginError."""
        if slot not in self._processors:
            self._processors[slot] = [make_named(call) for call in self._named[slot]]
        return self._processors[slot]

    def record(self, slots: npt.NDArray[np.int32], token_ids: npt.NDArray[np.int32]) -> None:
        """Counts the drawn tokens of the slots that have penalties. Each slot at most once."""
        counted = self.has_penalties[slots]
        if counted.any():
            self.counts[slots[counted], token_ids[counted]] += 1
