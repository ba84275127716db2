"""Expected values: every token, KV cache cell and answer, computed from the requests alone.

A cell of the fake runner's cache depends on all tokens up to its position, as real keys and values do, so one wrong
block anywhere is found at the next read. Each token is a function of the fingerprint of the whole prefix and of the
request's seed, so a client can check every token that it gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stoker.engine.api import (
    EngineOutput,
    EngineRequest,
    FinishReason,
    PoolingParams,
    SamplingParams,
    TokenLogprobs,
    Vectors,
)
from stoker.engine.core import SchedulerSettings

VOCAB = 64
EOS = 0
NUM_SALTS = 2  # the runner computes the salt from the seed, because admissions do not have it: seed % NUM_SALTS
CURSED_TOP_K, CURSED_ID = 1, 5  # a request with this top_k fails when this id is sampled for it
CURSE = "the request's own fault"
WHOLE_TASKS = {"last": False, "all": True}  # whether a prompt must be computed in one step
FORCED_TOP_K = 2  # the answer of a request with this top_k has tokens that are known in advance


def fingerprint(before: int, token_id: int) -> int:
    return hash((before, token_id))  # of integers: the same in every process


def root_fingerprint(seed: int, adapter: str = "") -> int:
    root = hash((7, seed % NUM_SALTS))
    return hash((root, *adapter.encode())) if adapter else root


def fingerprints(seed: int, token_ids: list[int], adapter: str = "") -> Iterator[int]:
    """adapter: its digest, if there is one."""
    mark = root_fingerprint(seed, adapter)
    for token_id in token_ids:
        yield (mark := fingerprint(mark, token_id))


def sampled_token(mark: int, seed: int) -> int:
    return hash((mark, seed)) // 3 % VOCAB


def forced_tokens(sampling: SamplingParams, mark: int, seed: int) -> list[int]:
    """Those that are announced after a prefix: some of the tokens that will be sampled."""
    found: list[int] = []
    if sampling.top_k == FORCED_TOP_K and sampling.logprobs is None:
        for _ in range(hash((mark, 11)) % 3 * (hash((mark, 13)) % 9)):
            found.append(sampled_token(mark, seed))
            mark = fingerprint(mark, found[-1])
    return found


def is_cursed(sampling: SamplingParams, token_id: int) -> bool:
    return sampling.top_k == CURSED_TOP_K and token_id == CURSED_ID


def logprobs_of(token_id: int, mark: int) -> TokenLogprobs:
    """mark: of all tokens before it."""
    return TokenLogprobs([token_id], [float(mark % 1000)], 1)


def vectors_of(task: PoolingParams, marks: list[int]) -> dict[str, Vectors]:
    """marks: of a prompt, by position. A task that needs all tokens has a vector for each."""
    chosen = {name: marks if WHOLE_TASKS[name] else marks[-1:] for name in task.tasks}
    return {
        name: Vectors(2, b"".join(each.to_bytes(8, "little", signed=True) for each in own))
        for name, own in chosen.items()
    }


@dataclass(slots=True)
class Client:
    """One request, seen from its client."""

    request: EngineRequest
    mark: int = 0  # fingerprint of all tokens so far
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    age: int = 0  # steps since it arrived

    def __post_init__(self) -> None:
        *_, self.mark = self.prompt_marks

    @property
    def prompt_marks(self) -> list[int]:
        """Fingerprints of the prompt by position."""
        inputs = self.request.inputs
        return list(fingerprints(self.seed, inputs.prompt_token_ids, inputs.scope.adapter))

    @property
    def seed(self) -> int:
        if isinstance(self.request.inputs.task, PoolingParams):
            return int(self.request.inputs.scope.salt)
        assert self.request.inputs.sampling.seed is not None
        return self.request.inputs.sampling.seed

    def receive(self, output: EngineOutput, settings: SchedulerSettings, *, is_merged: bool = False) -> None:
        """is_merged: from the outputs of several steps."""
        name, sampling = output.request_id, self.request.inputs.sampling
        assert self.finish_reason is None, f"{name} got an output after its end"
        if isinstance(task := self.request.inputs.task, PoolingParams):
            self._receive_pooled(output, task)
            return
        assert output.vectors is None
        num_prompt, marks, is_first = len(self.request.inputs.prompt_token_ids), [], not self.token_ids
        for token_id in output.token_ids:
            assert token_id == sampled_token(self.mark, self.seed), f"{name}: token {len(self.token_ids)} is wrong"
            assert not is_cursed(sampling, token_id), f"{name} continued after its own error"
            marks.append(self.mark)
            self.mark = fingerprint(self.mark, token_id)
            self.token_ids.append(token_id)
        if sampling.logprobs is not None and output.token_ids:
            expected = [logprobs_of(*pair) for pair in zip(output.token_ids, marks, strict=True)]
            assert output.logprobs == expected, f"{name}: wrong log-probabilities"
        else:
            assert not output.logprobs, f"{name}: log-probabilities that were not requested"
        wants_prompt = sampling.prompt_logprobs is not None and is_first and output.token_ids
        assert output.prompt_logprobs == (self._prompt_logprobs() if wants_prompt else None), f"{name}: of the prompt"
        assert output.num_cached_tokens < num_prompt
        assert output.num_cached_tokens % settings.block_size == 0
        assert output.num_newly_cached_tokens % settings.block_size == 0
        assert output.num_cached_tokens + output.num_newly_cached_tokens <= num_prompt
        assert settings.enable_prefix_caching or not output.num_cached_tokens + output.num_newly_cached_tokens
        self.finish_reason = output.finish_reason
        if output.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            assert is_merged or not output.token_ids
            is_own_fault = is_cursed(sampling, sampled_token(self.mark, self.seed))
            assert output.error != CURSE or is_own_fault, f"{name} ended with an error it does not have"
            return
        self._check_end(output, num_prompt, settings)

    def _receive_pooled(self, output: EngineOutput, task: PoolingParams) -> None:
        """Its only output: vectors, or the end."""
        name, marks = output.request_id, self.prompt_marks
        assert (output.token_ids, output.logprobs, output.prompt_logprobs) == ([], None, None), name
        self.finish_reason = output.finish_reason
        if output.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            is_own_fault = self.request.inputs.prompt_token_ids[-1] == CURSED_ID
            assert output.error != CURSE or is_own_fault, f"{name} ended with an error it does not have"
            return
        assert output.finish_reason is FinishReason.STOP
        assert output.vectors == vectors_of(task, marks), f"{name}: wrong vectors"

    def _prompt_logprobs(self) -> list[TokenLogprobs | None]:
        prompt = self.request.inputs.prompt_token_ids
        pairs = zip(prompt[1:], self.prompt_marks, strict=False)
        return [None, *(logprobs_of(token_id, mark) for token_id, mark in pairs)]

    def _check_end(self, output: EngineOutput, num_prompt: int, settings: SchedulerSettings) -> None:
        sampling, num_sampled, last = self.request.inputs.sampling, len(self.token_ids), self.token_ids[-1]
        limit = settings.max_sequence_len - num_prompt
        limit = min(limit, sampling.max_tokens or limit)
        is_named = last in sampling.stop_token_ids
        is_stop = is_named or (last == EOS and not sampling.ignore_eos)
        is_stop &= num_sampled >= sampling.min_tokens
        expected = FinishReason.STOP if is_stop else FinishReason.LENGTH if num_sampled >= limit else None
        assert output.finish_reason == expected, f"{output.request_id} after {num_sampled} of {limit} tokens"
        assert output.stop_reason == (last if is_stop and is_named else None)
