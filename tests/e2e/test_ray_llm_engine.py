"""The engine of Ray Serve LLM against Ray's protocol class, without the request classes, which need vLLM or SGLang."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from stoker.config.errors import ConfigError

protocol = pytest.importorskip("ray.llm._internal.serve.core.engine.protocol", exc_type=ImportError)  # needs pyarrow

pytestmark = pytest.mark.slow


class Request(BaseModel):
    """Has what the engine uses of Ray's classes."""

    model_config = ConfigDict(extra="allow")


def _config(deployment_config: dict[str, Any] | None = None, **engine_kwargs: Any) -> Any:
    from ray.llm._internal.serve.core.configs.llm_config import LLMConfig

    source = {"model_id": "chat", "model_source": "builtin:tiny"}
    return LLMConfig(
        model_loading_config=source, engine_kwargs=engine_kwargs, deployment_config=deployment_config or {}
    )


def test_it_is_an_engine_of_the_protocol():
    from stoker.ray import StokerEngine

    assert issubclass(StokerEngine, protocol.LLMEngine)
    assert not StokerEngine.__abstractmethods__


def test_an_unknown_engine_argument_is_an_error():
    from stoker.ray import StokerEngine

    with pytest.raises(ConfigError, match="max_num_seks"):
        StokerEngine(_config(max_num_seks=8))


def test_streams_of_chat_and_completions():
    from stoker.ray import StokerEngine

    async def run() -> None:
        engine = StokerEngine(_config(max_num_seqs=4, device="cpu"))
        await engine.start()
        try:
            await engine.check_health()
            messages = [{"role": "user", "content": "What does max_num_seqs do?"}]
            chat = Request(model="chat", messages=messages, max_tokens=8, stream=True, request_id="r-7")
            completion = Request(model="chat", prompt="max_num_seqs", max_tokens=8, stream=True)
            for stream in (engine.chat(chat), engine.completions(completion)):
                text = "".join([part async for part in stream])
                events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
                assert events[-1] == "[DONE]"
                assert json.loads(events[0])["model"] == "chat"
                assert len(events) > 3
            stopped = engine.chat(chat)
            assert (await anext(stopped)).startswith("data: ")
            await stopped.aclose()
            assert not len(engine._running.service.live)
            with pytest.raises(NotImplementedError, match="text only"):
                await anext(engine.embeddings(Request(model="chat", input="a")))
        finally:
            await engine.shutdown()

    asyncio.run(run())


def test_replicas_of_a_node_share_its_cores():
    """Each took all of them, and as much memory as if it were alone."""
    from stoker.ray import StokerEngine

    async def num_threads(**deployment_config: Any) -> int:
        engine = StokerEngine(_config(deployment_config, max_num_seqs=4, device="cpu"))
        await engine.start()
        try:
            return engine._running.service.resolved.device.num_threads
        finally:
            await engine.shutdown()

    alone = asyncio.run(num_threads())
    assert asyncio.run(num_threads(num_replicas=2)) == max(1, alone // 2)
