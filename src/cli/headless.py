"""`engine up` on another node than 0: runs the ranks of this node, without an API."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from ..config import Resolved
from ..engine.headless_node import HeadlessNode, NodeState
from ..server.http.shutdown import Shutdown, on_signals
from ..server.node_probe import serve_probes
from .console import print_result
from .notify import notify_ready
from .server_url import base_url


async def run_node(resolved: Resolved, sockets: list[socket.socket], port: int) -> int:
    """Until a signal, or until the node cannot go on. Returns the exit code. port: of the sockets, 0 for a path."""
    shutdown = Shutdown()
    node, parallel = HeadlessNode(resolved), resolved.parallel

    def describe() -> dict[str, Any]:
        ranks = {str(rank): pid for rank, pid in node.pids.items()}
        said = {"state": node.state.value, "node": parallel.node_rank, "processes": ranks}
        return {**said, "reason": node.reason} if node.reason else said

    def listening() -> None:
        first = parallel.node_rank * parallel.num_local_ranks
        ranks = ", ".join(map(str, range(first, first + parallel.num_local_ranks)))
        url = base_url(resolved.server.host, port)
        place = f"{parallel.master_addr}:{parallel.master_port}"
        print_result(
            f"node {parallel.node_rank} of {parallel.nnodes}, without an API; its state: {url}/health\n"
            f"  ranks {ranks} of {parallel.num_ranks} connect to node 0 at {place}"
        )
        notify_ready()

    with on_signals(shutdown):
        computing = asyncio.ensure_future(node.run())
        computing.add_done_callback(lambda _: shutdown.request())
        try:
            await serve_probes(sockets, shutdown, describe, lambda: node.state is NodeState.READY, listening)
        finally:
            computing.cancel()
            await asyncio.gather(computing, return_exceptions=True)
        return 0 if computing.cancelled() else computing.result()
