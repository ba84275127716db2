"""What was measured, as JSON on disk after every cell, and what is still to be done.

A cell is one workload by one contestant in one round. A contestant runs once a round, through all its workloads, and
the order turns from round to round. What failed is tried again only by a new run of the command. A cell that was slow
in the first round is not repeated, so that a contest of three rounds stays bearable.
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
        """Raises ValueError if the file at `path` is no record of this form."""
        self.path = path
        self.content: dict[str, Any] = {"format": FORMAT, "environment": {}, "starts": [], "cells": [], "left_out": {}}
        if path.exists():
            self.content = json.loads(path.read_text())
            if self.content.get("format") != FORMAT:
                raise ValueError(f"{path} is no record of this form; give another --output")

    def save(self) -> None:
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_text(json.dumps(self.content, indent=1) + "\n")
        partial.replace(self.path)

    def forget_failures(self) -> None:
        """So that they are tried again."""
        self.content["left_out"] = {}
        self.content["cells"] = [cell for cell in self.content["cells"] if "error" not in cell]

    def leave_out(self, contestant: str, reason: str) -> None:
        self.content["left_out"][contestant] = reason
        self.save()

    def add_start(self, **facts: Any) -> None:
        self.content["starts"].append(facts)
        self.save()

    def add_cell(self, **facts: Any) -> None:
        self.content["cells"].append(facts)
        self.save()

    def cells(self, contestant: str, workload: str) -> list[dict[str, Any]]:
        """Of every round, failed ones too."""
        asked = (contestant, workload)
        return [cell for cell in self.content["cells"] if (cell["contestant"], cell["workload"]) == asked]

    def plan(
        self, contestants: list[Contestant], workloads: list[str], rounds: int
    ) -> Iterator[tuple[int, Contestant, list[str]]]:
        """Round, contestant and the workloads it still has to run in it. Reads what was added since, at every step."""
        for number in range(rounds):
            turn = number % len(contestants) if contestants else 0
            for contestant in contestants[turn:] + contestants[:turn]:
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
    """One contestant's turn: started, warmed up, every workload, ended. Its failures are written down, not raised."""
    contest = None
    try:
        contest = make(contestant)
        start = contest.start()
        contest.warm_up(seed=-1 - number)
        for name in workloads:
            facts = {"contestant": contestant.name, "workload": name, "round": number, "load": load()}
            try:
                record.add_cell(**facts, **contest.run(name, number))
            except failure as error:
                record.add_cell(**facts, error=str(error))
                break  # what it was doing may still go on: the rest of this turn would measure that
        record.add_start(
            contestant=contestant.name, round=number, peak_private_bytes=contest.peak_private_bytes, **start
        )
    except failure as error:
        record.leave_out(contestant.name, str(error))
    finally:
        if contest is not None:
            contest.close()
