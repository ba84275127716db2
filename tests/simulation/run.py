"""Runs the scheduler through random worlds, any number of steps, and reports the first world that breaks.

    python -m tests.simulation.run [--steps 1000000] [--seed 0] [--world N]

Worlds are numbered; seed and number repeat one. Exits with 1 and prints a shortened story if a check failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from .shrink import report
from .worlds import Broken, World, run_story

STEPS_PER_WORLD = 500
REPORT_EVERY_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--world", type=int, help="run this one only")
    chosen = parser.parse_args()
    events: Counter[str] = Counter()
    number, started = chosen.world or 0, time.monotonic()
    reported_at = started
    while events["steps"] < chosen.steps:
        try:
            events += run_story(World.of(f"{chosen.seed} {number}"), STEPS_PER_WORLD).events
        except Broken as broken:
            print(report(broken))
            print(f"again: python -m tests.simulation.run --seed {chosen.seed} --world {number}")
            return 1
        number += 1
        if chosen.world is not None:
            break
        if time.monotonic() - reported_at > REPORT_EVERY_S:
            reported_at = time.monotonic()
            print(f"{number} worlds, {events['steps']} steps", file=sys.stderr)
    seconds = time.monotonic() - started
    print(f"{number} worlds, {events['steps']} steps, {events['steps'] / seconds:.0f} steps/s: all held")
    for event, count in sorted(events.items()):
        print(f"  {count:>10} {event}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
