"""A network whose drafts are right more often than those of random weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from .engine import Engine


def steer(
    engine: Engine,
    answers: Mapping[tuple[int, ...], Sequence[int]],
    monkeypatch: pytest.MonkeyPatch,
    wrong_every: int = 3,
) -> None:
    """Replace the drafts of the engine's network by what will be said, but for one in `wrong_every` positions.

    answers: by prompt. Does nothing without a network. The network computes all that it would compute.
    """
    drafts = engine.runner.drafts
    if drafts is None:
        return
    own, table = drafts._sampled, drafts._slots

    def sampled(logits: Any, slots: Any, lengths: Any, takes_best: Any) -> Any:
        found = own(logits, slots, lengths, takes_best)
        for row, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
            num_prompt = int(table.num_prompt_tokens[slot])
            answer = answers[tuple(table.token_ids[slot, :num_prompt].tolist())]
            if length % wrong_every and length - num_prompt < len(answer):
                found[row] = answer[length - num_prompt]
        return found

    monkeypatch.setattr(drafts, "_sampled", sampled)
