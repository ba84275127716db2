"""How a request is answered by the engine: by sampling, or by beam search."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from ...engine.api import EngineRequest, fan_out
from ...text.generated_sequence import Reader
from ..beam_generation import BeamGeneration
from ..endpoint import Call
from ..generation import Generation
from ..protocol.errors import bad_request
from ..protocol.fields import SamplingFields


def generation_of(
    call: Call,
    body: SamplingFields,
    requests: Sequence[EngineRequest],
    kept_ids: Set[int] = frozenset(),
    readers: Sequence[Reader] = (),
) -> Generation:
    """requests: one for each prompt. kept_ids: special tokens that are part of the texts. readers: of the answers.

    Raises ApiError for a beam search that the queue cannot hold.
    """
    service, search = call.service, body.beam_search
    arguments: dict[str, Any] = {
        "tokenizer": service.tokenizer,
        "metrics": service.metrics,
        "kept_ids": kept_ids,
        "readers": readers,
        "keeps_output": service.settings.enable_log_outputs,
        "arrived_at": call.arrived_at,
        "clock": service.clock,
        "charge": call.charge,
    }
    if search is None:
        arguments["prefill_servers"] = service.prefill_servers
        sequences = [sequence for request in requests for sequence in fan_out(request)]
        return Generation(service.client, requests=sequences, num_prompts=len(requests), **arguments)
    if len(requests) * search.width > service.max_queued_requests:
        limit = service.max_queued_requests
        message = f"{len(requests)} prompts x {search.width} beams exceed the queue's limit of {limit}"
        raise bad_request(message, code="array_above_max_length", param="use_beam_search")
    return BeamGeneration(service.client, requests, search, service.model_limits.context, **arguments)
