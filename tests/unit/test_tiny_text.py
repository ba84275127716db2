"""The training text of builtin:tiny: correct, reproducible, and free of held-out questions."""

import json
import re

from tools.tiny.dialogues import HELD_OUT_CITIES, HELD_OUT_PHRASINGS, QUESTIONS, Writer
from tools.tiny.options import read_options

OPTIONS = read_options()


def sample(count: int, seed: int = 7) -> list:
    writer = Writer(OPTIONS, seed)
    return [writer.sample() for _ in range(count)]


def test_the_same_seed_gives_the_same_text():
    assert sample(50) == sample(50)
    assert sample(50) != sample(50, seed=8)


def test_every_answer_contains_its_required_texts():
    for dialogue in sample(2000):
        assert dialogue.required or dialogue.kind == "sums"
        assert all(part in dialogue.answer for part in dialogue.required), dialogue


def test_sums_and_their_thoughts_are_correct():
    steps = 0
    for dialogue in sample(2000):
        if dialogue.kind not in ("sum", "sums"):
            continue
        for text in (dialogue.answer, dialogue.thought):
            for left, result in re.findall(r"(\d+(?: [+-] \d+)+) = (\d+)", text):
                assert sum(int(number) for number in re.findall(r"-?\d+", left.replace("- ", "-"))) == int(result), text
                steps += 1
        if dialogue.kind == "sum":
            assert re.search(r"so (\d+)\.$", dialogue.thought)[1] == dialogue.answer.split(" = ")[1]
    assert steps > 1000


def test_tool_calls_are_json_for_an_offered_tool():
    calls = [dialogue for dialogue in sample(2000) if dialogue.kind == "tool call"]
    assert len(calls) > 100
    for dialogue in calls:
        call = json.loads(re.fullmatch(r"<tool_call>\n(.*)\n</tool_call>", dialogue.answer)[1])
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in dialogue.tools}
        assert len(offered) == len(dialogue.tools)
        assert sorted(call["arguments"]) == sorted(offered[call["name"]]["required"])


def test_training_never_samples_held_out_questions():
    writer = Writer(OPTIONS, 1, held_out=True)
    pairs = {tuple(re.findall(r"\d+", writer.sum().answer)[:2]) for _ in range(500)}
    for dialogue in sample(4000):
        question = dialogue.messages[-1]["content"]
        assert not any(city in question + dialogue.answer for city in HELD_OUT_CITIES)
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


def test_options_are_unique_and_meanings_are_short():
    assert len({option.name for option in OPTIONS}) == len(OPTIONS)
    for option in OPTIONS:
        assert 0 < len(option.meaning) <= 160, option
        assert not option.meaning.endswith("."), option
