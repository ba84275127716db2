"""`make clients`: tries real clients against a real server, and writes docs/guide/server/clients.md.

    python -m tools.clients [--only NAME]... [--home build/clients] [--page]

Each client is installed in an environment of its own under --home, with the versions of clients.py. Two servers run
during the test: `engine up deployments/tiny.yaml`, and one whose queue is small enough to be filled. Results of other
clients are kept with --only. Needs a package registry, and npm for the clients of Node.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from stoker.version import __version__

from . import record
from .clients import CLIENTS
from .environments import ROOT, SetupError, prepare, runtime_version
from .run import verdicts
from .server import FLAGS, Server


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", choices=list(CLIENTS), metavar="NAME", help=f"of {', '.join(CLIENTS)}"
    )
    parser.add_argument(
        "--home", type=Path, default=ROOT / "build" / "clients", help="folder of the environments and logs"
    )
    parser.add_argument("--page", action="store_true", help="only write the page from record.json")
    options = parser.parse_args()
    results = record.read()
    if options.page:
        record.write(results)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the servers are ended too
    home: Path = options.home.absolute()
    home.mkdir(parents=True, exist_ok=True)
    folders, failed = {}, False
    for name in options.only or CLIENTS:
        try:
            folders[name] = prepare(CLIENTS[name], home)
        except SetupError as error:
            failed = True
            print(f"error: {name} cannot be installed: {error}", file=sys.stderr)
    servers: dict[str, Server] = {}
    try:
        servers.update((kind, Server(kind, home / f"server-{kind}.log")) for kind in FLAGS)
        for name, folder in folders.items():
            print(name, file=sys.stderr)
            client = CLIENTS[name]
            found = {case.name: verdict for case, verdict in verdicts(client, folder, servers)}
            run = {"date": time.strftime("%Y-%m-%d"), "stoker": __version__, "runtime": runtime_version(client, folder)}
            results[name] = record.entry(client, run, found)
            record.write(results)
    finally:
        for server in servers.values():
            server.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
