"""The routes that pool texts: what clients send, what the engine is asked, and what clients get."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import pooled
from stoker.engine.api import PoolingParams
from stoker.engine.client.engine_client import EngineState
from stoker.model.pooling import PoolHead, Pooling
from stoker.text.tokenizer import Tokenizer

from ..fakes import FakeEngine, token_vector
from ..tiny_tokenizer import write_tokenizer
from .deployment import MODEL, Served

EMBED = PoolHead(task="embed", width=8, activation="normalize", dimensions=(4, 8))
TOKENS = PoolHead(task="token_embed", width=4, modes=(), activation="normalize")
LABELS = PoolHead(task="classify", width=3, modes=("cls",), activation="softmax")
SCORE = PoolHead(task="classify", width=1, modes=("cls",), activation="sigmoid")
SPARSE = PoolHead(task="sparse", width=1, modes=(), activation="relu", skips_first=1)
STEPS = PoolHead(task="token_classify", width=2, modes=(), activation="softmax")
LOADED = ("the cat sat", "a dog ran away", "Hello, world!")


def vectors(tokenizer: Tokenizer, texts: Any, width: int = 8) -> pooled.Floats:
    """What the fake engine makes of each text: the mean of its tokens' vectors."""
    rows = [[token_vector(each, width) for each in tokenizer.encode(text)] for text in texts]
    return np.array([np.mean(row, axis=0) for row in rows], np.float32)


def unit(found: pooled.Floats) -> pooled.Floats:
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def serving(folder: Path, *heads: PoolHead, engine: FakeEngine | None = None, generates: bool = False,
            pooling: dict[str, Any] | None = None, **options: Any) -> Served:  # fmt: skip
    engine = engine or FakeEngine()
    engine.widths |= {head.task: head.width for head in heads}
    return Served(folder, engine, pooling=Pooling(heads=heads, **(pooling or {})), generates=generates, **options)


@pytest.fixture
def embedding(folder: Path) -> Served:
    return serving(folder, EMBED)


def error(response: Any) -> tuple[int, str, str | None]:
    found = response.json()["error"]
    return response.status_code, found["code"], found["param"]


class TestEmbeddings:
    def test_each_text_has_a_unit_vector(self, embedding: Served, tokenizer: Tokenizer):
        answer = embedding.post("/v1/embeddings", {"model": MODEL, "input": list(LOADED)}).json()
        assert (answer["object"], answer["model"], answer["id"][:5]) == ("list", MODEL, "embd-")
        assert [(each["object"], each["index"]) for each in answer["data"]] == [("embedding", n) for n in range(3)]
        found = np.array([each["embedding"] for each in answer["data"]])
        np.testing.assert_allclose(found, unit(vectors(tokenizer, LOADED)), rtol=1e-5)
        num_tokens = sum(len(tokenizer.encode(text)) for text in LOADED)
        assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}

    def test_all_texts_are_one_call_of_the_engine(self, embedding: Served, tokenizer: Tokenizer):
        assert embedding.post("/v1/embeddings", {"input": list(LOADED)}).status_code == 200
        requests = embedding.engine.requests
        assert [each.inputs.prompt_token_ids for each in requests] == [tokenizer.encode(text) for text in LOADED]
        assert {each.inputs.task for each in requests} == {PoolingParams(("embed",))}
        assert len({each.request_id for each in requests}) == 3

    @pytest.mark.parametrize("form", ["text", "texts", "ids", "lists"])
    def test_forms_of_input(self, embedding: Served, tokenizer: Tokenizer, form: str):
        ids = [tokenizer.encode(text) for text in LOADED]
        given = {"text": LOADED[0], "texts": [LOADED[0]], "ids": ids[0], "lists": ids}[form]
        answer = embedding.post("/embeddings", {"input": given, "modality": "text"}).json()
        wanted = unit(vectors(tokenizer, LOADED))[: len(answer["data"])]
        np.testing.assert_allclose([each["embedding"] for each in answer["data"]], wanted, rtol=1e-5)

    def test_base64_has_the_elements_of_the_floats(self, embedding: Served):
        plain = embedding.post("/v1/embeddings", {"input": "the cat"}).json()["data"][0]["embedding"]
        found = embedding.post("/v1/embeddings", {"input": "the cat", "encoding_format": "base64"}).json()
        content = base64.b64decode(found["data"][0]["embedding"])
        assert np.frombuffer(content, "<f4").tolist() == [np.float32(each) for each in plain]

    @pytest.mark.parametrize(
        ("element", "size"), [("float32", 4), ("float16", 2), ("bfloat16", 2), ("fp8_e4m3", 1), ("fp8_e5m2", 1)]
    )
    @pytest.mark.parametrize("endianness", ["big", "little", "native"])
    def test_octets_are_described_in_a_header(self, embedding: Served, element: Any, size: int, endianness: Any):
        texts = {"input": list(LOADED), "dimensions": 4}
        plain = embedding.post("/v1/embeddings", texts).json()["data"]
        fields = {**texts, "encoding_format": "bytes", "embed_dtype": element, "endianness": endianness}
        response = embedding.post("/v1/embeddings", fields)
        assert response.headers["content-type"] == "application/octet-stream"
        described = json.loads(response.headers["metadata"])
        assert described["usage"]["prompt_tokens"] > 0
        for index, entry in enumerate(described["data"]):
            assert (entry["start"], entry["end"], entry["shape"]) == (4 * size * index, 4 * size * (index + 1), [4])
            wanted = pooled.encoded(np.array([plain[index]["embedding"]], np.float32), element, endianness)
            assert response.content[entry["start"] : entry["end"]] == wanted
        bare = embedding.post("/v1/embeddings", {**fields, "encoding_format": "bytes_only"})
        assert bare.content == response.content
        assert "metadata" not in bare.headers

    def test_a_header_describes_some_hundred_vectors(self, folder: Path):
        embedding = serving(folder, EMBED, engine=FakeEngine(max_queued=8192))
        fields = {"input": [[5]] * 401, "encoding_format": "bytes"}
        assert error(embedding.post("/v1/embeddings", fields)) == (400, "array_above_max_length", "encoding_format")
        described = embedding.post("/v1/embeddings", {**fields, "input": [[5]] * 400}).headers["metadata"]
        assert len(described) < 60_000
        only = embedding.post("/v1/embeddings", {**fields, "encoding_format": "bytes_only"})
        assert len(only.content) == 401 * 8 * 4

    def test_token_ids_need_no_tokenizer(self, folder: Path):
        served = serving(folder, EMBED, model={"skip_tokenizer_init": True, "tokenizer": ""})
        assert served.post("/v1/embeddings", {"input": [5, 6]}).status_code == 200
        assert error(served.post("/v1/embeddings", {"input": "a"})) == (400, "unsupported_parameter", "input")
        body = {"queries": "a", "documents": ["b"]}
        assert error(served.post("/v1/score", body)) == (400, "unsupported_parameter", "documents")

    def test_a_cut_vector_is_a_unit_vector(self, embedding: Served, tokenizer: Tokenizer):
        answer = embedding.post("/v1/embeddings", {"input": "the cat", "dimensions": 4}).json()
        wanted = unit(vectors(tokenizer, ["the cat"])[:, :4])
        np.testing.assert_allclose([answer["data"][0]["embedding"]], wanted, rtol=1e-5)

    def test_the_number_of_elements_of_the_deployment(self, folder: Path):
        served = serving(folder, EMBED, pooling={"default_dimensions": 4})
        for fields, width in (({}, 4), ({"dimensions": 8}, 8)):
            answer = served.post("/v1/embeddings", {"input": "the cat", **fields}).json()
            assert len(answer["data"][0]["embedding"]) == width
        assert len(served.post("/v2/embed", {"texts": ["the cat"]}).json()["embeddings"]["float"][0]) == 4

    def test_raw_vectors(self, embedding: Served, tokenizer: Tokenizer):
        answer = embedding.post("/v1/embeddings", {"input": "the cat", "use_activation": False}).json()
        np.testing.assert_allclose([answer["data"][0]["embedding"]], vectors(tokenizer, ["the cat"]), rtol=1e-5)

    def test_messages_are_rendered(self, embedding: Served, tokenizer: Tokenizer):
        messages = [{"role": "user", "content": "the cat"}]
        prompt = "<|im_start|>user\nthe cat<|im_end|>\n"
        embedding.post("/v1/embeddings", {"messages": messages})
        embedding.post("/v1/embeddings", {"messages": messages, "add_generation_prompt": True})
        embedding.post("/v1/embeddings", {"messages": [messages, messages]})
        found = [each.inputs.prompt_token_ids for each in embedding.engine.requests]
        opened = tokenizer.encode(prompt + "<|im_start|>assistant\n")
        assert found == [tokenizer.encode(prompt), opened, tokenizer.encode(prompt), tokenizer.encode(prompt)]

    def test_a_prompt_of_the_model_by_its_name(self, folder: Path, tokenizer: Tokenizer):
        served = serving(folder, EMBED, pooling={"named_prompts": (("query", "question: "),)})
        assert served.post("/v1/embeddings", {"input": "the cat", "prompt_name": "query"}).status_code == 200
        assert served.engine.requests[0].inputs.prompt_token_ids == tokenizer.encode("question: the cat")
        response = served.post("/v1/embeddings", {"input": "the cat", "prompt_name": "other"})
        assert error(response) == (400, "invalid_value", "prompt_name")
        assert "it has query" in response.json()["error"]["message"]
        assert served.post("/v1/embeddings", {"input": [1], "prompt_name": "query"}).status_code == 400

    @pytest.mark.parametrize("input_", ["the cat sat on a mat and the dogs ran", [[5, 6, 7, 8, 9, 10, 11]]])
    def test_a_long_text_is_cut_only_if_the_request_says_so(self, folder: Path, input_: Any):
        served = serving(folder, EMBED, engine=FakeEngine(max_model_len=6))
        response = served.post("/v1/embeddings", {"input": input_})
        assert error(response) == (400, "context_length_exceeded", "input")
        assert "context length is 6 tokens" in response.json()["error"]["message"]
        assert "must remain" not in response.json()["error"]["message"]  # nothing is generated
        ids = input_[0] if isinstance(input_, list) else served.service.tokenizer.encode(input_)
        for fields, kept in (
            ({"truncate_prompt_tokens": -1}, ids[:6]),
            ({"truncate_prompt_tokens": 4}, ids[:4]),
            ({"truncate_prompt_tokens": 4, "truncation_side": "left"}, ids[-4:]),
        ):
            assert served.post("/v1/embeddings", {"input": input_, **fields}).status_code == 200
            assert served.engine.requests[-1].inputs.prompt_token_ids == kept
        response = served.post("/v1/embeddings", {"input": input_, "truncate_prompt_tokens": 7})
        assert error(response) == (400, "context_length_exceeded", "truncate_prompt_tokens")

    def test_a_text_may_fill_the_context(self, folder: Path):
        served = serving(folder, EMBED, engine=FakeEngine(max_model_len=6))
        assert served.post("/v1/embeddings", {"input": [5, 6, 7, 8, 9, 10]}).status_code == 200

    @pytest.mark.parametrize(
        ("fields", "code", "param"),
        [
            ({}, "missing_required_parameter", "input"),
            ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "missing_required_parameter", "input"),
            ({"input": []}, "empty_array", "input"),
            ({"input": ""}, "invalid_value", "input"),
            ({"input": ["a", ""]}, "invalid_value", "input[1]"),
            ({"input": [[]]}, "invalid_value", "input[0]"),
            ({"input": ["a", 5]}, "invalid_type", "input[1]"),
            ({"input": [[5], "a"]}, "invalid_type", "input[1]"),
            ({"input": 5}, "invalid_type", "input"),
            ({"input": [[5, 400]]}, "invalid_token_id", "input"),
            ({"input": [[5], [-1]]}, "invalid_token_id", "input[1]"),
            ({"input": "a", "dimensions": 3}, "invalid_value", "dimensions"),
            ({"input": "a", "dimensions": 0}, "integer_below_min_value", "dimensions"),
            ({"input": "a", "encoding_format": "int8"}, "invalid_value", "encoding_format"),
            ({"input": "a", "embed_dtype": "fp8_e4m3"}, "unsupported_parameter", "embed_dtype"),
            (
                {"input": "a", "embed_dtype": "float16", "encoding_format": "float"},
                "unsupported_parameter",
                "embed_dtype",
            ),
            ({"input": "a", "endianness": "big"}, "unsupported_parameter", "endianness"),
            ({"input": "a", "truncation_side": "left"}, "unsupported_parameter", "truncation_side"),
            ({"input": "a", "truncate_prompt_tokens": 0}, "invalid_value", "truncate_prompt_tokens"),
            ({"input": "a", "truncate_prompt_tokens": -2}, "integer_below_min_value", "truncate_prompt_tokens"),
            ({"input": "a", "add_generation_prompt": True}, "unsupported_parameter", "add_generation_prompt"),
            ({"input": [5], "add_special_tokens": False}, "unsupported_parameter", "add_special_tokens"),
            ({"input": "a", "priority": 1}, "unsupported_parameter", "priority"),
            ({"input": "a", "normalize": False}, "unsupported_parameter", "normalize"),
            ({"input": "a", "modality": "image"}, "invalid_value", "modality"),
            ({"input": "a", "mm_processor_kwargs": {"a": 1}}, "unsupported_parameter", "mm_processor_kwargs"),
            ({"messages": []}, "empty_array", "messages[0]"),
            ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "unsupported_parameter", None),
            ({"messages": [{"role": "user", "content": "a"}], "chat_template": "x"}, "unsupported_parameter",
             "chat_template"),
        ],
    )  # fmt: skip
    def test_what_is_refused(self, embedding: Served, fields: dict[str, Any], code: str, param: str | None):
        found = error(embedding.post("/v1/embeddings", fields))
        assert found[:2] == (400, code)
        assert param is None or found[2] == param
        assert embedding.engine.requests == []

    def test_no_dimensions_without_matryoshka(self, folder: Path):
        served = serving(folder, PoolHead(task="embed", width=8))
        assert served.post("/v1/embeddings", {"input": "a", "dimensions": 8}).status_code == 200  # all of them
        response = served.post("/v1/embeddings", {"input": "a", "dimensions": 4})
        assert error(response) == (400, "invalid_value", "dimensions")
        assert "Matryoshka" in response.json()["error"]["message"]

    def test_special_tokens(self, tmp_path: Path):
        served = serving(write_tokenizer(tmp_path, has_bos=True), EMBED)
        served.post("/v1/embeddings", {"input": "the cat"})
        served.post("/v1/embeddings", {"input": "the cat", "add_special_tokens": False})
        with_bos, without = (each.inputs.prompt_token_ids for each in served.engine.requests)
        assert with_bos == [0, *without]

    def test_a_matrix_for_each_text_where_the_model_has_only_vectors_of_tokens(self, folder: Path):
        served = serving(folder, TOKENS)
        answer = served.post("/v1/embeddings", {"input": [[5, 6, 7], [8]]}).json()
        shapes = [np.array(each["embedding"]).shape for each in answer["data"]]
        assert shapes == [(3, 4), (1, 4)]

    def test_a_long_body_is_read_elsewhere_and_answered_alike(self, folder: Path):
        embedding = serving(folder, EMBED, engine=FakeEngine(max_queued=8192))
        texts = [f"{LOADED[index % 3]} {index}" for index in range(5000)]
        short = embedding.post("/v1/embeddings", {"input": texts[:2]}).json()["data"]
        answer = embedding.post("/v1/embeddings", {"input": texts, "truncate_prompt_tokens": 100})
        assert answer.status_code == 200
        found = answer.json()["data"]
        assert len(found) == 5000
        assert found[:2] == short

    def test_a_long_body_of_messages(self, embedding: Served):
        messages = [{"role": "user", "content": "the cat " * 20}]
        response = embedding.post("/v1/embeddings", {"messages": [messages] * 600, "truncate_prompt_tokens": 5})
        assert len(response.json()["data"]) == 600


class TestFailures:
    def test_what_the_engine_says_of_a_text(self, embedding: Served):
        embedding.engine.pooling_error = "the result is not finite"
        response = embedding.post("/v1/embeddings", {"input": ["a", "b"]})
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "`input[0]`: the result is not finite"

    def test_texts_that_were_computed_are_charged_although_the_call_fails(self, folder: Path):
        served = serving(folder, EMBED)
        served.engine.pooling_error = "the result is not finite"
        assert served.post("/v1/embeddings", {"input": [[5, 6, 7], [5, 6]]}).status_code == 500
        assert served.metric(f'stoker_prompt_tokens_total{{model_name="{MODEL}"}}') == 5

    def test_the_tokens_of_a_call_have_a_limit(self, embedding: Served, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("stoker.server.routes.pooled_texts.MAX_CALL_TOKENS", 6)
        assert embedding.post("/v1/embeddings", {"input": [[5, 6, 7], [5, 6, 7]]}).status_code == 200
        for field in ([[5, 6, 7], [5, 6, 7], [5]], ["the cat sat", "on a mat, and the dogs ran"]):
            response = embedding.post("/v1/embeddings", {"input": field})
            assert error(response) == (400, "too_many_tokens", "input")
            assert "may have 6 in all" in response.json()["error"]["message"]

    def test_a_full_queue(self, folder: Path):
        served = serving(folder, EMBED, engine=FakeEngine(max_queued=2))
        response = served.post("/v1/embeddings", {"input": ["a", "b", "c"]})
        assert error(response)[:2] == (429, "queue_full")
        assert response.headers["retry-after"] == "3"

    def test_an_engine_that_is_not_ready(self, embedding: Served):
        embedding.engine.state = EngineState.RESTARTING
        assert error(embedding.post("/v1/embeddings", {"input": "a"}))[:2] == (503, "engine_restarting")

    def test_an_unknown_model(self, embedding: Served):
        assert error(embedding.post("/v1/embeddings", {"model": "x", "input": "a"})) == (
            404,
            "model_not_found",
            "model",
        )


class TestAbilities:
    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/responses", {"input": "a"}),
            ("/v1/completions/render", {"prompt": "a"}),
            ("/classify", {"input": "a"}),
        ],
    )
    def test_a_model_that_only_embeds_names_the_routes_that_it_serves(self, embedding: Served, path: str, body: Any):
        response = embedding.post(path, body)
        assert error(response) == (400, "unsupported_route", None)
        assert "POST /v1/embeddings, POST /pooling, POST /v1/score" in response.json()["error"]["message"]
        assert embedding.engine.requests == []

    def test_messages_has_the_errors_of_its_dialect(self, embedding: Served):
        body = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "a"}]}
        assert embedding.post("/v1/messages", body).json()["error"]["type"] == "invalid_request_error"

    def test_a_model_that_only_generates_names_its_routes(self, folder: Path):
        served = Served(folder, pooling=None)
        response = served.post("/v1/embeddings", {"input": "a"})
        assert error(response) == (400, "unsupported_route", None)
        assert "POST /v1/chat/completions" in response.json()["error"]["message"]

    def test_a_decoder_does_both(self, served: Served):
        assert served.chat(max_tokens=2).status_code == 200
        assert served.post("/v1/embeddings", {"input": "a"}).status_code == 200

    def test_models_say_what_they_can(self, folder: Path, embedding: Served):
        can = embedding.get("/v1/models").json()["data"][0]["capabilities"]
        assert (can["completion"], can["embeddings"], can["rerank"], can["classify"]) == (False, True, True, False)
        assert embedding.get("/v1/models").json()["data"][0]["embedding"] == {"dimensions": 8, "shorter": [4, 8]}
        can = Served(folder, pooling=None).get("/v1/models").json()["data"][0]["capabilities"]
        assert (can["completion"], can["embeddings"], can["rerank"]) == (True, False, False)


class TestPooling:
    def test_the_first_task_or_the_one_that_is_named(self, folder: Path):
        served = serving(folder, EMBED, TOKENS)
        first = served.post("/pooling", {"input": [5, 6]}).json()
        assert (first["data"][0]["object"], len(first["data"][0]["data"])) == ("pooling", 8)
        tokens = served.post("/pooling", {"input": [5, 6], "task": "token_embed"}).json()
        assert np.array(tokens["data"][0]["data"]).shape == (2, 4)
        assert served.engine.requests[-1].inputs.task == PoolingParams(("token_embed",))

    @pytest.mark.parametrize("task", [["embed", "token_embed", "sparse"], "embed&token_embed&token_classify"])
    def test_several_results_of_one_pass(self, folder: Path, task: Any):
        served = serving(folder, EMBED, TOKENS, SPARSE)
        answer = served.post("/pooling", {"input": [[5, 6, 7], [8]], "task": task, "dimensions": 4}).json()
        assert len(served.engine.requests) == 2
        assert served.engine.requests[0].inputs.task == PoolingParams(("embed", "token_embed", "sparse"))
        for index, token_ids in enumerate(([5, 6, 7], [8])):
            found = answer["data"][index]["data"]
            assert (len(found["embed"]), np.array(found["token_embed"]).shape) == (4, (len(token_ids), 4))
            assert {each["index"] for each in found["sparse"]} <= set(token_ids[1:])
        for name in ("embed", "token_embed", "sparse"):
            alone = served.post("/pooling", {"input": [[5, 6, 7]], "task": name}).json()["data"][0]["data"]
            whole = served.post("/pooling", {"input": [[5, 6, 7]], "task": task}).json()["data"][0]["data"]
            assert whole[name] == alone
        cut = {"input": [5], "task": ["token_embed", "sparse"], "dimensions": 2}
        assert error(served.post("/pooling", cut)) == (400, "invalid_value", "dimensions")
        twice = served.post("/pooling", {"input": [5, 6], "task": "sparse&token_classify"}).json()["data"][0]["data"]
        assert isinstance(twice, list)  # of one task, which has two names
        octets = {"input": [5], "task": ["embed", "token_embed"], "encoding_format": "bytes"}
        assert error(served.post("/pooling", octets)) == (400, "unsupported_parameter", "encoding_format")
        packed = served.post("/pooling", {**octets, "encoding_format": "base64"}).json()["data"][0]["data"]
        assert len(base64.b64decode(packed["embed"])) == 8 * 4

    @pytest.mark.parametrize("task", [[], ["embed", "embed"], "embed&", 5, ["embed", "encode"]])
    def test_wrong_tasks(self, embedding: Served, task: Any):
        assert embedding.post("/pooling", {"input": "a", "task": task}).status_code == 400

    def test_unknown_tasks(self, embedding: Served):
        assert error(embedding.post("/pooling", {"input": "a", "task": "encode"})) == (400, "invalid_value", "task")
        response = embedding.post("/pooling", {"input": "a", "task": "classify"})
        assert "it has embed" in response.json()["error"]["message"]

    def test_sparse_weights(self, folder: Path):
        served = serving(folder, SPARSE)
        answer = served.post("/pooling", {"input": [9, 5, 6, 5]}).json()["data"][0]["data"]
        wanted = {token: token_vector(token, 1)[0] for token in (9, 5, 6)}
        assert {each["index"]: pytest.approx(each["value"]) for each in answer} == {
            token: weight for token, weight in wanted.items() if weight > 0
        }
        assert served.post("/pooling", {"input": "a", "encoding_format": "base64"}).status_code == 400
        raw = served.post("/pooling", {"input": "a", "use_activation": False})
        assert error(raw) == (400, "unsupported_parameter", "use_activation")

    def test_special_tokens_have_no_weight_wherever_they_are(self, tmp_path: Path):
        served = serving(write_tokenizer(tmp_path, has_bos=True), SPARSE)
        special = sorted(served.service.tokenizer.special_ids)
        answer = served.post("/pooling", {"input": [[5, *special, 6, special[0]], [9]]}).json()["data"]
        for found, token_ids in zip(answer, ([5, 6], [9]), strict=True):
            wanted = {token for token in token_ids if token_vector(token, 1)[0] > 0}
            assert {each["index"] for each in found["data"]} == wanted
        assert answer[0]["data"] or answer[1]["data"]

    def test_results_of_step_tokens_only(self, folder: Path):
        served = serving(folder, STEPS, pooling={"step_token": 7})
        rows = served.post("/pooling", {"input": [5, 7, 6, 7, 8]}).json()["data"][0]["data"]
        assert len(rows) == 2
        assert rows[0] == rows[1]
        assert sum(rows[0]) == pytest.approx(1)


class TestClassify:
    def test_the_best_label_and_all_probabilities(self, folder: Path, tokenizer: Tokenizer):
        served = serving(folder, LABELS, pooling={"labels": ("bad", "fair", "good")})
        answer = served.post("/classify", {"input": list(LOADED)}).json()
        logits = vectors(tokenizer, LOADED, 3)
        wanted = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        for index, found in enumerate(answer["data"]):
            assert (found["index"], found["num_classes"]) == (index, 3)
            assert found["label"] == ("bad", "fair", "good")[int(wanted[index].argmax())]
            np.testing.assert_allclose(found["probs"], wanted[index], rtol=1e-5)
        raw = served.post("/v1/classify", {"input": LOADED[0], "use_activation": False}).json()
        np.testing.assert_allclose(raw["data"][0]["probs"], logits[0], rtol=1e-4)

    def test_clients_of_infinity_get_all_labels_in_order(self, folder: Path):
        served = serving(folder, LABELS)
        answer = served.post("/classify", {"input": ["a", "b"], "raw_scores": False}).json()
        assert answer["object"] == "classify"
        assert {each["label"] for each in answer["data"][0]} == {"LABEL_0", "LABEL_1", "LABEL_2"}
        scores = [each["score"] for each in answer["data"][0]]
        assert (scores, sum(scores)) == (sorted(scores, reverse=True), pytest.approx(1))
        raw = served.post("/classify", {"input": ["a", "b"], "raw_scores": True}).json()
        assert sum(each["score"] for each in raw["data"][0]) != pytest.approx(1)


def sigmoid(value: float) -> float:
    return 1 / (1 + float(np.exp(-value)))


class TestScore:
    @pytest.mark.parametrize("names", [("queries", "documents"), ("text_1", "text_2"), ("data_1", "data_2"),
                                       ("queries", "items")])  # fmt: skip
    def test_a_cross_encoder_scores_pairs(self, folder: Path, tokenizer: Tokenizer, names: tuple[str, str]):
        served = serving(folder, SCORE)
        answer = served.post("/score", {names[0]: "the cat", names[1]: ["a dog", "a cat"]}).json()
        pairs = [tokenizer.backend.encode("the cat", text).ids for text in ("a dog", "a cat")]
        assert [each.inputs.prompt_token_ids for each in served.engine.requests] == pairs
        assert [each.inputs.task.second for each in served.engine.requests] == [len(tokenizer.encode("the cat"))] * 2
        wanted = [sigmoid(float(np.mean([token_vector(each, 1) for each in pair]))) for pair in pairs]
        assert [each["score"] for each in answer["data"]] == pytest.approx(wanted, rel=1e-5)
        assert [(each["index"], each["object"]) for each in answer["data"]] == [(0, "score"), (1, "score")]

    def test_scores_are_standardised_and_raw_ones_are_not_activated(self, folder: Path):
        plain = serving(folder, SCORE)
        standard = serving(folder, SCORE, pooling={"logit_mean": 2.0, "logit_sigma": 4.0})
        body = {"queries": "the cat", "documents": "a dog", "use_activation": False}
        raw = plain.post("/v1/score", body).json()["data"][0]["score"]
        assert standard.post("/v1/score", body).json()["data"][0]["score"] == pytest.approx((raw - 2) / 4, rel=1e-5)

    def test_an_embedding_model_compares_vectors(self, embedding: Served, tokenizer: Tokenizer):
        answer = embedding.post("/v1/score", {"queries": LOADED[0], "documents": list(LOADED[1:])}).json()
        rows = unit(vectors(tokenizer, LOADED))
        assert [each["score"] for each in answer["data"]] == pytest.approx((rows[1:] @ rows[0]).tolist(), abs=1e-6)
        assert len(embedding.engine.requests) == 3
        pairs = {"queries": list(LOADED[:2]), "documents": list(LOADED[1:])}
        found = [each["score"] for each in embedding.post("/v1/score", pairs).json()["data"]]
        assert found == pytest.approx([rows[0] @ rows[1], rows[1] @ rows[2]], abs=1e-6)

    def test_late_interaction(self, folder: Path):
        served = serving(folder, TOKENS)
        body = {"queries": "the cat", "documents": "a dog ran"}
        score = served.post("/v1/score", body).json()["data"][0]["score"]
        query, document = (
            unit(np.array([token_vector(each, 4) for each in request.inputs.prompt_token_ids], np.float32))
            for request in served.engine.requests
        )
        assert score == pytest.approx(float((query @ document.T).max(axis=1).sum()), rel=1e-5)

    def test_late_interaction_with_the_tokens_of_the_model(self, folder: Path, tokenizer: Tokenizer):
        dog = tokenizer.encode(" dog")[-1]
        pooling = {"query_marker": "<|im_start|>", "document_marker": "<|im_end|>", "query_length": 9,
                   "query_filler": 0, "skipped_tokens": (dog,)}  # fmt: skip
        served = serving(folder, TOKENS, pooling=pooling)
        score = served.post("/v1/score", {"queries": "the cat", "documents": "a dog"}).json()["data"][0]["score"]
        asked, read = (request.inputs.prompt_token_ids for request in served.engine.requests)
        assert asked == [1, *tokenizer.encode("the cat"), *[0] * (8 - len(tokenizer.encode("the cat")))]
        assert read == [2, *tokenizer.encode("a dog")]
        kept = [each for each in read if each != dog]
        query, document = (unit(np.array([token_vector(each, 4) for each in ids], np.float32)) for ids in (asked, kept))
        assert score == pytest.approx(float((query @ document.T).max(axis=1).sum()), rel=1e-5)

    def test_a_chat_template_has_a_role_for_each_text(self, folder: Path, tokenizer: Tokenizer):
        served = serving(folder, SCORE, pooling={"pair": "chat"})
        body = {"queries": "the cat", "documents": ["a dog", "many dogs " * 30]}
        assert served.post("/score", {**body, "truncate_prompt_tokens": 40}).status_code == 200
        short, cut = (each.inputs.prompt_token_ids for each in served.engine.requests)
        prompt = "<|im_start|>query\nthe cat<|im_end|>\n<|im_start|>document\n{}<|im_end|>\n"
        assert short == tokenizer.encode(prompt.format("a dog"))
        assert 35 < len(cut) <= 40
        assert tokenizer.decode(cut, skip_special_tokens=False).endswith("<|im_end|>\n")
        assert served.post("/score", {**body, "truncate_prompt_tokens": 9}).status_code == 400
        served = serving(folder, SCORE, pooling={"pair": "chat"}, engine=FakeEngine(max_model_len=40))
        assert error(served.post("/score", body)) == (400, "context_length_exceeded", "documents[1]")

    @pytest.mark.parametrize(
        ("fields", "code", "param"),
        [
            ({"queries": ["a", "b"], "documents": ["a", "b", "c"]}, "invalid_value", "queries"),
            ({"queries": [], "documents": "a"}, "empty_array", "queries"),
            ({"queries": "a"}, "missing_required_parameter", "documents"),
            ({"queries": "a", "text_1": "b", "documents": "a"}, "invalid_value", "text_1"),
            ({"queries": "a", "documents": ["a", ""]}, "invalid_value", "documents[1]"),
            ({"queries": "a", "documents": "b", "instruction": "x"}, "unsupported_parameter", "instruction"),
            ({"queries": "a", "documents": "b", "use_activation": True}, "unsupported_parameter", "use_activation"),
            ({"queries": "a", "documents": "b", "max_tokens_per_doc": 0}, "integer_below_min_value",
             "max_tokens_per_doc"),
            ({"queries": "a", "documents": [{"content": [{"type": "image_url"}]}]}, "unsupported_parameter", None),
            ({"queries": "a", "documents": [{"x": 1}]}, "invalid_type", None),
        ],
    )  # fmt: skip
    def test_what_is_refused(self, embedding: Served, fields: Any, code: str, param: str | None):
        found = error(embedding.post("/v1/score", fields))
        assert found[:2] == (400, code)
        assert param is None or found[2] == param

    def test_texts_have_limits(self, folder: Path, tokenizer: Tokenizer):
        served = serving(folder, SCORE)
        body = {"queries": "the cat sat on a mat", "documents": "a dog ran", "max_tokens_per_query": 2,
                "max_tokens_per_doc": 1}  # fmt: skip
        assert served.post("/score", body).status_code == 200
        wanted = [*tokenizer.encode("the cat sat on a mat")[:2], *tokenizer.encode("a dog ran")[:1]]
        assert served.engine.requests[0].inputs.prompt_token_ids == wanted

    def test_documents_in_parts(self, embedding: Served, tokenizer: Tokenizer):
        parts = {"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "dog"}]}
        assert embedding.post("/score", {"queries": {"text": "cat"}, "documents": [parts]}).status_code == 200
        assert embedding.engine.requests[1].inputs.prompt_token_ids == tokenizer.encode("a dog")


class TestRerank:
    DOCUMENTS = ("a dog ran", "the cat sat", "Hello, world!", "the cat")

    @pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
    def test_documents_in_order(self, embedding: Served, path: str):
        body = {"model": MODEL, "query": "the cat", "documents": list(self.DOCUMENTS)}
        answer = embedding.post(path, body).json()
        scores = [each["relevance_score"] for each in answer["results"]]
        assert scores == sorted(scores, reverse=True)
        assert answer["results"][0] == {
            "index": 3,
            "relevance_score": pytest.approx(1),
            "document": {"text": "the cat"},
        }
        assert {each["index"] for each in answer["results"]} == {0, 1, 2, 3}
        assert answer["id"].startswith("rerank-")
        assert answer["usage"]["total_tokens"] == answer["meta"]["billed_units"]["input_tokens"] > 0
        best = embedding.post(path, {**body, "top_n": 2, "return_documents": False}).json()["results"]
        assert best == [{name: each[name] for name in ("index", "relevance_score")} for each in answer["results"][:2]]
        assert len(embedding.post(path, {**body, "top_n": 0}).json()["results"]) == 4

    def test_clients_of_infinity(self, folder: Path):
        served = serving(folder, SCORE)
        body = {"query": "the cat", "documents": list(self.DOCUMENTS), "raw_scores": True}
        raw = served.post("/rerank", body).json()["results"]
        assert "document" not in raw[0]
        shown = served.post("/rerank", {**body, "raw_scores": False, "return_documents": True}).json()["results"]
        assert shown[0]["document"] == self.DOCUMENTS[raw[0]["index"]]
        assert shown[0]["relevance_score"] == pytest.approx(sigmoid(raw[0]["relevance_score"]), rel=1e-5)

    def test_clients_of_tei(self, folder: Path):
        served = serving(folder, SCORE)
        body = {"query": "the cat", "texts": list(self.DOCUMENTS)}
        found = served.post("/rerank", body).json()
        assert sorted(each["index"] for each in found) == [0, 1, 2, 3]
        assert found[0].keys() == {"index", "score"}
        texts = served.post("/rerank", {**body, "return_text": True, "raw_scores": True, "truncate": True}).json()
        assert texts[0]["text"] == self.DOCUMENTS[found[0]["index"]]

    @pytest.mark.parametrize(
        ("fields", "code", "param"),
        [
            ({"query": "a"}, "missing_required_parameter", "documents"),
            ({"documents": ["a"]}, "missing_required_parameter", "query"),
            ({"query": ["a"], "documents": ["a"]}, "invalid_type", "query"),
            ({"query": "a", "documents": ["a"], "texts": ["b"]}, "missing_required_parameter", "documents"),
            ({"query": "a", "documents": ["a"], "top_n": -1}, "integer_below_min_value", "top_n"),
            ({"query": "a", "documents": []}, "empty_array", "documents"),
            ({"query": "", "documents": ["a"]}, "invalid_value", "query"),
            ({"query": "a", "texts": ["a"], "top_n": 1}, "unsupported_parameter", "top_n"),
            ({"query": "a", "documents": ["a"], "return_text": True}, "unsupported_parameter", "return_text"),
        ],
    )
    def test_what_is_refused(self, embedding: Served, fields: Any, code: str, param: str):
        assert error(embedding.post("/rerank", fields)) == (400, code, param)


class TestCohere:
    def test_all_forms(self, embedding: Served, tokenizer: Tokenizer):
        types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
        body = {"model": MODEL, "texts": list(LOADED), "input_type": "search_document", "embedding_types": types}
        answer = embedding.post("/v2/embed", body).json()
        assert answer.keys() == {"id", "embeddings", "texts", "meta", "response_type"}
        wanted = unit(vectors(tokenizer, LOADED))
        found = answer["embeddings"]
        np.testing.assert_allclose(found["float"], wanted, rtol=1e-5)
        assert np.abs(np.array(found["int8"])).max() == 127
        assert (np.array(found["uint8"]) - 128).tolist() == found["int8"]
        assert found["ubinary"] == np.packbits(wanted > 0, axis=1).tolist()
        assert found["binary"] == [[each - 128 for each in row] for row in found["ubinary"]]
        decoded = [np.frombuffer(base64.b64decode(each), "<f4") for each in found["base64"]]
        np.testing.assert_array_equal(decoded, np.array(found["float"], np.float32))
        assert answer["texts"] == list(LOADED)
        assert answer["response_type"] == "embeddings_by_type"
        assert answer["meta"]["api_version"] == {"version": "2"}

    def test_prompts_by_the_type_of_input(self, folder: Path, tokenizer: Tokenizer):
        served = serving(folder, EMBED, pooling={"named_prompts": (("query", "q: "), ("passage", "p: "))})
        for kind in ("search_query", "search_document"):
            assert served.post("/v2/embed", {"texts": ["cat"], "input_type": kind}).status_code == 200
        found = [each.inputs.prompt_token_ids for each in served.engine.requests]
        assert found == [tokenizer.encode("q: cat"), tokenizer.encode("p: cat")]
        response = served.post("/v2/embed", {"texts": ["cat"], "input_type": "clustering"})
        assert error(response) == (400, "invalid_value", "input_type")

    def test_empty_prompts_are_none(self, folder: Path, tokenizer: Tokenizer):
        served = serving(folder, EMBED, pooling={"named_prompts": (("query", ""), ("document", ""))})
        for kind in ("search_query", "classification", "clustering"):
            assert served.post("/v2/embed", {"texts": ["cat"], "input_type": kind}).status_code == 200
        assert {tuple(each.inputs.prompt_token_ids) for each in served.engine.requests} == {
            tuple(tokenizer.encode("cat"))
        }

    def test_truncation(self, folder: Path):
        served = serving(folder, EMBED, engine=FakeEngine(max_model_len=5))
        text = "the cat sat on a mat and the dogs ran"
        ids = served.service.tokenizer.encode(text)
        for fields, kept in (({}, ids[:5]), ({"truncate": "START"}, ids[-5:]), ({"max_tokens": 3}, ids[:3])):
            assert served.post("/v2/embed", {"texts": [text], **fields}).status_code == 200
            assert served.engine.requests[-1].inputs.prompt_token_ids == kept
        response = served.post("/v2/embed", {"texts": [text], "truncate": "NONE"})
        assert error(response) == (400, "context_length_exceeded", "texts[0]")

    def test_parts_of_content(self, embedding: Served):
        body = {"inputs": [{"content": [{"type": "text", "text": "the cat"}]}], "output_dimension": 4}
        assert np.array(embedding.post("/v2/embed", body).json()["embeddings"]["float"]).shape == (1, 4)

    @pytest.mark.parametrize(
        ("fields", "code", "param"),
        [
            ({}, "missing_required_parameter", "texts"),
            ({"texts": ["a"], "inputs": [{"content": [{"text": "a"}]}]}, "missing_required_parameter", "texts"),
            ({"texts": ["a"], "images": ["data:,"]}, "unsupported_parameter", "images"),
            ({"texts": ["a"], "embedding_types": ["int4"]}, "invalid_value", "embedding_types[0]"),
            ({"texts": ["a"], "output_dimension": 5}, "invalid_value", "output_dimension"),
            (
                {"texts": ["a"], "output_dimension": 4, "embedding_types": ["binary"]},
                "invalid_value",
                "embedding_types",
            ),
            ({"texts": ["a"], "truncate": "LEFT"}, "invalid_value", "truncate"),
            ({"texts": ["a"], "truncate": "NONE", "max_tokens": 3}, "invalid_value", "max_tokens"),
            ({"texts": ["a"], "input_type": "image"}, "invalid_value", "input_type"),
        ],
    )
    def test_what_is_refused(self, embedding: Served, fields: Any, code: str, param: str):
        assert error(embedding.post("/v2/embed", fields)) == (400, code, param)


class TestTei:
    @pytest.mark.parametrize("path", ["/embed", "/"])
    def test_embed(self, embedding: Served, tokenizer: Tokenizer, path: str):
        wanted = vectors(tokenizer, LOADED)
        np.testing.assert_allclose(embedding.post(path, {"inputs": list(LOADED)}).json(), unit(wanted), rtol=1e-5)
        raw = embedding.post(path, {"inputs": LOADED[0], "normalize": False}).json()
        np.testing.assert_allclose(raw, wanted[:1], rtol=1e-5)
        cut = embedding.post(path, {"inputs": [5, 6], "dimensions": 4}).json()
        assert np.array(cut).shape == (1, 4)

    def test_long_texts_are_cut_unless_the_request_says_otherwise(self, folder: Path):
        served = serving(folder, EMBED, engine=FakeEngine(max_model_len=5))
        text = "the cat sat on a mat and the dogs ran"
        ids = served.service.tokenizer.encode(text)
        for fields, kept in (({}, ids[:5]), ({"truncation_direction": "Left"}, ids[-5:])):
            assert served.post("/embed", {"inputs": text, **fields}).status_code == 200
            assert served.engine.requests[-1].inputs.prompt_token_ids == kept
        assert error(served.post("/embed", {"inputs": text, "truncate": False}))[1] == "context_length_exceeded"

    def test_vectors_and_weights_of_tokens(self, folder: Path):
        served = serving(folder, TOKENS, SPARSE)
        assert np.array(served.post("/embed_all", {"inputs": [[5, 6, 7]]}).json()).shape == (1, 3, 4)
        [weights] = served.post("/embed_sparse", {"inputs": [[9, 5, 6]]}).json()
        assert all(each.keys() == {"index", "value"} and each["value"] > 0 for each in weights)
        assert {each["index"] for each in weights} <= {9, 5, 6}
        assert served.post("/embed_all", {"inputs": [[5, 6, 7]]}).json()[0] == [
            pytest.approx(token_vector(token, 4)) for token in (5, 6, 7)
        ]  # not normalised

    def test_the_path_of_the_server_is_what_the_model_is_for(self, folder: Path):
        ranked = serving(folder, SCORE).post("/", {"query": "a", "texts": ["b", "c"]}).json()
        assert {each["index"] for each in ranked} == {0, 1}
        assert ranked[0].keys() == {"index", "score"}
        sparse = serving(folder, SPARSE)
        assert (
            sparse.post("/", {"inputs": "the cat"}).json() == sparse.post("/embed_sparse", {"inputs": "the cat"}).json()
        )

    def test_vectors_have_length_1_also_of_a_model_that_does_not_normalise(self, folder: Path, tokenizer: Tokenizer):
        served = serving(folder, PoolHead(task="embed", width=8))
        wanted = vectors(tokenizer, LOADED[:1])
        np.testing.assert_allclose(served.post("/embed", {"inputs": LOADED[0]}).json(), unit(wanted), rtol=1e-5)
        raw = served.post("/embed", {"inputs": LOADED[0], "normalize": False}).json()
        np.testing.assert_allclose(raw, wanted, rtol=1e-5)

    def test_predict(self, folder: Path, tokenizer: Tokenizer):
        served = serving(folder, LABELS, pooling={"labels": ("bad", "fair", "good")})
        one = served.post("/predict", {"inputs": "the cat"}).json()
        assert [each["score"] for each in one] == sorted((each["score"] for each in one), reverse=True)
        assert sum(each["score"] for each in one) == pytest.approx(1)
        assert served.post("/predict", {"inputs": [["the cat"], ["a dog"]]}).json()[0] == one
        assert served.post("/", {"inputs": "the cat"}).json() == one
        pair = served.post("/predict", {"inputs": ["the cat", "a dog"]}).json()
        assert {each["label"] for each in pair} == {"bad", "fair", "good"}
        assert served.engine.requests[-1].inputs.task.second == len(tokenizer.encode("the cat"))
        assert served.post("/predict", {"inputs": [["a", "b"], ["c", "d"]], "raw_scores": True}).status_code == 200
        for wrong in (["a", "b", "c"], [["a"], ["b", "c"]], [[]], 5):
            assert served.post("/predict", {"inputs": wrong}).status_code == 400

    def test_similarity(self, embedding: Served, tokenizer: Tokenizer):
        inputs = {"source_sentence": LOADED[0], "sentences": list(LOADED)}
        found = embedding.post("/similarity", {"inputs": inputs, "parameters": {"truncate": True}}).json()
        rows = unit(vectors(tokenizer, LOADED))
        assert found == pytest.approx((rows @ rows[0]).tolist(), abs=1e-6)

    def test_decode(self, embedding: Served, tokenizer: Tokenizer):
        ids = [tokenizer.encode(text) for text in LOADED]
        assert embedding.post("/decode", {"ids": ids}).json() == list(LOADED)
        assert embedding.post("/decode", {"ids": ids[0]}).json() == [LOADED[0]]
        assert error(embedding.post("/decode", {"ids": [400]})) == (400, "invalid_token_id", "ids")

    def test_info(self, folder: Path, embedding: Served):
        assert embedding.get("/info").json()["model_type"] == {"embedding": {"pooling": "last"}}
        labels = serving(folder, LABELS, pooling={"labels": ("bad", "fair", "good")}).get("/info").json()
        assert labels["model_type"]["classifier"]["label2id"] == {"bad": 0, "fair": 1, "good": 2}
        assert "reranker" in serving(folder, SCORE).get("/info").json()["model_type"]


class TestWhatAllRoutesHave:
    def test_metrics_and_the_log(self, folder: Path, caplog: pytest.LogCaptureFixture):
        served = serving(folder, EMBED, enable_log_requests=True)
        with caplog.at_level("INFO"):
            served.post("/v1/embeddings", {"input": list(LOADED)})
        num_tokens = sum(len(each.inputs.prompt_token_ids) for each in served.engine.requests)
        name = f'{{model_name="{MODEL}"}}'
        assert served.metric(f"stoker_prompt_tokens_total{name}") == num_tokens
        assert served.metric(f'stoker_requests_finished_total{{finish_reason="stop",model_name="{MODEL}"}}') == 3
        lines = [record.__dict__.get("fields", {}) for record in caplog.records]
        [arrived] = [each for each in lines if "tasks" in each]
        assert (arrived["texts"], arrived["prompt_tokens"], arrived["tasks"]) == (3, num_tokens, "embed")
        [access] = [each for each in lines if each.get("status") == 200]
        assert (access["texts"], access["prompt_tokens"], access["finish"]) == (3, num_tokens, "stop")

    def test_keys_and_salts(self, folder: Path):
        served = serving(folder, EMBED, api_key=("one", "two"))
        assert served.post("/v1/embeddings", {"input": "a"}).status_code == 401
        assert served.post("/", {"inputs": "a"}).status_code == 401  # the page of this path is open
        headers = {"authorization": "Bearer two"}
        assert served.post("/v1/embeddings", {"input": "a", "cache_salt": "x"}, headers=headers).status_code == 200
        assert served.engine.requests[0].inputs.scope.salt.endswith("x")

    def test_the_id_of_the_client(self, embedding: Served):
        assert embedding.post("/v1/embeddings", {"input": "a", "request_id": "mine"}).json()["id"] == "embd-mine"

    @pytest.mark.parametrize(
        ("body", "found"),
        [
            ({"input": "a"}, "data"),
            ({"query": "a", "documents": ["b"]}, "results"),
            ({"queries": "a", "documents": ["b"]}, "data"),
            ({"text_1": "a", "text_2": ["b"]}, "data"),
        ],
    )
    def test_sagemaker(self, embedding: Served, body: Any, found: str):
        assert found in embedding.post("/invocations", body).json()

    def test_sagemaker_with_a_model_that_generates(self, served: Served):
        assert "embedding" in served.post("/invocations", {"input": "a"}).json()["data"][0]
        assert "choices" in served.post("/invocations", {"prompt": "a", "max_tokens": 1}).json()
        assert isinstance(served.post("/invocations", {"inputs": "a"}).json()[0], list)


class TestLimitsOfAResult:
    """What is refused before the engine gets anything."""

    def test_a_text_that_no_step_can_hold_is_named(self, folder: Path):
        served = serving(folder, EMBED, TOKENS)
        ids = {"input": [[1, 2], [3] * 65]}  # a step of the fake engine has 64 tokens
        response = served.post("/pooling", {**ids, "task": "token_embed"})
        assert error(response) == (400, "context_length_exceeded", "input[1]")
        assert "65 tokens" in response.json()["error"]["message"]
        assert served.post("/pooling", {**ids, "task": "embed"}).status_code == 200
        assert [each.inputs.task for each in served.engine.requests] == [PoolingParams(("embed",))] * 2

    def test_the_results_of_a_request_have_a_limit(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("stoker.server.routes.pooled_texts.MAX_ELEMENTS", 16)
        served = serving(folder, EMBED, TOKENS)
        assert served.post("/pooling", {"input": [[1, 2, 3, 4]], "task": "token_embed"}).status_code == 200
        for fields in ({"input": [[1]] * 3, "task": "embed"}, {"input": [[1, 2], [3, 4, 5]], "task": "token_embed"}):
            assert error(served.post("/pooling", fields)) == (400, "array_above_max_length", "input")
        assert len(served.engine.requests) == 1
