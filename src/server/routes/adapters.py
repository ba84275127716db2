"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, with the bodies and answers of vLLM."""

from __future__ import annotations

from ..endpoint import Call
from ..protocol.adapters import LoadAdapterRequest, UnloadAdapterRequest
from ..protocol.errors import bad_request

LOAD_ADAPTER, UNLOAD_ADAPTER = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
UNLOAD_WAIT_S = 30.0  # for requests that use the adapter, unless the parameter `wait` says otherwise
MAX_WAIT_S = 3600.0


async def load_adapter(call: Call) -> None:
    """Answer when the adapter can be used."""
    body = await call.body(LoadAdapterRequest)
    await call.service.adapters.load(body.lora_name, body.lora_path, in_place=bool(body.load_inplace))
    await _succeeded(call, f"LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(call: Call) -> None:
    """Answer when no request uses it any more."""
    body = await call.body(UnloadAdapterRequest)
    await call.service.adapters.unload(body.lora_name, _wait_s(call))
    await _succeeded(call, f"LoRA adapter '{body.lora_name}' removed successfully.")


async def _succeeded(call: Call, message: str) -> None:
    await call.answer(f"Success: {message}".encode(), content_type="text/plain; charset=utf-8")


def _wait_s(call: Call) -> float:
    written = call.query.get("wait")
    try:
        wait_s = UNLOAD_WAIT_S if written is None else float(written)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= MAX_WAIT_S:
        message = f"`wait` is {written!r}; it must be a number of seconds, at most {MAX_WAIT_S:g}"
        raise bad_request(message, code="invalid_value", param="wait")
    return wait_s
