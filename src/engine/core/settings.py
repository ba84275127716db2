"""SchedulerSettings: the parameters of the scheduler, fixed at the start. check_request: can it ever be served?"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...model.cache_groups import longest_sequence
from ...model.step_costs import StepCosts
from ..api import EngineRequest, InvalidRequest, PoolingParams, RequestInputs, Task
from .adapter_slots import AdapterSettings
from .block_hashes import HashAlgo
from .block_store import BlockStore
from .drafter import AnswerReader, Drafter
from .policy import RANKS, PolicyName

NO_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSettings:
    drafter: Drafter
    reader: AnswerReader | None = None  # the drafter, if it knows other texts than that of a sequence
    max_model_len: int = NO_LIMIT - 1  # tokens of the longest sequence that gets drafts; 32 bits
    max_num_waiting: int = NO_LIMIT  # with more requests that wait, those admitted get none
    in_order: bool = True  # whether the runner can sample a token of a row after the one before it: penalties, grammars


@dataclass(frozen=True, slots=True)
class PoolingSettings:
    """What a model makes of whole prompts."""

    whole: Mapping[str, bool] = field(default_factory=dict)  # by task: its prompt must be computed in one step
    generates: bool = True  # False: requests can only be pooled

    @property
    def names(self) -> str:
        """The tasks, for errors."""
        return ", ".join(f"`{name}`" for name in self.whole)

    def needs_whole(self, task: Task) -> bool:
        """Whether a request must be computed in one step, and reads nothing that was computed before."""
        return isinstance(task, PoolingParams) and any(self.whole[name] for name in task.tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Raises ValueError for settings under which some request could never run."""

    num_blocks: int  # of all groups together
    block_size: int  # tokens
    windows: tuple[int | None, ...] = (None,)  # of each group of layers, tokens that a query sees; None: all
    max_num_seqs: int  # slots of the runner: maximum number of running sequences
    max_num_batched_tokens: int  # tokens computed in one step, over all sequences
    max_model_len: int  # tokens of one sequence, prompt included
    max_prefill_share: float = 1.0  # part of max_num_batched_tokens for prompts, while there are decode rows
    step_sizes: tuple[int, ...] = ()  # tokens that steps with prompts are padded to, ascending
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: HashAlgo = "sha256"
    num_kept_states: int = 0  # of models with recurrent states: a prefix ends where one is kept; 0: it needs none
    retention_interval: int = 64  # tokens after which another state of a sequence is kept
    enable_chunked_prefill: bool = True  # false: a prompt is computed whole in one step, or waits
    max_num_partial_prefills: int = NO_LIMIT  # prompts that are computed in part after a step
    max_long_partial_prefills: int = NO_LIMIT  # of those, long ones
    long_prefill_token_threshold: int = 0  # a prompt of more tokens is a long one
    scheduling_policy: PolicyName = "fcfs"
    max_queued_requests: int = 1024  # waiting requests; those that a free slot is available for are not counted
    max_queued_tokens: int = 1 << 62  # prompt tokens of all waiting requests; a single request may have more
    eos_token_ids: tuple[int, ...] = ()
    seed: int = 0  # of the generator that gives seeds to requests without one
    step_token_limits: tuple[float, ...] = ()  # upper limits of the buckets of EngineStats.step_tokens
    costs: StepCosts | None = None  # None: EngineStats.work is not counted
    store: BlockStore | None = None  # keeps blocks outside the KV cache
    block_metrics_sample: float = 0.0  # share of the blocks whose times EngineStats has
    records_block_events: bool = False  # Scheduler.block_events
    drafting: DraftSettings | None = None  # None: no tokens are drafted
    adapters: AdapterSettings | None = None  # None: requests have no adapters
    pooling: PoolingSettings = PoolingSettings()
    num_stages: int = 1  # of a pipeline: the number of steps at a time, which are of different sequences
    # Tokens of the longest sequence whose keys and values the KV cache holds, at most max_model_len.
    max_cached_len: int = field(init=False)

    def __post_init__(self) -> None:
        for name in (
            *("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_queued_tokens"),
            *("max_num_partial_prefills", "max_long_partial_prefills", "retention_interval"),
            "num_stages",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not self.windows or any(window is not None and window < 1 for window in self.windows):
            raise ValueError(f"windows are {self.windows}; each must be None or at least 1")
        if self.max_model_len < 2:
            raise ValueError(f"max_model_len is {self.max_model_len}; a prompt and one token need 2")
        if self.num_kept_states and not self.enable_prefix_caching:
            raise ValueError(f"num_kept_states is {self.num_kept_states}; without prefix caching it must be 0")
        if not 0 < self.max_prefill_share <= 1:
            raise ValueError(f"max_prefill_share is {self.max_prefill_share}; it must be above 0 and at most 1")
        if self.max_queued_requests < 0:
            raise ValueError(f"max_queued_requests is {self.max_queued_requests}; it must not be negative")
        if self.scheduling_policy not in RANKS:
            raise ValueError(f"scheduling_policy is {self.scheduling_policy!r}; it must be one of {', '.join(RANKS)}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is less than max_num_seqs "
                f"({self.max_num_seqs}): a step could not hold one token of every running sequence"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"without chunked prefill max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_model_len ({self.max_model_len}): a long prompt could never run"
            )

        step_tokens = self.max_num_batched_tokens if self.enable_chunked_prefill else None
        held = longest_sequence(self.windows, self.num_blocks, self.block_size, step_tokens, self.max_model_len)
        object.__setattr__(self, "max_cached_len", held)

    def prefill_budget(self, num_decodes: int) -> int:
        """Maximum number of prompt tokens in a step with `num_decodes` decode rows.

        Longer prompts fill the step up to one of its sizes; the padding is less than a block, because chunks end with a
        block. A prompt that must be computed whole is limited by neither the share nor a size. Stages of a pipeline
        divide the tokens, so that the chunks of a prompt are computed at the same time.
        """
        most = self.max_num_batched_tokens - num_decodes
        if not self.enable_chunked_prefill:
            return most
        if self.num_stages > 1:
            most = min(most, max(1, -(-self.max_num_batched_tokens // self.num_stages) - num_decodes))
        if num_decodes:
            most = min(most, max(1, int(self.max_num_batched_tokens * self.max_prefill_share)))
        at = bisect_right(self.step_sizes, num_decodes + most)
        filling = self.step_sizes[at - 1] - num_decodes if at else 0
        return filling if filling > 0 else most

    @property
    def num_groups(self) -> int:
        """Number of groups of layers. Each group has its own block for the same tokens."""
        return len(self.windows)

    @property
    def max_sequence_len(self) -> int:
        """Tokens of one sequence, by context and KV cache. The last one is never computed, so needs no space there."""
        return min(self.max_model_len, self.max_cached_len + 1)


def check_request(request: EngineRequest, settings: SchedulerSettings) -> None:
    """Raises InvalidRequest if the request can never be served, however empty the engine is."""
    prompt, sampling = request.inputs.prompt_token_ids, request.inputs.sampling
    num_tokens = len(prompt)
    _check_task(request.inputs, settings)
    if sampling.n != 1:
        raise InvalidRequest("the engine takes one sequence per request", param="n")
    if request.inputs.adapter is not None and settings.adapters is None:
        message = "this engine serves no adapters: `lora.enable_lora` is not set"
        raise InvalidRequest(message, param="model", code="unsupported_adapter")
    if sampling.max_tokens is not None and sampling.max_tokens < 0:
        raise InvalidRequest("max_tokens must be 0 or more", param="max_tokens", code="integer_below_min_value")
    if not num_tokens:
        raise InvalidRequest("the prompt has no tokens", param="prompt", code="empty_array")
    try:
        array("i", prompt)
    except (OverflowError, TypeError):
        raise InvalidRequest("token ids must be 32-bit integers", param="prompt", code="invalid_token_id") from None
    if min(prompt) < 0:
        raise InvalidRequest("token ids must not be negative", param="prompt", code="invalid_token_id")
    if isinstance(request.inputs.task, PoolingParams):
        _check_pooled(num_tokens, request.inputs.task, settings)
        return
    if num_tokens + 1 > settings.max_model_len:
        raise InvalidRequest(
            f"the prompt has {num_tokens} tokens; with at least one more the model's context of "
            f"{settings.max_model_len} is exceeded",
            param="prompt",
            code="context_length_exceeded",
        )
    try:
        is_text = min(array("i", request.prediction), default=0) >= 0
    except (OverflowError, TypeError):
        is_text = False
    if not is_text or len(request.prediction) > settings.max_model_len:
        message = f"the prediction must be token ids, at most {settings.max_model_len}"
        raise InvalidRequest(message, param="prediction")
    if num_tokens + 1 > settings.max_sequence_len:
        raise InvalidRequest(
            f"the prompt has {num_tokens} tokens; the KV cache holds {settings.max_cached_len}",
            param="prompt",
            code="context_length_exceeded",
        )


def _check_task(inputs: RequestInputs, settings: SchedulerSettings) -> None:
    """Raises InvalidRequest for a task that the model does not have."""
    task, pooling = inputs.task, settings.pooling
    if not isinstance(task, PoolingParams):
        if not pooling.generates:
            message = f"this model generates no tokens; its tasks are {pooling.names}"
            raise InvalidRequest(message, param="model", code="unsupported_task")
        return
    if not task.tasks or len(set(task.tasks)) < len(task.tasks):
        raise InvalidRequest("the tasks of a request must be named, each once", param="task")
    for name in task.tasks:
        if name not in pooling.whole:
            tasks = f"its tasks are {pooling.names}" if pooling.whole else "it only generates tokens"
            message = f"this model does not have the task {name[:100]!r}: {tasks}"
            raise InvalidRequest(message, param="task", code="unsupported_task")


def _check_pooled(num_tokens: int, task: PoolingParams, settings: SchedulerSettings) -> None:
    """Raises InvalidRequest for a prompt that cannot be pooled. It may fill the context: nothing follows it."""
    limits = [(settings.max_model_len, "the model's context is"), (settings.max_cached_len, "the KV cache holds")]
    if settings.pooling.needs_whole(task):
        limits.append((settings.max_num_batched_tokens, "one step, which must compute all of it, has"))
    for limit, what in limits:
        if num_tokens > limit:
            message = f"the prompt has {num_tokens} tokens; {what} {limit}"
            raise InvalidRequest(message, param="prompt", code="context_length_exceeded")
    if not 0 <= task.first < num_tokens:
        message = f"the first pooled token is {task.first}, of a prompt of {num_tokens} tokens"
        raise InvalidRequest(message, param="first")
    if task.second is not None and not 0 < task.second < num_tokens:
        message = f"the second text begins at token {task.second}, of a prompt of {num_tokens} tokens"
        raise InvalidRequest(message, param="second")
