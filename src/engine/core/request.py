"""Request: the scheduler's state of one sequence, from its arrival to its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..api import EngineRequest, FinishReason, PoolingParams, RequestInputs, StoredBlocks, TokenLogprobs
from ..step.plan import NO_ADAPTER
from .block_hashes import BlockHasher
from .block_store import FetchedPrefix
from .stop import StopRule

NO_SLOT = -1


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. It waits (no slot), runs (a slot of the runner's tables), and ends (finish_reason).

    While it has a slot, the number of computed tokens is in SlotColumns; without a slot none are computed.
    """

    request_id: str
    arrival: int  # position in the order of arrival
    priority: int  # lower is served first
    inputs: RequestInputs
    seed: int
    stop: StopRule
    reads_cache: bool
    needs_whole: bool  # all its tokens are computed in one step
    num_prompt_tokens: int
    token_ids: list[int]  # prompt and sampled tokens; while it runs, sampled tokens of full blocks only
    route: int = 0
    is_for_others: bool = False  # other engines are to read the blocks of its prompt
    source: StoredBlocks | None = None  # what has blocks of its prompt
    prediction: list[int] = field(default_factory=list)  # text that the answer is expected to be
    is_ready: Callable[[], bool] | None = None  # it is not admitted before

    slot: int = NO_SLOT
    # One table per group of layers, of equal length. NO_BLOCK where a group has given a block back, or never had it.
    block_ids: list[list[int]] = field(default_factory=list)
    num_passed: list[int] = field(default_factory=list)  # by group: first blocks that are before its window
    num_reserved: int = 0  # blocks for known tokens that are not yet taken from the pool
    block_hashes: list[bytes] = field(default_factory=list)  # of the first full blocks
    num_shared: int = 0  # first blocks that were cached when it was last looked up, whether or not a state is kept
    num_kept_tokens: int = 0  # after which its state was found or kept, other than by a passing state
    passing_state: bytes | None = None  # hash of the kept state that its next one replaces
    fetched: FetchedPrefix | None = None  # blocks that are read from a store, while it waits
    asked_after: int | None = None  # blocks that were cached when a store was asked for those after them
    num_offered: int = 0  # first blocks that a store was asked to keep
    num_published: int = 0  # first blocks of each group that were published to the prefix cache, or found in it
    passing_until: int = -1  # the step that may still write to the blocks which it has given back since its admission
    busy_until: int = -1  # after a preemption: the step that may still write its blocks or sample its next token
    num_preemptions: int = 0
    adapter_slot: int = NO_ADAPTER  # while it runs
    num_passed_steps: int = 0  # in which others passed it, because its adapter has no slot
    has_forced: bool = False  # since it has its slot, tokens were appended that must follow
    num_untold: int = 0  # how many trailing entries of token_ids the runner has not received
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache, before any preemption
    num_newly_cached_tokens: int = 0  # prompt tokens of blocks that it added to the prefix cache, before any preemption
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # by position, until they are sent
    finish_reason: FinishReason | None = None

    @classmethod
    def of(
        cls,
        request: EngineRequest,
        *,
        arrival: int,
        seed: int,
        eos_token_ids: tuple[int, ...],
        max_length: int,
        reads_cache: bool,
        needs_whole: bool = False,
    ) -> Request:
        """A new request, which waits.

        max_length: tokens, prompt included, at which the context or the KV cache is full.
        seed: used if the request has none.
        needs_whole: all its tokens are computed in one step.
        """
        prompt, sampling = request.inputs.prompt_token_ids, request.inputs.sampling
        wants_prompt_logprobs = sampling.prompt_logprobs is not None
        if isinstance(request.inputs.task, PoolingParams):
            max_length = len(prompt) + 1  # it ends with its prompt, which may fill the context
        return cls(
            request_id=request.request_id,
            arrival=arrival,
            priority=request.priority,
            inputs=request.inputs,
            seed=seed if sampling.seed is None else sampling.seed,
            stop=StopRule.of(sampling, len(prompt), eos_token_ids, max_length),
            # A position that is not computed has no logits, and no hidden state.
            reads_cache=reads_cache and not wants_prompt_logprobs and not needs_whole,
            needs_whole=needs_whole,
            num_prompt_tokens=len(prompt),
            token_ids=list(prompt),
            route=request.route,
            is_for_others=request.is_for_others,
            source=request.source,
            prediction=request.prediction,
            is_ready=request.is_ready,
            prompt_logprobs=[None] * len(prompt) if wants_prompt_logprobs else None,
        )

    @property
    def is_pooled(self) -> bool:
        """Whether it ends with what heads make of its prompt, without a token."""
        return isinstance(self.inputs.task, PoolingParams)

    @property
    def must_wait(self) -> bool:
        """Whether it waits for something else than room, such as a grammar or blocks of a store: others pass it."""
        is_unready = self.is_ready is not None and not self.is_ready()
        return is_unready or (self.fetched is not None and not self.fetched.fetch.is_done)

    @property
    def num_blocks(self) -> int:
        """Blocks in each of its tables."""
        return len(self.block_ids[0]) if self.block_ids else 0

    def hash_blocks(self, hasher: BlockHasher, block_size: int, num_blocks: int) -> None:
        """Compute the missing hashes of the first `num_blocks` blocks; their tokens must be known."""
        hasher.extend(self.block_hashes, self.inputs.scope, self.token_ids, block_size, num_blocks)
