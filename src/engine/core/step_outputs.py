"""StepOutputs: the outputs of one step. In steady decode nearly every sequence gets one token and nothing else; these
tokens stay in columns from the runner to the client. The others are records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..api import EngineOutput
from .step_plan import Int32

Int64 = npt.NDArray[np.int64]


class HasRequestId(Protocol):
    request_id: str


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """Each request occurs at most once: as a plain token, or as a record. Iterating gives all of them as records."""

    records: list[EngineOutput] = field(default_factory=list)  # with a finish reason, log-probabilities, a first token
    token_ids: Int32 = field(default_factory=lambda: np.empty(0, np.int32))  # [plain tokens]
    routes: Int64 = field(default_factory=lambda: np.empty(0, np.int64))  # of their requests: EngineRequest.route
    requests: Sequence[HasRequestId] = ()  # by row of the step
    rows: Int64 = field(default_factory=lambda: np.empty(0, np.int64))  # of the plain tokens

    def __len__(self) -> int:
        return len(self.token_ids) + len(self.records)

    def __iter__(self) -> Iterator[EngineOutput]:
        for row, token_id in zip(self.rows.tolist(), self.token_ids.tolist(), strict=True):
            yield EngineOutput(request_id=self.requests[row].request_id, token_ids=[token_id])
        yield from self.records
