"""Attacks a real server in many ways, each with a limit of time and a verdict. Exits with 1 if one of them succeeded.

    python -m benchmarks.attack [FAMILY | FAMILY/NAME ...] [--seed 1] [--minutes 10] [--output attack.json] [--list]

Every server listens on the loopback interface and is started here. During an attack a bystander asks /health and a
small completion from another process; its latencies are held against the promise, loosened by the slowness of this
machine, which a server shows that is not attacked. Memory, descriptors, threads, the log and the answer to one fixed
request are compared before and after. With the same seed, an attack does the same.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from . import bodies, files, peers, signals, sockets, templates, transports
from .catalogue import Attack, choose
from .record import Record, read_verdicts, summary, table, write_page
from .runner import Runner
from .verdict import Verdict


def catalogue() -> list[Attack]:
    families = (sockets, transports, bodies, peers, templates, files)
    return [attack for family in families for attack in family.CATALOGUE.attacks]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", help="families, or names as they are printed; all without one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10, help="for the family `signals`")
    parser.add_argument("--output", type=Path, help="write the results here, as JSON")
    parser.add_argument("--list", action="store_true", help="print the names, and attack nothing")
    parser.add_argument("--tables", type=Path, nargs="+", metavar="FILE", help="print the tables of results, no attack")
    parser.add_argument("--page", type=Path, help="with --tables: write the results into this page instead")
    chosen = parser.parse_args()
    if chosen.tables and chosen.page:
        write_page(chosen.page, chosen.tables)
        return 0
    if chosen.tables:
        return report([verdict for path in chosen.tables for verdict in read_verdicts(path)])
    rounds = [wish for wish in chosen.attacks if wish.startswith(signals.FAMILY)]
    others = [wish for wish in chosen.attacks if wish not in rounds]
    try:
        attacks = choose(catalogue(), others) if others or not rounds else []
        named = [signals.attack_round(signals.number_of(wish)) for wish in rounds if wish != signals.FAMILY]
    except ValueError as error:
        parser.error(str(error))
    if chosen.list:
        print("\n".join(attack.id for attack in [*attacks, *named]))
        return 0
    record = Record(chosen.output, chosen.seed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end too

    def add(verdict: Verdict) -> None:
        word, text = ("held", verdict.note) if verdict.held else ("FELL", "; ".join(verdict.reasons))
        print(f"{word} {verdict.id}: {text}", flush=True)
        record.add(verdict)

    with tempfile.TemporaryDirectory(prefix="attack-") as base, Runner(chosen.seed, Path(base)) as runner:
        for attack in [*attacks, *named]:
            add(runner.run(attack))
        if problem := runner.close():
            add(Verdict("sockets/last-stop", [problem]))
        if not chosen.attacks or signals.FAMILY in chosen.attacks:
            until, number = time.monotonic() + chosen.minutes * 60, 0
            while time.monotonic() < until:
                number += 1
                add(runner.run(signals.attack_round(number)))
    return report(record.verdicts)


def report(verdicts: list[Verdict]) -> int:
    print(f"\n{table(verdicts)}\n\n{summary(verdicts)}")
    return 0 if all(verdict.held for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
