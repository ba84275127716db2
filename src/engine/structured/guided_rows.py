"""GuidedRows: the rows of one step that have guides, from their masks until the tokens of the step are known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..api import GRAMMAR_FAILED
from .backend import Bitmask
from .guide_table import GuideTable


class GuidedRows:
    def __init__(self, guides: GuideTable, slots: npt.NDArray[np.int32], rows: npt.NDArray[np.int64]) -> None:
        """Waits for the masks. The tokens of all steps before must be taken.

        slots: of all rows of the step. rows: the rows that have guides.
        """
        self.rows = rows
        self.masks: dict[int, Bitmask] = {}  # by row; any token may follow in the others
        self.errors: dict[int, str] = {}  # by row: why its sequence cannot continue
        self.complete: list[int] = []  # rows whose grammar allows nothing after the token
        self.forced: dict[int, list[int]] = {}  # row -> tokens that must follow the token
        self._guides, self._held = guides, guides.held(slots[rows].tolist())
        for row, held in zip(rows.tolist(), self._held, strict=True):
            guide = held.guide.result()
            if guide.error is not None:
                self.errors[row] = GRAMMAR_FAILED + guide.error
            elif guide.mask is not None:
                self.masks[row] = guide.mask

    def take(self, token_ids: npt.NDArray[np.int32]) -> None:
        """Sets `complete` and `forced`, and starts to compute the next masks. token_ids: of all rows of the step."""
        for row, taken in zip(
            self.rows.tolist(), self._guides.take(self._held, token_ids[self.rows].tolist()), strict=True
        ):
            if taken.is_complete:
                self.complete.append(row)
            if taken.forced:
                self.forced[row] = taken.forced
