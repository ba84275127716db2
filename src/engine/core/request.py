"""Request: what the scheduler knows of one sequence, from arrival to its end."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..api import EngineRequest, FinishReason, SamplingParams, TokenLogprobs
from .block_names import BlockNames
from .stop import StopRule

NO_SLOT = -1


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. It waits (no slot), runs (a slot of the runner's tables), and ends (finish_reason).

    How far it is computed stands in the scheduler's columns while it has a slot; without one nothing of it is computed.
    """

    request_id: str
    arrival: int  # place in the order of arrival
    priority: int  # lower is served first
    sampling: SamplingParams
    seed: int
    stop: StopRule
    cache_root: bytes
    reads_cache: bool
    num_prompt_tokens: int
    token_ids: list[int]  # the prompt and what followed; of what is drawn while it runs, the full blocks only
    route: int = 0

    slot: int = NO_SLOT
    block_ids: list[int] = field(default_factory=list)
    num_reserved: int = 0  # blocks promised for known tokens and not yet taken from the pool
    block_hashes: list[bytes] = field(default_factory=list)  # names of the first full blocks
    num_published: int = 0  # blocks of block_ids that the prefix cache has been told of
    busy_until: int = -1  # after a preemption: the step that may still write its blocks or draw its next token
    num_preemptions: int = 0
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache, before any preemption
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
        names: BlockNames,
    ) -> Request:
        """`max_length`: tokens, prompt included, after which context or KV cache is full. `seed`: if it has none.

        `names`: how the engine names blocks.
        """
        prompt, sampling = request.prompt_token_ids, request.sampling
        wants_prompt_logprobs = sampling.prompt_logprobs is not None
        return cls(
            request_id=request.request_id,
            arrival=arrival,
            priority=request.priority,
            sampling=sampling,
            seed=seed if sampling.seed is None else sampling.seed,
            stop=StopRule.of(sampling, len(prompt), eos_token_ids, max_length),
            cache_root=names.root(request.cache_salt),
            reads_cache=reads_cache and not wants_prompt_logprobs,  # a position that is not computed has no logits
            num_prompt_tokens=len(prompt),
            token_ids=list(prompt),
            route=request.route,
            prompt_logprobs=[None] * len(prompt) if wants_prompt_logprobs else None,
        )

    def name_blocks(self, names: BlockNames, block_size: int, num_blocks: int) -> None:
        """Make sure that the first `num_blocks` blocks have names; their tokens must be known."""
        names.extend(self.block_hashes, self.cache_root, self.token_ids, block_size, num_blocks)
