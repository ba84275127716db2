"""/v1/chat/completions, in process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.text.tokenizer import Tokenizer

from ..fakes import FakeEngine
from .deployment import MODEL, Served, events

Saying = Callable[..., Served]


def chunks(body: str) -> list[dict[str, Any]]:
    *data, last = events(body)
    assert last == "[DONE]"
    return [json.loads(one) for one in data]


def test_a_response_has_text_finish_reason_and_usage(saying: Saying, tokenizer: Tokenizer):
    served = saying("Hello, world!")
    answer = served.chat("Hi").json()
    prompt = tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert served.engine.requests[0].inputs.prompt_token_ids == prompt
    assert answer["object"] == "chat.completion"
    assert answer["model"] == MODEL
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Hello, world!",
                "refusal": None,
                "reasoning": None,
                "reasoning_content": None,
            },
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": None,
        }
    ]
    generated = len(tokenizer.encode("Hello, world!")) + 1  # the end token
    assert answer["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": generated,
        "total_tokens": len(prompt) + generated,
        "prompt_tokens_details": None,
    }


def test_a_stream_is_role_text_finish_reason_and_done(saying: Saying):
    stream = saying("Hello, 世界 😀!").chat(stream=True)
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    first, *middle, last = chunks(stream.text)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in middle) == "Hello, 世界 😀!"
    assert all("\ufffd" not in chunk["choices"][0]["delta"]["content"] for chunk in middle)
    assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert {chunk["id"] for chunk in (first, *middle, last)} == {first["id"]}
    assert all(chunk["object"] == "chat.completion.chunk" and "usage" not in chunk for chunk in (first, *middle, last))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_text_does_not_break_the_lines_of_a_stream(saying: Saying, path: str):
    """Clients that read lines of text, as those of httpx, took U+2028 for the end of a line: a chunk was not JSON."""
    text = "a\u2028b\x85c\u2029d"
    served = saying(text, tokens_per_output=100)
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 100}
    bodies = {"/v1/completions": {"prompt": "x", "max_tokens": 100}, "/v1/responses": {"input": "x"}}
    answer = served.post(path, {**bodies.get(path, chat), "stream": True})
    lines = [line for line in answer.iter_lines() if line.startswith("data: {")]
    assert len(lines) == answer.text.count("data: {")
    assert any(json.dumps(text)[1:-1] in json.dumps(json.loads(line[6:])) for line in lines)


def test_usage_is_the_last_chunk_of_a_stream_that_requests_it(saying: Saying):
    stream = saying("Hello").chat(stream=True, stream_options={"include_usage": True})
    *others, last = chunks(stream.text)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
    assert all(chunk["usage"] is None for chunk in others)


@pytest.mark.effect("server.enable_force_include_usage")
def test_usage_is_in_every_stream_with_the_option(saying: Saying):
    stream = saying("Hello", enable_force_include_usage=True).chat(stream=True)
    assert chunks(stream.text)[-1]["usage"]["completion_tokens"] > 0


@pytest.mark.effect("server.enable_prompt_tokens_details")
def test_cached_tokens_are_in_usage_with_the_option(saying: Saying):
    served = saying("Hello", enable_prompt_tokens_details=True)
    served.engine.num_cached_tokens = 7
    assert served.chat().json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}


def test_n_choices_equal_those_of_n_consecutive_seeds(served: Served):
    answer = served.chat(n=3, seed=5, max_tokens=6).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    alone = [served.chat(seed=seed, max_tokens=6).json()["choices"][0]["message"]["content"] for seed in (5, 6, 7)]
    assert texts == alone
    assert answer["usage"]["prompt_tokens"] == len(served.engine.requests[0].inputs.prompt_token_ids)


def test_a_stream_with_n_has_the_same_content_as_a_complete_response(served: Served):
    whole = served.chat(n=3, seed=5, max_tokens=6).json()
    texts = {0: "", 1: "", 2: ""}
    reasons = {}
    for chunk in chunks(served.chat(n=3, seed=5, max_tokens=6, stream=True).text):
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
        reasons[choice["index"]] = choice["finish_reason"]
    assert texts == {choice["index"]: choice["message"]["content"] for choice in whole["choices"]}
    assert reasons == {choice["index"]: choice["finish_reason"] for choice in whole["choices"]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens_per_output", [1, 3, 100])
def test_a_stop_string_ends_the_output_and_aborts_the_request(saying: Saying, stream: bool, tokens_per_output: int):
    served = saying("Hello, world! STOP here and on", tokens_per_output=tokens_per_output)
    response = served.chat(stop=["zzz", " STOP"], stream=stream)
    if stream:
        received = chunks(response.text)
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in received)
        choice = received[-1]["choices"][0]
    else:
        choice = response.json()["choices"][0]
        text = choice["message"]["content"]
    assert text == "Hello, world!"
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == " STOP"
    if tokens_per_output < 100:
        assert served.engine.aborted == [served.engine.requests[0].request_id]


def test_log_probabilities_have_tokens_bytes_and_the_most_likely_tokens(saying: Saying, tokenizer: Tokenizer):
    answer = saying("Hé").chat(logprobs=True, top_logprobs=2, max_tokens=3).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in content[:-1] for byte in entry["bytes"]).decode() == "Hé"
    assert [len(entry["top_logprobs"]) for entry in content] == [2] * len(content)
    assert content[0]["logprob"] == -0.5
    assert content[0]["token"] == tokenizer.token_text(tokenizer.encode("Hé")[0])


def test_log_probabilities_are_in_the_chunks_of_a_stream(saying: Saying, tokenizer: Tokenizer):
    received = chunks(saying("Hello, world").chat(logprobs=True, stream=True).text)
    tokens = [
        entry["token"] for chunk in received for entry in (chunk["choices"][0]["logprobs"] or {}).get("content", [])
    ]
    assert "".join(tokens[:-1]) == "Hello, world"


def test_every_sampling_field_reaches_the_engine(served: Served):
    served.chat(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, presence_penalty=0.2, frequency_penalty=-0.3,
        repetition_penalty=1.1, logit_bias={"5": -100}, seed=9, max_completion_tokens=4, min_tokens=2, stop="x",
        stop_token_ids=[3], ignore_eos=True, include_stop_str_in_output=True, skip_special_tokens=False,
        logprobs=True, top_logprobs=3, prompt_logprobs=1,
    )  # fmt: skip
    found = served.engine.requests[0].inputs.sampling
    assert (found.temperature, found.top_p, found.top_k, found.min_p) == (0.5, 0.9, 7, 0.1)
    assert (found.presence_penalty, found.frequency_penalty, found.repetition_penalty) == (0.2, -0.3, 1.1)
    assert (found.logit_bias, found.seed, found.max_tokens, found.min_tokens) == ({5: -100}, 9, 4, 2)
    assert (found.stop, found.stop_token_ids, found.ignore_eos) == (("x",), (3,), True)
    assert (found.include_stop_str_in_output, found.skip_special_tokens) == (True, False)
    assert (found.logprobs, found.prompt_logprobs) == (3, 1)


def test_the_defaults_of_the_model_replace_missing_and_null_fields(folder: Path):
    served = Served(folder, sampling_defaults={"temperature": 0.6, "top_k": 20})
    served.chat(top_k=None)
    served.chat(temperature=1.0, top_k=0)
    first, second = (request.inputs.sampling for request in served.engine.requests)
    assert (first.temperature, first.top_k) == (0.6, 20)
    assert (second.temperature, second.top_k) == (1.0, 0)


def test_without_max_tokens_an_output_can_fill_the_context(served: Served):
    served.chat(max_tokens=None)
    request = served.engine.requests[0]
    assert request.inputs.sampling.max_tokens == 512 - len(request.inputs.prompt_token_ids)


@pytest.mark.effect("model.served_model_name")
def test_a_model_can_be_requested_by_each_of_its_names(served: Served):
    assert served.chat(model="alias").json()["model"] == "alias"


def test_roles_parts_and_tools_are_passed_to_the_template(served: Served, tokenizer: Tokenizer):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"model": MODEL, "messages": messages, "tools": [tool], "tool_choice": "auto", "max_tokens": 1}
    assert served.post("/v1/chat/completions", body).status_code == 200
    prompt = tokenizer.decode(served.engine.requests[0].inputs.prompt_token_ids, skip_special_tokens=False)
    assert prompt.startswith("<|im_start|>system\n" + json.dumps(tool))
    assert "<|im_start|>system\nBe\nbrief<|im_end|>" in prompt
    assert "<|im_start|>tool\n42<|im_end|>" in prompt


def test_chat_template_kwargs_are_passed_to_the_template(served: Served, tokenizer: Tokenizer):
    served.chat(chat_template_kwargs={"enable_thinking": False}, max_tokens=1)
    prompt = tokenizer.decode(served.engine.requests[0].inputs.prompt_token_ids, skip_special_tokens=False)
    assert prompt.endswith("<think></think>\n")


def test_the_last_message_can_be_continued(served: Served, tokenizer: Tokenizer):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I am "}]
    body = {"model": MODEL, "messages": messages, "add_generation_prompt": False, "continue_final_message": True}
    assert served.post("/v1/chat/completions", {**body, "max_tokens": 1}).status_code == 200
    prompt = tokenizer.decode(served.engine.requests[0].inputs.prompt_token_ids, skip_special_tokens=False)
    assert prompt.endswith("<|im_start|>assistant\nI am ")


def test_labels_are_accepted_without_a_warning(served: Served):
    assert (
        served.chat(user="u", metadata={"a": "b"}, store=False, safety_identifier="x", max_tokens=1).status_code == 200
    )
    assert served.metric('stoker_unknown_request_fields_total{route="/v1/chat/completions"}') == 0


def test_token_ids_are_returned_on_request(served: Served):
    answer = served.chat(return_token_ids=True, max_tokens=3, ignore_eos=True).json()
    assert answer["prompt_token_ids"] == served.engine.requests[0].inputs.prompt_token_ids
    assert len(answer["choices"][0]["token_ids"]) == 3


def test_the_cache_salt_of_a_request_is_passed_to_the_engine(served: Served):
    served.chat(cache_salt="mine", max_tokens=1)
    served.chat(max_tokens=1)
    assert [request.inputs.scope.salt for request in served.engine.requests] == ["mine", ""]


def test_keys_do_not_share_a_prefix_cache(folder: Path):
    served = Served(folder, api_key=["one", "two"])
    for key in ("one", "two", "one"):
        message = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        served.post("/v1/chat/completions", message, headers={"authorization": f"Bearer {key}"})
    first, second, third = (request.inputs.scope.salt for request in served.engine.requests)
    assert first == third != second


def test_priority_is_passed_to_the_engine_with_the_priority_policy(folder: Path):
    served = Served(folder, scheduler={"scheduling_policy": "priority"})
    served.chat(priority=-3, max_tokens=1)
    assert served.engine.requests[0].priority == -3


@pytest.mark.effect("server.response_role")
def test_the_role_of_responses_is_configurable(folder: Path):
    served = Served(folder, FakeEngine(), response_role="bot")
    assert served.chat(max_tokens=1).json()["choices"][0]["message"]["role"] == "bot"


def prompts_of(served: Served) -> list[str]:
    """The prompts sent to the engine, as text."""
    tokenizer = served.service.need_tokenizer()
    return [tokenizer.decode(one.inputs.prompt_token_ids, skip_special_tokens=False) for one in served.engine.requests]


@pytest.mark.effect("server.response_role")
@pytest.mark.parametrize("stream", [False, True])
def test_a_continued_message_keeps_its_role(saying: Saying, stream: bool):
    served = saying("sure", response_role="bot")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "I am "}], "add_generation_prompt": False,
            "continue_final_message": True, "stream": stream}  # fmt: skip
    for fields, role in (({}, "user"), ({"add_generation_prompt": True, "continue_final_message": False}, "bot")):
        response = served.post("/v1/chat/completions", {**body, **fields})
        if stream:
            assert chunks(response.text)[0]["choices"][0]["delta"]["role"] == role
        else:
            assert response.json()["choices"][0]["message"]["role"] == role


@pytest.mark.effect("server.return_tokens_as_token_ids")
@pytest.mark.parametrize("stream", [False, True])
def test_tokens_are_shown_as_ids_with_the_option_or_on_request(saying: Saying, tokenizer: Tokenizer, stream: bool):
    as_ids = [f"token_id:{token_id}" for token_id in [*tokenizer.encode("Hé"), 2]]

    def names(served: Served, **fields: Any) -> list[str]:
        response = served.chat(logprobs=True, top_logprobs=1, stream=stream, **fields)
        received = chunks(response.text) if stream else [response.json()]
        logprobs = [choice["logprobs"] for chunk in received for choice in chunk["choices"] if choice["logprobs"]]
        entries = [entry for one in logprobs for entry in one["content"]]
        assert b"".join(bytes(entry["bytes"]) for entry in entries[:-1]).decode() == "Hé"
        for entry in entries:
            assert entry["top_logprobs"][0]["token"].startswith("token_id:") == entry["token"].startswith("token_id:")
        return [entry["token"] for entry in entries]

    with_option, without = saying("Hé", return_tokens_as_token_ids=True), saying("Hé")
    assert names(with_option) == as_ids == names(without, return_tokens_as_token_ids=True)
    assert names(without) == names(with_option, return_tokens_as_token_ids=False) != as_ids


TOOL = {"type": "function", "function": {"name": "lookup"}}


@pytest.mark.effect("server.exclude_tools_when_tool_choice_none")
def test_tools_that_may_not_be_called_are_not_in_the_prompt_with_the_option(folder: Path):
    for excludes in (False, True):
        served = Served(folder, exclude_tools_when_tool_choice_none=excludes)
        served.chat(tools=[TOOL], tool_choice="none", max_tokens=1)
        served.chat(tools=[TOOL], tool_choice="auto", max_tokens=1)
        forbidden, allowed = prompts_of(served)
        assert ("lookup" in forbidden) is not excludes
        assert "lookup" in allowed


@pytest.mark.effect("server.trust_request_chat_template")
def test_a_request_can_have_a_template_with_the_option(folder: Path, tmp_path: Path):
    fields = {"chat_template": "{{ greeting }}, {{ messages[0].content }}", "chat_template_kwargs": {"greeting": "Ho"}}
    refused = Served(folder).chat("Hello", **fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "chat_template")
    assert "trust_request_chat_template" in refused.json()["error"]["message"]
    served = Served(folder, trust_request_chat_template=True)
    assert served.chat("Hello", **fields, max_tokens=1).status_code == 200
    assert served.chat("Hello", max_tokens=1).status_code == 200
    assert prompts_of(served)[0] == "Ho, Hello"
    assert prompts_of(served)[1].startswith("<|im_start|>user\nHello")
    answer = served.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}], **fields}).json()
    assert served.service.need_tokenizer().decode(answer["tokens"]) == "Ho, Hi"
    file = tmp_path / "secret"
    file.write_text("canary {{ messages }}")
    served.chat("Hello", chat_template=str(file), max_tokens=1)
    assert prompts_of(served)[2] == str(file)  # a file name is a template without variables


@pytest.mark.parametrize(
    "template",
    [
        "{% if %}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{% for a in b %}" * 60 + "{% endfor %}" * 60,
        "{{ " + "9" * 5000 + " }}",
        "{% include '/etc/passwd' %}",
        "{{ messages.__class__.__mro__ }}",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}"
        "{% set ns.s = t %}{% endfor %}",
        "x" * 65537,
    ],
    ids=range(9),
)
@pytest.mark.quick_cases(4)
def test_an_invalid_template_of_a_request_is_a_400(folder: Path, template: str):
    served = Served(folder, trust_request_chat_template=True)
    response = served.chat(chat_template=template, max_tokens=1)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    assert served.engine.requests == []


LOOPS = "{% for m in messages %}{% if m.content is string %}s:{{ m.content }}{% else %}"
LOOPS += "{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endif %}{% endfor %}"
PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]


@pytest.mark.effect("server.chat_template_content_format")
@pytest.mark.parametrize(
    ("form", "text", "parts"),
    [("auto", "s:Hello", "[one][two]"), ("string", "s:Hello", "s:one\ntwo"), ("openai", "[Hello]", "[one][two]")],
)
def test_content_is_passed_to_the_template_in_the_configured_form(folder: Path, form: str, text: str, parts: str):
    served = Served(folder, chat_template=LOOPS, chat_template_content_format=form)
    served.chat("Hello", max_tokens=1)
    served.chat(PARTS, max_tokens=1)  # type: ignore[arg-type]
    assert prompts_of(served) == [text, parts]
