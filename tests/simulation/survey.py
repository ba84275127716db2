"""Runs every mutation of the scheduler's parts through the simulation, and lists those that it does not find.

    python -m tests.simulation.survey [--worlds 12] [--steps 150] [--part StepPlanner] [--unit-tests]

--unit-tests: runs the unit tests of the scheduler too, for mutations that the simulation does not find.
A mutation that is not found is either harmless (the changed code does the same), or a gap in the checks.
"""

from __future__ import annotations

import argparse
import io
import signal
from collections import Counter
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from stoker.engine.core.block_hashes import BlockHasher
from stoker.engine.core.block_pool import BlockPool
from stoker.engine.core.policy import WaitingQueue
from stoker.engine.core.prefill_budget import PrefillBudget
from stoker.engine.core.prefix_cache import PrefixCache
from stoker.engine.core.scheduler import Scheduler
from stoker.engine.core.sequence_blocks import SequenceBlocks
from stoker.engine.core.sequences import Sequences
from stoker.engine.core.slot_columns import SlotColumns
from stoker.engine.core.step_draft import StepDraft
from stoker.engine.core.step_planner import StepPlanner
from stoker.engine.core.step_results import StepResults
from stoker.engine.core.steps_in_flight import StepsInFlight
from stoker.engine.core.stop import StopRule, WatchedIds

from .ast_mutation import Mutation, every_mutation
from .worlds import Broken, World, run_story

PARTS = {
    part.__name__: part
    for part in (
        *(BlockHasher, BlockPool, PrefixCache, WaitingQueue, StopRule, WatchedIds, SlotColumns, SequenceBlocks),
        *(Sequences, StepsInFlight, PrefillBudget, StepDraft, StepPlanner, StepResults, Scheduler),
    )
}
UNIT_TESTS = "tests/unit/engine/core"
MAX_WORLD_S = 60  # of processor time; a mutation may make an endless loop


class Endless(Exception):
    """A world took too long."""


@contextmanager
def applied(mutation: Mutation):
    right = vars(mutation.owner)[mutation.name]
    setattr(mutation.owner, mutation.name, mutation.attribute())
    try:
        yield
    finally:
        setattr(mutation.owner, mutation.name, right)


def is_found(mutation: Mutation, num_worlds: int, num_steps: int) -> bool:
    with applied(mutation):
        for number in range(num_worlds):
            signal.setitimer(signal.ITIMER_VIRTUAL, MAX_WORLD_S)
            try:
                run_story(World.of(f"mutations {number}"), num_steps)
            except (Broken, Endless):
                return True
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return False


def fails_unit_tests(mutation: Mutation) -> bool:
    with applied(mutation), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--timeout", "60", UNIT_TESTS]) != pytest.ExitCode.OK


def _end_world(*_: object) -> None:
    raise Endless


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--part", choices=PARTS, help="this class only")
    parser.add_argument("--unit-tests", action="store_true")
    chosen = parser.parse_args()
    signal.signal(signal.SIGVTALRM, _end_world)
    found, made = Counter[str](), Counter[str]()
    for part in [PARTS[chosen.part]] if chosen.part else PARTS.values():
        for name, mutation in every_mutation(part):
            made[part.__name__] += 1
            if is_found(mutation, chosen.worlds, chosen.steps) or (chosen.unit_tests and fails_unit_tests(mutation)):
                found[part.__name__] += 1
            else:
                print(f"not found: {name}", flush=True)
        print(f"{part.__name__}: {found[part.__name__]} of {made[part.__name__]} found", flush=True)
    print(f"{found.total()} of {made.total()} found")


if __name__ == "__main__":
    main()
