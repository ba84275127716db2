"""Runs random worlds, any number of steps, and reports those that break.

    python -m tests.simulation.run [--steps 1000000] [--seed 0] [--kind scheduler|stores|deployment] [--world N]

Worlds are numbered; seed, kind and number repeat one. Of each three worlds one is of each kind, unless one is named.
Exits with 1 and prints shortened stories if checks failed.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable

from .deployed_worlds import DeployedWorld, run_deployed_story
from .shrink import report
from .worlds import Broken, World, run_story

STEPS_PER_WORLD = 500
REPORT_EVERY_S = 10.0
KINDS: dict[str, Callable[[str], Counter[str]]] = {
    "scheduler": lambda name: run_story(World.of(name), STEPS_PER_WORLD).events,
    "stores": lambda name: run_story(World.with_stores(name), STEPS_PER_WORLD).events,
    "deployment": lambda name: run_deployed_story(DeployedWorld.of(name), STEPS_PER_WORLD).events,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, help="worlds of this kind only")
    parser.add_argument("--world", type=int, help="run this one only")
    chosen = parser.parse_args()
    logging.disable()  # faults are logged, thousands of them
    events, num_violations = Counter[str](), 0
    started = reported_at = time.monotonic()
    for number in itertools.count() if chosen.world is None else [chosen.world]:
        if events["steps"] >= chosen.steps:
            break
        kind = chosen.kind or list(KINDS)[number % len(KINDS)]
        try:
            found = KINDS[kind](f"{chosen.seed} {number}")
        except Broken as broken:
            num_violations += 1
            print(report(broken))
            print(f"again: python -m tests.simulation.run --seed {chosen.seed} --kind {kind} --world {number}")
        else:
            events += found + Counter({f"worlds: {kind}": 1, f"steps: {kind}": found["steps"]})
        if time.monotonic() - reported_at > REPORT_EVERY_S:
            reported_at = time.monotonic()
            print(f"{number + 1} worlds, {events['steps']} steps", file=sys.stderr)
    seconds = time.monotonic() - started
    print(f"{events['steps']} steps, {events['steps'] / seconds:.0f} steps/s, {num_violations} violations")
    for event, count in sorted(events.items()):
        print(f"  {count:>10} {event}")
    return 1 if num_violations else 0


if __name__ == "__main__":
    sys.exit(main())
