"""Results, written as JSON after every cell, and the cells that remain.

A cell is one workload by one contestant in one round. A contestant runs once per round, with all its workloads, and
the order rotates between rounds. Failures are retried only when the command is run again. A cell that was slow in the
first round is not repeated, to limit the total time of three rounds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .contestants import Contestant

SLOW_S = 40.0
FORMAT = 1


class Record:
    def __init__(self, path: Path) -> None:
        """Raises ValueError if the file at `path` does not have this format."""
        self.path = path
        self.content: dict[str, Any] = {"format": FORMAT, "environment": {}, "starts": [], "cells": [], "left_out": {}}
        if path.exists():
            self.content = json.loads(path.read_text())
            if self.content.get("format") != FORMAT:
                raise ValueError(f"{path} does not have the format of a record; use another --output")

    def save(self) -> None:
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_text(json.dumps(self.content, indent=1) + "\n")
        partial.replace(self.path)

    def clear_failures(self) -> None:
        """Removes failures, so that they are retried."""
        self.content["left_out"] = {}
        self.content["cells"] = [cell for cell in self.content["cells"] if "error" not in cell]

    def leave_out(self, contestant: str, reason: str) -> None:
        self.content["left_out"][contestant] = reason
        self.save()

    def add_start(self, **fields: Any) -> None:
        self.content["starts"].append(fields)
        self.save()

    def add_cell(self, **fields: Any) -> None:
        self.content["cells"].append(fields)
        self.save()

    def cells(self, contestant: str, workload: str) -> list[dict[str, Any]]:
        """Cells of all rounds, including failed ones."""
        wanted = (contestant, workload)
        return [cell for cell in self.content["cells"] if (cell["contestant"], cell["workload"]) == wanted]

    def plan(
        self, contestants: list[Contestant], workloads: list[str], rounds: int
    ) -> Iterator[tuple[int, Contestant, list[str]]]:
        """Yields rounds, contestants and their remaining workloads. Takes into account cells added during iteration."""
        for number in range(rounds):
            first = number % len(contestants) if contestants else 0
            for contestant in contestants[first:] + contestants[:first]:
                if contestant.name in self.content["left_out"]:
                    continue
                wanted = [name for name in contestant.workloads if name in workloads]
                todo = [name for name in wanted if self._is_open(contestant.name, name, number)]
                if todo:
                    yield number, contestant, todo

    def _is_open(self, contestant: str, workload: str, number: int) -> bool:
        done = self.cells(contestant, workload)
        return not any(cell["round"] == number or "error" in cell or is_slow(cell) for cell in done)


def is_slow(cell: dict[str, Any]) -> bool:
    return cell.get("seconds", 0.0) > SLOW_S


def run_round(
    record: Record,
    number: int,
    contestant: Contestant,
    workloads: list[str],
    make: Callable[[Contestant], Any],
    load: Callable[[], float],
    failure: type[Exception],
) -> None:
    """Starts one contestant, warms it up, runs its workloads and ends it. Failures are recorded, not raised."""
    contest = None
    try:
        contest = make(contestant)
        start = contest.start()
        contest.warm_up(seed=-1 - number)
        for name in workloads:
            fields = {"contestant": contestant.name, "workload": name, "round": number, "load": load()}
            try:
                record.add_cell(**fields, **contest.run(name, number))
            except failure as error:
                record.add_cell(**fields, error=str(error))
                break  # the failed work may still be running and would distort the remaining workloads
        record.add_start(
            contestant=contestant.name, round=number, peak_private_bytes=contest.peak_private_bytes, **start
        )
    except failure as error:
        record.leave_out(contestant.name, str(error))
    finally:
        if contest is not None:
            contest.close()
