"""Output file of the suite: one Record per measurement and a description of the machine, as JSON.

The file is complete after every record, so results remain if the suite is stopped. Does not import torch.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

VERSION = 1


@dataclass(frozen=True, slots=True)
class Record:
    """value and floor are in `unit`. The floor is the lower bound of a time, or the upper bound of a rate."""

    part: str
    name: str
    shape: str
    value: float | None = None
    unit: str = ""
    floor: float | None = None
    ratio: float | None = None  # value / floor
    spread: float | None = None  # from the 10th to the 90th percentile, over the median
    error: str | None = None


class RecordFile:
    def __init__(self, path: Path | None) -> None:
        """path: None keeps the records in memory."""
        self._path = path
        self.machine: dict[str, Any] = {}
        self.records: list[Record] = []
        self._write()

    def add(self, record: Record) -> None:
        self.records.append(record)
        self._write()

    def add_machine_info(self, info: dict[str, Any]) -> None:
        self.machine.update(info)
        self._write()

    def value_of(self, part: str, name: str) -> float | None:
        return next((each.value for each in self.records if (each.part, each.name) == (part, name)), None)

    def _write(self) -> None:
        if self._path is None:
            return
        content = {"version": VERSION, "machine": self.machine, "records": [asdict(each) for each in self.records]}
        partial = self._path.with_name(f"{self._path.name}.part")
        partial.write_text(json.dumps(content, indent=1) + "\n")
        os.replace(partial, self._path)


def read_records(path: Path) -> tuple[dict[str, Any], list[Record]]:
    """Description of the machine and records of a file. Raises ValueError for another file version."""
    content = json.loads(path.read_text())
    if content.get("version") != VERSION:
        raise ValueError(f"{path} has version {content.get('version')}; expected version {VERSION}")
    return content["machine"], [Record(**each) for each in content["records"]]
