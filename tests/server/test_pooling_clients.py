"""The routes that pool texts, called by the libraries that call other servers: OpenAI's and Hugging Face's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import openai
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from stoker.model.pooling import PoolHead, Pooling

from ..fakes import FakeEngine
from .deployment import MODEL, on_a_socket

T = TypeVar("T")
TEXTS = ["the cat sat", "a dog ran away"]
EMBED = PoolHead(task="embed", width=8, activation="normalize", dimensions=(4, 8))


def asked(folder: Path, ask: Callable[[str], T]) -> T:
    """What `ask` gets from a server at the URL that it is called with."""

    async def run() -> T:
        async with on_a_socket(folder, FakeEngine(), pooling=Pooling(heads=(EMBED,)), generates=False) as (port, _):
            return await asyncio.to_thread(ask, f"http://127.0.0.1:{port}")

    return asyncio.run(run())


def test_openai(folder: Path):
    def ask(url: str) -> None:
        with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
            # the library asks for base64, and decodes it
            packed = client.embeddings.create(model=MODEL, input=TEXTS)
            plain = client.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float")
            np.testing.assert_allclose(
                [each.embedding for each in packed.data], [each.embedding for each in plain.data], rtol=1e-7
            )
            assert np.linalg.norm(packed.data[0].embedding) == pytest.approx(1)
            assert (packed.model, packed.usage.total_tokens) == (MODEL, plain.usage.prompt_tokens)
            cut = client.embeddings.create(model=MODEL, input=[[5, 6], [7]], dimensions=4)
            assert [len(each.embedding) for each in cut.data] == [4, 4]
            with pytest.raises(openai.BadRequestError, match="dimensions, not 5"):
                client.embeddings.create(model=MODEL, input="a", dimensions=5)
            with pytest.raises(openai.BadRequestError, match="does not generate text"):
                client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "a"}])

    asked(folder, ask)


@pytest.mark.parametrize("path", ["", "/embed"])
def test_hugging_face(folder: Path, path: str):
    def ask(url: str) -> None:
        client = InferenceClient(timeout=20)
        one = client.feature_extraction(TEXTS[0], model=url + path)
        assert one.shape == (1, 8)
        assert np.linalg.norm(one) == pytest.approx(1)
        fields = {"normalize": False, "truncate": True, "truncation_direction": "right"}
        raw = client.feature_extraction(TEXTS[0], model=url + path, **fields)
        np.testing.assert_allclose(raw / np.linalg.norm(raw), one, rtol=1e-5)
        found = client.sentence_similarity(TEXTS[0], TEXTS, model=url + "/similarity")
        assert found[0] == pytest.approx(1)
        assert found[1] < 1
        with pytest.raises(HfHubHTTPError, match="has no prompt named 'query'"):
            client.feature_extraction(TEXTS[0], model=url + path, prompt_name="query")

    asked(folder, ask)
