"""PoolingRun: the texts of one HTTP request that are pooled, in the engine, and what they add to the metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..engine.api import EngineDead, EngineOutput, EngineRequest, FinishReason, InvalidRequest, QueueFull
from ..engine.client.engine_client import EngineClient
from ..pooled import Floats, array_of
from .engine_errors import refused, shutting_down, stopped_during_request
from .observe.metrics import Metrics
from .observe.request_metrics import Charge, no_charge
from .protocol.errors import internal_error, queue_full

_TAKEN_PER_TURN = 256  # results that are taken in one iteration of the event loop


class PoolingRun:
    """Await `results` once."""

    def __init__(
        self,
        client: EngineClient,
        requests: Sequence[EngineRequest],
        metrics: Metrics,
        *,
        arrived_at: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        charge: Charge = no_charge,
    ) -> None:
        """
        requests: one for each text, at least one.
        arrived_at: by `clock`; None is now.
        charge: called with the number of tokens that the request uses.
        """
        self._client, self._metrics = client, metrics
        self._requests = requests
        self._clock = clock
        self._arrived_at = clock() if arrived_at is None else arrived_at
        self._charge = charge
        self._outcome = "unfinished"
        self.num_prompt_tokens = sum(len(request.inputs.prompt_token_ids) for request in requests)
        self.num_cached_tokens = 0

    async def results(self, params: Sequence[str]) -> list[Mapping[str, Floats]]:
        """The arrays of each text by task, in order. Cancelling it aborts what still runs.

        params: the field of each text, for errors. Raises ApiError or InvalidRequest.
        """
        outcome = "abort"
        try:
            outputs = await self._client.pool(self._requests, self._count)
            for output, param in zip(outputs, params, strict=True):
                if output.error is not None:  # it is the reason of the aborts of the others
                    raise internal_error(f"`{param}`: {output.error}", "engine_error")
            found: list[Mapping[str, Floats]] = []
            for output, param in zip(outputs, params, strict=True):
                found.append(self._arrays(output, param))
                if len(found) % _TAKEN_PER_TURN == 0:
                    await asyncio.sleep(0)  # other requests run between: thousands of results take long
            outcome = "stop"
            return found
        except QueueFull as error:
            outcome = "error"
            self._metrics.admission_rejections.inc()
            raise queue_full("the queue is full", error.retry_after_s) from None
        except InvalidRequest as error:
            outcome = "error"
            raise refused(error) from None
        except EngineDead:
            outcome = "error"
            raise stopped_during_request(self._client.state_of(self._requests[0].rank)) from None
        except Exception:
            outcome = "error"
            raise
        finally:
            self._end(outcome)

    def _count(self, index: int, output: EngineOutput) -> None:
        """Charge a text when it is computed: what becomes of the others, or of the client, changes nothing."""
        if output.finish_reason is FinishReason.ABORT:
            return
        num_tokens = len(self._requests[index].inputs.prompt_token_ids)
        self._charge(num_tokens, "prompt")
        self._metrics.prompt_tokens.inc(num_tokens)
        self._metrics.sizes.prompt_tokens.observe(num_tokens)

    def _arrays(self, output: EngineOutput, param: str) -> Mapping[str, Floats]:
        if output.finish_reason is FinishReason.ABORT:
            raise shutting_down()
        if output.vectors is None:
            raise internal_error(f"`{param}`: the engine has not computed this", "engine_error")
        self.num_cached_tokens += output.num_cached_tokens
        if output.queued_s is not None:
            self._metrics.times.queue_time.observe(output.queued_s)
        return {task: array_of(vectors) for task, vectors in output.vectors.items()}

    def _end(self, outcome: str) -> None:
        self._outcome = outcome
        self._metrics.finished(outcome, len(self._requests))
        if outcome == "stop":
            self._metrics.cached_tokens.inc(self.num_cached_tokens)
            self._metrics.times.latency.observe(self._clock() - self._arrived_at)

    @property
    def log_fields(self) -> dict[str, Any]:
        """Fields for the access log line of the request."""
        return {
            "finish": self._outcome,
            "texts": len(self._requests),
            "prompt_tokens": self.num_prompt_tokens,
            "cached_tokens": self.num_cached_tokens,
        }
