"""Rules about the device. The format of a rule: ../rule.py."""

from __future__ import annotations

from ...exit_codes import EXIT_ENVIRONMENT
from ...gpu_capability import LEAST_CAPABILITY, capability_text
from ..rule import Rule, StatedRule
from ..values import Values

_NUMA = ("device.numa_bind", "device.numa_bind_nodes", "device.numa_bind_cpus")


def _is_too_old(v: Values) -> bool:
    gpu = v.decisions.gpu
    return gpu is not None and not gpu.is_interpreted and gpu.compute_capability < LEAST_CAPABILITY


RULES: tuple[Rule, ...] = (
    Rule(
        id="R227",
        title="device: cuda needs a GPU",
        fields=("device.device",),
        about_machine=True,
        exit_code=EXIT_ENVIRONMENT,
        is_broken=lambda v: v.device == "cuda" and v.machine.gpu is None,
        message="`device.device` is cuda, and this machine has no GPU: {no_gpu}",
        why="GPUs are detected with NVIDIA's driver library, among those in CUDA_VISIBLE_DEVICES.",
        fixes=(
            "write `device: auto`, which uses a GPU if there is one, or `cpu`",
            "or plan for another machine: engine plan --device-profile h200",
            "or set TRITON_INTERPRET=1: this CPU then interprets the GPU's kernels, very slowly, for tests",
        ),
    ),
    Rule(
        id="R228",
        title="the GPU is supported",
        fields=("device.device",),
        about_machine=True,
        exit_code=EXIT_ENVIRONMENT,
        is_broken=_is_too_old,
        message="the {gpu} has compute capability {capability}; this build's kernels need "
        f"{capability_text(LEAST_CAPABILITY)} (Ampere) or more",
        why="They compute in bfloat16 and copy asynchronously, which older GPUs do not support.",
        fixes=("write `device: cpu`, or choose another GPU with CUDA_VISIBLE_DEVICES",),
    ),
    Rule(
        id="R229",
        title="an interpreter is not a GPU",
        fields=("device.device",),
        severity="warning",
        about_machine=True,
        is_broken=lambda v: v.decisions.is_interpreted,
        message="no GPU is used: with TRITON_INTERPRET=1 this CPU interprets the GPU's kernels",
        why="This is for tests of the kernels; it is thousands of times slower than a GPU, and in float32 or float16 "
        "only.",
        fixes=("unset TRITON_INTERPRET where there is a GPU, or write `device: cpu`",),
    ),
    Rule(
        id="R286",
        title="the self-test is for CPUs",
        fields=("device.self_test", "device.device"),
        is_broken=lambda v: v.device == "cuda" and v.self_test,
        message="`device.self_test` measures CPU kernels, and `device.device` is cuda",
        why="It compares with the memory and the multipliers of the CPU.",
        fixes=("remove `device.self_test`, or write `device: cpu`",),
    ),
    Rule(
        id="R210",
        title="there are at most as many threads as cores",
        fields=("device.num_threads",),
        severity="warning",
        about_machine=True,
        is_broken=lambda v: v.num_threads > v.machine.num_cores and not v.no_numa_places,
        message="`device.num_threads` is {num_threads}; an engine process may use {num_cores} cores",
        why="The threads of a computation wait for each other, so a thread without a core delays all of them.",
        fixes=("set `device.num_threads` to at most {num_cores}, or leave it to auto",),
    ),
    Rule(
        id="R434",
        title="the system can bind processes to NUMA nodes",
        fields=_NUMA,
        about_machine=True,
        exit_code=EXIT_ENVIRONMENT,
        is_broken=lambda v: v.numa_bind and bool(v.no_numa),
        message="processes cannot be bound to NUMA nodes: {no_numa}",
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
        is_broken=lambda v: v.numa_bind and bool(v.not_bound),
        message="`device.numa_bind` has no effect: {not_bound}",
        why="A process is bound before its first instruction, by the command that starts it.",
        fixes=("remove `device.numa_bind`, and start that program, the launcher or `ray start` under numactl",),
    ),
    Rule(
        id="R436",
        title="each process has one entry that can be read",
        fields=(*_NUMA, "parallel.tensor_parallel_size", "parallel.data_parallel_size"),
        is_broken=lambda v: bool(v.numa_entries),
        message="{numa_entries}",
        why="Entries are those of the processes of this machine in order: replicas, and in each of them ranks. "
        "Several processes may have the same node, which is then named as often.",
        fixes=("write one entry for each process, in the order of replicas and ranks", "or remove the list"),
    ),
    Rule(
        id="R437",
        title="nodes and cores of processes exist and may be used",
        fields=(*_NUMA, "device.num_threads"),
        about_machine=True,
        is_broken=lambda v: v.numa_bind and not v.numa_entries and bool(v.no_numa_places),
        message="{no_numa_places}",
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
        is_broken=lambda v: bool(v.numa_waste),
        message="{numa_waste}",
        why="A bound process never uses another node; threads that share a core wait for each other, and cores read "
        "the memory of another node slowly.",
        fixes=(
            "choose `parallel.tensor_parallel_size` or `parallel.data_parallel_size` so that each node has as many "
            "processes",
            "or name nodes in `device.numa_bind_nodes`, and cores in `device.numa_bind_cpus`",
        ),
    ),
)

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R223",
        "auto uses every core",
        ("device.num_threads",),
        "Those that the process may use, divided among the replicas: affinity and the limits of its container are "
        "considered. With `device.numa_bind`, as many as the process with the fewest cores has.",
    ),
    StatedRule(
        "R432",
        "a list of places binds",
        _NUMA,
        "Nodes or cores that are named have no other meaning.",
    ),
    StatedRule(
        "R433",
        "processes are spread over NUMA nodes",
        _NUMA,
        "Process i of n is on number i * m / n of the m nodes that have cores and memory: neighbours share a node, and "
        "sockets have equally many. The processes of a node divide its cores, and hyperthreads of a core remain "
        "together.",
    ),
    StatedRule(
        "R438",
        "the memory of a bound process is that of its node",
        ("device.numa_bind", "cache.kv_cache_memory_bytes", "cache.gpu_memory_utilization"),
        "Weights and KV cache are planned for the free memory of the node, divided among its processes: what does not "
        "fit is an error before the start (R203, R204). Later the kernel would end the process, since no other node "
        "takes its place.",
    ),
    StatedRule(
        "R225",
        "auto selects the best device",
        ("device.device",),
        f"An NVIDIA GPU of compute capability {capability_text(LEAST_CAPABILITY)} or more, the first in "
        "CUDA_VISIBLE_DEVICES, if the installed torch "
        "can "
        "use it; otherwise the CPU.",
    ),
    StatedRule(
        "R187",
        "the code of a device checks its settings",
        ("device.additional_config",),
        "Cannot occur: no device of this build has such settings, and all are refused.",
    ),
)
