"""DraftMetrics: what the drafts of one sequence have brought. The names of its fields are vLLM's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.api import VerifiedDraft


@dataclass(frozen=True, slots=True)
class DraftMetrics:
    mean_acceptance_length: float | None  # tokens that a step with a draft gave, its own one included; None: no drafts
    draft_acceptance_rate: float | None  # part of the drafted tokens that were accepted; None: no drafts
    acceptance_histogram: list[int]  # [j] number of steps that accepted exactly j drafted tokens
    num_spec_steps: int  # steps with a draft
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    per_step_drafted: list[int]
    per_step_accepted: list[int]

    @classmethod
    def of(cls, drafts: Sequence[VerifiedDraft]) -> DraftMetrics:
        """drafts: of the sequence, in the order of its steps."""
        drafted, accepted = [draft.num_tokens for draft in drafts], [draft.num_accepted for draft in drafts]
        num_drafted, num_accepted = sum(drafted), sum(accepted)
        histogram = [0] * (max(drafted) + 1) if drafted else []
        for count in accepted:
            histogram[count] += 1
        return cls(
            mean_acceptance_length=1 + num_accepted / len(drafts) if drafts else None,
            draft_acceptance_rate=num_accepted / num_drafted if num_drafted else None,
            acceptance_histogram=histogram,
            num_spec_steps=len(drafts),
            num_draft_tokens=num_drafted,
            num_accepted_draft_tokens=num_accepted,
            per_step_drafted=drafted,
            per_step_accepted=accepted,
        )

    @property
    def summary(self) -> dict[str, Any]:
        """All numbers but those of single steps."""
        names = [name for name in self.__slots__ if not name.startswith("per_step")]
        return {name: getattr(self, name) for name in names}

    @property
    def detailed(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}
