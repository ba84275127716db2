"""Rules about replicas: how many there are, and which of them a server runs. The format of a rule: ../rule.py."""

from __future__ import annotations

from ..rule import Rule

RULES: tuple[Rule, ...] = (
    Rule(
        id="R137",
        title="a rank is below data_parallel_size",
        fields=("parallel.data_parallel_rank", "parallel.data_parallel_size"),
        is_broken=lambda v: (
            v.parallel.data_parallel_rank is not None and v.parallel.data_parallel_rank >= v.parallel.data_parallel_size
        ),
        message="`parallel.data_parallel_rank` is {data_parallel_rank}, and `data_parallel_size` is "
        "{data_parallel_size}",
        why="Ranks are counted from 0, and each server of a deployment names the same data_parallel_size.",
        fixes=("write a rank below {data_parallel_size}, or raise `data_parallel_size`",),
    ),
    Rule(
        id="R138",
        title="hybrid load balancing needs a first rank",
        fields=(
            "parallel.data_parallel_hybrid_lb",
            "parallel.data_parallel_start_rank",
            "parallel.data_parallel_size_local",
            "parallel.data_parallel_size",
        ),
        is_broken=lambda v: (
            v.parallel.data_parallel_hybrid_lb
            and (
                v.parallel.data_parallel_start_rank is None
                or v.parallel.data_parallel_size_local is None
                or v.parallel.data_parallel_start_rank + v.parallel.data_parallel_size_local
                > v.parallel.data_parallel_size
            )
        ),
        message="`parallel.data_parallel_hybrid_lb` needs `data_parallel_start_rank` and `data_parallel_size_local`, "
        "together at most data_parallel_size ({data_parallel_size})",
        why="They say which of all replicas this server runs.",
        fixes=("write both: the second of two servers with two replicas each has start rank 2 and local size 2",),
    ),
    Rule(
        id="R139",
        title="replicas are placed in one way",
        fields=(
            *("parallel.data_parallel_rank", "parallel.data_parallel_external_lb", "parallel.data_parallel_hybrid_lb"),
            *("parallel.data_parallel_address", "parallel.data_parallel_backend"),
        ),
        is_broken=lambda v: len(v.ways_of_replicas) > 1,
        message="{ways_of_replicas} are several ways to place replicas",
        why="With `data_parallel_rank` a server has one replica, with `data_parallel_hybrid_lb` those of its machine, "
        "with `data_parallel_address` those of several machines, and with Ray those of the cluster of RAY_ADDRESS.",
        fixes=("remove all but one of them",),
    ),
    Rule(
        id="R140",
        title="a node has at most all replicas",
        fields=("parallel.data_parallel_size_local", "parallel.data_parallel_size"),
        is_broken=lambda v: (v.parallel.data_parallel_size_local or 1) > v.parallel.data_parallel_size,
        message="`parallel.data_parallel_size_local` is {data_parallel_size_local}, of {data_parallel_size} replicas",
        why="`data_parallel_size` counts the replicas of all servers.",
        fixes=("raise `data_parallel_size`, or remove `data_parallel_size_local`",),
    ),
    Rule(
        id="R370",
        title="a server that balances alone runs all replicas",
        fields=(
            "parallel.data_parallel_size_local",
            "parallel.data_parallel_start_rank",
            "parallel.data_parallel_size",
            "parallel.data_parallel_hybrid_lb",
            "parallel.data_parallel_rank",
            "parallel.data_parallel_address",
            "parallel.data_parallel_backend",
        ),
        is_broken=lambda v: (
            not v.parallel.data_parallel_hybrid_lb
            and v.parallel.data_parallel_address is None
            and not (v.parallel.data_parallel_backend == "ray" and v.parallel.data_parallel_start_rank is None)
            and (
                v.parallel.data_parallel_start_rank is not None
                or (
                    v.parallel.data_parallel_rank is None
                    and (v.parallel.data_parallel_size_local or 0) not in (0, v.parallel.data_parallel_size)
                )
            )
        ),
        message="only some of the replicas are on this machine, and the server does not know the others",
        why="Replicas of other machines connect to the server, or have servers of their own.",
        fixes=(
            "set `data_parallel_address` to the address of the machine with the API",
            "write `data_parallel_hybrid_lb: true`, with a server on each machine behind a load balancer",
            "or remove `data_parallel_size_local` and `data_parallel_start_rank`",
        ),
    ),
    Rule(
        id="R371",
        title="external load balancing needs a rank",
        fields=("parallel.data_parallel_external_lb", "parallel.data_parallel_rank"),
        is_broken=lambda v: v.parallel.data_parallel_external_lb and v.parallel.data_parallel_rank is None,
        message="`parallel.data_parallel_external_lb` needs `data_parallel_rank`",
        why="Each server runs one replica; the rank says which, and is the label of its metrics.",
        fixes=("set `data_parallel_rank`, or remove `data_parallel_external_lb`",),
    ),
    Rule(
        id="R372",
        title="a server with a rank runs one replica",
        fields=("parallel.data_parallel_rank", "parallel.data_parallel_size_local"),
        is_broken=lambda v: (
            v.parallel.data_parallel_rank is not None and (v.parallel.data_parallel_size_local or 1) > 1
        ),
        message="`parallel.data_parallel_rank` is set, and `data_parallel_size_local` is {data_parallel_size_local}",
        why="With a rank the replicas are distributed over servers of one replica each.",
        fixes=("remove `data_parallel_size_local`, or write `data_parallel_hybrid_lb` and a start rank",),
    ),
    Rule(
        id="R411",
        title="replicas of several machines are divided among them",
        fields=(
            "parallel.data_parallel_address",
            "parallel.data_parallel_size_local",
            "parallel.data_parallel_start_rank",
            "parallel.data_parallel_size",
        ),
        is_broken=lambda v: (
            v.parallel.data_parallel_address is not None
            and v.parallel.data_parallel_size > 1
            and (
                (v.parallel.data_parallel_size_local or v.parallel.data_parallel_size) >= v.parallel.data_parallel_size
                or v.topology.replicas.stop > v.parallel.data_parallel_size
            )
        ),
        message="with `parallel.data_parallel_address` this machine has `data_parallel_size_local` of the "
        "{data_parallel_size} replicas, from `data_parallel_start_rank` on",
        why="Without these numbers a machine would run all replicas, or more than there are.",
        fixes=("on the second of two machines with two replicas each write start rank 2 and local size 2",),
    ),
    Rule(
        id="R375",
        title="each replica has a core",
        fields=("parallel.data_parallel_size", "device.device"),
        severity="warning",
        about_machine=True,
        is_broken=lambda v: v.device.device == "cpu" and v.topology.num_replicas > v.decisions.whole_machine.num_cores,
        message="{num_replicas} replicas share {num_machine_cores} cores",
        why="Engines that take turns on a core are slower than one that batches all requests.",
        fixes=(
            "set `data_parallel_size` to at most {num_machine_cores}",
            "with Ray on several machines set `data_parallel_size_local` to the replicas of each",
        ),
    ),
    Rule(
        id="R474",
        title="Ray places several replicas",
        fields=("parallel.data_parallel_backend", "parallel.data_parallel_size"),
        severity="warning",
        is_broken=lambda v: v.parallel.data_parallel_backend == "ray" and v.parallel.data_parallel_size == 1,
        message="`parallel.data_parallel_backend` has no effect: there is one replica, a process of this machine",
        why="The only replica runs beside the API.",
        fixes=("remove `data_parallel_backend`, or raise `data_parallel_size`",),
    ),
)
