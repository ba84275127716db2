"""The text that builtin:tiny learns from: true, reproducible, and silent about what it is scored on."""

import json
import re

from tools.tiny.dialogues import HELD_OUT_CITIES, HELD_OUT_PHRASINGS, QUESTIONS, Writer
from tools.tiny.options import read_options

OPTIONS = read_options()


def draw(count: int, seed: int = 7) -> list:
    writer = Writer(OPTIONS, seed)
    return [writer.draw() for _ in range(count)]


def test_the_same_seed_writes_the_same_text():
    assert draw(50) == draw(50)
    assert draw(50) != draw(50, seed=8)


def test_every_answer_holds_the_facts_that_make_it_right():
    for dialogue in draw(2000):
        assert dialogue.facts or dialogue.kind == "sums"
        assert all(fact in dialogue.answer for fact in dialogue.facts), dialogue


def test_sums_and_the_thoughts_before_them_are_true():
    steps = 0
    for dialogue in draw(2000):
        if dialogue.kind not in ("sum", "sums"):
            continue
        for text in (dialogue.answer, dialogue.thought):
            for left, result in re.findall(r"(\d+(?: [+-] \d+)+) = (\d+)", text):
                assert sum(int(number) for number in re.findall(r"-?\d+", left.replace("- ", "-"))) == int(result), text
                steps += 1
        if dialogue.kind == "sum":
            assert re.search(r"so (\d+)\.$", dialogue.thought)[1] == dialogue.answer.split(" = ")[1]
    assert steps > 1000


def test_tool_calls_are_json_for_a_tool_on_offer():
    calls = [dialogue for dialogue in draw(2000) if dialogue.kind == "tool call"]
    assert len(calls) > 100
    for dialogue in calls:
        call = json.loads(re.fullmatch(r"<tool_call>\n(.*)\n</tool_call>", dialogue.answer)[1])
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in dialogue.tools}
        assert len(offered) == len(dialogue.tools)
        assert sorted(call["arguments"]) == sorted(offered[call["name"]]["required"])


def test_training_never_draws_what_is_scored():
    writer = Writer(OPTIONS, 1, held_out=True)
    pairs = {tuple(re.findall(r"\d+", writer.sum().answer)[:2]) for _ in range(500)}
    for dialogue in draw(4000):
        said = dialogue.messages[-1]["content"]
        assert not any(city in said + dialogue.answer for city in HELD_OUT_CITIES)
        if dialogue.kind == "sum":
            assert tuple(re.findall(r"\d+", dialogue.answer)[:2]) not in pairs
    for kind, phrasings in QUESTIONS.items():
        assert len(set(phrasings)) == len(phrasings), kind
        held_out = set(phrasings[-HELD_OUT_PHRASINGS:])
        asked = {
            Writer(OPTIONS, seed).about(OPTIONS[0], kind).messages[-1]["content"]
            for seed in range(200)
            if OPTIONS[0].choices or kind != "choices"
        }
        assert not any(phrasing.format(x=OPTIONS[0].name) in asked for phrasing in held_out)


def test_options_are_named_once_and_short():
    assert len({option.name for option in OPTIONS}) == len(OPTIONS)
    for option in OPTIONS:
        assert 0 < len(option.meaning) <= 160, option
        assert not option.meaning.endswith("."), option
