"""Rules about the NUMA nodes that processes are bound to. The format of a rule: ../rule.py."""

from __future__ import annotations

from ...cpu_list import cpus_problem, format_cpus
from ...exit_codes import EXIT_ENVIRONMENT
from ..numa_places import fewest_cpus, idle_nodes, shared_cpus
from ..rule import Rule
from ..values import Values

_NUMA = ("device.numa_bind", "device.numa_bind_nodes", "device.numa_bind_cpus")


def _entries_problem(v: Values) -> str:
    """Why the options of NUMA nodes cannot be meant as they are written; empty if they can."""
    nodes, cpus, count = v.device.numa_bind_nodes, v.device.numa_bind_cpus, v.topology.num_processes
    if not v.device.numa_bind:
        return "`device.numa_bind` is false, and there is a list of places" if nodes or cpus else ""
    for name, entries in (("numa_bind_nodes", nodes), ("numa_bind_cpus", cpus)):
        if entries and len(entries) != count:
            processes = "1 process runs" if count == 1 else f"{count} processes run"
            said = "1 entry" if len(entries) == 1 else f"{len(entries)} entries"
            return f"`device.{name}` has {said}; {processes} on this machine"
    for text in cpus:
        if problem := cpus_problem(text):
            return f"`{text}` in `device.numa_bind_cpus` {problem}"
    if v.decisions.gpu is not None and not v.decisions.is_interpreted and not nodes:
        return "`device.numa_bind` with GPUs needs `device.numa_bind_nodes`"
    return ""


def _who_else_starts(v: Values) -> str:
    """Who starts processes that `device.numa_bind` cannot bind; empty if there are none."""
    if v.server.disable_frontend_multiprocessing:
        return "the engine runs in the process of the API (`server.disable_frontend_multiprocessing`)"
    if v.topology.is_launched:
        return "a launcher starts the processes (`parallel.distributed_executor_backend`)"
    if v.topology.backend == "ray" or v.topology.are_replicas_on_ray:
        return "Ray places the processes"
    return ""


def _binding_problem(v: Values) -> str:
    """Why processes cannot be bound on this machine; empty if they can."""
    machine = v.decisions.whole_machine
    if not machine.numa_nodes:
        return f"this system ({machine.system}) lists no NUMA nodes"
    return f"the kernel refuses set_mempolicy: {machine.no_memory_policy}" if machine.no_memory_policy else ""


def places_problem(v: Values) -> str:
    """What this machine does not have, of what the options name; empty if it has all."""
    places = v.decisions.numa_places
    if places and v.device.num_threads > (cores := fewest_cpus(places)):
        process = next(place.process for place in places if len(place.cpus) == cores)
        said = "1 core" if cores == 1 else f"{cores} cores"
        return f"{process} has {said} for the {v.device.num_threads} threads of `device.num_threads`"
    return v.decisions.no_numa_places


def _waste(v: Values) -> str:
    """What the places of processes leave unused, or use twice; empty if nothing."""
    places = v.decisions.numa_places
    if shared := shared_cpus(places):
        return f"several processes have the cores {format_cpus(shared)}, and wait for each other there"
    files = v.files
    if files is not None and files.state is not None and len({place.node for place in places}) > 1:
        return "all processes map the same copy of the weights (`load.load_format: sharded_state`), of one node"
    if any(v.decisions.is_written(f"device.{name}") for name in ("numa_bind_nodes", "numa_bind_cpus")):
        return ""
    idle = idle_nodes(v.decisions.whole_machine.numa_nodes, places) if places else []
    if idle:
        nodes = f"node {idle[0]} has" if len(idle) == 1 else f"the nodes {', '.join(map(str, idle))} have"
        return f"{nodes} no process: their cores and memory are not used"
    if places and not v.decisions.is_written("device.num_threads"):
        most = max(places, key=lambda place: len(place.cpus))
        if 2 * v.device.num_threads <= len(most.cpus) and v.device.num_threads == fewest_cpus(places):
            used = f"{most.process} uses {v.device.num_threads} of its {len(most.cpus)} cores"
            return f"{used}: each process has as many threads as the one with the fewest cores"
    return ""


RULES: tuple[Rule, ...] = (
    Rule(
        id="R434",
        title="the system can bind processes to NUMA nodes",
        fields=_NUMA,
        about_machine=True,
        exit_code=EXIT_ENVIRONMENT,
        is_broken=lambda v: v.device.numa_bind and _binding_problem(v),
        message="processes cannot be bound to NUMA nodes: {problem}",
        why="A process asks the kernel where its memory comes from; Docker and containerd forbid this call to "
        "containers without the capability SYS_NICE.",
        fixes=(
            "in a container, allow it: `docker run --cap-add SYS_NICE`, `cap_add: [SYS_NICE]` in Compose, or "
            "`securityContext.capabilities.add: [SYS_NICE]` in Kubernetes",
            "or remove `device.numa_bind` and give the container the cores and the memory of one node: `docker run "
            "--cpuset-cpus 0-15 --cpuset-mems 0`",
        ),
    ),
    Rule(
        id="R435",
        title="who starts a process binds it",
        fields=(
            *("device.numa_bind", "server.disable_frontend_multiprocessing"),
            *("parallel.distributed_executor_backend", "parallel.data_parallel_backend"),
        ),
        is_broken=lambda v: v.device.numa_bind and _who_else_starts(v),
        message="`device.numa_bind` has no effect: {problem}",
        why="A process is bound before its first instruction, by the command that starts it.",
        fixes=("remove `device.numa_bind`, and start that program, the launcher or `ray start` under numactl",),
    ),
    Rule(
        id="R436",
        title="each process has one entry that can be read",
        fields=(*_NUMA, "parallel.tensor_parallel_size", "parallel.data_parallel_size"),
        is_broken=_entries_problem,
        message="{problem}",
        why="Entries are those of the processes of this machine in order: replicas, and in each of them ranks. "
        "Several processes may have the same node, which is then named as often.",
        fixes=("write one entry for each process, in the order of replicas and ranks", "or remove the list"),
    ),
    Rule(
        id="R437",
        title="nodes and cores of processes exist and may be used",
        fields=(*_NUMA, "device.num_threads"),
        about_machine=True,
        is_broken=lambda v: v.device.numa_bind and not _entries_problem(v) and places_problem(v),
        message="{problem}",
        why="A container or `taskset` may leave a part of the machine; memory of a node outside of it cannot be had, "
        "and threads that are more than cores wait for each other.",
        fixes=("`engine collect-env` shows the nodes of this machine, with the cores that may be used",),
    ),
    Rule(
        id="R439",
        title="bound processes use the whole machine, each a part of its own",
        fields=_NUMA,
        severity="warning",
        about_machine=True,
        is_broken=_waste,
        message="{problem}",
        why="A bound process never uses another node; threads that share a core wait for each other, and cores read "
        "the memory of another node slowly.",
        fixes=(
            "choose `parallel.tensor_parallel_size` or `parallel.data_parallel_size` so that each node has as many "
            "processes",
            "or name nodes in `device.numa_bind_nodes`, and cores in `device.numa_bind_cpus`",
        ),
    ),
)
