"""/v1/completions, in process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.engine.api import TokenLogprobs
from stoker.formats.registry import FORMATS
from stoker.server.logprobs import CompletionLogprobs, TokenNames
from stoker.server.protocol.json import dump
from stoker.text.tokenizer import Tokenizer

from ..fakes import FakeEngine, next_token
from ..tiny_tokenizer import write_tokenizer
from .deployment import MODEL, Served, events

Saying = Callable[..., Served]


def test_a_prompt_is_continued(served: Served, tokenizer: Tokenizer):
    answer = served.complete("Hello", max_tokens=3, ignore_eos=True).json()
    prefix = tokenizer.encode("Hello")
    for _ in range(3):
        prefix.append(next_token(prefix, 400))
    generated = prefix[-3:]
    assert answer["object"] == "text_completion"
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (tokenizer.decode(generated), "length")
    counts = answer["usage"]
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == (len(prefix) - 3, 3)
    assert counts["total_tokens"] == len(prefix)


def test_max_tokens_is_16_by_default(served: Served):
    served.complete()
    assert served.engine.requests[0].inputs.sampling.max_tokens == 16


def test_max_tokens_beyond_the_rest_of_the_context_gives_what_fits(served: Served):
    """It was a 400: clients set it to a constant, and do not count the tokens of the prompt."""
    answer = served.complete([5] * 500, max_tokens=512, ignore_eos=True).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 12
    assert served.chat(max_completion_tokens=512).status_code == 200


def test_max_tokens_of_minus_1_is_no_limit_but_the_context(folder: Path):
    """As in llama.cpp's server. Neither the 16 tokens of this route nor the deployment's default apply."""
    served = Served(folder, sampling_defaults={"max_tokens": 7})
    for send, name in (
        (served.complete, "max_tokens"), (served.chat, "max_tokens"), (served.chat, "max_completion_tokens"),
    ):  # fmt: skip
        answer = send(**{name: -1}, ignore_eos=True).json()
        assert answer["usage"]["total_tokens"] == 512
        answer = send(**{name: None}).json()
        assert answer["usage"]["completion_tokens"] <= 7
    served.chat(max_completion_tokens=-1, max_tokens=3)
    assert served.engine.requests[-1].inputs.sampling.max_tokens == 512 - len(
        served.engine.requests[-1].inputs.prompt_token_ids
    )
    served.chat(max_completion_tokens=None, max_tokens=3)
    assert served.engine.requests[-1].inputs.sampling.max_tokens == 3


def test_of_several_prompts_each_gets_what_fits_after_it(served: Served):
    answer = served.complete([[5] * 500, [6] * 507], max_tokens=10, ignore_eos=True).json()
    assert answer["usage"]["completion_tokens"] == 10 + 5
    refused = served.complete([[5] * 500, [6] * 507], max_tokens=10, min_tokens=6)
    assert refused.status_code == 400
    assert "at most 5 can be generated" in refused.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_max_tokens_0_with_echo_scores_the_prompt(served: Served, tokenizer: Tokenizer, stream: bool):
    response = served.complete("Hello world", echo=True, logprobs=1, max_tokens=0, stream=stream)
    answer = json.loads(next(events(response.text))) if stream else response.json()
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Hello world", "length")
    assert "".join(choice["logprobs"]["tokens"]) == "Hello world"
    assert choice["logprobs"]["token_logprobs"] == [None, *[-0.5] * (len(tokenizer.encode("Hello world")) - 1)]
    if not stream:
        assert answer["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Hello", ["Hello"]),
        (["Hello", "world"], ["Hello", "world"]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
def test_a_request_has_one_or_several_prompts_as_text_or_token_ids(
    served: Served, tokenizer: Tokenizer, prompt: object, prompts: list[str] | list[list[int]]
):
    answer = served.complete(prompt, max_tokens=2, n=2).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(2 * len(prompts)))
    encoded = [tokenizer.encode(one) if isinstance(one, str) else one for one in prompts]
    sent = [request.inputs.prompt_token_ids for request in served.engine.requests]
    assert sent == [token_ids for token_ids in encoded for _ in range(2)]


def test_several_prompts_get_the_same_answers_as_one_by_one(served: Served):
    together = served.complete(["Hello", "world", "x"], max_tokens=5).json()["choices"]
    alone = [served.complete(prompt, max_tokens=5).json()["choices"][0] for prompt in ("Hello", "world", "x")]
    assert [choice["text"] for choice in together] == [choice["text"] for choice in alone]


def test_a_stream_has_the_same_content_as_a_complete_response(served: Served):
    whole = served.complete(["Hello", "world"], max_tokens=9, ignore_eos=True).json()
    texts, reasons = ["", ""], ["", ""]
    *data, done = events(served.complete(["Hello", "world"], max_tokens=9, ignore_eos=True, stream=True).text)
    for chunk in map(json.loads, data):
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["text"]
        reasons[choice["index"]] = choice["finish_reason"]
    assert done == "[DONE]"
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert reasons == ["length", "length"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["Hello, world", [10, 20, 30]])
def test_with_echo_the_text_begins_with_the_prompt(saying: Saying, tokenizer: Tokenizer, prompt: object, stream: bool):
    response = saying("!").complete(prompt, echo=True, stream=stream)
    shown = prompt if isinstance(prompt, str) else tokenizer.decode([10, 20, 30])
    if stream:
        text = "".join(json.loads(one)["choices"][0]["text"] for one in list(events(response.text))[:-1])
    else:
        text = response.json()["choices"][0]["text"]
    assert text == f"{shown}!"


def test_log_probabilities_have_tokens_offsets_and_the_most_likely_tokens(saying: Saying, tokenizer: Tokenizer):
    block = saying("Hello world").complete(logprobs=2, max_tokens=4).json()["choices"][0]["logprobs"]
    token_ids = tokenizer.encode("Hello world")[:4]
    assert block["tokens"] == [tokenizer.token_text(token_id) for token_id in token_ids]
    lengths = [len(token) for token in block["tokens"]]
    assert block["text_offset"] == [sum(lengths[:index]) for index in range(len(lengths))]
    assert block["token_logprobs"] == [-0.5] * len(lengths)
    assert all(token in top for token, top in zip(block["tokens"], block["top_logprobs"], strict=True))


@pytest.mark.parametrize(
    ("entry", "num_top", "expected"),
    [
        (TokenLogprobs([9, 5, 6], [-4.0, -0.1, -3.0], 7), 2, [9, 5, 6]),  # the token, then the best
        (TokenLogprobs([6, 5, 6], [-3.0, -0.1, -3.0], 2), 2, [5, 6]),  # it is among them
        (TokenLogprobs([6, 5, 6], [-3.0, -0.1, -3.0], 2), 1, [6, 5]),
        (TokenLogprobs([9], [-4.0], 7), 0, [9]),
    ],
)
def test_a_token_that_is_not_among_the_best_comes_first(entry: TokenLogprobs, num_top: int, expected: list[int]):
    """It was the last one; programs written for vLLM read the first."""
    block = CompletionLogprobs(TokenNames(None, as_ids=True)).block([entry], entry.token_ids[:1], num_top)
    (top,) = block["top_logprobs"]
    assert list(top) == [f"token_id:{token_id}" for token_id in expected]
    assert block["token_logprobs"] == [entry.logprobs[0]]


def test_with_echo_log_probabilities_include_the_prompt(served: Served, tokenizer: Tokenizer):
    answer = served.complete("Hello world", echo=True, logprobs=1, max_tokens=2, ignore_eos=True).json()
    block = answer["choices"][0]["logprobs"]
    assert block["token_logprobs"][0] is None
    assert len(block["tokens"]) == len(tokenizer.encode("Hello world")) + 2
    assert "".join(block["tokens"][:-2]) == "Hello world"


def test_a_part_of_a_character_is_shown_as_bytes(saying: Saying):
    block = saying("☃").complete(logprobs=0, max_tokens=3).json()["choices"][0]["logprobs"]
    assert block["tokens"] == ["bytes:\\xe2", "bytes:\\x98", "bytes:\\x83"]


def test_prompt_log_probabilities_are_maps_by_token_id(served: Served):
    choice = served.complete([5, 6, 7], prompt_logprobs=1, max_tokens=1).json()["choices"][0]
    first, second, third = choice["prompt_logprobs"]
    assert first is None
    assert second["6"]["logprob"] == -0.5
    assert third["7"]["rank"] == 1


def test_a_stop_token_is_the_stop_reason_and_not_in_the_text(saying: Saying, tokenizer: Tokenizer):
    token_ids = tokenizer.encode("Hello world")
    served = saying("Hello world")
    choice = served.complete(stop_token_ids=[token_ids[2]]).json()["choices"][0]
    assert choice["text"] == tokenizer.decode(token_ids[:2])
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", token_ids[2])
    shown = served.complete(stop_token_ids=[token_ids[2]], include_stop_str_in_output=True).json()["choices"][0]
    assert shown["text"] == tokenizer.decode(token_ids[:3])


@pytest.mark.effect("model.skip_tokenizer_init")
def test_without_a_tokenizer_prompts_and_outputs_are_token_ids(folder: Path):
    served = Served(folder, FakeEngine(), model={"skip_tokenizer_init": True, "tokenizer": ""})
    choice = served.complete([5, 6], max_tokens=3, logprobs=1, ignore_eos=True).json()["choices"][0]
    prefix = [5, 6]
    for _ in range(3):
        prefix.append(next_token(prefix, 400))
    assert choice["token_ids"] == prefix[2:]
    assert choice["text"] == ""
    assert choice["logprobs"]["tokens"] == [f"token_id:{token_id}" for token_id in prefix[2:]]
    for refused in (served.complete("text"), served.chat(), served.complete([5], stop="x")):
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "unsupported_parameter"


def test_special_tokens_are_added_unless_the_request_disables_it(tmp_path: Path):
    folder = write_tokenizer(tmp_path, has_bos=True)
    served = Served(folder)
    served.complete("Hello", max_tokens=1)
    served.complete("Hello", max_tokens=1, add_special_tokens=False)
    with_bos, without = (request.inputs.prompt_token_ids for request in served.engine.requests)
    assert with_bos == [0, *without]


def test_models_show_context_and_defaults(folder: Path):
    served = Served(folder, sampling_defaults={"temperature": 0.6})
    listed = served.get("/v1/models").json()
    assert [entry["id"] for entry in listed["data"]] == [MODEL, "alias"]
    entry = served.get(f"/v1/models/{MODEL}").json()
    assert entry == listed["data"][0]
    assert (entry["max_model_len"], entry["sampling_defaults"]) == (512, {"temperature": 0.6})


def test_models_are_described_in_the_words_of_every_client(folder: Path):
    template = "{% if enable_thinking %}{% endif %}{{ messages[0].content }}"
    listed = Served(folder, chat_template=template).get("/v1/models").json()
    entry, model = listed["data"][1], listed["models"][1]
    contexts = [entry["context_length"], entry["context_window"], entry["meta"]["n_ctx"], model["context_window"]]
    assert contexts == [entry["max_model_len"]] * 4
    assert entry["architecture"]["input_modalities"] == model["input_modalities"] == ["text"]
    assert entry["capabilities"] == {
        "tools": False,
        "vision": False,
        "reasoning": False,
        "structured": True,
        "completion": True,
        "embeddings": True,
        "rerank": True,
        "classify": False,
    }
    hermes = Served(folder, answer_format=FORMATS["hermes"]).get("/v1/models").json()
    assert hermes["data"][0]["capabilities"]["tools"]
    assert hermes["models"][0]["supports_parallel_tool_calls"]
    assert (model["slug"], model["apply_patch_tool_type"]) == ("alias", "freeform")
    assert [level["effort"] for level in model["supported_reasoning_levels"]] == ["none", "medium"]


def test_tokenize_and_detokenize_are_inverse(served: Served, tokenizer: Tokenizer):
    text = "Hello, 世界 😀"
    answer = served.post("/tokenize", {"prompt": text, "return_token_strs": True}).json()
    assert answer["tokens"] == tokenizer.encode(text)
    assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), 512)
    assert len(answer["token_strs"]) == answer["count"]
    assert served.post("/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": text}


def test_tokenize_takes_messages(served: Served, tokenizer: Tokenizer):
    messages = [{"role": "user", "content": "Hi"}]
    answer = served.post("/tokenize", {"messages": messages, "model": MODEL}).json()
    assert tokenizer.decode(answer["tokens"], skip_special_tokens=False).endswith("<|im_start|>assistant\n")


@pytest.mark.effect("server.return_tokens_as_token_ids")
def test_tokens_are_shown_as_ids_with_the_option(saying: Saying, tokenizer: Tokenizer):
    block = (
        saying("Hé", return_tokens_as_token_ids=True)
        .complete(logprobs=1, max_tokens=3)
        .json()["choices"][0]["logprobs"]
    )
    by_text = saying("Hé").complete(logprobs=1, max_tokens=3).json()["choices"][0]["logprobs"]
    assert block["tokens"] == [f"token_id:{token_id}" for token_id in [*tokenizer.encode("Hé"), 2]][:3]
    assert [list(top)[-1] for top in block["top_logprobs"]] == block["tokens"]
    assert block["text_offset"] == by_text["text_offset"]
    assert by_text["tokens"] != block["tokens"]


def test_a_long_text_is_tokenised_completely(folder: Path, tokenizer: Tokenizer):
    served = Served(folder, FakeEngine(max_model_len=100_000, num_blocks=10_000))
    text = 'Hello, 世界 "quoted" ' * 1000
    answer = served.post("/tokenize", {"prompt": text, "return_token_strs": True})
    assert answer.json()["tokens"] == tokenizer.encode(text)
    assert len(answer.json()["tokens"]) > 2 * 4096
    assert answer.json()["token_strs"] == [tokenizer.token_text(each) for each in tokenizer.encode(text)]
    assert answer.content == dump(answer.json())
