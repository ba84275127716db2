"""What `auto` becomes without the model's files: places of processes, the device, stores of blocks, and the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..auto_values import CLIENT_SHARE, INCOMPLETE_HEADER_FACTOR, MAX_CONNECTIONS, TOTAL_REQUEST_FACTOR, auto_block_size
from ..cpu_list import cpus_problem, format_cpus
from ..gpu_capability import LEAST_CAPABILITY
from ..schema.kv_transfer import HOST_BYTES, SHARED_PATH
from ..schema.topology import Topology
from .decisions import Decisions
from .machine_spec import MachineSpec
from .numa_places import NoPlaces, fewest_cpus, least_memory, numa_places

if TYPE_CHECKING:
    from ..deployment import Deployment


_MOST_PROCESSES = 1 << 16  # of one machine: beyond that not even their names are made


def decide_numa(done: Decisions, topology: Topology) -> None:
    """Binds the processes of this machine, if the options ask for it and the machine has what they name."""
    bind, nodes, cpus = (f"device.{name}" for name in ("numa_bind", "numa_bind_nodes", "numa_bind_cpus"))
    named = [path for path in (nodes, cpus) if done.get(path)]
    if named and not done.is_written(bind):
        done.decide(bind, True, "R432", f"{named[0]} says where processes run")
    machine_nodes, counts = done.whole_machine.numa_nodes, {len(done.get(path)) for path in named}
    is_wrong = not counts <= {topology.num_processes} or any(map(cpus_problem, done.device.numa_bind_cpus))
    if not done.device.numa_bind or not machine_nodes or is_wrong:  # rules say what is
        return
    if topology.num_processes > _MOST_PROCESSES:
        done.no_numa_places = f"{topology.num_processes} processes are more than any machine has cores for"
        return
    try:
        places = numa_places(
            machine_nodes, topology.process_names, nodes=done.device.numa_bind_nodes, cpus=done.device.numa_bind_cpus
        )
    except NoPlaces as problem:
        done.no_numa_places = str(problem)
        return
    if nodes not in named:
        reason = "those of the cores" if named else "spread over those that have cores and memory"
        done.decide(nodes, tuple(place.node for place in places), "R433", reason)
    if cpus not in named:
        reason = "those of the node, divided among its processes"
        done.decide(cpus, tuple(format_cpus(place.cpus) for place in places), "R433", reason)
    done.numa_places = places
    cores = fewest_cpus(places)
    num_usable = sum(len(node.usable_cpus) for node in machine_nodes)
    if done.whole_machine.num_cores < num_usable:  # a limit on the time of CPUs
        cores = min(cores, done.machine.num_cores)
    machine = done.machine.with_at_most(*least_memory(machine_nodes, places))
    done.machine = machine.model_copy(update={"num_cores": cores})


def decide_device(done: Decisions) -> None:
    machine = done.machine
    if done.is_auto("device.device"):
        done.decide("device.device", *_best_device(machine))
    if done.is_auto("device.num_threads"):
        topology, num_replicas = done.topology, done.topology.num_replicas
        replicas = "this process" if num_replicas == 1 else f"each of {num_replicas} replicas"
        whose = replicas if topology.num_local_ranks == 1 else f"each of {topology.num_processes} processes"
        own = " of its NUMA node" if done.numa_places else ""
        done.decide("device.num_threads", machine.num_cores, "R223", f"{machine.num_cores} cores{own} for {whose}")
    if done.is_auto("cache.block_size"):
        done.decide("cache.block_size", *_block_size(done))


def _block_size(done: Decisions) -> tuple[int, str, str]:
    device, own = done.device.device, done.tokens_of_vector
    size = auto_block_size(device, own)
    why = f"the block size for {device}" if own == 1 else f"a multiple of the {own} tokens that have one vector"
    return size, "R086", why


def decide_shared_folder(done: Decisions, deployment: Deployment) -> None:
    """A connector's folder is the one for KV blocks."""
    transfer = deployment.config.kv_transfer
    if transfer.is_shared_folder and SHARED_PATH in transfer.kv_connector_extra_config:
        option = "kv_transfer.kv_connector_extra_config"
        done.shared_folder = deployment.absolute(option, transfer.kv_connector_extra_config[SHARED_PATH])
        if done.cache.kv_directory is None:
            done.decide("cache.kv_directory", done.shared_folder, "R400", f"the {SHARED_PATH} of {option}")


def decide_offloading(done: Decisions, deployment: Deployment) -> None:
    """OffloadingConnector is the long form of `cache.kv_offloading_size`."""
    transfer = deployment.config.kv_transfer
    size = transfer.kv_connector_extra_config.get(HOST_BYTES)
    if transfer.is_offloading and size is not None and done.cache.kv_offloading_size is None:
        reason = f"the {HOST_BYTES} of kv_transfer.kv_connector_extra_config"
        done.decide("cache.kv_offloading_size", size / 2**30, "R451", reason)


def _best_device(machine: MachineSpec) -> tuple[str, str, str]:
    """The device, the rule and the reason. `auto` never chooses the interpreter."""
    gpu = machine.gpu
    if gpu is None or gpu.is_interpreted:
        return "cpu", "R225", f"no GPU: {machine.no_gpu}" if machine.no_gpu else "there is no GPU"
    if gpu.compute_capability < LEAST_CAPABILITY:
        return "cpu", "R225", f"the {gpu.name} is older than this build's kernels"
    return "cuda", "R225", f"there is an {gpu.name}"


def decide_server(done: Decisions) -> None:
    if not done.is_written("server.headless"):
        if done.topology.node:
            done.decide("server.headless", True, "R422", f"node {done.topology.node} has no API")
        elif done.topology.is_behind_another:
            done.decide("server.headless", True, "R422", "the API is on `parallel.data_parallel_address`")
    if done.is_auto("server.log_format"):
        shape, reason = ("human", "a terminal") if done.machine.has_terminal else ("json", "no terminal")
        done.decide("server.log_format", shape, "R224", f"stderr is {reason}")
    if done.is_auto("server.http_log_level"):
        done.decide("server.http_log_level", done.server.log_level, "R265", "like log_level")
    if done.server.disable_frontend_multiprocessing and not done.is_written("server.on_engine_death"):
        done.decide("server.on_engine_death", "exit", "R215", "the engine runs in the API process")
    if done.is_auto("server.max_incomplete_header_bytes"):
        size = INCOMPLETE_HEADER_FACTOR * done.server.max_header_bytes
        done.decide(
            "server.max_incomplete_header_bytes", size, "R266", f"{INCOMPLETE_HEADER_FACTOR} x max_header_bytes"
        )
    if done.is_auto("server.max_total_request_bytes"):
        size = TOTAL_REQUEST_FACTOR * done.server.max_request_bytes
        done.decide("server.max_total_request_bytes", size, "R290", f"{TOTAL_REQUEST_FACTOR} x max_request_bytes")
    _connections(done)


def _connections(done: Decisions) -> None:
    if done.is_auto("server.max_connections"):
        number, reason = MAX_CONNECTIONS, "the default"
        possible = done.machine.max_connections
        if possible is not None and possible < number:
            number, reason = max(1, possible), f"this process may open {done.machine.max_open_files} files"
        done.decide("server.max_connections", number, "R292", reason)
    if done.is_auto("server.max_connections_per_client"):
        share = max(1, int(CLIENT_SHARE * done.server.max_connections))
        done.decide("server.max_connections_per_client", share, "R293", f"{CLIENT_SHARE:.0%} of max_connections")


def decide_adapters(done: Decisions) -> None:
    if done.is_auto("lora.max_cpu_loras"):
        done.decide("lora.max_cpu_loras", done.lora.max_loras, "R163", "those of a step")


def decide_executor(done: Decisions) -> None:
    if done.is_auto("parallel.distributed_executor_backend"):
        count = done.topology.num_ranks
        reason = "one process computes the model" if count == 1 else f"{count} processes compute the model together"
        done.decide("parallel.distributed_executor_backend", done.topology.backend, "R397", reason)
