"""Section `parallel`: one model on several devices, several replicas of one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from .refused import with_refused
from .section import Section, about
from .topology import Topology
from .types import Count, Flag, Text, Whole

# Of a shared step, for each of the processes that share it: with fewer, each would read all weights for a part that is
# hardly faster than the whole.
MIN_TOKENS_EACH = 32
_EXPERT_BALANCE = {  # JSON Schema of `eplb_config`
    "type": "object",
    "properties": {
        "window_size": {"type": "integer", "minimum": 1},
        "step_interval": {"type": "integer", "minimum": 1},
        "num_redundant_experts": {"type": "integer", "minimum": 0},
        "log_balancedness": {"type": "boolean"},
    },
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class ExpertBalance:
    """The values of `eplb_config`."""

    window_size: int = 1000
    step_interval: int = 3000
    num_redundant_experts: int = 0
    log_balancedness: bool = False


@with_refused("parallel")
class ParallelConfig(Section):
    """How a model is distributed over devices, and how many replicas of it serve."""

    max_parallel_loading_workers: Count | None = Field(
        None,
        description=(
            "Number of parts of the weights that are read at the same time. Unset, one after the other. More is faster "
            "on fast disks and network file systems, and holds that many parts in memory in addition to the model."
        ),
        examples=[4],
        json_schema_extra=about(unit="parts"),
    )
    tensor_parallel_size: Count = Field(
        1,
        description=(
            "Number of processes that compute the model together, each with a part of every weight matrix and of the "
            "KV cache. With `device: cuda` each has a GPU of this machine, the next one of CUDA_VISIBLE_DEVICES; this "
            "has not run on several GPUs yet. On CPUs they share the cores and the memory of the machine: of use with "
            "several sockets, whose cores read the memory of another socket slowly."
        ),
        examples=[2],
        json_schema_extra=about(unit="processes", aliases=("-tp",)),
    )
    pipeline_parallel_size: Count = Field(
        1,
        description=(
            "Number of stages, each with consecutive layers, their weights and their KV cache, and with the "
            "processes of `tensor_parallel_size` each. While one stage computes a step, the others compute the steps "
            "before it, of other requests: of use with several requests at a time, and no faster for one. With "
            "`device: cuda` each process has a GPU of this machine; stages exchange through the host there, and their "
            "steps are not captured, so that `tensor_parallel_size` is the first choice."
        ),
        examples=[2],
        json_schema_extra=about(unit="stages", aliases=("-pp",)),
    )
    prefill_context_parallel_size: Count = Field(
        1,
        description=(
            "Number of processes, or of groups of `tensor_parallel_size` processes, that share the tokens of each "
            "step with a long prompt. Each has all weights, or those of its group, and all of the KV cache, and gets "
            "in each layer the keys and values of the tokens that the others compute: with few key-value heads a "
            "fraction of what `tensor_parallel_size` exchanges. Steps of at least 32 tokens for each are shared. "
            "Prompts are computed faster over a network, single tokens as fast as without."
        ),
        examples=[2],
        json_schema_extra=about(unit="groups", devices=("cpu",), aliases=("-pcp",)),
    )
    decode_context_parallel_size: Count = Field(
        1,
        description=(
            "Number of processes of `tensor_parallel_size` that share the KV cache of each sequence: each keeps every "
            "n-th of its tokens, and so n times as many fit. It divides the number of processes that otherwise hold "
            "the same keys and values: those above the number of key-value heads, and all of them with latent "
            "attention. In each layer they exchange queries and results of attention."
        ),
        examples=[2],
        json_schema_extra=about(unit="processes", devices=("cpu",), aliases=("-dcp",)),
    )
    cp_kv_cache_interleave_size: Count = Field(
        1,
        description=(
            "Number of consecutive tokens that one process keeps, with `decode_context_parallel_size`, before the "
            "next one keeps as many. Both together divide `cache.block_size`."
        ),
        examples=[4],
        json_schema_extra=about(unit="tokens", devices=("cpu",)),
    )
    enable_dbo: Flag = Field(
        False,
        description=(
            "Whether a step with many tokens is computed in two parts, in turns: while the results of one are "
            "exchanged with the other processes, the other is computed. For the processes of `tensor_parallel_size` "
            "that exchange over a network (`nnodes`, or Ray), and those of `prefill_context_parallel_size`. Each part "
            "reads all weights: prompts gain as much as their exchange takes, single tokens lose unless the network is "
            "slow."
        ),
        json_schema_extra=about(devices=("cpu",)),
    )
    ubatch_size: Whole = Field(
        0,
        ge=0,
        le=8,
        description=(
            "Number of those parts. 0: two with `enable_dbo`, else one. More of them hide a longer exchange, and each "
            "reads all weights."
        ),
        examples=[3],
        json_schema_extra=about(unit="parts", devices=("cpu",)),
    )
    dbo_prefill_token_threshold: Count = Field(
        512,
        description="Number of tokens from which a step with a part of a prompt is divided.",
        examples=[256],
        json_schema_extra=about(unit="tokens", devices=("cpu",)),
    )
    dbo_decode_token_threshold: Count = Field(
        256,
        description=(
            "Number of sequences from which a step with one token of each is divided. With 32 of them parts are slower "
            "than whole steps, where the network has 1 Gbit/s."
        ),
        examples=[128],
        json_schema_extra=about(unit="tokens", devices=("cpu",)),
    )
    enable_expert_parallel: Flag = Field(
        False,
        description=(
            "Whether the processes of `tensor_parallel_size` have whole experts of a mixture, each some of them, "
            "instead of a part of every one. An expert then need not be divisible, and its matrices stay wide; how "
            "evenly the processes have work depends on which experts the tokens choose. With `data_parallel_size`, and "
            "one process in each replica, the replicas share the experts, each with attention and KV cache of its own: "
            "each needs less memory, and they compute their steps together."
        ),
        json_schema_extra=about(aliases=("-ep",)),
    )
    expert_placement_strategy: Literal["linear", "round_robin"] = Field(
        "linear",
        description=(
            "Which experts a process has with `enable_expert_parallel`: consecutive ones, or every n-th of n "
            "processes. The second spreads groups of experts of which a token uses few."
        ),
        examples=["round_robin"],
    )
    enable_eplb: Flag = Field(
        False,
        description=(
            "Whether experts move between the processes while these serve, so that each process has about as many "
            "tokens for its experts as the others: a step takes as long as the slowest. Needs "
            "`enable_expert_parallel`. Moves take time of the steps between which they happen, at most one expert more "
            "than 32 MiB each. For CPUs."
        ),
        json_schema_extra=about(devices=("cpu",)),
    )
    eplb_config: dict[str, Any] = Field(
        {},
        description=(
            "How `enable_eplb` measures and balances. Before every `step_interval`-th step (3000) experts are placed "
            "by their tokens in the `window_size` steps before (1000). `num_redundant_experts` (0) more copies, of "
            "the experts with most tokens, share these; each takes the memory of an expert in every layer. "
            "`log_balancedness` (false) logs at each interval the mean load of the processes divided by the largest: "
            "1 is even."
        ),
        examples=[{"window_size": 1000, "step_interval": 3000, "num_redundant_experts": 2}],
        json_schema_extra=about(devices=("cpu",), json_schema=_EXPERT_BALANCE),
    )
    nnodes: Count = Field(
        1,
        description=(
            "Number of machines that compute one replica. The processes of `tensor_parallel_size` times "
            "`pipeline_parallel_size` are divided evenly among them, in order. The same deployment is started on each "
            "machine, with another `node_rank`. The first one has the API; the network between them must be private."
        ),
        examples=[2],
        json_schema_extra=about(reload="process", unit="nodes", devices=("cpu",), aliases=("-n",)),
    )
    node_rank: Whole = Field(
        0,
        ge=0,
        description=(
            "Number of this machine, from 0. All machines but 0 are headless: they compute, and answer nothing but "
            "/health, /livez and /readyz on `server.port`."
        ),
        examples=[1],
        json_schema_extra=about(reload="process", devices=("cpu",), aliases=("-r",)),
    )
    master_addr: Text = Field(
        "127.0.0.1",
        description=(
            "Name or IP address of node 0, which listens on it, and on no other address; the other nodes connect to it."
        ),
        examples=["10.0.0.1"],
        json_schema_extra=about(reload="process", devices=("cpu",)),
    )
    master_port: Whole = Field(
        29501,
        ge=1,
        le=65535,
        description=(
            "Port of node 0 for the processes of other nodes. Must not be reachable by others: prompts cross it "
            "unencrypted."
        ),
        examples=[29600],
        json_schema_extra=about(reload="process", devices=("cpu",)),
    )
    distributed_executor_backend: Literal["auto", "uni", "mp", "ray", "external_launcher"] = Field(
        "auto",
        description=(
            "Who computes a replica: `uni`, the engine process alone; `mp`, it and child processes on this machine, or "
            "on those of `nnodes`, `tensor_parallel_size` times `pipeline_parallel_size` together; `ray`, it and "
            "actors on the machines of a Ray cluster; `external_launcher`, for `stoker.LLM` alone (package "
            "`stoker-launcher`), the processes of a "
            "script that `torchrun` or another launcher has started once for each of them. `auto` is `uni` or `mp`, as "
            "these sizes say; `uni` refuses several."
        ),
        examples=["mp"],
    )
    cpu_distributed_timeout_seconds: Count | None = Field(
        None,
        ge=2,
        le=86400,
        description=(
            "Seconds without a sign of life after which a process or a replica of another machine is given up, and an "
            "engine with it. Unset, 5; the processes of `external_launcher` have 60. While a process loads it has 60 "
            "at least. Higher endures interruptions of the network; lower notices the loss of a machine "
            "earlier. It is also the limit of each exchange through Gloo, 600 if unset, which must be enough for "
            "kernels that one of the processes compiles."
        ),
        examples=[20],
        json_schema_extra=about(reload="process", unit="seconds"),
    )
    worker_cls: Text = Field(
        "auto",
        description=(
            "Import path of a subclass of `stoker.engine.worker:Worker` that is used in its place in each process of "
            "the model, `package.module:Class` or with a dot. `LLM.collective_rpc` calls its methods. It adds methods "
            "as `worker_extension_cls` does, and computes no steps. For `stoker.LLM` alone, on CPUs. `auto` for none."
        ),
        examples=["mypackage.workers:OwnWorker"],
        json_schema_extra=about(reload="process", devices=("cpu",)),
    )
    worker_extension_cls: str = Field(
        "",
        description=(
            "Import path of a class whose methods `LLM.collective_rpc` calls in each process of the model, "
            "`package.module:Class` or with a dot: to read its weights, or to replace them while it runs. Its objects "
            "have `rank`, `world_size` and `model`. For `stoker.LLM` alone, on CPUs. Empty for none."
        ),
        examples=["mypackage.updates:WeightUpdates"],
        json_schema_extra=about(reload="process", devices=("cpu",)),
    )
    ray_workers_use_nsight: Flag = Field(
        False,
        description=(
            "Run the processes that actors of `distributed_executor_backend: ray` start under Nsight Systems: it "
            "samples their CPUs, traces calls of the system, and writes a report when they end. `nsys` must be in the "
            "PATH of Ray on each machine. The first process of the model is no actor, and has no report."
        ),
        json_schema_extra=about(reload="process", devices=("cpu",)),
    )
    disable_custom_all_reduce: Flag = Field(
        False,
        description=(
            "Whether the processes of `tensor_parallel_size` exchange through Gloo, of torch.distributed, instead of "
            "shared memory. Slower, and for comparison: a decode step is then not captured. GPUs exchange through "
            "NCCL, and it has no effect."
        ),
    )
    data_parallel_size: Count = Field(
        1,
        description=(
            "Number of replicas of the model, each an engine process with its own weights and its own KV cache. "
            "The server sends each request to one of them, by their load and by what they have cached. On a CPU they "
            "share its cores and memory; with GPUs each has the next ones of CUDA_VISIBLE_DEVICES. More replicas serve "
            "more requests at a time, and make none of them faster."
        ),
        examples=[2],
        json_schema_extra=about(unit="replicas", aliases=("-dp",)),
    )
    data_parallel_backend: Literal["mp", "ray"] = Field(
        "mp",
        description=(
            "What starts the replicas: `mp`, this command, on its machine; `ray`, a Ray cluster, as actors on its "
            "machines, each with the CPUs and the memory of a replica reserved. The cluster is that of RAY_ADDRESS or "
            "of `ray start` on this machine, else Ray is started here. The API stays in this command."
        ),
        examples=["ray"],
        json_schema_extra=about(reload="process", devices=("cpu",), aliases=("-dpb",)),
    )
    data_parallel_size_local: Count | None = Field(
        None,
        description=(
            "Number of those replicas that run on this machine. Unset, all of them. Less is possible with "
            "`data_parallel_address`, and with `data_parallel_hybrid_lb`, where other servers run the others. With "
            "`data_parallel_backend: ray` the number that share a machine: `device.num_threads` and the size of the KV "
            "cache are decided for this many on a machine like this one."
        ),
        examples=[2],
        json_schema_extra=about(unit="replicas", aliases=("-dpl",)),
    )
    data_parallel_rank: Whole | None = Field(
        None,
        description=(
            "Rank of the one replica that this server runs, from 0; a load balancer outside distributes requests over "
            "the servers. The rank is the label `engine` of its metrics."
        ),
        examples=[1],
        json_schema_extra=about(reload="process", aliases=("-dpn",)),
    )
    data_parallel_start_rank: Whole | None = Field(
        None,
        description=(
            "Rank of the first replica of this machine, with `data_parallel_hybrid_lb`, or on another node than the "
            "first with `data_parallel_address`."
        ),
        examples=[2],
        json_schema_extra=about(reload="process", aliases=("-dpr",)),
    )
    data_parallel_address: Text | None = Field(
        None,
        description=(
            "Name or IP address of the machine with the API, where one server has replicas on several machines. It "
            "runs the first `data_parallel_size_local` of them; the same deployment is started on each other machine "
            "with `server.headless: true` and a `data_parallel_start_rank`."
        ),
        examples=["10.0.0.1"],
        json_schema_extra=about(reload="process", aliases=("-dpa",)),
    )
    data_parallel_rpc_port: Whole = Field(
        13345,
        ge=1,
        le=65535,
        description=(
            "Port of `data_parallel_address` for the replicas of other machines. Must not be reachable by others: "
            "prompts cross it unencrypted."
        ),
        examples=[13345],
        json_schema_extra=about(reload="process", aliases=("-dpp",)),
    )
    data_parallel_hybrid_lb: Flag = Field(
        False,
        description=(
            "Whether this server runs some of the replicas and distributes requests over these, while a load balancer "
            "outside distributes them over the servers: one on each machine."
        ),
        json_schema_extra=about(reload="process", aliases=("-dph",)),
    )
    data_parallel_external_lb: Flag = Field(
        False,
        description=(
            "Whether each server runs one replica, with a load balancer outside. `data_parallel_rank`, which it needs, "
            "says the same."
        ),
        json_schema_extra=about(reload="process", aliases=("-dpe",)),
    )

    @property
    def expert_balance(self) -> ExpertBalance:
        return ExpertBalance(**self.eplb_config)

    @property
    def num_step_parts(self) -> int:
        """Parts of a step that are computed in turns; 1 if it is computed whole."""
        return self.ubatch_size or 1 + self.enable_dbo

    @property
    def has_own_worker(self) -> bool:
        """Whether calls of `LLM.collective_rpc` can change the weights."""
        return self.worker_cls != "auto" or bool(self.worker_extension_cls)

    @property
    def topology(self) -> Topology:
        """The places of all processes, as these options say."""
        size = self.data_parallel_size
        num_local = self.data_parallel_size_local or size
        first, rank = self.data_parallel_start_rank or 0, self.data_parallel_rank
        on_ray, address = self.data_parallel_backend == "ray" and size > 1, self.data_parallel_address
        remote = range(size) if on_ray else range(num_local, size) if address is not None and not first else range(0)
        group_size = self.tensor_parallel_size
        num_ranks = group_size * self.pipeline_parallel_size * self.prefill_context_parallel_size
        backend = self.distributed_executor_backend
        return Topology(
            backend=("uni" if num_ranks == 1 else "mp") if backend == "auto" else backend,
            group_size=group_size,
            num_stages=self.pipeline_parallel_size,
            num_prompt_groups=self.prefill_context_parallel_size,
            num_context_parts=self.decode_context_parallel_size,
            num_nodes=self.nnodes,
            node=self.node_rank,
            num_sharing_experts=size if self.enable_expert_parallel and group_size == 1 else 1,
            replicas=range(first, first + num_local) if rank is None else range(rank, rank + 1),
            remote_replicas=remote,
            are_replicas_on_ray=on_ray,
            is_behind_another=address is not None and first > 0,
            leader=(self.master_addr, self.master_port),
            api=None if address is None else (address, self.data_parallel_rpc_port),
        )
