"""Log records of a request and of its output, as far as the deployment enables them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

from ...engine.api import EngineRequest, PoolingParams, SamplingParams
from ...logs import log_fields
from ..endpoint import Call
from ..generation import Generation
from ..protocol.fields import SamplingFields

logger = logging.getLogger(__name__)
_DEFAULTS = SamplingParams()


def log_arrival(
    call: Call, body: SamplingFields, requests: Sequence[EngineRequest], prompts: Sequence[str | list[int]]
) -> None:
    """One record with the request id, the sampling parameters that differ from the defaults, and the prompts.

    prompts: texts, or token ids where the client sent ids. Cut to `server.max_log_len`; not logged if that is 0.
    """
    first, sampling = requests[0], requests[0].inputs.sampling
    call.log_fields["id"] = first.request_id
    if call.traced is not None:
        call.traced.sampling = sampling
    settings = call.service.settings
    if not settings.enable_log_requests:
        return
    chosen = {
        field.name: getattr(sampling, field.name)
        for field in dataclasses.fields(sampling)
        if field.name != "stop" and getattr(sampling, field.name) != getattr(_DEFAULTS, field.name)
    }
    num_tokens = sum(len(request.inputs.prompt_token_ids) for request in requests)
    fields = {"id": first.request_id, "prompts": len(requests), "prompt_tokens": num_tokens, **chosen}
    if body.beam_search is not None:
        fields["beam_search"] = dataclasses.asdict(body.beam_search)
    if settings.max_log_len != 0:
        shown = [prompt[: settings.max_log_len] for prompt in prompts]
        fields["prompt"] = shown[0] if len(shown) == 1 else shown
    log_fields(logger, logging.INFO, "request arrived", fields)


def log_pooling(call: Call, requests: Sequence[EngineRequest]) -> None:
    """One record of texts that are pooled: their number and tokens, and the tasks."""
    call.log_fields["id"] = requests[0].request_id
    if not call.service.settings.enable_log_requests:
        return
    task = requests[0].inputs.task
    num_tokens = sum(len(request.inputs.prompt_token_ids) for request in requests)
    fields = {"id": requests[0].request_id, "texts": len(requests), "prompt_tokens": num_tokens}
    if isinstance(task, PoolingParams):
        fields["tasks"] = ",".join(task.tasks)
    log_fields(logger, logging.INFO, "request arrived", fields)


def log_end(call: Call, generation: Generation) -> None:
    """Adds fields to the access log line; one record for each output with `server.enable_log_outputs`."""
    call.log_fields.update(generation.log_fields)
    if call.traced is not None:
        call.traced.phases = generation.phases
    settings = call.service.settings
    if not settings.enable_log_outputs or settings.max_log_len == 0:
        return
    for index, (output, reason) in enumerate(generation.outputs):
        shown = output[: settings.max_log_len]
        fields = {"id": call.log_fields["id"], "index": index, "finish": reason, "output": shown}
        log_fields(logger, logging.INFO, "request answered", fields)
