"""Requests with `kv_transfer_params`: what the engine is asked for, and what is answered."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...engine.api import StoredBlocks
from ..endpoint import Call
from ..generation import Generation
from ..protocol.errors import unsupported
from ..protocol.fields import SamplingFields
from ..protocol.transfer import params_of

_FIELD = "kv_transfer_params"


class Transfer(NamedTuple):
    """Fields of an EngineRequest."""

    is_for_others: bool = False
    source: StoredBlocks | None = None


def transfer_of(call: Call, body: SamplingFields, num_prompts: int = 1) -> Transfer:
    """Raises ApiError if the deployment, or the request, allows no transfer."""
    params = body.kv_transfer_params
    if params is None or not (params.do_remote_decode or params.do_remote_prefill):
        return Transfer()
    config = call.service.resolved.kv_transfer
    if config.kv_connector is None:
        raise unsupported(_FIELD, ": this deployment moves no KV blocks; see `kv_transfer.kv_connector`")
    if params.do_remote_decode and not config.writes:
        raise unsupported(f"{_FIELD}.do_remote_decode", ": this server is a `kv_consumer`; see `kv_transfer.kv_role`")
    if params.do_remote_prefill and not config.reads:
        raise unsupported(f"{_FIELD}.do_remote_prefill", ": this server is a `kv_producer`; see `kv_transfer.kv_role`")
    if params.do_remote_prefill and config.prefill_servers:  # clients need not make this server connect to others
        raise unsupported(f"{_FIELD}.do_remote_prefill", ": this server reads blocks of its `prefill_servers` only")
    if num_prompts > 1:
        raise unsupported(_FIELD, " with several prompts")
    if params.do_remote_decode and body.stream:
        raise unsupported("stream", " with `do_remote_decode`: the answer says at its end where the blocks are")
    if body.use_beam_search or (params.do_remote_decode and (body.best_of or body.n or 1) > 1):
        raise unsupported(_FIELD, " with several answers")
    return Transfer(bool(params.do_remote_decode), params.source)


def transfer_fields(body: SamplingFields, generation: Generation) -> dict[str, Any]:
    """What a response has beside its choices."""
    params = body.kv_transfer_params
    return {_FIELD: params_of(generation.stored)} if params is not None and params.do_remote_decode else {}
