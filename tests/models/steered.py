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
    drafts = getattr(engine, "own", engine.runner).drafts  # `own`: of rank 0
    if drafts is None:
        return
    own, table = drafts._draft, drafts._slots

    def draft(slots: Any, counts: Any) -> None:
        own(slots, counts)
        for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
            length, num_prompt = int(table.num_tokens[slot]), int(table.num_prompt_tokens[slot])
            answer = answers[tuple(table.token_ids[slot, :num_prompt].tolist())]
            for place in range(length, min(length + count, num_prompt + len(answer))):
                if place % wrong_every and slot not in drafts.undrafted:
                    table.token_ids[slot, place] = answer[place - num_prompt]

    monkeypatch.setattr(drafts, "_draft", draft)
