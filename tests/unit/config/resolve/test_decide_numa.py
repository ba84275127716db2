from __future__ import annotations

from pathlib import Path

import pytest

from stoker.config import ConfigError, MachineSpec, Resolved, load_deployment, read_model_files, resolve_deployment
from stoker.config.resolve.gpu import interpreted_gpu
from stoker.config.resolve.resolve import examine
from stoker.config.resolve.sharded_state import StateShape

from ..deployments import GIB, MACHINE, TWO_SOCKETS
from ..model_files import write_model


def resolved(folder: Path, *words: str, machine: MachineSpec = TWO_SOCKETS) -> Resolved:
    deployment = load_deployment([], ["--model", str(write_model(folder)), *words], {})
    return resolve_deployment(deployment, read_model_files(deployment), machine)


def said(folder: Path, *words: str, machine: MachineSpec = TWO_SOCKETS) -> str:
    with pytest.raises(ConfigError) as caught:
        resolved(folder, *words, machine=machine)
    return str(caught.value)


@pytest.mark.effect("device.numa_bind")
def test_each_process_has_the_cores_and_the_memory_of_its_node(tmp_path: Path) -> None:
    plain, bound = resolved(tmp_path, "-dp", "2"), resolved(tmp_path, "-dp", "2", "--numa-bind")
    assert plain.numa_places == ()
    assert bound.numa_places == ((0, "0-15,32-47"), (1, "16-31,48-63"))
    assert (plain.device.num_threads, bound.device.num_threads) == (32, 32)
    assert plain.machine.available_memory_bytes == 38 * GIB  # half of both
    assert bound.machine.available_memory_bytes == 28 * GIB  # the node that has less
    assert str(bound.origin("device.numa_bind_nodes")).startswith("auto, R433")


@pytest.mark.effect("device.numa_bind_nodes", "device.numa_bind_cpus")
def test_a_list_of_places_binds(tmp_path: Path) -> None:
    nodes = resolved(tmp_path, "-tp", "2", "--numa-bind-nodes", "1", "1")
    assert nodes.device.numa_bind
    assert nodes.numa_places == ((1, "16-23,48-55"), (1, "24-31,56-63"))
    assert (nodes.device.num_threads, nodes.machine.available_memory_bytes) == (16, 14 * GIB)
    cpus = resolved(tmp_path, "-tp", "2", "--numa-bind-cpus", "16-19", "2,1,0")
    assert cpus.numa_places == ((1, "16-19"), (0, "2,1,0"))
    assert cpus.device.num_threads == 3


def test_cores_of_a_manifest_may_be_numbers(tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    text = f"model: {{model: {write_model(tmp_path / 'model')}}}\ndevice: {{numa_bind_nodes: 1, numa_bind_cpus: [7]}}\n"
    file.write_text(text)
    deployment = load_deployment([file], [], {})
    assert resolve_deployment(deployment, read_model_files(deployment), TWO_SOCKETS).numa_places == ((1, "7"),)


def test_a_replica_has_the_places_of_its_processes(tmp_path: Path) -> None:
    words = ("-dp", "4", "-tp", "2", "--data-parallel-hybrid-lb", "-dpl", "2", "-dpr", "2")
    both = resolved(tmp_path, *words, "--numa-bind-nodes", "0", "0", "1", "1")
    assert both.topology.process_names == [
        *("replica 2, rank 0", "replica 2, rank 1"),
        *("replica 3, rank 0", "replica 3, rank 1"),
    ]
    assert both.replica(3).numa_places == both.numa_places[2:] == ((1, "16-23,48-55"), (1, "24-31,56-63"))


def test_each_machine_of_several_has_its_own_processes(tmp_path: Path) -> None:
    second = resolved(tmp_path, "-tp", "4", "--nnodes", "2", "--node-rank", "1", "--numa-bind")
    assert second.topology.process_names == ["rank 2", "rank 3"]
    assert [node for node, _ in second.numa_places] == [0, 1]


def test_a_limit_on_the_time_of_cpus_limits_the_threads(tmp_path: Path) -> None:
    limited = TWO_SOCKETS.model_copy(update={"num_cores": 8})
    found = resolved(tmp_path, "-tp", "2", "--numa-bind", machine=limited)
    assert (found.device.num_threads, found.numa_places[1][1]) == (4, "16-31,48-63")


def test_what_a_node_cannot_hold_is_an_error_before_the_start(tmp_path: Path) -> None:
    words = ("-dp", "2", "--kv-cache-memory-bytes", "30GiB")
    assert resolved(tmp_path, *words).memory.kv_cache_bytes > 29 * GIB
    assert "this machine has 28.00 GiB for each of 2 replicas on its NUMA node available" in said(
        tmp_path, *words, "--numa-bind"
    )


def test_interpreted_gpus_have_the_memory_of_their_nodes(tmp_path: Path) -> None:
    """They were planned for their part of the whole machine."""
    gpu = interpreted_gpu(128 * GIB, 76 * GIB)
    machine = TWO_SOCKETS.model_copy(update={"gpu": gpu})
    bound = resolved(
        tmp_path, "-dp", "2", "--device", "cuda", "--dtype", "float32", "--numa-bind-nodes", "0", "1", machine=machine
    )
    assert bound.machine.gpu is not None
    assert (gpu.available_memory_bytes // 2, bound.machine.gpu.available_memory_bytes) == (38 * GIB, 28 * GIB)


def test_a_container_without_the_call_says_what_to_change(tmp_path: Path) -> None:
    inside = TWO_SOCKETS.model_copy(update={"no_memory_policy": "operation not permitted"})
    text = said(tmp_path, "-tp", "2", "--numa-bind", machine=inside)
    assert "processes cannot be bound to NUMA nodes: the kernel refuses set_mempolicy: operation not permitted" in text
    assert "docker run --cap-add SYS_NICE" in text
    assert "this system (Linux) lists no NUMA nodes" in said(tmp_path, "--numa-bind", machine=MACHINE)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--numa-bind-nodes", "0"), "`device.numa_bind_nodes` has 1 entry; 2 processes run on this machine"),
        (("--numa-bind-cpus", "0", "3-1"), "`3-1` in `device.numa_bind_cpus` is not a list of cores such as 0-15"),
        (("--numa-bind-nodes", "0", "2"), "rank 1 is to run on node 2; this machine has the nodes 0, 1"),
        (("--numa-bind-cpus", "0", "99"), "rank 1 is to use the cores 99, which do not exist or are offline"),
        (
            ("--numa-bind-cpus", "0-3", "4-5", "--num-threads", "4"),
            "rank 1 has 2 cores for the 4 threads of `device.num_threads`",
        ),
        (
            ("--no-numa-bind", "--numa-bind-nodes", "0", "1"),
            "`device.numa_bind` is false, and there is a list of places",
        ),
    ],
)
def test_what_cannot_be_meant(words: tuple[str, ...], text: str, tmp_path: Path) -> None:
    assert text in said(tmp_path, "-tp", "2", *words)


def test_replicas_that_map_one_copy_of_the_weights_are_warned(tmp_path: Path) -> None:
    words = ["--model", str(write_model(tmp_path)), "-dp", "2", "--numa-bind"]
    deployment = load_deployment([], words, {})
    files = read_model_files(deployment)
    state = StateShape(
        kernels="some",
        dtype="bfloat16",
        quantization=None,
        activation_quantization=None,
        batch_invariant=False,
        enforce_eager=False,
        implementation="native",
        weight_names="hf",
        hf_overrides={},
    )
    warned = [
        [finding.message for finding in examine(deployment, each, TWO_SOCKETS).findings if finding.code == "R439"]
        for each in (files, files.model_copy(update={"state": state}))
    ]
    said = "all processes map the same copy of the weights (`load.load_format: sharded_state`), of one node"
    assert warned == [[], [said]]


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        ((), ["replica 2 uses 16 of its 32 cores: each process has as many threads as the one with the fewest cores"]),
        (("--num-threads", "16"), []),
        (("--numa-bind-nodes", "0", "0", "1"), []),
    ],
)
def test_nodes_with_unequal_numbers_of_processes_are_warned(
    words: tuple[str, ...], warned: list[str], tmp_path: Path
) -> None:
    """Half of the cores of a node were not used, without a sign."""
    deployment = load_deployment([], ["--model", str(write_model(tmp_path)), "-dp", "3", "--numa-bind", *words], {})
    found = examine(deployment, read_model_files(deployment), TWO_SOCKETS).findings
    assert [finding.message for finding in found if finding.code == "R439"] == warned


def test_memory_that_a_policy_forbids_does_not_count() -> None:
    bound = TWO_SOCKETS.with_memory_of({1})
    assert (bound.total_memory_bytes, bound.available_memory_bytes) == (64 * GIB, 28 * GIB)
    assert TWO_SOCKETS.with_memory_of({0, 1}).available_memory_bytes == 76 * GIB


@pytest.mark.parametrize("words", [(), ("--numa-bind",)])
def test_more_processes_than_any_machine_has_are_counted_and_not_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert "1099511627776" in said(tmp_path, "-tp", str(1 << 40), *words)
