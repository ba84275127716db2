"""Runs the scheduler through random worlds, as long as is wished, and tells the first one that breaks.

    python -m tests.simulation.run [--steps 1000000] [--seed 0] [--world N]

Worlds are numbered; seed and number tell one again. It ends with 1 and a shortened story if something did not hold.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from .shrink import told
from .worlds import Broken, World, live_through

STEPS_PER_WORLD = 500
SAY_EVERY_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--world", type=int, help="this one only")
    chosen = parser.parse_args()
    events: Counter[str] = Counter()
    number, began = chosen.world or 0, time.monotonic()
    said = began
    while events["steps"] < chosen.steps:
        try:
            events += live_through(World.of(f"{chosen.seed} {number}"), STEPS_PER_WORLD).events
        except Broken as broken:
            print(told(broken))
            print(f"again: python -m tests.simulation.run --seed {chosen.seed} --world {number}")
            return 1
        number += 1
        if chosen.world is not None:
            break
        if time.monotonic() - said > SAY_EVERY_S:
            said = time.monotonic()
            print(f"{number} worlds, {events['steps']} steps", file=sys.stderr)
    seconds = time.monotonic() - began
    print(f"{number} worlds, {events['steps']} steps, {events['steps'] / seconds:.0f} steps/s: all held")
    for event, count in sorted(events.items()):
        print(f"  {count:>10} {event}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
