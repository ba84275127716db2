"""BeamGeneration: a Generation whose answers are found by beam search.

The searches of all prompts advance together: one step asks for one token after each live beam of each prompt, so that
the engine computes them in one batch. Only the answers count as generated tokens, in usage and in metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from itertools import islice
from typing import Any

from ..beam_search import BeamSearch, BeamSearchParams
from ..engine.api import EngineOutput, EngineRequest, FinishReason, QueueFull, fan_out
from ..engine.client.engine_client import EngineClient
from ..text.generated_sequence import Delta, GenerationFailed
from .engine_errors import generation_failed
from .generation import SENT_PER_TURN, Generation, close
from .protocol.errors import bad_request, internal_error


class BeamGeneration(Generation):
    def __init__(
        self,
        client: EngineClient,
        prompts: Sequence[EngineRequest],
        params: BeamSearchParams,
        context: int,
        **arguments: Any,
    ) -> None:
        """
        prompts: one request each; `sampling.n` is the number of answers.
        context: maximum length of prompt and answer together.
        arguments: Generation's.
        """
        self._searches = [BeamSearch(request, params, client.info.eos_token_ids, context) for request in prompts]
        self._has_begun = False  # the first step is done
        answers = [answer for request in prompts for answer in fan_out(request)]
        super().__init__(client, requests=answers, num_prompts=len(prompts), **arguments)

    async def _run(self) -> AsyncGenerator[Delta, None]:
        """Each answer as one delta, after the end of all searches."""
        while live := [search for search in self._searches if not search.is_finished]:
            outputs = iter(await self._step(request for search in live for request in search.requests()))
            self._has_begun = True
            for search in live:
                search.advance(list(islice(outputs, search.num_live)))
        found = [output for search in self._searches for output in search.best(self._per_prompt)]
        if len(found) < len(self._sequences):
            message = f"n is {self._per_prompt}, but the fields of this request allow fewer answers"
            raise bad_request(message, param="n")
        for sequence, output in zip(self._sequences, found, strict=True):
            yield self._take(sequence, output)

    async def _step(self, requests: Iterable[EngineRequest]) -> list[EngineOutput]:
        """The output of each request, in their order. All are sent before one is waited for."""
        tasks: list[asyncio.Task[EngineOutput]] = []
        try:
            for request in requests:
                tasks.append(asyncio.ensure_future(self._output(request)))
                if len(tasks) % SENT_PER_TURN == 0:
                    await asyncio.sleep(0)
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _output(self, request: EngineRequest) -> EngineOutput:
        """Output of a request for one token. After the first step it waits for a place in a full queue."""
        while True:
            try:
                return await self._token(request)
            except QueueFull as error:
                if not self._has_begun:
                    raise
                await asyncio.sleep(error.retry_after_s)

    async def _token(self, request: EngineRequest) -> EngineOutput:
        outputs = self._client.generate(request)
        try:
            async for output in outputs:
                if output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                    raise generation_failed(GenerationFailed(output.finish_reason, output.error))
                return output
        finally:
            await close(outputs)
        raise internal_error("the engine ended this request without a token", "engine_error")
