"""Runs random worlds, any number of steps, and reports those that break.

    python -m tests.simulation.run [--steps 1000000] [--seed 0] [--kind scheduler|stores|drafts|deployment] [--world N]

Worlds are numbered; seed, kind and number repeat one. Of each four worlds one is of each kind, unless one is named.
Exits with 1 and prints shortened stories if checks failed. Ctrl-C or SIGTERM ends it
with what it has counted so far.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable

from .deployed_worlds import DeployedWorld, run_deployed_story
from .shrink import report
from .worlds import Broken, World, run_story

STEPS_PER_WORLD = 500
KINDS: dict[str, Callable[[str], Counter[str]]] = {
    "scheduler": lambda name: run_story(World.of(name), STEPS_PER_WORLD).events,
    "stores": lambda name: run_story(World.with_stores(name), STEPS_PER_WORLD).events,
    "drafts": lambda name: run_story(World.with_drafts(name), STEPS_PER_WORLD).events,
    "deployment": lambda name: run_deployed_story(DeployedWorld.of(name), STEPS_PER_WORLD).events,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, help="worlds of this kind only")
    parser.add_argument("--world", type=int, help="run this one only")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.disable()  # faults are logged, thousands of them
    events, started = Counter[str](), time.monotonic()
    kinds = [chosen.kind] if chosen.kind else list(KINDS)
    with contextlib.suppress(KeyboardInterrupt):
        for number in itertools.count() if chosen.world is None else [chosen.world]:
            if events["steps"] >= chosen.steps:
                break
            _run(chosen.seed, kinds[number % len(kinds)], number, events)
            if (number + 1) % 30 == 0:
                print(f"{number + 1} worlds, {events['steps']} steps", file=sys.stderr, flush=True)
    seconds = time.monotonic() - started
    print(f"{events['steps']} steps, {events['steps'] / seconds:.0f} steps/s, {events['violations']} violations")
    for event, count in sorted(events.items()):
        print(f"  {count:>10} {event}")
    return 1 if events["violations"] else 0


def _run(seed: int, kind: str, number: int, events: Counter[str]) -> None:
    """One world. Counts what happens in it."""
    try:
        found = KINDS[kind](f"{seed} {number}")
    except Broken as broken:
        events["violations"] += 1
        print(report(broken))
        print(f"again: python -m tests.simulation.run --seed {seed} --kind {kind} --world {number}", flush=True)
    else:
        events += found
        events[f"worlds: {kind}"] += 1
        events[f"steps: {kind}"] += found["steps"]


if __name__ == "__main__":
    sys.exit(main())
