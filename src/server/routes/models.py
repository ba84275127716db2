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
    context, can, abilities = service.max_model_len, service.capabilities, service.abilities
    output = "text" if "generate" in abilities else "embeddings" if "embed" in abilities else "rerank"
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
            "modality": f"{'text+image' if can.vision else 'text'}->{output}",
            "input_modalities": ["text", *["image"] * can.vision],
            "output_modalities": [output],
        },
        "capabilities": {
            "tools": can.tools,
            "vision": can.vision,
            "reasoning": can.reasoning,
            "structured": can.structured,
            "completion": "generate" in abilities,
            "embeddings": bool(abilities & {"embed", "token_embed"}),
            "rerank": "score" in abilities,
            "classify": "classify" in abilities,
        },
        "embedding": _embedding(service),
        "sampling_defaults": service.sampling_defaults,
    }


def _embedding(service: Service) -> dict[str, Any] | None:
    """The number of elements of a vector, and the numbers to which it may be cut; None without vectors."""
    heads = () if service.pooling is None else service.pooling.heads
    head = next((each for each in heads if each.task in ("embed", "token_embed")), None)
    if head is None:
        return None
    return {"dimensions": head.width, "shorter": "any" if head.any_dimension else list(head.dimensions)}
