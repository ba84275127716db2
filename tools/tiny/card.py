"""The model card of builtin:tiny, written by the training run."""

from __future__ import annotations

from .dialogues import Dialogue
from .evaluate import SCORES


def write(
    shares: dict[str, float],
    samples: list[tuple[tuple[Dialogue, bool], str]],
    *,
    parameters: int,
    steps: int,
    tokens: int,
    loss: float,
    wall_s: float,
    cpu_s: float,
) -> str:
    rows = "\n".join(f"| {name} | {shares[name]:.1%} | {meaning} |" for name, meaning in SCORES.items())
    dialogues = "\n\n".join(
        f"> **{dialogue.messages[-1]['content']}**{' (thinking)' if thinking else ''}\n>\n> {_quoted(text)}"
        for (dialogue, thinking), text in samples
    )
    return f"""# builtin:tiny

A chat model of {parameters / 1e6:.1f} M parameters in the shape of Qwen3, with its own tokenizer and chat template. It
is part of Stoker so that the first start needs no download and tests can use a real model. It explains Stoker's options
and writes small JSON objects. It computes small sums and writes tool calls in Hermes format, often wrongly (see the
scores). It can think before it answers (`enable_thinking`). It cannot do anything else: it is not an assistant.

Trained by `make tiny` (tools/train_tiny.py) on text that the project generates (tools/tiny/dialogues.py), from a
fixed seed, on a CPU: {steps} steps, {tokens / 1e6:.1f} M tokens, last loss {loss:.4f}. With tokenizer and
scoring it took {wall_s / 60:.0f} minutes and {cpu_s / 60:.0f} CPU minutes.

## Held-out score

Greedy answers to questions that training never sampled. A correct answer contains every required text exactly.

| what | correct | questions |
|---|---|---|
{rows}

## Samples, from the held-out questions

{dialogues}
"""


def _quoted(text: str) -> str:
    return text.replace("<", "&lt;").replace("\n", "<br>")
