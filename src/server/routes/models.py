"""GET /v1/models and /v1/models/{id}: the served model names, context length, capabilities and sampling defaults.

Clients find the context length under the name that their usual server has for it, and take a small one for granted if
they find none. `models` is for Codex; Anthropic's clients read pages, of which this is the only one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ..adapters import Listed
from ..agents.catalogue import codex_model
from ..endpoint import Call
from ..service import Service, model_not_found


async def list_models(call: Call) -> None:
    service = call.service
    context, can = service.max_model_len, service.capabilities
    data = [_entry(service, name) for name in service.model_names]
    data += [_of_adapter(service, each) for each in await service.adapters.listed()]
    models = [codex_model(name, context, can) for name in service.model_names]
    page = {"first_id": data[0]["id"], "last_id": data[-1]["id"], "has_more": False}
    await call.answer({"object": "list", "data": data, **page, "models": models})


async def show_model(call: Call) -> None:
    """Show a model or an adapter; for an alias, the model that it means."""
    service, name = call.service, call.scope["path_params"]["model"]
    if not name:
        raise model_not_found(name)
    if (adapter := await service.listed_adapter(name)) is not None:
        await call.answer(_of_adapter(service, adapter))
        return
    await call.answer(_entry(service, service.named_model(name)))


def _of_adapter(service: Service, adapter: Listed) -> dict[str, Any]:
    """root and parent: as vLLM has them, the path as it was given and the model that the adapter is for."""
    return {**_entry(service, adapter.name), "root": adapter.path, "parent": adapter.parent or service.model_name}


def _entry(service: Service, name: str) -> dict[str, Any]:
    context, can = service.max_model_len, service.capabilities
    return {
        "id": name,
        "object": "model",
        "type": "model",  # this and the next four: Anthropic
        "display_name": name,
        "lifecycle": "active",
        "created_at": datetime.fromtimestamp(service.started_at, UTC).isoformat(),
        "max_input_tokens": context,
        "created": service.started_at,
        "owned_by": "stoker",
        "root": service.model_name,
        "parent": None,
        "max_model_len": context,  # vLLM
        "context_length": context,  # OpenRouter
        "context_window": context,  # Groq
        "meta": {"n_ctx": context},  # llama.cpp
        "architecture": {
            "modality": "text+image->text" if can.vision else "text->text",
            "input_modalities": ["text", *["image"] * can.vision],
            "output_modalities": ["text"],
        },
        "capabilities": {
            "tools": can.tools,
            "vision": can.vision,
            "reasoning": can.reasoning,
            "structured": can.structured,
        },
        "sampling_defaults": service.sampling_defaults,
    }
