"""`engine up` on a machine without the API: computes for the server of another."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from ..config import Resolved
from ..engine.client.process import COMMAND
from ..engine.cluster.fingerprint import fingerprint
from ..engine.cluster.headless_node import HeadlessNode, NodeState
from ..engine.cluster.limits import silence_of
from ..engine.cluster.secret import secret_hash
from ..engine.host.on_node import on_node
from ..engine.replicas.node import ReplicaNode, ReplicaStart
from ..server.http.shutdown import Shutdown, on_signals
from ..server.node_probe import serve_probes
from .console import print_result
from .notify import notify_ready
from .numa_view import place_rows
from .prepare import engine_environment
from .server_url import base_url


async def run_node(resolved: Resolved, sockets: list[socket.socket], port: int) -> int:
    """Run until a signal, or until the node cannot go on. Returns the exit code. port: of the sockets, 0 for a path."""
    shutdown = Shutdown()
    node = HeadlessNode(resolved) if resolved.topology.node else _replica_node(resolved)

    def describe() -> dict[str, Any]:
        processes = {str(rank): pid for rank, pid in node.pids.items()}
        said = {"state": node.state.value, "node": resolved.topology.node, "processes": processes}
        return {**said, "reason": node.reason} if node.reason else said

    def listening() -> None:
        url = base_url(resolved.server.host, port)
        places = [f"  {name:<10}{where}" for name, where in place_rows(resolved)]
        print_result("\n".join([_summary(resolved, f"{url}/health"), *places]))
        notify_ready()

    with on_signals(shutdown):
        computing = asyncio.ensure_future(node.run())
        computing.add_done_callback(lambda _: shutdown.request("the computation has ended"))
        try:
            await serve_probes(sockets, shutdown, describe, lambda: node.state is NodeState.READY, listening)
        finally:
            computing.cancel()
            await asyncio.gather(computing, return_exceptions=True)
        return 0 if computing.cancelled() else computing.result()


def _replica_node(resolved: Resolved) -> ReplicaNode:
    topology = resolved.topology
    assert topology.api is not None, "a rule holds this"
    starts = {
        rank: ReplicaStart(
            resolved.replica(rank).model_dump_json(),
            engine_environment(resolved, index),
            on_node(resolved.replica(rank), 0, COMMAND),
        )
        for index, rank in enumerate(topology.replicas)
    }
    silence_s = silence_of(resolved.parallel)
    return ReplicaNode(starts, *topology.api, fingerprint(resolved), secret_hash(), silence_s)


def _summary(resolved: Resolved, health: str) -> str:
    topology = resolved.topology
    if topology.api is not None and not topology.node:
        address, port = topology.api
        ranks = ", ".join(map(str, topology.replicas))
        return (
            f"replicas {ranks} of {resolved.parallel.data_parallel_size}, without an API; their state: {health}\n"
            f"  they connect to the server at {address}:{port}"
        )
    address, port = topology.leader
    ranks = ", ".join(map(str, topology.ranks_of_node(topology.node)))
    return (
        f"node {topology.node} of {topology.num_nodes}, without an API; its state: {health}\n"
        f"  ranks {ranks} of {topology.num_ranks} connect to node 0 at {address}:{port}"
    )
