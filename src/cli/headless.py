"""`engine up` on a machine without the API: computes for the server of another."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from ..config import Resolved
from ..engine.client.process import COMMAND
from ..engine.nodes.fingerprint import fingerprint
from ..engine.nodes.headless_node import HeadlessNode, NodeState
from ..engine.nodes.limits import silence_of
from ..engine.nodes.secret import secret_hash
from ..engine.processes.on_node import on_node
from ..engine.replicas.node import ReplicaNode, ReplicaStart
from ..server.http.shutdown import Shutdown, on_signals
from ..server.node_probe import serve_probes
from .console import print_result
from .notify import notify_ready
from .numa_view import place_rows
from .prepare import engine_environment
from .server_url import base_url


async def run_node(resolved: Resolved, sockets: list[socket.socket], port: int) -> int:
    """Until a signal, or until the node cannot go on. Returns the exit code. port: of the sockets, 0 for a path."""
    shutdown = Shutdown()
    node = HeadlessNode(resolved) if resolved.parallel.node_rank else _replica_node(resolved)

    def describe() -> dict[str, Any]:
        processes = {str(rank): pid for rank, pid in node.pids.items()}
        said = {"state": node.state.value, "node": resolved.parallel.node_rank, "processes": processes}
        return {**said, "reason": node.reason} if node.reason else said

    def listening() -> None:
        url = base_url(resolved.server.host, port)
        places = [f"  {name:<10}{where}" for name, where in place_rows(resolved)]
        print_result("\n".join([_summary(resolved, f"{url}/health"), *places]))
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


def _replica_node(resolved: Resolved) -> ReplicaNode:
    parallel = resolved.parallel
    assert parallel.data_parallel_address is not None, "a rule holds this"
    starts = {
        rank: ReplicaStart(
            resolved.replica(rank).model_dump_json(),
            engine_environment(resolved, index),
            on_node(resolved.replica(rank), 0, COMMAND),
        )
        for index, rank in enumerate(parallel.ranks)
    }
    place = (parallel.data_parallel_address, parallel.data_parallel_rpc_port)
    return ReplicaNode(starts, *place, fingerprint(resolved), secret_hash(), silence_of(parallel))


def _summary(resolved: Resolved, health: str) -> str:
    parallel = resolved.parallel
    if not parallel.node_rank:
        ranks = ", ".join(map(str, parallel.ranks))
        place = f"{parallel.data_parallel_address}:{parallel.data_parallel_rpc_port}"
        return (
            f"replicas {ranks} of {parallel.data_parallel_size}, without an API; their state: {health}\n"
            f"  they connect to the server at {place}"
        )
    first = parallel.node_rank * parallel.num_local_ranks
    ranks = ", ".join(map(str, range(first, first + parallel.num_local_ranks)))
    return (
        f"node {parallel.node_rank} of {parallel.nnodes}, without an API; its state: {health}\n"
        f"  ranks {ranks} of {parallel.num_ranks} connect to node 0 at {parallel.master_addr}:{parallel.master_port}"
    )
