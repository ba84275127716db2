"""What does not go with what: one symmetric table of features, from which rules, their messages and a guide follow.

A pair is declared once, with its reason. tools/reference.py writes docs/guide/what-goes-with-what.md from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..draft_files import READING_METHODS
from ..rule import Rule
from ..values import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """
    Attributes:
        title: a plural noun phrase.
        options: paths of those that turn it on, its own first.
        is_on: whether a deployment has it.
        named: how a message names it, as a template of Rule; empty for its first option.
        off: what to do to be without it, also a template; empty for removing what is named.
    """

    title: str
    options: tuple[str, ...]
    is_on: Callable[[Values], bool]
    named: str = ""
    off: str = ""

    @property
    def shown(self) -> str:
        return self.named or f"`{self.options[0]}`"

    @property
    def without(self) -> str:
        return self.off or f"remove {self.shown}"


_BACKEND, _REPLICA_BACKEND = "parallel.distributed_executor_backend", "parallel.data_parallel_backend"
_SIZE, _TENSOR, _STAGES = (f"parallel.{name}_parallel_size" for name in ("data", "tensor", "pipeline"))
_PROMPTS = "parallel.prefill_context_parallel_size"

GPUS = Feature(
    title="GPUs",
    options=("device.device",),
    is_on=lambda v: v.device.device == "cuda",
    named="`device.device: cuda`",
    off="use `device: cpu`",
)
SEVERAL_GPUS = Feature(
    title="models on several GPUs",
    options=("device.device", _TENSOR, _STAGES),
    is_on=lambda v: v.device.device == "cuda" and v.topology.num_ranks > 1,
    named="several GPUs for a model",
    off="use one GPU for each replica",
)
MACHINES = Feature(
    title="models on several machines",
    options=("parallel.nnodes", _BACKEND),
    is_on=lambda v: v.topology.spans_machines,
    named="`parallel.nnodes`, `distributed_executor_backend: ray` and `external_launcher`",
)
NODES = Feature(title="nodes", options=("parallel.nnodes",), is_on=lambda v: v.topology.num_nodes > 1)
RAY = Feature(
    title="actors of Ray", options=(_BACKEND,), is_on=lambda v: v.topology.backend == "ray", named=f"`{_BACKEND}: ray`"
)
LAUNCHED = Feature(
    title="launchers",
    options=(_BACKEND,),
    is_on=lambda v: v.topology.is_launched,
    named=f"`{_BACKEND}: external_launcher`",
)
LAUNCHED_RANKS = Feature(
    title="several processes of a launcher",
    options=(_BACKEND, _TENSOR, _STAGES),
    is_on=lambda v: v.topology.is_launched and v.topology.num_ranks > 1,
    named=f"`{_BACKEND}: external_launcher`",
)
REPLICAS = Feature(title="replicas", options=(_SIZE,), is_on=lambda v: v.parallel.data_parallel_size > 1)
ENGINES = Feature(title="several replicas of a server", options=(_SIZE,), is_on=lambda v: v.topology.num_served > 1)
ON_RAY = Feature(
    title="replicas that Ray places",
    options=(_REPLICA_BACKEND, _SIZE),
    is_on=lambda v: v.topology.are_replicas_on_ray,
    named=f"`{_REPLICA_BACKEND}: ray`",
)
REMOTE = Feature(
    title="replicas of other machines",
    options=("parallel.data_parallel_address", _REPLICA_BACKEND),
    is_on=lambda v: bool(v.topology.remote_replicas),
    named="replicas of other machines",
    off="write `data_parallel_hybrid_lb` instead: a server on each machine",
)
ELSEWHERE = Feature(
    title="replicas of several servers or machines",
    options=(
        "parallel.data_parallel_rank",
        "parallel.data_parallel_hybrid_lb",
        "parallel.data_parallel_address",
        _REPLICA_BACKEND,
    ),
    is_on=lambda v: v.topology.num_replicas < v.parallel.data_parallel_size or bool(v.topology.remote_replicas),
    named="replicas of other servers or machines",
    off="run all replicas here, without `data_parallel_rank`, `data_parallel_hybrid_lb`, `data_parallel_address` and "
    "`data_parallel_backend: ray`",
)
RANKS = Feature(
    title="several processes of a replica",
    options=(_STAGES, _PROMPTS),
    is_on=lambda v: v.topology.num_ranks > 1,
    named="`pipeline_parallel_size` and `prefill_context_parallel_size`",
)
STAGES = Feature(title="stages of a pipeline", options=(_STAGES,), is_on=lambda v: v.topology.num_stages > 1)
PROMPTS = Feature(title="shared prompts", options=(_PROMPTS,), is_on=lambda v: v.topology.num_prompt_groups > 1)
CONTEXTS = Feature(
    title="shared contexts",
    options=("parallel.decode_context_parallel_size",),
    is_on=lambda v: v.topology.num_context_parts > 1,
)
SHARED_EXPERTS = Feature(
    title="replicas that share experts",
    options=("parallel.enable_expert_parallel", _SIZE),
    is_on=lambda v: v.shares_experts,
    named="`parallel.enable_expert_parallel` with `data_parallel_size`",
    off="remove `enable_expert_parallel`: each replica has all experts",
)
MOVING_EXPERTS = Feature(
    title="experts that move", options=("parallel.enable_eplb",), is_on=lambda v: v.parallel.enable_eplb
)
GLOO = Feature(
    title="exchanges through Gloo",
    options=("model.enforce_eager", "parallel.disable_custom_all_reduce"),
    is_on=lambda v: v.model.enforce_eager or v.parallel.disable_custom_all_reduce,
    named="`model.enforce_eager` and `parallel.disable_custom_all_reduce`",
)
GLOO_SUMS = Feature(
    title="sums of more than two processes over a network",
    options=(_TENSOR, "parallel.disable_custom_all_reduce"),
    is_on=lambda v: v.exchanges_over_gloo and v.topology.group_size > 2,
    named=f"an exchange of more than two processes of `{_TENSOR}` over a network",
    off="set `tensor_parallel_size: 2`, or have the processes on one machine, without `disable_custom_all_reduce` and "
    "`enforce_eager`",
)
INVARIANT = Feature(
    title="results that do not depend on the batch",
    options=("model.batch_invariant",),
    is_on=lambda v: v.model.batch_invariant,
)
WORKERS = Feature(
    title="workers of your own",
    options=("parallel.worker_cls", "parallel.worker_extension_cls"),
    is_on=lambda v: v.parallel.has_own_worker,
    named="`parallel.worker_cls` and `worker_extension_cls`",
)
STORES = Feature(
    title="stored KV blocks",
    options=("cache.kv_directory", "kv_transfer.kv_connector", "cache.kv_offloading_size"),
    is_on=lambda v: bool(v.block_stores),
    named="{block_stores}",
)
BETWEEN_ENGINES = Feature(
    title="KV blocks for other engines",
    options=("kv_transfer.kv_connector",),
    is_on=lambda v: v.kv_transfer.is_between_engines,
    named="`kv_transfer.kv_connector: {kv_connector}`",
)
SLEEP = Feature(title="sleep mode", options=("model.enable_sleep_mode",), is_on=lambda v: v.model.enable_sleep_mode)
IN_PROCESS = Feature(
    title="engines in the API process",
    options=("server.disable_frontend_multiprocessing",),
    is_on=lambda v: v.server.disable_frontend_multiprocessing,
)
API_SERVERS = Feature(
    title="several API processes", options=("server.api_server_count",), is_on=lambda v: v.server.api_server_count > 1
)

DRAFTS = Feature(
    title="drafts",
    options=("speculative.method",),
    is_on=lambda v: v.speculative.method is not None,
    named="`speculative.method: {method}`",
)
READING_LAYERS = Feature(
    title="drafts from inputs of layers",
    options=("speculative.method",),
    is_on=lambda v: v.speculative.method in READING_METHODS,
    named="`speculative.method: {method}`",
)
PROCESSORS_OF_RANKS = Feature(
    title="logits processors of several processes",
    options=("model.logits_processors", _TENSOR, _STAGES),
    is_on=lambda v: v.topology.num_ranks > 1 and bool(v.model.logits_processors),
    named="`model.logits_processors` with several processes",
)


ADAPTERS = Feature(title="adapters", options=("lora.enable_lora",), is_on=lambda v: v.lora.enable_lora)
ADAPTER_ROUTES = Feature(
    title="adapters that are loaded while serving",
    options=("server.enable_lora_routes",),
    is_on=lambda v: v.server.enable_lora_routes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Two features that no deployment has together. `rule` is the number of the rule; a rule may have several pairs."""

    rule: str
    one: Feature
    other: Feature
    why: str


EXCLUSIONS = (
    Exclusion(rule="R373", one=ENGINES, other=IN_PROCESS, why="Each replica is a separate process."),
    Exclusion(
        rule="R412",
        one=REMOTE,
        other=API_SERVERS,
        why="Several API processes connect to engines through files of one machine.",
    ),
    Exclusion(rule="R423", one=NODES, other=REPLICAS, why="Node 0 accepts the processes of one replica."),
    Exclusion(
        rule="R426", one=NODES, other=RAY, why="Ray chooses the machines of its actors, in the cluster of RAY_ADDRESS."
    ),
    Exclusion(
        rule="R430",
        one=MACHINES,
        other=GPUS,
        why="Between machines the processes of a model exchange through Gloo, which reads the memory of the host.",
    ),
    Exclusion(
        rule="R441",
        one=LAUNCHED,
        other=REPLICAS,
        why="All processes of a launcher run the same script with the same prompts.",
    ),
    Exclusion(
        rule="R448",
        one=WORKERS,
        other=STORES,
        why="A worker can replace weights, and stored KV blocks would be read that were computed with those before.",
    ),
    Exclusion(
        rule="R449",
        one=WORKERS,
        other=GPUS,
        why="Weights are not replaced in the memory of a GPU, nor in the steps that are captured there.",
    ),
    Exclusion(
        rule="R461",
        one=MOVING_EXPERTS,
        other=GPUS,
        why="A GPU has all experts of a layer in one tensor, and captured graphs do not read where a token goes from a "
        "table.",
    ),
    Exclusion(
        rule="R462",
        one=MOVING_EXPERTS,
        other=INVARIANT,
        why="Which process computes an expert depends on the load, and with it the order in which the outputs of "
        "experts are added.",
    ),
    Exclusion(
        rule="R464",
        one=MOVING_EXPERTS,
        other=WORKERS,
        why="A worker replaces weights of the experts that its process has, while others may be on their way to it.",
    ),
    Exclusion(
        rule="R471",
        one=ON_RAY,
        other=GPUS,
        why="GPUs and their memory are read on the machine with the API, and Ray could choose a machine with others.",
    ),
    Exclusion(
        rule="R472",
        one=ON_RAY,
        other=RAY,
        why="All processes of a replica are in its actor, with the CPUs that are reserved for it; further actors would "
        "wait for more.",
    ),
    Exclusion(
        rule="R473",
        one=ON_RAY,
        other=BETWEEN_ENGINES,
        why="Other engines read blocks at `kv_transfer.kv_ip`, which is an address of one machine, and Ray chooses the "
        "machines of replicas.",
    ),
    Exclusion(
        rule="R481",
        one=CONTEXTS,
        other=GPUS,
        why="The attention kernels of GPUs return no totals of their weights, with which results over parts of a "
        "context are added.",
    ),
    Exclusion(
        rule="R484",
        one=SHARED_EXPERTS,
        other=GPUS,
        why="Captured graphs of a GPU have a fixed number of tokens, and those of other replicas are as many as these "
        "have at the time.",
    ),
    Exclusion(
        rule="R485",
        one=SHARED_EXPERTS,
        other=RANKS,
        why="The process that samples for a replica also exchanges tokens with the other replicas; no other process of "
        "a replica has a part in that.",
    ),
    Exclusion(
        rule="R486",
        one=SHARED_EXPERTS,
        other=ELSEWHERE,
        why="Replicas share experts through memory, and one server starts all of them again when one has ended.",
    ),
    Exclusion(
        rule="R487",
        one=SHARED_EXPERTS,
        other=GLOO,
        why="Tokens of other replicas come through shared memory, which the kernels in C++ read; not through Gloo.",
    ),
    Exclusion(
        rule="R489",
        one=SHARED_EXPERTS,
        other=SLEEP,
        why="A replica falls asleep by itself, and the others need its experts.",
    ),
    Exclusion(
        rule="R492",
        one=GLOO_SUMS,
        other=INVARIANT,
        why="Gloo adds what more than two processes have computed in an order that depends on the place of the token "
        "in the batch.",
    ),
    Exclusion(
        rule="R493",
        one=PROMPTS,
        other=GPUS,
        why="A step of a GPU is one captured graph, which exchanges nothing in a layer.",
    ),
    Exclusion(
        rule="R493", one=PROMPTS, other=STAGES, why="Each process computes some tokens of a step through all layers."
    ),
    Exclusion(
        rule="R493", one=PROMPTS, other=CONTEXTS, why="Each process has the keys and values of all tokens after a step."
    ),
    Exclusion(
        rule="R493",
        one=PROMPTS,
        other=MOVING_EXPERTS,
        why="Experts move between processes that compute the same tokens.",
    ),
    Exclusion(rule="R493", one=PROMPTS, other=LAUNCHED, why="The processes of a launcher are one group."),
    Exclusion(
        rule="R504",
        one=STORES,
        other=SEVERAL_GPUS,
        why="Several GPUs have parts of a block, which no process puts together.",
    ),
    Exclusion(rule="R504", one=STORES, other=STAGES, why="A block is complete when the last stage has computed it."),
    Exclusion(rule="R504", one=STORES, other=CONTEXTS, why="Each process has other tokens of a block."),
    Exclusion(
        rule="R504",
        one=STORES,
        other=LAUNCHED_RANKS,
        why="Each of these plans the same steps, and their stores would differ.",
    ),
    Exclusion(
        rule="R515",
        one=DRAFTS,
        other=GPUS,
        why="A step of a GPU samples one token for each sequence, in a captured graph.",
    ),
    Exclusion(
        rule="R515",
        one=DRAFTS,
        other=LAUNCHED_RANKS,
        why="Each of these plans the same steps, and how much is drafted depends on measured times.",
    ),
    Exclusion(
        rule="R515", one=DRAFTS, other=SHARED_EXPERTS, why="Steps of several replicas have tokens of all of them."
    ),
    Exclusion(rule="R515", one=DRAFTS, other=PROMPTS, why="Several processes compute parts of a row."),
    Exclusion(rule="R515", one=DRAFTS, other=CONTEXTS, why="Several processes have parts of what a row reads."),
    Exclusion(
        rule="R515",
        one=DRAFTS,
        other=PROCESSORS_OF_RANKS,
        why="A processor may keep something of each token, so that the others cannot know how many are sampled.",
    ),
    Exclusion(
        rule="R520",
        one=READING_LAYERS,
        other=STAGES,
        why="The process that samples has the network, and most of the layers whose inputs it reads are in other "
        "stages.",
    ),
    Exclusion(
        rule="R531",
        one=ADAPTERS,
        other=GPUS,
        why="The captured steps of a GPU add nothing to the products of linear layers.",
    ),
    Exclusion(
        rule="R532",
        one=ADAPTER_ROUTES,
        other=API_SERVERS,
        why="Each API process knows the adapters that it has loaded, and the next request may reach another one.",
    ),
)


def _rule(id: str) -> Rule:
    """The rule with this number: a feature, and those that do not go with it."""
    pairs = [pair for pair in EXCLUSIONS if pair.rule == id]
    one, others = pairs[0].one, [pair.other for pair in pairs]
    listed = " and ".join(filter(None, [", ".join(other.title for other in others[:-1]), others[-1].title]))

    def found(v: Values) -> list[Feature]:
        return [other for other in others if other.is_on(v)]

    def those(v: Values) -> dict[str, Any]:
        return {"others": " and ".join(other.shown for other in found(v))}

    is_one = len(others) == 1
    return Rule(
        id=id,
        title=f"{one.title} do not go with {listed}",
        fields=tuple(dict.fromkeys(path for feature in (one, *others) for path in feature.options)),
        is_broken=lambda v: one.is_on(v) and bool(found(v)),
        message=f"{one.shown} cannot be used with {others[0].shown if is_one else '{others}'}",
        why=" ".join(pair.why for pair in pairs),
        fixes=(others[0].without if is_one else "remove {others}", f"or {one.without}"),
        said=None if is_one else those,
    )


RULES: tuple[Rule, ...] = tuple(map(_rule, dict.fromkeys(pair.rule for pair in EXCLUSIONS)))
FEATURES = tuple(dict.fromkeys(feature for pair in EXCLUSIONS for feature in (pair.one, pair.other)))
