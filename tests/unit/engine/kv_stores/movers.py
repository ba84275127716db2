"""The libraries that move registered blocks, where they are installed."""

from __future__ import annotations

import pytest

from stoker.engine.kv_stores.mooncake_mover import MooncakeMover
from stoker.engine.kv_stores.nixl_mover import NixlMover
from stoker.engine.kv_stores.registered_blocks import Mover, MoverMissing

from .odd_servers import HOST

MOVERS = ("nixl", "mooncake")


def mover_of(kind: str) -> Mover:
    try:
        return NixlMover() if kind == "nixl" else MooncakeMover(HOST, "tcp")
    except MoverMissing as missing:
        pytest.skip(str(missing))
