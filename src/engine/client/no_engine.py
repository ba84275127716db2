"""NoEngine: the client of a server that computes nothing. It is ready as soon as it is started, and has no stats."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from ...config import Resolved
from ..api import (
    AdapterError,
    AdapterRef,
    EngineDead,
    EngineInfo,
    EngineOutput,
    EngineRequest,
    EngineStats,
    ProfileError,
    SleepError,
)
from .engine_client import EngineState
from .pooled_call import OnOutput, no_listener

_REASON = "this server has no engine"


class NoEngine:
    """An EngineClient. What it knows about the model is in the model's configuration files."""

    reason = ""
    sleep_level = 0
    is_available = True
    has_started = True

    def __init__(self, resolved: Resolved) -> None:
        self.state = EngineState.READY
        self.stats = EngineStats()
        self.info = EngineInfo(
            model=resolved.model.model,
            max_model_len=resolved.model.max_model_len,
            vocab_size=resolved.model_spec.vocab_size,
            num_blocks=0,
            block_size=resolved.cache.block_size,
            max_cached_len=resolved.model.max_model_len,
            max_num_seqs=0,
            max_num_batched_tokens=0,
            eos_token_ids=resolved.model_files.eos_token_ids,
            weights_bytes=0,
            kv_cache_bytes=0,
            dtype=resolved.model.dtype,
            device="none",
            kernels={},
            phases={},
        )

    def state_of(self, rank: int | None) -> EngineState:
        return self.state

    async def start(self) -> EngineInfo:
        return self.info

    def generate(self, request: EngineRequest) -> AsyncIterator[EngineOutput]:
        raise EngineDead(_REASON)

    async def pool(self, requests: Sequence[EngineRequest], on_output: OnOutput = no_listener) -> list[EngineOutput]:
        raise EngineDead(_REASON)

    async def load_adapter(self, ref: AdapterRef) -> None:
        raise AdapterError(_REASON, code="unsupported_adapter")

    async def unload_adapter(self, digest: str) -> None:
        """Does nothing: none was loaded."""

    async def profile(self, *, is_start: bool) -> str:
        raise ProfileError(_REASON)

    async def sleep(self, level: int, *, waits: bool = False) -> None:
        raise SleepError(_REASON)

    async def wake_up(self) -> None:
        raise EngineDead(_REASON)

    async def close(self) -> None:
        self.state = EngineState.DEAD
