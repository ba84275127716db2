"""GET /v1/models and /v1/models/{id}: the served model names, context length and sampling defaults."""

from __future__ import annotations

from typing import Any

from ..endpoint import Call
from ..service import Service, model_not_found


async def list_models(call: Call) -> None:
    service = call.service
    await call.answer({"object": "list", "data": [_entry(service, name) for name in service.model_names]})


async def show_model(call: Call) -> None:
    name: str = call.scope["path_params"]["model"]
    if name not in call.service.model_names:
        raise model_not_found(name)
    await call.answer(_entry(call.service, name))


def _entry(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "stoker",
        "root": service.model_name,
        "parent": None,
        "max_model_len": service.max_model_len,
        "sampling_defaults": service.sampling_defaults,
    }
