"""The routes that pool texts with the real engine in this process: what they return is what transformers computes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.checkpoints import save
from tests.models.test_encoders import built
from tests.models.test_sentence_transformers import add_modules, applied, weights
from tests.tiny_tokenizer import write_tokenizer
from transformers import PreTrainedModel

from stoker.text.tokenizer import Tokenizer

from .adapted import MODEL, Running, serving, tiny_model

TEXTS = ["Hello, world! How are you today?", "The answer is 42.", "a"]


def run(scenario: Callable[[Running], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        async with serving(**options) as running:
            await scenario(running)

    asyncio.run(whole())


def states(model: PreTrainedModel, token_ids: list[int], **inputs: Any) -> torch.Tensor:
    """[tokens, hidden], after the final norm."""
    with torch.inference_mode():
        return model(torch.tensor([token_ids]), **inputs).last_hidden_state[0].float()


def unit(found: Any) -> np.ndarray:
    rows = np.atleast_2d(np.asarray(found, np.float32))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_a_decoder_chats_and_embeds_in_one_server():
    model = tiny_model()
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40, "temperature": 0}

    async def scenario(running: Running) -> None:
        alone = (await running.http.post("/v1/chat/completions", json=chat)).json()["choices"][0]["message"]["content"]
        answers = [running.http.post("/v1/chat/completions", json=chat) for _ in range(3)]
        vectors = [running.http.post("/v1/embeddings", json={"input": TEXTS}) for _ in range(3)]
        found = await asyncio.gather(*answers, *vectors)
        assert [each.status_code for each in found] == [200] * 6
        assert {each.json()["choices"][0]["message"]["content"] for each in found[:3]} == {alone}
        tokenizer = running.service.need_tokenizer()
        wanted = unit([states(model.model, tokenizer.encode(text), use_cache=False)[-1].numpy() for text in TEXTS])
        for each in found[3:]:
            shown = [entry["embedding"] for entry in each.json()["data"]]
            np.testing.assert_allclose(shown, wanted, atol=2e-5)
        ranked = await running.http.post("/v1/rerank", json={"query": TEXTS[0], "documents": TEXTS})
        best = ranked.json()["results"][0]
        assert (best["index"], best["relevance_score"]) == (0, pytest.approx(1, abs=1e-5))

    run(scenario, enable_lora=False)


def bge_m3(folder: Path) -> tuple[Any, dict[str, dict[str, torch.Tensor]]]:
    """A folder as that of BGE-M3, with a tokenizer: the model, and its linear layers."""
    theirs = built("XLMRoberta", "Model", vocab_size=400)
    save(theirs, folder)
    write_tokenizer(folder, template=None, has_bos=True)
    add_modules(folder, [("Pooling", {"pooling_mode": "cls"}, {}), ("Normalize", {}, {})])
    layers = {"colbert": weights(64, 64, 4), "sparse": weights(1, 64, 5)}
    for name, layer in layers.items():
        torch.save({key.removeprefix("linear."): value for key, value in layer.items()}, folder / f"{name}_linear.pt")
    return theirs, layers


def test_three_results_of_one_pass(tmp_path: Path):
    theirs, layers = bge_m3(tmp_path / "m3")
    tokenizer = Tokenizer.load(tmp_path / "m3")

    async def scenario(running: Running) -> None:
        body = {"input": TEXTS, "task": ["embed", "token_embed", "sparse"]}
        response = await running.http.post("/pooling", json=body)
        assert response.status_code == 200, response.text
        answer = response.json()
        assert answer["usage"]["prompt_tokens"] == sum(len(tokenizer.encode(text)) for text in TEXTS)
        for text, entry in zip(TEXTS, answer["data"], strict=True):
            token_ids = tokenizer.encode(text)
            hidden, found = states(theirs, token_ids), entry["data"]
            np.testing.assert_allclose([found["embed"]], unit(hidden[0].numpy()), atol=1e-5)
            tokens = unit(applied(hidden, layers["colbert"])[1:].numpy())
            np.testing.assert_allclose(np.reshape(found["token_embed"], (-1, 64)), tokens, atol=1e-5)
            largest: dict[int, float] = {}
            for token_id, weight in zip(token_ids, applied(hidden, layers["sparse"])[:, 0].tolist(), strict=True):
                if token_id not in tokenizer.special_ids:
                    largest[token_id] = max(weight, largest.get(token_id, 0.0))
            wanted = {token_id: pytest.approx(weight, abs=1e-5) for token_id, weight in largest.items() if weight > 0}
            assert {each["index"]: each["value"] for each in found["sparse"]} == wanted
        sparse = (await running.http.post("/embed_sparse", json={"inputs": TEXTS})).json()
        assert sparse == [entry["data"]["sparse"] for entry in answer["data"]]
        chat = await running.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}]})
        assert chat.json()["error"]["code"] == "unsupported_route"

    run(scenario, enable_lora=False, model=str(tmp_path / "m3"), num_gpu_blocks_override=None)


def test_a_reranker_scores_pairs(tmp_path: Path):
    """A cross-encoder with types of tokens, whose head is that of BertForSequenceClassification."""
    theirs = built("Bert", "ForSequenceClassification", vocab_size=400, num_labels=1, type_vocab_size=2)
    folder = save(theirs, tmp_path / "reranker")
    write_tokenizer(folder, template=None)
    tokenizer_file = folder / "tokenizer.json"
    content = json.loads(tokenizer_file.read_text())
    content["post_processor"] = {"type": "BertProcessing", "sep": ["<|im_end|>", 2], "cls": ["<|im_start|>", 1]}
    tokenizer_file.write_text(json.dumps(content))
    backend = Tokenizer.load(folder).backend

    async def scenario(running: Running) -> None:
        body = {"queries": TEXTS[0], "documents": TEXTS}
        response = await running.http.post("/v1/score", json=body)
        assert response.status_code == 200, response.text
        for text, entry in zip(TEXTS, response.json()["data"], strict=True):
            pair = backend.encode(TEXTS[0], text)
            assert set(pair.type_ids) == {0, 1}
            with torch.inference_mode():
                logit = theirs(torch.tensor([pair.ids]), token_type_ids=torch.tensor([pair.type_ids])).logits[0, 0]
            assert entry["score"] == pytest.approx(float(torch.sigmoid(logit)), abs=1e-5)
        ranked = (await running.http.post("/rerank", json={"query": TEXTS[0], "texts": TEXTS})).json()
        scores = [entry["score"] for entry in response.json()["data"]]
        assert [entry["index"] for entry in ranked] == sorted(range(3), key=lambda index: -scores[index])

    run(scenario, enable_lora=False, model=str(folder), num_gpu_blocks_override=None)
