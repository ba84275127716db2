"""The choices between the ways of other servers: one test for each row of docs/guide/server/compatibility.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.engine.api import EngineRequest
from stoker.text.tokenizer import Tokenizer

from ..fakes import FakeEngine
from ..tiny_tokenizer import TEMPLATE, write_tokenizer
from .deployment import MODEL, Served, events

Saying = Callable[..., Served]
HELLO = [{"role": "user", "content": "Hello"}]


def chunks(body: str) -> list[dict[str, Any]]:
    *data, last = events(body)
    assert last == "[DONE]"
    return [json.loads(one) for one in data]


def prompt_of(served: Served) -> list[int]:
    return served.engine.requests[-1].inputs.prompt_token_ids


@pytest.mark.parametrize("model", [{}, {"model": None}, {"model": ""}])
def test_without_a_model_the_first_served_name_answers(served: Served, model: dict[str, Any]):
    for path, fields in (("/v1/chat/completions", {"messages": HELLO}), ("/v1/completions", {"prompt": "Hello"})):
        assert served.post(path, {**fields, **model, "max_tokens": 2}).json()["model"] == MODEL
        streamed = served.post(path, {**fields, **model, "max_tokens": 2, "stream": True})
        assert chunks(streamed.text)[0]["model"] == MODEL
    assert served.post("/tokenize", {"prompt": "Hello", **model}).status_code == 200


def test_a_whole_number_written_as_a_decimal_is_an_integer(served: Served):
    served.chat(max_tokens=4.0, n=1.0, top_k=5.0, seed=7.0, min_tokens=0.0)
    sampling = served.engine.requests[0].inputs.sampling
    assert (sampling.max_tokens, sampling.top_k, sampling.seed) == (4, 5, 7)
    assert served.chat(max_tokens=4.5).status_code == 400
    assert served.chat(max_tokens="4").status_code == 400


def test_seed_minus_1_is_a_random_seed(served: Served):
    served.complete(seed=-1)
    assert served.engine.requests[0].inputs.sampling.seed is None


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_fields_that_clients_read_are_null_when_the_request_did_not_ask(served: Served, path: str):
    answer = served.post(path, {"prompt": "Hello"} if path == "/v1/completions" else {"messages": HELLO}).json()
    (choice,) = answer["choices"]
    assert {choice["stop_reason"], choice["token_ids"], choice["logprobs"]} == {None}
    assert {answer["system_fingerprint"], answer["service_tier"], answer["usage"]["prompt_tokens_details"]} == {None}
    owner = choice if path == "/v1/completions" else answer
    assert {owner["prompt_logprobs"], owner["prompt_token_ids"]} == {None}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prefix", ["chatcmpl", "cmpl"])
def test_the_id_of_an_answer_is_that_of_the_client(served: Served, prefix: str, stream: bool):
    def answer_id(headers: dict[str, str], **fields: Any) -> str:
        body = {"messages": HELLO} if prefix == "chatcmpl" else {"prompt": "Hello"}
        path = "/v1/chat/completions" if prefix == "chatcmpl" else "/v1/completions"
        response = served.post(path, {**body, "max_tokens": 2, "stream": stream, **fields}, headers=headers)
        found: str = (chunks(response.text)[0] if stream else response.json())["id"]
        return found

    assert answer_id({"x-request-id": "a.1"}) == f"{prefix}-a.1"
    assert answer_id({}, request_id="b-2") == f"{prefix}-b-2"
    assert answer_id({"x-request-id": "a.1"}, request_id="b-2") == f"{prefix}-a.1"
    assert answer_id({"x-request-id": "no spaces"}).startswith(f"{prefix}-")
    assert "spaces" not in answer_id({"x-request-id": "no spaces"})
    ids = [request.request_id for request in served.engine.requests]
    assert len(ids) == len(set(ids)), "an id in the engine must be unique"


@pytest.mark.parametrize("is_chat", [True, False])
@pytest.mark.effect("server.enable_force_include_usage")
def test_usage_is_in_every_chunk_if_it_is_requested_or_forced(saying: Saying, folder: Path, is_chat: bool):
    requested = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    for options, fields in (({}, requested), ({"enable_force_include_usage": True}, {})):
        served = saying("Hello, world", **options)
        ask = served.chat if is_chat else served.complete
        *received, last = chunks(ask(stream=True, **fields).text)
        counts = [chunk["usage"]["completion_tokens"] for chunk in received]
        assert counts == sorted(counts)
        assert counts[-1] == last["usage"]["completion_tokens"] > counts[0]
        assert last["choices"] == []


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_are_where_vllm_has_them(saying: Saying, tokenizer: Tokenizer, stream: bool):
    served = saying("Hello")
    chat = served.chat(return_token_ids=True, stream=stream)
    prompt, generated = prompt_of(served), [*tokenizer.encode("Hello"), 2]
    if not stream:
        assert chat.json()["prompt_token_ids"] == prompt
        assert chat.json()["choices"][0]["token_ids"] == generated
        choice = served.complete(return_token_ids=True).json()["choices"][0]
        assert (choice["prompt_token_ids"], choice["token_ids"]) == (tokenizer.encode("Hello"), generated)
        return
    first, *others = chunks(chat.text)
    assert first["prompt_token_ids"] == prompt
    assert all("prompt_token_ids" not in chunk for chunk in others)
    assert [one for chunk in others for one in chunk["choices"][0].get("token_ids", [])] == generated
    first, *others = chunks(served.complete(return_token_ids=True, stream=True).text)
    assert first["choices"][0]["prompt_token_ids"] == tokenizer.encode("Hello")


def test_log_probabilities_of_the_prompt_are_in_the_first_chunk(served: Served):
    streamed, whole = [served.chat(prompt_logprobs=1, max_tokens=3, stream=stream) for stream in (True, False)]
    first, *others = chunks(streamed.text)
    assert first["prompt_logprobs"] == whole.json()["prompt_logprobs"]
    assert all("prompt_logprobs" not in chunk for chunk in others)
    streamed, whole = [served.complete(prompt_logprobs=1, max_tokens=3, stream=stream) for stream in (True, False)]
    first, *others = chunks(streamed.text)
    assert first["choices"][0]["prompt_logprobs"] == whole.json()["choices"][0]["prompt_logprobs"]


@pytest.mark.parametrize("ending", ["end token", "stop token", "length", "end token shown"])
@pytest.mark.parametrize("stream", [False, True])
def test_each_completion_token_has_one_entry_of_logprobs(
    saying: Callable[..., Served], tokenizer: Tokenizer, stream: bool, ending: str
):
    """The last one is the end token, whose text is in the answer only on request."""
    served, text = saying("Hello, world!"), "Hello, world!"
    token_ids, end = tokenizer.encode(text), served.engine.info.eos_token_ids[0]
    fields: dict[str, Any] = {"max_tokens": 40, "stream": stream}
    if ending == "stop token":
        fields["stop_token_ids"], end = [token_ids[-1]], token_ids.pop()
        text = tokenizer.decode(token_ids)
    elif ending == "length":
        fields["max_tokens"] = len(token_ids)
    elif ending == "end token shown":
        fields |= {"include_stop_str_in_output": True, "skip_special_tokens": False}
        text += tokenizer.token_text(end)
    generated = token_ids if ending == "length" else [*token_ids, end]
    if stream:
        fields["stream_options"] = {"include_usage": True}

    def parts(response: Any) -> tuple[list[dict[str, Any]], int]:
        found = chunks(response.text) if stream else [response.json()]
        return [choice for each in found for choice in each["choices"]], found[-1]["usage"]["completion_tokens"]

    choices, num_tokens = parts(served.chat(logprobs=True, **fields))
    entries = [entry for choice in choices for entry in (choice["logprobs"] or {"content": []})["content"]]
    assert "".join(choice.get("message", choice.get("delta", {})).get("content", "") for choice in choices) == text
    assert [entry["token"] for entry in entries] == [tokenizer.token_text(token_id) for token_id in generated]
    assert num_tokens == len(entries)
    choices, num_tokens = parts(served.complete(logprobs=1, **fields))
    blocks = [choice["logprobs"] for choice in choices if choice["logprobs"] is not None]
    assert "".join(choice["text"] for choice in choices) == text
    assert [token for block in blocks for token in block["tokens"]] == [entry["token"] for entry in entries]
    offsets = [offset for block in blocks for offset in block["text_offset"]]
    shown = text if ending in ("length", "end token shown") else text + tokenizer.token_text(end)
    assert [shown[start:stop] for start, stop in zip(offsets, [*offsets[1:], None], strict=True)] == [
        entry["token"] for entry in entries
    ]
    assert num_tokens == len(offsets)


def test_logprobs_minus_1_is_the_whole_vocabulary_where_the_deployment_has_no_limit(folder: Path):
    served = Served(folder, model={"max_logprobs": -1})
    answer = served.complete(logprobs=-1, prompt_logprobs=-1, max_tokens=1).json()
    sampling = served.engine.requests[0].inputs.sampling
    assert (sampling.logprobs, sampling.prompt_logprobs) == (400, 400)
    assert len(answer["choices"][0]["prompt_logprobs"][1]) == 400
    chat = served.chat(logprobs=True, top_logprobs=-1, max_tokens=1).json()
    assert len(chat["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 400


def test_best_of_returns_the_best_of_several_samples(folder: Path):
    """The fake engine says the same -0.5 of every token; here the third sequence is the best, then the first."""

    class Ranked(FakeEngine):
        async def generate(self, request: EngineRequest) -> Any:
            index = int(request.request_id.rsplit("-", 1)[1])
            async for output in super().generate(request):
                for entry in output.logprobs or ():
                    entry.logprobs[0] = [-2.0, -3.0, -1.0][index]
                yield output

    served = Served(folder, Ranked())
    answer = served.complete(["Hello", "world"], best_of=3, n=2, seed=5, max_tokens=4).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    alone = [served.complete("Hello", seed=seed, n=3, max_tokens=4).json()["choices"][0]["text"] for seed in (7, 5)]
    assert [choice["text"] for choice in answer["choices"][:2]] == alone
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 2 * 3 * 4


def test_a_long_prompt_is_cut_on_request(served: Served, tokenizer: Tokenizer):
    served.complete([*range(10, 30)], truncate_prompt_tokens=3)
    assert prompt_of(served) == [27, 28, 29]
    served.complete([*range(10, 30)], truncate_prompt_tokens=3, truncation_side="right")
    assert prompt_of(served) == [10, 11, 12]
    text = "Hello, world! How are you today? " * 100
    served.complete(text, truncate_prompt_tokens=7)
    assert prompt_of(served) == tokenizer.encode(text)[-7:]
    served.complete(text, truncate_prompt_tokens=-1)
    assert prompt_of(served) == tokenizer.encode(text)[-511:]
    served.complete("Hello", truncate_prompt_tokens=100)
    assert prompt_of(served) == tokenizer.encode("Hello")
    served.chat(text, truncate_prompt_tokens=9)
    assert prompt_of(served) == tokenizer.encode(f"{text}<|im_end|>\n<|im_start|>assistant\n")[-9:]


def test_special_tokens_of_the_tokenizer_are_not_cut_off(tmp_path: Path):
    served = Served(write_tokenizer(tmp_path, has_bos=True))
    served.complete("Hello, world! How are you today?", truncate_prompt_tokens=3)
    assert prompt_of(served)[0] == 0
    assert len(prompt_of(served)) == 3
    served.complete("Hello, world! How are you today?", truncate_prompt_tokens=3, add_special_tokens=False)
    assert 0 not in prompt_of(served)


def test_only_the_end_of_a_huge_text_is_encoded(served: Served, monkeypatch: pytest.MonkeyPatch):
    tokenizer = served.service.need_tokenizer()
    seen: list[int] = []
    backend = tokenizer.backend

    class Counting:
        def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
            seen.extend(map(len, texts))
            return backend.encode_batch_fast(texts, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(backend, name)

    monkeypatch.setattr(tokenizer, "backend", Counting())
    served.complete("Hello, world! " * 100_000, truncate_prompt_tokens=7)
    monkeypatch.undo()
    assert prompt_of(served) == tokenizer.encode("Hello, world! " * 10)[-7:]
    assert max(seen) < 10_000


def test_bad_words_reach_the_engine_as_tokens_with_and_without_a_space(served: Served, tokenizer: Tokenizer):
    served.chat(bad_words=["world", "unseen words"])
    found = served.engine.requests[0].inputs.sampling.bad_word_ids
    for word in ("world", " world", "unseen words", " unseen words"):
        assert tuple(tokenizer.encode(word)) in found


def test_allowed_tokens_reach_the_engine_and_an_empty_list_is_off(served: Served):
    served.chat(allowed_token_ids=[7, 5])
    served.chat(allowed_token_ids=[], bad_words=[], stop=[], stop_token_ids=[], logit_bias={})
    assert [request.inputs.sampling.allowed_token_ids for request in served.engine.requests] == [(7, 5), ()]


@pytest.mark.parametrize(
    "content",
    [
        ["Hello"],
        [{"type": "text", "text": "Hello"}],
        [{"type": "input_text", "text": "Hello"}],
        [{"type": "output_text", "text": "Hello"}],
        [{"type": "thinking", "thinking": "Hello"}],
        [{"type": "refusal", "refusal": "Hello"}],
        [{"text": "Hello"}],
    ],
)
def test_content_parts_of_all_apis_are_text(served: Served, content: list[Any]):
    served.chat("Hello")
    served.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})
    first, second = (request.inputs.prompt_token_ids for request in served.engine.requests)
    assert first == second


def test_the_chat_template_decides_which_roles_exist(served: Served, tokenizer: Tokenizer, tmp_path: Path):
    served.post("/v1/chat/completions", {"messages": [{"role": "critic", "content": "Hello"}]})
    assert "<|im_start|>critic\n" in tokenizer.decode(prompt_of(served), skip_special_tokens=False)
    strict = "{% if messages[0].role != 'user' %}{{ raise_exception('no such role') }}{% endif %}x"
    refused = Served(write_tokenizer(tmp_path, template=strict)).post(
        "/v1/chat/completions", {"messages": [{"role": "critic", "content": "Hello"}]}
    )
    assert refused.status_code == 400
    assert "no such role" in refused.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_puts_a_continued_message_before_its_continuation(saying: Saying, stream: bool):
    messages = [*HELLO, {"role": "assistant", "content": "I am"}]
    fields = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True, "stream": stream}

    def content(**more: Any) -> str:
        response = saying(" here").post("/v1/chat/completions", {**fields, **more})
        if not stream:
            return str(response.json()["choices"][0]["message"]["content"])
        return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks(response.text))

    assert content() == " here"
    assert content(echo=True) == "I am here"
    assert content(echo=True, messages=HELLO, add_generation_prompt=True, continue_final_message=False) == " here"


@pytest.mark.parametrize(
    ("template", "effort", "rendered"),
    [
        ("{{ enable_thinking }}", "none", "False"),
        ("{{ enable_thinking }}", "low", "True"),
        ("{{ thinking }}", "none", "False"),
        ("{{ reasoning_effort }}", "low", "low"),
        ("{{ reasoning_effort }} {{ enable_thinking }}", "none", "none False"),
    ],
)
def test_reasoning_effort_sets_the_switch_of_the_template(
    tmp_path: Path, tokenizer: Tokenizer, template: str, effort: str, rendered: str
):
    served = Served(write_tokenizer(tmp_path, template=template))
    assert served.chat(reasoning_effort=effort).status_code == 200
    assert tokenizer.decode(prompt_of(served)) == rendered
    tokens = served.post("/tokenize", {"messages": HELLO, "reasoning_effort": effort}).json()["tokens"]
    assert tokens == prompt_of(served)


def test_the_kwargs_of_a_request_precede_its_reasoning_effort(tmp_path: Path, tokenizer: Tokenizer):
    served = Served(write_tokenizer(tmp_path, template="{{ enable_thinking }}"))
    served.chat(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
    assert tokenizer.decode(prompt_of(served)) == "True"


def test_a_field_for_the_template_is_refused_if_the_template_does_not_read_it(tmp_path: Path, tokenizer: Tokenizer):
    plain = Served(write_tokenizer(tmp_path / "plain", template="x"))
    for fields in ({"reasoning_effort": "low"}, {"documents": [{"text": "a"}]}):
        refused = plain.chat(**fields)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(fields)))
    assert plain.chat(documents=[]).status_code == 200
    reading = Served(write_tokenizer(tmp_path / "reading", template="{{ documents[0].text }}"))
    reading.chat(documents=[{"text": "Hello"}])
    assert tokenizer.decode(prompt_of(reading)) == "Hello"
    assert "enable_thinking" in TEMPLATE, "the template of the other tests has the switch"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_response_format_is_never_ignored(served: Served, path: str):
    """On /v1/completions it was: unconstrained text, with status 200."""
    for kind in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}):
        body = {"prompt": "x"} if path == "/v1/completions" else {"messages": HELLO}
        assert served.post(path, {**body, "max_tokens": 1, "response_format": kind}).status_code == 200
        assert served.engine.requests[-1].inputs.sampling.constraint is not None
    assert served.complete(response_format={"type": "text"}).status_code == 200
