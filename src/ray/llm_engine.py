"""StokerEngine: the engine of a replica of Ray Serve LLM, in place of vLLM's (RAYLLM_VLLM_ENGINE_CLS).

Requests go through the app of the server, as HTTP clients' do. The classes of complete responses and of errors are
Ray's, which imports them from vLLM or SGLang: without one of them only streams can be answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from ray.llm._internal.serve.core.engine.protocol import LLMEngine

from ..config import Deployment, load_deployment
from ..server.in_process import request as send_request
from .checks import check_options, max_replicas, resolve_replica
from .replica import Replica


def deployment_of(llm_config: Any) -> Deployment:
    """The deployment that an LLMConfig means: engine_kwargs are options by their names. Raises ConfigError."""
    if llm_config.lora_config is not None:
        raise NotImplementedError("`lora_config`: adapters of Ray Serve LLM are not loaded; leave it out")
    loading = llm_config.model_loading_config
    source = loading.model_source or loading.model_id
    if not isinstance(source, str):
        raise NotImplementedError("`model_source` must be a model of the hub or a local path")
    arguments = {"model": source, "served_model_name": [loading.model_id], **llm_config.engine_kwargs}
    if loading.tokenizer_source is not None:
        arguments.setdefault("tokenizer", loading.tokenizer_source)
    deployment = load_deployment([], arguments=arguments)
    check_options(deployment, max_replicas(llm_config.deployment_config)[0])
    return deployment


class StokerEngine(LLMEngine):  # type: ignore[misc]  # mypy sees no Ray
    """Ray calls `start` once, and everything else on the same event loop."""

    def __init__(self, llm_config: Any) -> None:
        self._deployment = deployment_of(llm_config)
        self._num_on_node = max_replicas(llm_config.deployment_config)[1]
        self._replica: Replica | None = None

    @property
    def _running(self) -> Replica:
        if self._replica is None:
            raise RuntimeError("the engine has not started")
        return self._replica

    async def start(self) -> None:
        self._replica = await Replica.start(
            await asyncio.to_thread(resolve_replica, self._deployment, self._num_on_node)
        )

    async def shutdown(self) -> None:
        if self._replica is not None:
            await self._replica.close()
            self._replica = None

    async def check_health(self) -> None:
        self._running.check_health()

    async def build_asgi_app(self) -> Any:
        return self._running.app

    def routing_stats(self) -> dict[str, Any]:
        return {}

    async def reset_prefix_cache(self) -> None:
        self._running.service.new_cache_epoch()

    def chat(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        return self._answer("/v1/chat/completions", request, raw_request_info, "ChatCompletionResponse")

    def completions(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        return self._answer("/v1/completions", request, raw_request_info, "CompletionResponse")

    async def embeddings(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        raise NotImplementedError("embeddings: this engine generates text only")
        yield

    async def transcriptions(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        raise NotImplementedError("transcriptions: this engine generates text only")
        yield

    def tokenize(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        return self._answer("/tokenize", request, raw_request_info, "TokenizeResponse")

    def detokenize(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        return self._answer("/detokenize", request, raw_request_info, "DetokenizeResponse")

    async def resolve_lora(self, lora_model: Any) -> None:
        raise NotImplementedError("adapters of Ray Serve LLM are not loaded")

    async def sleep(self, **kwargs: Any) -> None:
        raise NotImplementedError("this engine does not sleep")

    async def pause(self, **kwargs: Any) -> None:
        raise NotImplementedError("this engine cannot be paused")

    async def _answer(self, path: str, request: Any, info: Any, response: str) -> AsyncGenerator[Any, None]:
        """Parts of a stream as text, else one object of Ray's class with the name `response`, or an ErrorResponse."""
        fields = request.model_dump(mode="json", exclude_unset=True)
        headers = dict(info.headers) if info is not None else {}
        if (request_id := fields.pop("request_id", None)) is not None:
            headers["x-request-id"] = str(request_id)
        async with send_request(self._running.app, path, json.dumps(fields).encode(), headers) as answer:
            if answer.status == 200 and fields.get("stream"):
                async for part in answer.parts():
                    yield part.decode()
                return
            content = await answer.whole()
        from ray.llm._internal.serve.core.configs import openai_api_models as classes

        if answer.status == 200:
            yield getattr(classes, response).model_validate_json(content)
        else:
            error = json.loads(content)["error"]
            shown = {name: error.get(name) for name in ("message", "type", "param")}
            yield classes.ErrorResponse(error=classes.ErrorInfo(**shown, code=answer.status))
