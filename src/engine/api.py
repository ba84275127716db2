"""The interface between the server and the engine: requests in, outputs out.

Plain records, no torch, no sockets. `transport` encodes them, the engine client sends them, `core` acts on them.
A request here is one sequence: a client's `n=4` is four requests that share a prompt (see `fan_out`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, NamedTuple


class FinishReason(StrEnum):
    STOP = "stop"  # end-of-sequence id, stop token id or stop string
    COMPLETE = "complete"  # its grammar allows nothing after the last token; clients see `stop`
    LENGTH = "length"  # max_tokens or max_model_len
    ABORT = "abort"  # the client disconnected or cancelled it
    ERROR = "error"  # the engine could not continue; EngineOutput.error says why


@dataclass(frozen=True, slots=True)
class ProcessorCall:
    """A logits processor that a request names. Without arguments a function is used directly, a class instantiated."""

    qualname: str  # package.module:Name or package.module.Name
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar that the answer obeys. Who makes one has checked it: server/constraints.py."""

    grammar: str  # in the form of its backend. guidance: Lark, or llguidance's JSON object of grammars
    backend: Literal["guidance", "xgrammar"] = "guidance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """How reasoning is delimited in the tokens of an answer. A constraint begins at the token after it."""

    end: str  # text after which the answer begins, such as </think>
    is_open: bool = True  # the answer begins within reasoning, because the prompt has opened it
    start: str = ""  # one token with which the model may open it, as the first of the answer; empty: it may not
    budget: int | None = None  # tokens of reasoning before its end is forced; None: no limit
    forced_end: str = ""  # what is written then, if that is more than `end`, which it must end with


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens of one request are sampled and when it ends. Ranges are checked by `validate`.

    Order of application: logits processors, logit_bias and allowed ids, penalties, min_tokens, temperature, min_p,
    top_k, top_p, sampling.
    """

    n: int = 1
    max_tokens: int | None = 16  # None: up to the context length; 0: only the prompt, for its log-probabilities
    min_tokens: int = 0  # no eos, stop id or stop string before this number of tokens
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1: off
    min_p: float = 0.0
    presence_penalty: float = 0.0  # over generated tokens only, as OpenAI defines it
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and generated tokens
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()  # no others are sampled; empty: all are allowed
    bad_words: tuple[str, ...] = ()  # texts that are not generated, by their tokens
    bad_word_ids: tuple[tuple[int, ...], ...] = ()  # the tokens of bad_words: set by who has the tokenizer
    seed: int | None = None  # same seed, prompt and parameters: same tokens in any batch
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None  # the top N, besides the sampled token's own; None: none at all
    prompt_logprobs: int | None = None
    processed_logprobs: bool = False  # `logprobs` as with `model.logprobs_mode: processed_logprobs`, whatever that is
    skip_special_tokens: bool = True
    detokenize: bool = True
    logits_processors: tuple[ProcessorCall, ...] = ()  # where model.logits_processor_pattern allows them
    constraint: Constraint | None = None
    reasoning: Reasoning | None = None  # needed for a constraint that begins after it, and for a budget

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        else:
            object.__setattr__(self, "stop", tuple(self.stop or ()))
        for name in ("stop_token_ids", "allowed_token_ids", "bad_words"):
            object.__setattr__(self, name, tuple(getattr(self, name) or ()))

    def validate(self) -> None:
        """Raises InvalidRequest for the first field that is out of its range. Does not check token ids."""
        ranges = (
            ("n", self.n >= 1, "at least 1"),
            ("max_tokens", self.max_tokens is None or self.max_tokens >= 0, "0 or more"),
            (
                "min_tokens",
                0 <= self.min_tokens <= (self.min_tokens if self.max_tokens is None else self.max_tokens),
                "0 to max_tokens",
            ),
            ("temperature", 0 <= self.temperature < float("inf"), "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "more than 0, at most 1"),
            ("top_k", self.top_k >= -1, "-1 or more"),
            ("min_p", 0 <= self.min_p <= 1, "0 to 1"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "-2 to 2"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "-2 to 2"),
            ("repetition_penalty", 0 < self.repetition_penalty < float("inf"), "more than 0"),
            ("logit_bias", all(map(math.isfinite, self.logit_bias.values())), "finite numbers"),
            ("seed", self.seed is None or -(2**63) <= self.seed < 2**63, "a 64-bit integer"),
            ("stop", all(self.stop), "strings that are not empty"),
            ("bad_words", all(self.bad_words), "strings that are not empty"),
            ("logprobs", self.logprobs is None or self.logprobs >= 0, "0 or more"),
            ("prompt_logprobs", self.prompt_logprobs is None or self.prompt_logprobs >= 0, "0 or more"),
            ("reasoning", self.reasoning is None or bool(self.reasoning.end), "with the text that ends it"),
        )
        for name, is_allowed, allowed in ranges:
            if not is_allowed:
                raise InvalidRequest(f"{name} is {getattr(self, name)!r}; allowed: {allowed}", param=name)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < 1e-5

    @property
    def has_penalties(self) -> bool:
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)

    @property
    def without_sampling(self) -> SamplingParams:
        """The parameters for a process that computes logits and samples nothing."""
        return SamplingParams(prompt_logprobs=self.prompt_logprobs)


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """What a request wants that generates no tokens: results of heads that read its whole prompt, from one pass.

    tasks: heads of the model (model/pooling.py), each once.
    first: tokens of the prompt before this one are not pooled, by heads whose description says so.
    second: the first token of the second of two texts, whose tokens have another type; None with one text.
    """

    tasks: tuple[str, ...]
    first: int = 0
    second: int | None = None


NO_TOKENS = SamplingParams(max_tokens=0)
Task = SamplingParams | PoolingParams  # what a request asks the engine to do


class InvalidRequest(ValueError):
    """The request can never be served. `param` is the wrong field, `code` the error code of the API."""

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def check_allowed(calls: Sequence[ProcessorCall], pattern: str | None) -> None:
    """Raises InvalidRequest for logits processors that requests may not name.

    pattern: matches the whole import path as the request has it; None allows none (`model.logits_processor_pattern`).
    """
    if calls and pattern is None:
        raise InvalidRequest(
            "requests may not name logits processors here (`model.logits_processor_pattern`)",
            param="logits_processors",
            code="unsupported_parameter",
        )
    for call in calls:
        if pattern is not None and re.fullmatch(pattern, call.qualname) is None:
            message = f"the logits processor {call.qualname[:100]!r} is not among those that requests may name"
            raise InvalidRequest(message, param="logits_processors")


class QueueFull(Exception):
    """The waiting queue is at its limit; `retry_after_s` estimates when there will be space."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ProfileError(RuntimeError):
    """No profile can be started or ended now; the message says why."""


class CallError(RuntimeError):
    """A call of the workers is not possible, or has failed; the engine goes on."""


class SleepError(RuntimeError):
    """The engine cannot sleep, or not now; the message says why."""


class AdapterError(RuntimeError):
    """An adapter cannot be used; the engine goes on. `code` is the error code of the API."""

    def __init__(self, message: str, *, code: str = "invalid_adapter") -> None:
        super().__init__(message)
        self.code = code


class EngineDead(Exception):
    """The engine process has ended; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """The first full blocks of a prompt, which other engines can read."""

    hashes: tuple[bytes, ...]
    host: str = ""  # of the engine that has them; empty: they are in files
    port: int = 0


@dataclass(frozen=True, slots=True)
class KeyedSpan:
    """Tokens of a prompt whose ids do not say what they stand for."""

    start: int
    end: int  # after the last token
    key: str  # a digest of what they stand for


_ADAPTER, _EPOCH = "adapter", "epoch"  # first words of root texts


@dataclass(frozen=True, slots=True)
class CacheScope:
    """What two requests must have in common, besides their tokens, to share blocks of the prefix cache."""

    salt: str = ""
    epoch: int = 0  # blocks of an earlier epoch cannot be used any more
    spans: tuple[KeyedSpan, ...] = ()  # equal ones are needed only for the blocks from their first token on
    adapter: str = ""  # digest of the adapter that changes keys and values; empty: the model's own
    is_root: bool = False  # `salt` is a root text of another server, of a scope without an adapter

    @property
    def root_text(self) -> str:
        """The text from which the hashes of blocks begin. Stores, events and routers use it.

        Two scopes have the same text only if salt, epoch and adapter are the same, whatever salts clients choose: a
        salt that begins as the text of an epoch or of an adapter does is written after epoch 0 or an empty digest.

        With `is_root` the epoch in the salt stays as it is: the other server is to find the blocks. An adapter in it
        does not: these blocks are not computed with that adapter.
        """
        text = self.salt
        if self.epoch or (text.startswith(_EPOCH) and not self.is_root):
            text = f"{_EPOCH} {self.epoch} {text}"
        if self.adapter or text.startswith(_ADAPTER):
            text = f"{_ADAPTER} {self.adapter} {text}"
        return text

    def extra_keys(self, first: int, end: int) -> list[tuple[str, int]]:
        """What the hash of the tokens from `first` to before `end` covers besides their ids.

        Returns the key of each span with tokens there, and where the span starts, counted from `first`.
        """
        return [(span.key, span.start - first) for span in self.spans if span.start < end and span.end > first]


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """An adapter (LoRA) that a request names. Every process of the model can read its files."""

    name: str  # by which clients call it
    digest: str  # of the contents of its files, hexadecimal
    folder: str  # an absolute path


@dataclass(frozen=True, slots=True)
class RequestInputs:
    """What a request brings to the computation. It is passed on whole, from the server to each rank of the model."""

    prompt_token_ids: list[int]
    task: Task
    scope: CacheScope = CacheScope()
    adapter: AdapterRef | None = None  # its digest is in the scope too

    @property
    def sampling(self) -> SamplingParams:
        """How tokens are sampled, and how many. Only this property reads a task as sampling parameters: a request that
        is pooled is a prompt without an answer."""
        return self.task if isinstance(self.task, SamplingParams) else NO_TOKENS


@dataclass(slots=True, kw_only=True)
class EngineRequest:
    request_id: str
    inputs: RequestInputs
    priority: int = 0  # lower is served first, under scheduling_policy: priority
    rank: int | None = None  # of the replica that computes it; None: any
    is_for_others: bool = False  # other engines are to read the blocks of its prompt: see EngineOutput.stored
    source: StoredBlocks | None = None  # read these instead of computing them
    prediction: list[int] = field(default_factory=list)  # text that the answer is expected to be, for the drafter
    route: int = 0  # 64 bits set by the caller of the scheduler: plain tokens are returned with it
    is_ready: Callable[[], bool] | None = None  # set by the engine: it is not admitted before this is true


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position: the token itself first, then the top ones, best first."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int  # of the token itself, 1 is the most likely


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors that a head of the model has made of one request, one after the other."""

    width: int  # elements of each
    elements: bytes  # little-endian float32


class VerifiedDraft(NamedTuple):
    """A draft that one step has verified."""

    num_tokens: int
    num_accepted: int
    is_predicted: bool = False  # it was taken from the text that the request predicted


@dataclass(slots=True, kw_only=True)
class EngineOutput:
    """The output of one step for one request, or of several steps merged."""

    request_id: str
    token_ids: list[int]  # new ones only
    logprobs: list[TokenLogprobs] | None = None  # one per new token
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # once, with the first token; None for the first position
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None  # the stop token id that ended it, if it was one the request named
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    num_newly_cached_tokens: int = 0  # prompt tokens of the blocks that the prefix cache got from this request
    vectors: dict[str, Vectors] | None = None  # by task, once, with the last output of a request that is pooled
    stored: StoredBlocks | None = None  # with the last output of a request that is for others: they can be read now
    queued_s: float | None = None  # with the first output: from the arrival to the first step that computes the request
    drafts: list[VerifiedDraft] | None = None  # of the steps that made this output; None: they had no drafts
    error: str | None = None

    def merge(self, later: EngineOutput) -> None:
        """Append `later`, as if both came from one step."""
        self.token_ids += later.token_ids
        if later.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *later.logprobs]
        if later.prompt_logprobs is not None:
            self.prompt_logprobs = [*(self.prompt_logprobs or ()), *later.prompt_logprobs]
        self.finish_reason = later.finish_reason
        self.stop_reason = later.stop_reason
        self.num_cached_tokens = max(self.num_cached_tokens, later.num_cached_tokens)
        self.num_newly_cached_tokens = max(self.num_newly_cached_tokens, later.num_newly_cached_tokens)
        self.vectors, self.stored = later.vectors, later.stored
        self.queued_s = later.queued_s if self.queued_s is None else self.queued_s
        if later.drafts is not None:
            self.drafts = [*(self.drafts or ()), *later.drafts]
        self.error = later.error


GRAMMAR_FAILED = "the grammar of this request: "  # beginning of an `EngineOutput.error` that the request has caused
ADAPTER_FAILED = "the adapter of this request: "  # beginning of an `EngineOutput.error` about files that are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a started engine can do: measured once, before it reports Ready."""

    model: str
    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    max_cached_len: int  # tokens of the longest sequence that the KV cache holds, at most max_model_len
    max_num_seqs: int
    max_num_batched_tokens: int
    eos_token_ids: tuple[int, ...]
    weights_bytes: int
    kv_cache_bytes: int
    dtype: str
    device: str
    kernels: dict[str, str]  # stage -> the chosen kernel and the reason
    phases: dict[str, float]  # start-up phase -> seconds, in order
    resident_bytes: int | None = None  # of the engine's process, with all of the KV cache; None: unknown
    peak_bytes: int | None = None  # the maximum so far, or `resident_bytes` if that is more
    pid: int | None = None  # of the engine's process, on its machine

    @property
    def num_kv_tokens(self) -> int:
        return self.num_blocks * self.block_size


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distribution of the values measured since the start."""

    buckets: tuple[tuple[float, int], ...]  # a limit, and the number of values up to it
    count: int
    total: float


@dataclass(frozen=True, slots=True)
class Work:
    """Estimated from the description of the model, since the start."""

    flops: float = 0.0
    read_bytes: float = 0.0
    written_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class StepLaunches:
    """Numbers of steps by how they were launched, since the start, and what they computed for padding only."""

    captured: int = 0  # replayed from a graph
    kernels: int = 0  # kernel by kernel
    host: int = 0  # of a CUDA device: with the host's sampler
    padding_rows: int = 0
    padding_tokens: int = 0


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Drafts that the model has verified, since the start."""

    drafts: int = 0  # rows of steps that had some
    tokens: int = 0
    accepted: tuple[int, ...] = ()  # by the position in a draft, how many tokens were accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot of the engine, sent about once a second and after each change of load."""

    num_running: int = 0
    num_waiting: int = 0
    num_free_blocks: int = 0
    num_blocks: int = 0
    prefix_queries: int = 0  # prompt tokens looked up, since start
    prefix_hits: int = 0  # of those, found
    store_queries: int = 0  # prompt tokens looked up outside the KV cache, since start
    store_hits: int = 0  # of those, read from there
    store_failures: int = 0  # reads and writes there that have failed
    num_preemptions: int = 0
    num_steps: int = 0
    num_step_tokens: int = 0  # computed in these steps
    step_tokens: tuple[tuple[float, int], ...] = ()  # number of tokens, number of steps with at most that many
    iteration_tokens: Distribution = Distribution((), 0, 0.0)  # computed in a step, and first tokens that it generated
    request_preemptions: Distribution = Distribution((), 0, 0.0)  # of each sequence that has ended and was not aborted
    num_deferred: int = 0  # of the waiting ones, those that wait for a grammar, or for blocks that are read
    step_time_s: float = 0.0  # total time in steps, since start
    block_lifetimes: Distribution | None = None  # seconds from allocation to eviction; None: not measured
    block_idle_times: Distribution | None = None  # seconds without a use before eviction
    block_reuse_gaps: Distribution | None = None  # seconds without a use before the prefix cache found it
    drafts: DraftCounts | None = None  # None: nothing is drafted
    work: Work | None = None  # of all steps; None: not counted
    launches: StepLaunches | None = None  # of all steps; None: not reported
    expert_balance: float | None = None  # mean load of the ranks over the largest one; None: not measured
    running_adapters: tuple[str, ...] = ()  # names of the adapters of running requests, once each
    waiting_adapters: tuple[str, ...] = ()  # and of those that wait


def fan_out(request: EngineRequest) -> list[EngineRequest]:
    """One request per sequence: `n` copies whose ids end in `-0`, `-1`, ... and whose seeds differ by their index."""
    inputs, sampling = request.inputs, request.inputs.sampling
    if sampling.n == 1:
        return [request]
    tasks = (
        replace(sampling, n=1, seed=None if sampling.seed is None else sampling.seed + index)
        for index in range(sampling.n)
    )
    return [
        replace(request, request_id=f"{request.request_id}-{index}", inputs=replace(inputs, task=task))
        for index, task in enumerate(tasks)
    ]
