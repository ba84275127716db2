"""What `auto` becomes: one decision per option, each with the rule that made it and the reason.

A written value is never changed. Decisions that need the model's files wait until these are known (`model_files` is
None while a hub model is not on this machine).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ...model.cache_groups import (
    CacheGroups,
    blocks_of_sequence,
    kv_bytes_per_token,
    longest_sequence,
    model_cache_groups,
)
from ...model.offload import WeightOffload, weight_offload
from ...model.quantised import held_in
from ...model.sharding import largest_share, not_divisible, not_parted, not_staged, stages
from ...model.sizes import moving_bytes, state_bytes
from ...model.spec import ModelSpec, WeightNames
from ..auto_values import (
    BLOCK_SIZE,
    CLIENT_SHARE,
    INCOMPLETE_HEADER_FACTOR,
    LONG_PROMPT_SHARE,
    MAX_AUTO_KV_BYTES,
    MAX_CONNECTIONS,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    QUEUED_PER_KV_TOKEN,
    STATES_SHARE,
    TOTAL_REQUEST_FACTOR,
    auto_num_seqs,
    num_states,
)
from ..cpu_list import cpus_problem, format_cpus
from ..gpu_capability import LEAST_CAPABILITY
from ..graph_sizes import usual_sizes, written_sizes
from ..held_codes import codes_layout
from ..model_facts import model_facts
from ..origin import DEFAULT, Layer, Origin
from ..schema.kv_transfer import HOST_BYTES, SHARED_PATH
from ..schema.options import options
from ..schema.types import format_about
from .gpu_memory import reserved_bytes, staging_bytes
from .numa_places import NoPlaces, NumaPlace, fewest_cpus, least_memory, numa_places
from .resolved import GpuSpec, MachineSpec, MemoryPlan, ModelFiles

if TYPE_CHECKING:
    from ..deployment import Deployment

NEED_MODEL = (  # decided by the model's files only
    *("model.tokenizer", "model.hf_config_path", "model.rope_theta", "model.dtype", "model.max_model_len"),
    *("load.load_format", "cache.kv_cache_memory_bytes"),
    *("scheduler.max_queued_tokens", "scheduler.max_num_batched_tokens"),
    *("cache.kv_cache_dtype", "scheduler.long_prefill_token_threshold"),
)


@dataclass
class Decisions:
    """Values by section and name, their origins, and the resulting use of memory."""

    values: dict[str, dict[str, Any]]
    origins: dict[str, Origin]
    model_files: ModelFiles | None
    whole_machine: MachineSpec
    machine: MachineSpec  # the share of one process that computes
    num_replicas: int = 1  # that the server runs
    ports: dict[int, int] = field(default_factory=dict)  # of the servers of this machine, by the rank of a replica
    num_on_ray: int = 0  # replicas that Ray places; num_replicas of them share a machine
    num_ranks: int = 1  # processes that compute one replica together, of all stages
    num_local_ranks: int = 1  # those of them that are on this machine
    num_stages: int = 1
    transfer_bytes: int = 0  # host memory of each replica for blocks that other engines may read
    shared_folder: str | None = None  # of a connector
    numa_places: list[NumaPlace] = field(default_factory=list)  # of all processes of this machine, if they are bound
    no_numa_places: str = ""  # why this machine does not have those that are written
    memory: MemoryPlan | None = None
    num_kv_blocks: int = 0
    max_cached_len: int = 0  # tokens of the longest sequence that the KV cache holds, at most those of the model
    bytes_of_longest: int = 0  # of KV cache, that a sequence of max_model_len, or of the model's limit, needs
    undecided: set[str] = field(default_factory=set)  # paths that need the model's files

    @property
    def num_processes(self) -> int:
        """That compute on this machine."""
        return self.num_replicas * self.num_local_ranks

    @property
    def rank_sizes(self) -> tuple[int, int]:
        """Processes with the parts of a stage, and stages."""
        return int(self.get("parallel.tensor_parallel_size")), self.num_stages

    @property
    def has_parts(self) -> bool:
        """Whether a process has a part of the model."""
        is_divided = self.rank_sizes != (1, 1)
        return is_divided or (self.model_files is not None and self.model_files.spec.num_sharing_experts > 1)

    def context_parts(self, spec: ModelSpec) -> int:
        """Processes that share the tokens of each sequence. spec: the whole model; 1 where they cannot share them."""
        num_devices, num_parts = self.rank_sizes[0], int(self.get("parallel.decode_context_parallel_size"))
        if num_devices % num_parts or not_divisible(spec, num_devices) or not_parted(spec, num_devices, num_parts):
            return 1
        return num_parts

    @property
    def is_behind_another(self) -> bool:
        """Whether the replicas of this machine are behind the API of another."""
        is_behind = self.get("parallel.data_parallel_address") is not None
        return is_behind and bool(self.get("parallel.data_parallel_start_rank"))

    @property
    def gpu(self) -> GpuSpec | None:
        """The GPU, if the deployment runs on one."""
        return self.machine.gpu if self.get("device.device") == "cuda" else None

    @property
    def is_interpreted(self) -> bool:
        return self.gpu is not None and self.gpu.is_interpreted

    @property
    def offload_bytes(self) -> int:
        """Host memory of each replica for KV blocks of its own."""
        return int((self.get("cache.kv_offloading_size") or 0) * 2**30)

    @property
    def stored_shares(self) -> tuple[int, int]:
        """Host memory for blocks that other engines may read, and for others: the share of one process. The first
        process of a replica has all of it, and the others of its machine leave it as much of theirs."""
        return -(-self.transfer_bytes // self.num_local_ranks), -(-self.offload_bytes // self.num_local_ranks)

    @property
    def stores_blocks(self) -> bool:
        """Whether KV blocks are kept outside the KV cache."""
        named = (self.get("cache.kv_directory"), self.get("kv_transfer.kv_connector"))
        return self.offload_bytes > 0 or any(each is not None for each in named)

    @property
    def available_memory_bytes(self) -> int:
        """Bytes free on the device; of the machine if the requested GPU does not exist, which a rule reports."""
        return (self.gpu or self.machine).available_memory_bytes

    def get(self, path: str) -> Any:
        section, _, name = path.partition(".")
        return self.values[section][name]

    def is_written(self, path: str) -> bool:
        """Whether it was set by a preset, a file, the environment or the command line."""
        return self.origins.get(path, DEFAULT).layer not in (Layer.DEFAULT, Layer.MODEL, Layer.RULE)

    def decide(self, path: str, value: Any, name: str, reason: str, layer: Layer = Layer.RULE) -> None:
        section, _, key = path.partition(".")
        self.values[section][key] = value
        self.origins[path] = Origin(layer=layer, name=name, reason=reason)
        self.undecided.discard(path)


def decide(deployment: Deployment, model_files: ModelFiles | None, machine: MachineSpec) -> Decisions:
    """Fill every `auto` that can be filled."""
    config = deployment.config
    sections = (
        "model",
        "load",
        "cache",
        "scheduler",
        "parallel",
        "device",
        "compilation",
        "structured_outputs",
        "kv_transfer",
        "kv_events",
        "observability",
        "server",
    )
    # getattr, not model_dump: secrets and tuples stay as they are
    values = {
        section: {name: getattr(getattr(config, section), name) for name in type(getattr(config, section)).model_fields}
        for section in sections
    }
    for option in options().values():  # relative to the file that wrote them
        if option.path_kind in ("path", "source") and values.get(option.section, {}).get(option.name) is not None:
            values[option.section][option.name] = deployment.located(option.path)
    parallel = config.parallel
    num_replicas, num_local_ranks = len(parallel.ranks), parallel.num_local_ranks
    done = Decisions(
        values=values,
        origins=dict(deployment.origins),
        model_files=model_files,
        whole_machine=machine,
        machine=machine.shared_by(num_replicas * num_local_ranks),
        num_replicas=num_replicas,
        ports=parallel.ports(config.server.port),
        num_on_ray=parallel.data_parallel_size if parallel.are_replicas_on_ray else 0,
        num_ranks=parallel.num_ranks,
        num_local_ranks=num_local_ranks,
        num_stages=parallel.pipeline_parallel_size,
        transfer_bytes=config.kv_transfer.buffer_bytes,
    )
    _numa(done, parallel.process_names)
    _device(done)
    _shared_folder(done, deployment)
    _offloading(done, deployment)
    _executor(done)
    _server(done)
    if model_files is None:
        _scheduler(done)
        if done.get("scheduler.max_num_batched_tokens") == "auto" and done.get("model.max_model_len") != "auto":
            _batched_tokens(done, done.get("model.max_model_len"))
        done.undecided |= {path for path in NEED_MODEL if done.get(path) == "auto"}
        return done
    _files(done, model_files)
    model_files = model_files.of_one_rank(parallel.tensor_parallel_size)
    _preset(done, model_files)
    _precision(done, model_files)
    _states(done, model_files)
    _num_seqs(done, model_files)
    _scheduler(done)
    _memory(done, model_files)
    _context(done, model_files)
    return done


def _numa(done: Decisions, processes: list[str]) -> None:
    """Binds the processes of this machine, if the options ask for it and the machine has what they name."""
    bind, nodes, cpus = (f"device.{name}" for name in ("numa_bind", "numa_bind_nodes", "numa_bind_cpus"))
    named = [path for path in (nodes, cpus) if done.get(path)]
    if named and not done.is_written(bind):
        done.decide(bind, True, "R432", f"{named[0]} says where processes run")
    machine_nodes, counts = done.whole_machine.numa_nodes, {len(done.get(path)) for path in named}
    is_wrong = not counts <= {len(processes)} or any(map(cpus_problem, done.get(cpus)))
    if not done.get(bind) or not machine_nodes or is_wrong:  # rules say what is
        return
    try:
        places = numa_places(machine_nodes, processes, nodes=done.get(nodes), cpus=done.get(cpus))
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
    if done.whole_machine.num_cores < sum(
        len(node.usable_cpus) for node in machine_nodes
    ):  # a limit on the time of CPUs
        cores = min(cores, done.machine.num_cores)
    machine = done.machine.with_at_most(*least_memory(machine_nodes, places))
    done.machine = machine.model_copy(update={"num_cores": cores})


def _device(done: Decisions) -> None:
    machine = done.machine
    if done.get("device.device") == "auto":
        done.decide("device.device", *_best_device(machine))
    device = done.get("device.device")
    if done.get("device.num_threads") == "auto":
        replicas = "this process" if done.num_replicas == 1 else f"each of {done.num_replicas} replicas"
        whose = replicas if done.num_local_ranks == 1 else f"each of {done.num_processes} processes"
        own = " of its NUMA node" if done.numa_places else ""
        done.decide("device.num_threads", machine.num_cores, "R223", f"{machine.num_cores} cores{own} for {whose}")
    if done.get("cache.block_size") == "auto":
        done.decide("cache.block_size", BLOCK_SIZE[device], "R086", f"the block size for {device}")


def _shared_folder(done: Decisions, deployment: Deployment) -> None:
    """A connector's folder is the one for KV blocks."""
    transfer = deployment.config.kv_transfer
    if transfer.is_shared_folder and SHARED_PATH in transfer.kv_connector_extra_config:
        option = "kv_transfer.kv_connector_extra_config"
        done.shared_folder = deployment.absolute(option, transfer.kv_connector_extra_config[SHARED_PATH])
        if done.get("cache.kv_directory") is None:
            done.decide("cache.kv_directory", done.shared_folder, "R400", f"the {SHARED_PATH} of {option}")


def _offloading(done: Decisions, deployment: Deployment) -> None:
    """OffloadingConnector is the long form of `cache.kv_offloading_size`."""
    transfer = deployment.config.kv_transfer
    size = transfer.kv_connector_extra_config.get(HOST_BYTES)
    if transfer.is_offloading and size is not None and done.get("cache.kv_offloading_size") is None:
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


def _server(done: Decisions) -> None:
    if not done.is_written("server.headless"):
        if node := done.get("parallel.node_rank"):
            done.decide("server.headless", True, "R422", f"node {node} has no API")
        elif done.is_behind_another:
            done.decide("server.headless", True, "R422", "the API is on `parallel.data_parallel_address`")
    if done.get("server.log_format") == "auto":
        shape, reason = ("human", "a terminal") if done.machine.has_terminal else ("json", "no terminal")
        done.decide("server.log_format", shape, "R224", f"stderr is {reason}")
    if done.get("server.http_log_level") == "auto":
        done.decide("server.http_log_level", done.get("server.log_level"), "R265", "like log_level")
    if done.get("server.disable_frontend_multiprocessing") and not done.is_written("server.on_engine_death"):
        done.decide("server.on_engine_death", "exit", "R215", "the engine runs in the API process")
    if done.get("server.max_incomplete_header_bytes") == "auto":
        size = INCOMPLETE_HEADER_FACTOR * done.get("server.max_header_bytes")
        done.decide(
            "server.max_incomplete_header_bytes", size, "R266", f"{INCOMPLETE_HEADER_FACTOR} x max_header_bytes"
        )
    if done.get("server.max_total_request_bytes") == "auto":
        size = TOTAL_REQUEST_FACTOR * done.get("server.max_request_bytes")
        done.decide("server.max_total_request_bytes", size, "R290", f"{TOTAL_REQUEST_FACTOR} x max_request_bytes")
    _connections(done)


def _connections(done: Decisions) -> None:
    if done.get("server.max_connections") == "auto":
        number, reason = MAX_CONNECTIONS, "the default"
        possible = done.machine.max_connections
        if possible is not None and possible < number:
            number, reason = max(1, possible), f"this process may open {done.machine.max_open_files} files"
        done.decide("server.max_connections", number, "R292", reason)
    if done.get("server.max_connections_per_client") == "auto":
        share = max(1, int(CLIENT_SHARE * done.get("server.max_connections")))
        done.decide("server.max_connections_per_client", share, "R293", f"{CLIENT_SHARE:.0%} of max_connections")


def _executor(done: Decisions) -> None:
    if done.get("parallel.distributed_executor_backend") == "auto":
        alone = done.num_ranks == 1
        reason = "one process computes the model" if alone else f"{done.num_ranks} processes compute the model together"
        done.decide("parallel.distributed_executor_backend", "uni" if alone else "mp", "R397", reason)


def _scheduler(done: Decisions) -> None:
    device = done.get("device.device")
    if done.get("scheduler.max_num_seqs") == "auto":
        done.decide("scheduler.max_num_seqs", MAX_NUM_SEQS[device], "R102", f"the default for {device}")
    if done.get("scheduler.max_num_batched_tokens") == "auto" and done.get("scheduler.enable_chunked_prefill"):
        _batched_tokens(done, 0)
    _partial_prefills(done)
    if done.get("scheduler.async_scheduling") == "auto":
        reason = "the device computes while the CPU plans" if device == "cuda" else "a CPU computes with all its cores"
        if done.num_stages > 1:
            reason = "the stages of the model compute different steps"
        done.decide("scheduler.async_scheduling", device == "cuda" or done.num_stages > 1, "R123", reason)
    _graphs(done)


def _graphs(done: Decisions) -> None:
    """Sizes written under either name, without those that no step can have; else the usual sizes."""
    path, other = "scheduler.cuda_graph_sizes", "compilation.cudagraph_capture_sizes"
    seqs, sizes = done.get("scheduler.max_num_seqs"), done.get(path)
    reason = no_graphs(done, done.get("device.device"))
    if done.get("compilation.level") == "auto":
        done.decide("compilation.level", 0 if reason else 3, "R189", reason or "graphs are captured")
    if reason:
        done.decide(path, (), "R118", reason)
    elif sizes:
        done.values["scheduler"]["cuda_graph_sizes"] = written_sizes(sizes, seqs)
    elif sizes := done.get(other):
        done.decide(path, tuple(size for size in sorted(set(sizes)) if size <= seqs), "R190", f"as {other} says")
    else:
        done.decide(path, usual_sizes(seqs), "R118", f"the usual sizes up to max_num_seqs, {seqs}")


def no_graphs(done: Decisions, device: str) -> str:
    """Why no graphs are captured on `cpu` or `cuda`; empty if they are. A level that `auto` chose is not a reason."""
    if device != "cuda":
        return "graphs belong to CUDA devices"
    if done.get("model.enforce_eager"):
        return "model.enforce_eager asks for single operations"
    if done.get("model.batch_invariant"):
        return "model.batch_invariant has no graphs on a GPU"
    if done.num_stages > 1:
        return "the stages of a pipeline exchange through the host"
    is_off = done.is_written("compilation.level") and done.get("compilation.level") == 0
    return "compilation.level is 0" if is_off else ""


def _partial_prefills(done: Decisions) -> None:
    """As many partially computed prompts as running sequences, so that only a written limit delays a prompt."""
    partial, long = "scheduler.max_num_partial_prefills", "scheduler.max_long_partial_prefills"
    if done.get(partial) == "auto":
        if done.get("scheduler.enable_chunked_prefill"):
            done.decide(partial, done.get("scheduler.max_num_seqs"), "R112", "as many as scheduler.max_num_seqs")
        else:
            done.decide(partial, 1, "R112", "without chunked prefill none is computed in part")
    if done.get(long) == "auto":
        done.decide(long, done.get(partial), "R113", f"as many as {partial}: short prompts do not overtake long ones")


def _batched_tokens(done: Decisions, longest_prompt: int) -> None:
    """Enough for one token of each sequence and, without chunked prefill, for the longest prompt."""
    device, seqs = done.get("device.device"), done.get("scheduler.max_num_seqs")
    base = MAX_NUM_BATCHED_TOKENS[device]
    if longest_prompt > max(base, seqs):
        tokens, reason = longest_prompt, "without chunked prefill the longest prompt must fit in one step"
    elif seqs > base:
        tokens, reason = seqs, "one token of each of max_num_seqs sequences"
    else:
        tokens, reason = base, f"the default for {device}"
    done.decide("scheduler.max_num_batched_tokens", tokens, "R103", reason)


_DESCRIBED_BY: dict[WeightNames, str] = {
    "hf": "it has a config.json",
    "mistral": "it has a params.json",
    "gguf": "the header of a GGUF file",
}


def _files(done: Decisions, model_files: ModelFiles) -> None:
    """Where files are read from: hub ids become directories."""
    if done.get("model.tokenizer") == "auto":
        own = model_files.tokenizer_path or model_files.model_path
        done.decide("model.tokenizer", own, "R044", "the model's own tokenizer")
    elif model_files.tokenizer_path is not None:
        done.values["model"]["tokenizer"] = model_files.tokenizer_path
    if done.get("model.hf_config_path") == "auto":
        done.decide("model.hf_config_path", model_files.config_path, "R045", "the model's own directory")
    else:
        done.values["model"]["hf_config_path"] = model_files.config_path
    if done.get("model.config_format") == "auto":
        described = model_files.spec.weight_names
        done.decide("model.config_format", described, "R074", _DESCRIBED_BY[described])
    if done.get("model.rope_theta") == "auto" and model_files.rope_theta is not None:
        done.decide(
            "model.rope_theta", model_files.rope_theta, "config.json", "the model's own base", layer=Layer.MODEL
        )
    if done.get("load.load_format") == "auto":
        reason = {
            "safetensors": "the model has safetensors",
            "mistral": "the consolidated files that params.json describes",
            "gguf": "a GGUF file",
            "sharded_state": "written by `engine save-sharded --as-loaded`",
        }.get(model_files.weight_format, "no safetensors, but files of torch, read as data")
        done.decide("load.load_format", model_files.weight_format, "R079", reason)
    fact = model_files.template_fact
    if fact is not None and done.get("server.chat_template") is None:
        name = f"model facts {model_facts().version}"
        done.decide("server.chat_template", fact.template_path, name, f"of {fact.source}", layer=Layer.MODEL)


def _preset(done: Decisions, model_files: ModelFiles) -> None:
    """A preset is for every model: its context is limited by the model's own."""
    path = "model.max_model_len"
    origin, length = done.origins.get(path, DEFAULT), done.get(path)
    if origin.layer is Layer.PRESET and length != "auto" and length > model_files.max_context:
        reason = f"the model's own limit, below the {length} of preset {origin.name}"
        done.decide(path, model_files.max_context, "config.json", reason, layer=Layer.MODEL)


def _precision(done: Decisions, model_files: ModelFiles) -> None:
    if done.get("model.dtype") != "auto":
        return
    stored, is_on_cpu = model_files.checkpoint_dtype, done.get("device.device") == "cpu"
    if stored == "bfloat16" and done.is_interpreted:
        done.decide("model.dtype", "float32", "R051", "a bfloat16 checkpoint; Triton's interpreter has no bfloat16")
    elif stored == "float16" and is_on_cpu and model_files.spec.quantization is not None:
        reason = "quantised weights in a float16 checkpoint; float32, which is exact, needs twice the memory"
        done.decide("model.dtype", "bfloat16", "R051", reason)
    elif stored == "float16" and is_on_cpu:
        done.decide("model.dtype", "float32", "R051", "a float16 checkpoint; CPUs compute float16 in float32 anyway")
    elif stored == "bfloat16" and is_on_cpu and not done.machine.has_bfloat16:
        done.decide(
            "model.dtype", stored, "R051", "the checkpoint's own format; this CPU has no bfloat16 instructions: slow"
        )
    else:
        done.decide("model.dtype", stored, "R051", "the checkpoint's own format")


def _states(done: Decisions, model_files: ModelFiles) -> None:
    if not model_files.spec.has_states or done.get("cache.mamba_ssm_cache_dtype") != "auto":
        return
    if done.get("cache.mamba_cache_dtype") == "auto":
        found = "float32", "R329", "sums of many tokens lose precision in bfloat16"
    else:
        found = done.get("cache.mamba_cache_dtype"), "R329", "as `mamba_cache_dtype`"
    done.decide("cache.mamba_ssm_cache_dtype", *found)


def _one_state(done: Decisions, model_files: ModelFiles) -> int:
    """Bytes of the recurrent states of one sequence, in the stage that has most; 0 if there are none."""
    if not model_files.spec.has_states:
        return 0
    dtype, sums = done.get("model.dtype"), done.get("cache.mamba_ssm_cache_dtype")
    return max(state_bytes(part, dtype, sums) for part in model_files.of_stages(done.num_stages))


def _num_seqs(done: Decisions, model_files: ModelFiles) -> None:
    """Fewer than usual if their recurrent states would take too much memory."""
    device, one_state = done.get("device.device"), _one_state(done, model_files)
    if done.get("scheduler.max_num_seqs") != "auto" or not one_state:
        return
    number = auto_num_seqs(device, one_state, _budget(done) - _weights_bytes(done, model_files))
    if number < MAX_NUM_SEQS[device]:
        states = format_about(number * one_state)
        reason = f"their recurrent states, {states}, take at most 1/{STATES_SHARE} of what the weights leave"
        done.decide("scheduler.max_num_seqs", number, "R102", reason)


def _budget(done: Decisions) -> int:
    """Bytes to use. Of a GPU, a share of the total memory, as far as it is free."""
    share, gpu = done.get("cache.gpu_memory_utilization"), done.gpu
    if gpu is None:
        return int(share * done.available_memory_bytes)
    return min(int(share * gpu.total_memory_bytes), gpu.available_memory_bytes)


def _held_in(done: Decisions) -> str | None:
    is_on_cpu, is_eager = done.get("device.device") == "cpu", done.get("model.enforce_eager")
    keeps_twelve_bits = is_on_cpu and not is_eager and done.machine.keeps_twelve_bits
    return held_in(done.get("model.dtype"), done.get("model.quantization"), keeps_twelve_bits)


def _moving_bytes(done: Decisions, model_files: ModelFiles) -> int:
    return moving_bytes(model_files.spec, done.get("model.dtype"), _held_in(done))


def _weights_bytes(done: Decisions, model_files: ModelFiles) -> int:
    dtype, is_eager, held = done.get("model.dtype"), done.get("model.enforce_eager"), _held_in(done)
    layout = codes_layout(
        done.get("device.device"),
        cpu_keeps_codes=done.machine.keeps_codes,
        is_eager=is_eager,
        is_batch_invariant=done.get("model.batch_invariant"),
    )
    whole, spec = model_files.weights_bytes(dtype, held, layout=layout), model_files.spec
    return whole if not_staged(spec, done.num_stages) else int(whole * largest_share(spec, done.num_stages))


def _weight_offload(done: Decisions, model_files: ModelFiles, weights: int) -> WeightOffload | None:
    if done.get("device.device") == "cpu" or model_files.implementation == "transformers":
        return None
    gibibytes, prefetch = done.get("cache.cpu_offload_gb"), done.get("cache.offload_prefetch_step")
    return weight_offload(model_files.spec, done.get("model.dtype"), weights, gibibytes, prefetch)


def _memory(done: Decisions, model_files: ModelFiles) -> None:
    """Size of the KV cache: written blocks, else written memory, else what the deployment can fill."""
    dtype, block_size = done.get("model.dtype"), done.get("cache.block_size")
    if done.get("cache.kv_cache_dtype") == "auto":
        done.decide("cache.kv_cache_dtype", dtype, "R088", "the model's own format")
    weights, budget = _weights_bytes(done, model_files), _budget(done)
    offload = _weight_offload(done, model_files, weights)
    weights -= 0 if offload is None else offload.saved_bytes
    is_hybrid = not done.get("scheduler.disable_hybrid_kv_cache_manager")
    groups = model_cache_groups(model_files.spec, model_files.max_context, is_hybrid)
    per_token = _bytes_per_token(done, model_files, groups)
    share = done.get("cache.gpu_memory_utilization")
    activations = 0 if done.gpu is None else _activations(done, model_files, dtype)
    seqs, one_state = done.get("scheduler.max_num_seqs"), _one_state(done, model_files)
    interval = done.get("cache.prefix_cache_retention_interval") if done.get("cache.enable_prefix_caching") else 0
    places = num_states(one_state, seqs, interval)
    states = places * one_state
    if done.gpu is not None and done.stores_blocks and not done.is_interpreted:
        activations += staging_bytes(block_size * per_token)
    transfer, kept = (0, 0) if done.gpu is not None else done.stored_shares
    moving = _moving_bytes(done, model_files)
    block_bytes = block_size * per_token // done.context_parts((done.model_files or model_files).spec)
    done.bytes_of_longest = _bytes_of_longest(done, model_files, groups, block_bytes)
    written, blocks = done.get("cache.kv_cache_memory_bytes"), done.get("cache.num_gpu_blocks_override")
    if blocks is not None:
        if written == "auto":
            reason = f"{blocks} blocks, as cache.num_gpu_blocks_override says"
            done.decide("cache.kv_cache_memory_bytes", blocks * block_bytes, "R085", reason)
    elif not block_bytes:
        fits = weights + states + activations + transfer + kept + moving <= budget
        blocks = fits * done.get("scheduler.max_num_seqs") * -(-_longest(done, model_files) // block_size)
        if written == "auto":
            done.decide("cache.kv_cache_memory_bytes", 0, "R221", "no layer keeps anything of each token")
    elif written != "auto":
        blocks = written // block_bytes
    else:
        room = budget - weights - states - activations - transfer - kept - moving
        blocks = _auto_blocks(done, model_files, room, block_bytes, share)
    done.num_kv_blocks = blocks
    pool, limit = blocks * groups.num_groups, max(model_files.max_context, _longest(done, model_files))
    done.max_cached_len = longest_sequence(groups.windows, pool, block_size, _step_tokens(done), limit)
    done.memory = MemoryPlan(
        budget_bytes=budget,
        weights_bytes=weights,
        weight_offload=offload,
        num_states=places,
        state_bytes=states,
        activation_bytes=activations,
        transfer_bytes=transfer,
        kept_bytes=kept,
        moving_bytes=moving,
        kv_bytes_per_token=per_token,
        kv_block_bytes=block_bytes,
        kv_cache_bytes=blocks * block_bytes,
    )
    if done.get("scheduler.max_queued_tokens") == "auto":
        tokens = max(1, QUEUED_PER_KV_TOKEN * blocks * block_size)
        reason = f"{QUEUED_PER_KV_TOKEN} x the {blocks * block_size} tokens that the KV cache holds"
        done.decide("scheduler.max_queued_tokens", tokens, "R222", reason)


def _bytes_per_token(done: Decisions, model_files: ModelFiles, groups: CacheGroups) -> int:
    """Of KV cache, in the stage that has most."""
    spec, num_stages, dtype = model_files.spec, done.num_stages, done.get("cache.kv_cache_dtype")
    own = [groups] if not_staged(spec, num_stages) else [groups.of_layers(part) for part in stages(spec, num_stages)]
    return max(kv_bytes_per_token(spec, dtype, each) for each in own)


def _activations(done: Decisions, model_files: ModelFiles, dtype: str) -> int:
    seqs, tokens = done.get("scheduler.max_num_seqs"), done.get("scheduler.max_num_batched_tokens")
    if tokens == "auto":  # without chunked prefill a step holds the longest prompt
        tokens = max(MAX_NUM_BATCHED_TOKENS["cuda"], _longest(done, model_files))
    if done.is_interpreted:
        return 0
    whole, num_devices = done.model_files or model_files, done.get("parallel.tensor_parallel_size")
    has_graphs = not no_graphs(done, "cuda")
    return reserved_bytes(whole.spec, dtype, seqs, tokens, has_graphs=has_graphs, num_devices=num_devices)


def _longest(done: Decisions, model_files: ModelFiles) -> int:
    """Tokens of the longest sequence."""
    written: int | Literal["auto"] = done.get("model.max_model_len")
    return model_files.max_context if written == "auto" else written


def _step_tokens(done: Decisions) -> int | None:
    """Tokens of the chunks in which prompts are computed; None if they are computed whole."""
    tokens: int = done.get("scheduler.max_num_batched_tokens")
    return tokens if done.get("scheduler.enable_chunked_prefill") else None


def _bytes_of_longest(done: Decisions, model_files: ModelFiles, groups: CacheGroups, block_bytes: int) -> int:
    """Of KV cache, in which all groups of layers have the same number of blocks. block_bytes: of a block of each."""
    block_size, longest = done.get("cache.block_size"), _longest(done, model_files)
    blocks = blocks_of_sequence(groups.windows, longest, block_size, _step_tokens(done))
    return -(-blocks // groups.num_groups) * block_bytes


def _auto_blocks(done: Decisions, model_files: ModelFiles, room: int, block_bytes: int, share: float) -> int:
    if done.gpu is not None and not done.is_interpreted:  # memory that is not used otherwise
        blocks = max(0, room) // block_bytes
        is_short = done.gpu.available_memory_bytes < int(share * done.gpu.total_memory_bytes)
        others = f", as far as it is free ({format_about(done.gpu.available_memory_bytes)})," * is_short
        reason = f"what cache.gpu_memory_utilization ({share:g}){others} leaves beside weights and activations"
        done.decide("cache.kv_cache_memory_bytes", blocks * block_bytes, "R221", reason)
        return blocks
    seqs, one = done.get("scheduler.max_num_seqs"), done.bytes_of_longest
    written_len, longest = done.get("model.max_model_len"), _longest(done, model_files)
    ceiling = MAX_AUTO_KV_BYTES if written_len == "auto" else max(MAX_AUTO_KV_BYTES, one)
    beside = "weights and states" if model_files.spec.has_states else "the weights"
    wanted, reason = min(
        (seqs * one, f"{seqs} sequences of {longest} tokens each"),
        (ceiling, f"the maximum for auto is {format_about(ceiling)}"),
        (room, f"what cache.gpu_memory_utilization ({share:g}) leaves beside {beside}"),
        key=lambda choice: choice[0],
    )
    blocks = max(0, int(wanted) // block_bytes)
    done.decide("cache.kv_cache_memory_bytes", blocks * block_bytes, "R221", reason)
    return blocks


def _context(done: Decisions, model_files: ModelFiles) -> None:
    held = done.max_cached_len
    if done.get("model.max_model_len") == "auto":
        if held < model_files.max_context:
            reason = f"what the KV cache holds; the model itself supports {model_files.max_context}"
            done.decide("model.max_model_len", held, "R003", reason)
        else:
            done.decide(
                "model.max_model_len",
                model_files.max_context,
                "config.json",
                "the model's own limit",
                layer=Layer.MODEL,
            )
    if done.get("scheduler.max_num_batched_tokens") == "auto":
        _batched_tokens(done, done.get("model.max_model_len"))
    if done.get("scheduler.long_prefill_token_threshold") == "auto":
        tokens = max(1, int(LONG_PROMPT_SHARE * done.get("model.max_model_len")))
        reason = f"{LONG_PROMPT_SHARE:.0%} of model.max_model_len"
        done.decide("scheduler.long_prefill_token_threshold", tokens, "R115", reason)
