"""Dialogues as token ids, rendered with the shipped chat template so that training matches serving."""

from __future__ import annotations

from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from .dialogues import Dialogue
from .tokenizer import END_OF_TURN

FOLDER = Path(__file__).parents[2] / "src" / "builtin" / "tiny"
_environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
_environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "ensure_ascii": False}
_template = _environment.from_string((FOLDER / "chat_template.jinja").read_text())


def prompt_text(dialogue: Dialogue, thinking: bool) -> str:
    return _template.render(
        messages=dialogue.messages, tools=dialogue.tools, add_generation_prompt=True, enable_thinking=thinking
    )


def answer_text(dialogue: Dialogue, thinking: bool) -> str:
    thought = f"<think>\n{dialogue.thought}\n</think>\n\n" if thinking else ""
    return thought + dialogue.answer + END_OF_TURN


def encode(tokenizer: Tokenizer, dialogues: list[tuple[Dialogue, bool]]) -> list[tuple[list[int], list[int]]]:
    """(prompt ids, answer ids) of each dialogue, with or without a thought."""
    prompts = tokenizer.encode_batch([prompt_text(d, t) for d, t in dialogues], add_special_tokens=False)
    answers = tokenizer.encode_batch([answer_text(d, t) for d, t in dialogues], add_special_tokens=False)
    return [(prompt.ids, answer.ids) for prompt, answer in zip(prompts, answers, strict=True)]
