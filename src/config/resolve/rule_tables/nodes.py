"""Rules about the nodes of a deployment, and launchers of its processes. The format of a rule: ../rule.py."""

from __future__ import annotations

from ..rule import Rule

RULES: tuple[Rule, ...] = (
    Rule(
        id="R420",
        title="the rank of a node is below the number of nodes",
        fields=("parallel.node_rank", "parallel.nnodes"),
        is_broken=lambda v: v.parallel.node_rank >= v.parallel.nnodes,
        message="`parallel.node_rank` is {node_rank}, and `nnodes` is {nnodes}",
        why="Nodes are counted from 0, and each of them has the same `nnodes`.",
        fixes=("write a rank below {nnodes}, or raise `nnodes`",),
    ),
    Rule(
        id="R421",
        title="each node has the same number of processes",
        fields=(
            *("parallel.nnodes", "parallel.tensor_parallel_size"),
            *("parallel.pipeline_parallel_size", "parallel.prefill_context_parallel_size"),
        ),
        is_broken=lambda v: v.topology.num_ranks % v.parallel.nnodes != 0,
        message="the {num_ranks} processes of a model cannot be divided among {nnodes} nodes",
        why="Consecutive processes are on one node: of 4 on 2 nodes the first 2 are on node 0.",
        fixes=(
            "make `tensor_parallel_size` times `pipeline_parallel_size`, or times `prefill_context_parallel_size`, a "
            "multiple of `nnodes`",
        ),
    ),
    Rule(
        id="R422",
        title="all nodes but the first are headless",
        fields=(
            *("server.headless", "parallel.node_rank"),
            *("parallel.data_parallel_address", "parallel.data_parallel_start_rank"),
        ),
        is_broken=lambda v: v.server.headless != (v.parallel.node_rank > 0 or v.topology.is_behind_another),
        message="`server.headless` is {headless}, and `parallel.node_rank` is {node_rank}, "
        "`data_parallel_start_rank` {data_parallel_start_rank}",
        why="The first node has the API; the others only compute.",
        fixes=(
            "remove `server.headless`: it follows from `parallel.node_rank`, or from `data_parallel_start_rank` with "
            "`data_parallel_address`",
        ),
    ),
    Rule(
        id="R424",
        title="nodes find node 0",
        fields=("parallel.master_addr", "parallel.nnodes"),
        severity="warning",
        is_broken=lambda v: (
            v.parallel.nnodes > 1 and not v.decisions.is_written("parallel.master_addr") and not v.topology.is_launched
        ),
        message="`parallel.master_addr` is {master_addr}: only processes of this machine reach node 0",
        why="Node 0 listens on that address alone, and the other nodes connect to it.",
        fixes=("set `master_addr` to the address of node 0",),
    ),
    Rule(
        id="R425",
        title="an address of node 0 needs several nodes",
        fields=("parallel.master_addr", "parallel.master_port", "parallel.nnodes"),
        severity="warning",
        is_broken=lambda v: (
            v.parallel.nnodes == 1
            and any(v.is_written(f"parallel.{name}") for name in ("master_addr", "master_port"))
            and not v.topology.is_launched
        ),
        message="`parallel.master_addr` and `master_port` have no effect: there is one node",
        why="A node alone connects to no other.",
        fixes=("remove them, or set `nnodes`",),
    ),
    Rule(
        id="R440",
        title="a launcher says where its processes are",
        fields=(
            *("parallel.distributed_executor_backend", "parallel.node_rank"),
            *("parallel.master_addr", "parallel.master_port"),
        ),
        is_broken=lambda v: (
            v.topology.is_launched
            and any(v.is_written(f"parallel.{name}") for name in ("node_rank", "master_addr", "master_port"))
        ),
        message="`parallel.distributed_executor_backend` is external_launcher, and `node_rank`, `master_addr` or "
        "`master_port` is written",
        why="The launcher sets RANK, MASTER_ADDR and MASTER_PORT in the environment of each process.",
        fixes=("remove `node_rank`, `master_addr` and `master_port`: they are arguments of torchrun",),
    ),
)
