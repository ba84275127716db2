"""builtin:tiny as published: its files are consistent, its template renders every role, and it explains an option."""

import json
import re
from importlib import resources
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import Qwen3ForCausalLM

from stoker.text.renderer import Renderer
from stoker.text.tokenizer import Tokenizer

FOLDER = Path(str(resources.files("stoker") / "builtin" / "tiny"))
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(FOLDER)


@pytest.fixture(scope="module")
def renderer(tokenizer: Tokenizer) -> Renderer:
    return Renderer(tokenizer)


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


def read_json(name: str) -> dict:
    return json.loads((FOLDER / name).read_text())


def test_the_weights_are_small_and_bfloat16():
    file = FOLDER / "model.safetensors"
    assert file.stat().st_size <= 10_000_000
    with safe_open(file, "pt") as weights:
        names = set(weights.keys())
        assert {weights.get_tensor(name).dtype for name in names} == {torch.bfloat16}
    assert "model.layers.0.self_attn.q_norm.weight" in names
    assert "lm_head.weight" not in names  # tied to the embedding


def test_the_config_is_a_qwen3_with_room_for_a_conversation():
    config = read_json("config.json")
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["tie_word_embeddings"]
    assert config["max_position_embeddings"] >= 2048


def test_vocabulary_and_end_of_turn_agree_between_the_files(tokenizer: Tokenizer):
    config = read_json("config.json")
    end_of_turn = tokenizer.backend.token_to_id("<|im_end|>")
    assert tokenizer.vocab_size <= config["vocab_size"]
    assert config["eos_token_id"] == end_of_turn
    assert end_of_turn in read_json("generation_config.json")["eos_token_id"]


def test_the_model_card_states_score_size_and_time():
    card = (FOLDER / "MODEL_CARD.md").read_text()
    for kind in ("options: meaning", "options: default", "sums", "tool calls", "JSON"):
        assert re.search(rf"^\| {kind} \| \d+\.\d% \|", card, re.MULTILINE), kind
    assert re.search(r"\d\.\d M parameters", card)
    assert re.search(r"\d+ CPU minutes", card)


@pytest.mark.parametrize(
    "text", ["", "What does --max-num-seqs do?", " 007 + 42 =\n\n", "naïve 東京 🚂", "<tool_call>{}"]
)
def test_text_survives_the_tokenizer(tokenizer: Tokenizer, text: str):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_each_digit_is_a_token(tokenizer: Tokenizer):
    """Sums then consist of aligned digits."""
    digits = [tokenizer.backend.token_to_id(digit) for digit in "2048"]
    assert None not in digits
    assert tokenizer.encode("2048") == digits


def test_the_template_renders_every_role(renderer: Renderer):
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    text = renderer.render(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather in Oslo?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": '{"temperature": 3}', "tool_call_id": "1"},
        ],
        tools=[WEATHER],
    )
    assert text.startswith("<|im_start|>system\nBe brief.\n\n")
    assert f"<tools>\n{json.dumps(WEATHER)}\n</tools>" in text
    assert "<|im_start|>user\nWeather in Oslo?<|im_end|>\n" in text
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>\n' in text
    assert '<tool_response>\n{"temperature": 3}\n</tool_response><|im_end|>\n' in text
    assert "<|im_start|>assistant\n" in text[text.rindex("<|im_end|>") :]


def test_several_tool_answers_share_one_turn(renderer: Renderer):
    answers = [{"role": "tool", "content": str(number)} for number in (7, 8)]
    text = renderer.render([{"role": "user", "content": "both?"}, *answers], add_generation_prompt=False)
    assert text.count("<tool_response>") == 2
    assert text.count("<|im_start|>user") == 2  # the question and the answers


def test_thinking_can_be_disabled_and_thoughts_are_removed_from_the_history(renderer: Renderer):
    question = [{"role": "user", "content": "3+4"}]
    thoughtful = renderer.render(question, template_kwargs={"enable_thinking": True})
    direct = renderer.render(question, template_kwargs={"enable_thinking": False})
    assert not thoughtful.endswith("</think>\n\n")
    assert direct.endswith("<think>\n\n</think>\n\n")
    later = renderer.render(
        [*question, {"role": "assistant", "content": "<think>\n3 + 4 = 7\n</think>\n\n3 + 4 = 7"}, *question],
        template_kwargs={"enable_thinking": True},
    )
    assert "<|im_start|>assistant\n3 + 4 = 7<|im_end|>" in later
    assert "<think>" not in later


def ask(model: Qwen3ForCausalLM, renderer: Renderer, question: str, **arguments: object) -> str:
    tokenizer = renderer.tokenizer
    prompt = renderer.render([{"role": "user", "content": question}], **arguments)
    ids = torch.tensor([tokenizer.encode(prompt)])
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=96)
    return tokenizer.decode(out[0, ids.shape[1] :].tolist())


def test_it_knows_what_an_option_does(model: Qwen3ForCausalLM, renderer: Renderer):
    answer = ask(model, renderer, "What does max_num_seqs do?")
    assert "`scheduler.max_num_seqs`" in answer
    assert "sequences" in answer


def test_it_thinks_before_it_answers_when_asked_to(model: Qwen3ForCausalLM, renderer: Renderer):
    answer = ask(model, renderer, "What is 23 + 45?", template_kwargs={"enable_thinking": True})
    assert re.fullmatch(r"<think>\n.+\n</think>\n\n23 \+ 45 = \d+(<\|im_end\|>)?", answer, re.DOTALL)


def test_it_calls_a_tool(model: Qwen3ForCausalLM, renderer: Renderer):
    answer = ask(model, renderer, "What is the weather in Rome?", tools=[WEATHER])
    call = re.search(r"<tool_call>\n(.+)\n</tool_call>", answer)
    assert call is not None
    assert json.loads(call[1]) == {"name": "get_weather", "arguments": {"city": "Rome"}}
