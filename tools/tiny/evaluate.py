"""Held-out score of builtin:tiny: greedy answers to questions that training never sampled."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from .dialogues import Dialogue, Writer
from .options import Option
from .rendering import encode
from .tokenizer import END_OF_TEXT, END_OF_TURN

MAX_NEW_TOKENS = 160
BATCH = 64
SCORES = {
    "options: meaning": "the complete meaning and default, word for word; each option once, in a held-out phrasing",
    "options: default": "the default; each option once, in a held-out phrasing",
    "options: place and flag": "section and name, or the flag; each option once, in a held-out phrasing",
    "sums": "200 sums and differences of held-out pairs of numbers below 100",
    "sums, thinking": "the same with thinking enabled",
    "tool calls": "200 calls: valid JSON, correct tool and correct arguments; cities are held out",
    "JSON": "100 objects, equal to the requested one",
}


def held_out(options: list[Option], seed: int) -> dict[str, list[tuple[Dialogue, bool]]]:
    writer = Writer(options, seed, held_out=True)
    places = [writer.about(option, "place" if index % 2 else "flag") for index, option in enumerate(options)]
    sums = [writer.sum() for _ in range(200)]
    calls: list[Dialogue] = []
    while len(calls) < 200:
        if (call := writer.tool_call()).kind == "tool call":
            calls.append(call)
    sampled = {
        "options: meaning": [writer.about(option, "meaning") for option in options],
        "options: default": [writer.about(option, "default") for option in options],
        "options: place and flag": places,
        "sums": sums,
        "tool calls": calls,
        "JSON": [writer.json_object() for _ in range(100)],
    }
    questions = {name: [(dialogue, False) for dialogue in dialogues] for name, dialogues in sampled.items()}
    questions["sums, thinking"] = [(dialogue, True) for dialogue in sums]
    return {name: questions[name] for name in SCORES}


def score(
    model: PreTrainedModel, tokenizer: Tokenizer, questions: dict[str, list[tuple[Dialogue, bool]]]
) -> dict[str, float]:
    """Share of correct answers, per kind. An answer is correct if it contains all required texts exactly."""
    shares = {}
    for name, dialogues in questions.items():
        answers = answer(model, tokenizer, dialogues)
        correct = [
            all(part in text for part in dialogue.required)
            for (dialogue, _), text in zip(dialogues, answers, strict=True)
        ]
        shares[name] = sum(correct) / len(correct)
    return shares


@torch.inference_mode()
def answer(model: PreTrainedModel, tokenizer: Tokenizer, dialogues: list[tuple[Dialogue, bool]]) -> list[str]:
    """Greedy answers, without thoughts and without the end-of-turn token."""
    pad = tokenizer.token_to_id(END_OF_TEXT)
    texts: list[str] = []
    prompts = [prompt for prompt, _ in encode(tokenizer, dialogues)]
    for start in range(0, len(prompts), BATCH):
        part = prompts[start : start + BATCH]
        width = max(map(len, part))
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in part])
        out = model.generate(
            ids,
            attention_mask=(ids != pad).long(),
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
            temperature=None,
            top_k=None,
            eos_token_id=tokenizer.token_to_id(END_OF_TURN),
            pad_token_id=pad,
        )
        texts += tokenizer.decode_batch(out[:, width:].tolist(), skip_special_tokens=True)
    return [text.split("</think>")[-1].strip() for text in texts]
