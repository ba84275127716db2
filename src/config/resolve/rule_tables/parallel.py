"""Rules about several devices and several replicas. The format of a rule: ../rule.py."""

from __future__ import annotations

from ...exit_codes import EXIT_ENVIRONMENT, EXIT_MODEL_FILES
from ..import_path import split_import_path
from ..rule import Rule, StatedRule
from ..values import Values


def _lacks_gpus(v: Values) -> bool:
    """Each process that computes needs one."""
    gpu = v.decisions.gpu
    return gpu is not None and not gpu.is_interpreted and v.num_processes > gpu.num_visible


RULES: tuple[Rule, ...] = (
    Rule(
        id="R137",
        title="a rank is below data_parallel_size",
        fields=("parallel.data_parallel_rank", "parallel.data_parallel_size"),
        is_broken=lambda v: v.data_parallel_rank is not None and v.data_parallel_rank >= v.data_parallel_size,
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
            v.data_parallel_hybrid_lb
            and (
                v.data_parallel_start_rank is None
                or v.data_parallel_size_local is None
                or v.data_parallel_start_rank + v.data_parallel_size_local > v.data_parallel_size
            )
        ),
        message="`parallel.data_parallel_hybrid_lb` needs `data_parallel_start_rank` and `data_parallel_size_local`, "
        "together at most data_parallel_size ({data_parallel_size})",
        why="They say which of all replicas this server runs.",
        fixes=("write both: the second of two servers with two replicas each has start rank 2 and local size 2",),
    ),
    Rule(
        id="R139",
        title="load balancing is external or hybrid, not both",
        fields=(
            "parallel.data_parallel_rank",
            "parallel.data_parallel_external_lb",
            "parallel.data_parallel_hybrid_lb",
        ),
        is_broken=lambda v: (
            v.data_parallel_hybrid_lb and (v.data_parallel_external_lb or v.data_parallel_rank is not None)
        ),
        message="`parallel.data_parallel_hybrid_lb` contradicts `data_parallel_rank` and `data_parallel_external_lb`",
        why="With hybrid load balancing a server distributes requests over several replicas, with external over none.",
        fixes=("remove `data_parallel_hybrid_lb`, or the others",),
    ),
    Rule(
        id="R140",
        title="a node has at most all replicas",
        fields=("parallel.data_parallel_size_local", "parallel.data_parallel_size"),
        is_broken=lambda v: (v.data_parallel_size_local or 1) > v.data_parallel_size,
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
            "parallel.data_parallel_multi_port_external_lb",
            "parallel.data_parallel_rank",
            "parallel.data_parallel_address",
            "parallel.data_parallel_backend",
        ),
        is_broken=lambda v: (
            not v.data_parallel_hybrid_lb
            and not v.data_parallel_multi_port_external_lb
            and v.data_parallel_address is None
            and not (v.data_parallel_backend == "ray" and v.data_parallel_start_rank is None)
            and (
                v.data_parallel_start_rank is not None
                or (v.data_parallel_rank is None and (v.data_parallel_size_local or 0) not in (0, v.data_parallel_size))
            )
        ),
        message="only some of the replicas are on this machine, and the server does not know the others",
        why="Replicas of other machines connect to the server, or have servers of their own.",
        fixes=(
            "set `data_parallel_address` to the address of the machine with the API",
            "write `data_parallel_hybrid_lb: true`, with a server on each machine behind a load balancer",
            "write `data_parallel_multi_port_external_lb: true`, with a server for each replica",
            "or remove `data_parallel_size_local` and `data_parallel_start_rank`",
        ),
    ),
    Rule(
        id="R371",
        title="external load balancing needs a rank",
        fields=(
            *("parallel.data_parallel_external_lb", "parallel.data_parallel_rank"),
            "parallel.data_parallel_multi_port_external_lb",
        ),
        is_broken=lambda v: (
            v.data_parallel_external_lb and v.data_parallel_rank is None and not v.data_parallel_multi_port_external_lb
        ),
        message="`parallel.data_parallel_external_lb` needs `data_parallel_rank`",
        why="Each server runs one replica; the rank says which, and is the label of its metrics.",
        fixes=(
            "set `data_parallel_rank`, or remove `data_parallel_external_lb`",
            "or write `data_parallel_multi_port_external_lb`, which starts the servers of all ranks",
        ),
    ),
    Rule(
        id="R415",
        title="a server for each replica runs on this machine alone",
        fields=(
            *("parallel.data_parallel_multi_port_external_lb", "parallel.data_parallel_rank"),
            *("parallel.data_parallel_hybrid_lb", "parallel.data_parallel_address"),
            *("parallel.data_parallel_backend", "parallel.nnodes", "server.headless"),
        ),
        is_broken=lambda v: (
            v.data_parallel_multi_port_external_lb
            and (
                v.data_parallel_rank is not None
                or v.data_parallel_hybrid_lb
                or v.data_parallel_address is not None
                or v.data_parallel_backend == "ray"
                or v.nnodes > 1
                or v.headless
            )
        ),
        message="`parallel.data_parallel_multi_port_external_lb` contradicts {other_ways}",
        why="Each server has one replica, on the machine of its port; a server with a rank is started alone.",
        fixes=("remove `data_parallel_multi_port_external_lb`, or the other",),
    ),
    Rule(
        id="R416",
        title="each server of a replica has a TCP port",
        fields=("parallel.data_parallel_multi_port_external_lb", "server.port", "server.uds"),
        is_broken=lambda v: v.data_parallel_multi_port_external_lb and (v.port == 0 or v.uds is not None),
        message="`parallel.data_parallel_multi_port_external_lb` needs a `server.port`, and no `server.uds`",
        why="The servers listen on this port and those after it; a free port and a path are of one server.",
        fixes=("set `server.port` to the port of the first replica, and remove `server.uds`",),
    ),
    Rule(
        id="R417",
        title="the ports of servers and supervisor exist and differ",
        fields=(
            *("parallel.data_parallel_multi_port_external_lb", "parallel.data_parallel_supervisor_port"),
            *("server.port", "parallel.data_parallel_size", "parallel.data_parallel_size_local"),
        ),
        is_broken=lambda v: (
            v.data_parallel_multi_port_external_lb
            and (v.last_port > 65535 or v.port <= v.data_parallel_supervisor_port <= v.last_port)
        ),
        message="the servers of {num_replicas} replicas have the ports {port} to {last_port}, and the supervisor has "
        "{data_parallel_supervisor_port}",
        why="Ports are at most 65535, and each is of one server.",
        fixes=("set `server.port` or `data_parallel_supervisor_port` to another port",),
    ),
    Rule(
        id="R418",
        title="a server of one replica is one process",
        fields=("parallel.data_parallel_multi_port_external_lb", "server.api_server_count"),
        is_broken=lambda v: v.data_parallel_multi_port_external_lb and v.api_server_count > 1,
        message="`server.api_server_count` is {api_server_count}, and "
        "`parallel.data_parallel_multi_port_external_lb` starts a server for each replica",
        why="There is an API process for each replica already. The supervisor ends and starts a server as one process.",
        fixes=("remove `api_server_count`, or `data_parallel_multi_port_external_lb`",),
    ),
    Rule(
        id="R419",
        title="the ranks of this machine's servers are below data_parallel_size",
        fields=(
            *("parallel.data_parallel_multi_port_external_lb", "parallel.data_parallel_start_rank"),
            *("parallel.data_parallel_size_local", "parallel.data_parallel_size"),
        ),
        is_broken=lambda v: (
            v.data_parallel_multi_port_external_lb and v.config.parallel.ranks.stop > v.data_parallel_size
        ),
        message="`parallel.data_parallel_start_rank` is {data_parallel_start_rank}, with {num_replicas} replicas on "
        "this machine, and `data_parallel_size` is {data_parallel_size}",
        why="`data_parallel_size` counts the replicas of all machines.",
        fixes=("on the second of two machines with two replicas each write start rank 2 and local size 2",),
    ),
    Rule(
        id="R427",
        title="a supervisor needs servers",
        fields=(
            *("parallel.data_parallel_supervisor_port", "parallel.dp_supervisor_probe_interval_s"),
            *("parallel.dp_supervisor_probe_timeout_s", "parallel.dp_supervisor_probe_failure_threshold"),
            "parallel.data_parallel_multi_port_external_lb",
        ),
        severity="warning",
        is_broken=lambda v: not v.data_parallel_multi_port_external_lb and bool(v.written_of_supervisor),
        message="{written_of_supervisor} has no effect without `parallel.data_parallel_multi_port_external_lb`",
        why="A single server has no supervisor; systemd or Kubernetes ask it at `server.port`.",
        fixes=("set `data_parallel_multi_port_external_lb: true`, or remove it",),
    ),
    Rule(
        id="R428",
        title="stored responses are of one server",
        fields=("parallel.data_parallel_multi_port_external_lb", "server.responses_store"),
        is_broken=lambda v: (
            v.data_parallel_multi_port_external_lb and v.num_replicas > 1 and v.responses_store is not None
        ),
        message="`server.responses_store` keeps responses, and `parallel.data_parallel_multi_port_external_lb` starts "
        "{num_replicas} servers",
        why="A stored response is known to the server that has made it alone.",
        fixes=("remove `responses_store`, or `data_parallel_multi_port_external_lb`",),
    ),
    Rule(
        id="R372",
        title="a server with a rank runs one replica",
        fields=("parallel.data_parallel_rank", "parallel.data_parallel_size_local"),
        is_broken=lambda v: v.data_parallel_rank is not None and (v.data_parallel_size_local or 1) > 1,
        message="`parallel.data_parallel_rank` is set, and `data_parallel_size_local` is {data_parallel_size_local}",
        why="With a rank the replicas are distributed over servers of one replica each.",
        fixes=("remove `data_parallel_size_local`, or write `data_parallel_hybrid_lb` and a start rank",),
    ),
    Rule(
        id="R373",
        title="several replicas need engine processes",
        fields=("parallel.data_parallel_size", "server.disable_frontend_multiprocessing"),
        is_broken=lambda v: (
            (v.num_replicas > 1 or bool(v.config.parallel.remote_ranks)) and v.disable_frontend_multiprocessing
        ),
        message="`parallel.data_parallel_size` is {data_parallel_size}, and the engine runs inside the API process "
        "(`server.disable_frontend_multiprocessing`)",
        why="Each replica is a process of its own.",
        fixes=("remove `disable_frontend_multiprocessing`, or set `data_parallel_size` to 1",),
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
            v.data_parallel_address is not None
            and (
                (v.data_parallel_size_local or v.data_parallel_size) >= v.data_parallel_size
                or (v.data_parallel_start_rank or 0) + v.data_parallel_size_local > v.data_parallel_size
            )
        ),
        message="with `parallel.data_parallel_address` this machine has `data_parallel_size_local` of the "
        "{data_parallel_size} replicas, from `data_parallel_start_rank` on",
        why="Without these numbers a machine would run all replicas, or more than there are.",
        fixes=("on the second of two machines with two replicas each write start rank 2 and local size 2",),
    ),
    Rule(
        id="R412",
        title="one API process has the replicas of other machines",
        fields=(
            "parallel.data_parallel_address",
            "parallel.data_parallel_start_rank",
            "parallel.data_parallel_backend",
            "server.api_server_count",
        ),
        is_broken=lambda v: bool(v.config.parallel.remote_ranks) and v.api_server_count > 1,
        message="`server.api_server_count` is {api_server_count}; replicas of other machines, and those that Ray "
        "places, connect to one process",
        why="Several API processes connect to engines through files of one machine.",
        fixes=("set `api_server_count` to 1", "write `data_parallel_hybrid_lb` instead: a server on each machine"),
    ),
    Rule(
        id="R413",
        title="replicas of other machines are behind one API",
        fields=(
            "parallel.data_parallel_address",
            "parallel.data_parallel_hybrid_lb",
            "parallel.data_parallel_external_lb",
            "parallel.data_parallel_rank",
        ),
        is_broken=lambda v: (
            v.data_parallel_address is not None
            and (v.data_parallel_hybrid_lb or v.data_parallel_external_lb or v.data_parallel_rank is not None)
        ),
        message="`parallel.data_parallel_address` contradicts `data_parallel_hybrid_lb`, "
        "`data_parallel_external_lb` and `data_parallel_rank`",
        why="With the address one server has all replicas; with the others each machine has a server.",
        fixes=("remove `data_parallel_address`, or the others",),
    ),
    Rule(
        id="R374",
        title="each process that computes has a GPU",
        fields=(
            *("parallel.data_parallel_size", "parallel.tensor_parallel_size", "parallel.pipeline_parallel_size"),
            "device.device",
        ),
        about_machine=True,
        exit_code=EXIT_ENVIRONMENT,
        is_broken=_lacks_gpus,
        message="{num_replicas} x {num_ranks} processes (replicas x processes of each) need {num_processes} GPUs, and "
        "this process may use {num_gpus}",
        why="Processes on one GPU would divide its memory and its time; one process uses both better.",
        fixes=(
            "lower `data_parallel_size`, `tensor_parallel_size` or `pipeline_parallel_size`: their product is at most "
            "{num_gpus}",
            "name more GPUs in CUDA_VISIBLE_DEVICES",
        ),
    ),
    Rule(
        id="R375",
        title="each replica has a core",
        fields=("parallel.data_parallel_size", "device.device"),
        severity="warning",
        about_machine=True,
        is_broken=lambda v: v.device == "cpu" and v.num_replicas > v.decisions.whole_machine.num_cores,
        message="{num_replicas} replicas share {num_machine_cores} cores",
        why="Engines that take turns on a core are slower than one that batches all requests.",
        fixes=(
            "set `data_parallel_size` to at most {num_machine_cores}",
            "with Ray on several machines set `data_parallel_size_local` to the replicas of each",
        ),
    ),
    Rule(
        id="R430",
        title="the GPUs of a model are in one machine",
        fields=("parallel.nnodes", "parallel.distributed_executor_backend", "device.device"),
        is_broken=lambda v: (
            v.device == "cuda"
            and v.decisions.num_ranks > 1
            and (v.nnodes > 1 or v.distributed_executor_backend in ("ray", "external_launcher"))
        ),
        message="the processes of the model are to have GPUs of several machines, and this build computes a model on "
        "those of one",
        why="Between machines the processes of a model exchange through Gloo, which reads the memory of the host.",
        fixes=(
            "set `nnodes` to 1 and remove `distributed_executor_backend`",
            "`data_parallel_size` with a replica on each machine",
        ),
    ),
    Rule(
        id="R431",
        title="GPUs exchange in one way",
        fields=("parallel.disable_custom_all_reduce", "device.device"),
        severity="warning",
        about_machine=True,
        is_broken=lambda v: (
            v.disable_custom_all_reduce
            and v.decisions.num_ranks > 1
            and v.decisions.gpu is not None
            and not v.decisions.is_interpreted
        ),
        message="`parallel.disable_custom_all_reduce` has no effect: GPUs exchange through NCCL",
        why="The option selects between shared memory and Gloo, which CPUs use.",
        fixes=("remove `disable_custom_all_reduce`",),
    ),
    Rule(
        id="R385",
        title="the model can be divided",
        fields=(
            *("parallel.tensor_parallel_size", "parallel.pipeline_parallel_size"),
            *("cache.kv_directory", "kv_transfer.kv_connector", "cache.kv_offloading_size", "load.load_format"),
            *("parallel.decode_context_parallel_size", "parallel.distributed_executor_backend", "device.device"),
        ),
        exit_code=EXIT_MODEL_FILES,
        is_broken=lambda v: bool(v.not_divided),
        message="the model cannot be divided over {num_ranks} processes: {not_divided}",
        why="With tensor parallel each process has as many heads, and as many columns of each feed-forward block, as "
        "the others; a stage of a pipeline has layers that read of other stages their results alone. Stored blocks are "
        "those of all heads, which the processes on CPUs put together after each step.",
        fixes=(
            "set `tensor_parallel_size` and `pipeline_parallel_size` to 1, or to a divisor",
            "or remove the other option that is named",
        ),
    ),
    Rule(
        id="R134",
        title="tensor_parallel_size is a multiple of decode_context_parallel_size",
        fields=("parallel.decode_context_parallel_size", "parallel.tensor_parallel_size"),
        is_broken=lambda v: v.tensor_parallel_size % v.decode_context_parallel_size != 0,
        message="`parallel.decode_context_parallel_size` is {decode_context_parallel_size}, and `tensor_parallel_size` "
        "is {tensor_parallel_size}",
        why="The processes that share the tokens of each sequence are groups of those of `tensor_parallel_size`.",
        fixes=("set `decode_context_parallel_size` to a divisor of {tensor_parallel_size}",),
    ),
    Rule(
        id="R480",
        title="processes that share tokens hold the same keys and values",
        fields=("parallel.decode_context_parallel_size", "parallel.tensor_parallel_size"),
        exit_code=EXIT_MODEL_FILES,
        is_broken=lambda v: bool(v.not_parted),
        message="{decode_context_parallel_size} processes cannot share the tokens of each sequence "
        "(`parallel.decode_context_parallel_size`): {not_parted}",
        why="Each process computes attention over the tokens that it keeps, for the heads of all of them; this needs "
        "keys and values that they otherwise hold several times, in layers of full attention.",
        fixes=("remove `decode_context_parallel_size`",),
    ),
    Rule(
        id="R481",
        title="tokens are shared on CPUs",
        fields=("parallel.decode_context_parallel_size", "device.device"),
        is_broken=lambda v: v.decode_context_parallel_size > 1 and v.device == "cuda",
        message="`parallel.decode_context_parallel_size` is for CPUs",
        why="The attention kernels of GPUs return no totals of their weights, with which results over parts of a "
        "context are added.",
        fixes=("remove `decode_context_parallel_size`",),
    ),
    Rule(
        id="R482",
        title="each process has an equal part of a block",
        fields=(
            *("cache.block_size", "parallel.decode_context_parallel_size"),
            "parallel.cp_kv_cache_interleave_size",
        ),
        is_broken=lambda v: (
            v.decode_context_parallel_size > 1
            and v.block_size != "auto"
            and v.block_size % (v.decode_context_parallel_size * v.cp_kv_cache_interleave_size) != 0
        ),
        message="`cache.block_size` is {block_size}, and {decode_context_parallel_size} processes keep "
        "{cp_kv_cache_interleave_size} tokens each in turn",
        why="A block has the same positions on all processes, and on each of them an equal part of these.",
        fixes=("set `cache.block_size` to a multiple of {block_part}, or a lower `cp_kv_cache_interleave_size`",),
    ),
    Rule(
        id="R483",
        title="tokens in turn need processes that share them",
        fields=("parallel.cp_kv_cache_interleave_size", "parallel.decode_context_parallel_size"),
        severity="warning",
        is_broken=lambda v: v.cp_kv_cache_interleave_size > 1 and v.decode_context_parallel_size == 1,
        message="`parallel.cp_kv_cache_interleave_size` has no effect without `decode_context_parallel_size`",
        why="Each process keeps all tokens then.",
        fixes=("set `decode_context_parallel_size`, or remove `cp_kv_cache_interleave_size`",),
    ),
    Rule(
        id="R490",
        title="steps are divided where processes exchange over a network",
        fields=(
            *("parallel.enable_dbo", "parallel.ubatch_size", "parallel.tensor_parallel_size"),
            *("parallel.pipeline_parallel_size", "parallel.prefill_context_parallel_size", "device.device"),
        ),
        is_broken=lambda v: (
            v.config.parallel.num_step_parts > 1
            and v.prefill_context_parallel_size == 1
            and not (v.exchanges_over_gloo and v.decisions.num_stages == 1)
        ),
        message="`parallel.enable_dbo` and `ubatch_size` are for the processes of `tensor_parallel_size` that exchange "
        "over a network, on CPUs, in one stage, and for those of `prefill_context_parallel_size`",
        why="One part of a step is computed while the network has another. In shared memory the exchange is itself "
        "computed; the stages of a pipeline compute several steps at a time; the step of a GPU is one graph.",
        fixes=("remove `enable_dbo` and `ubatch_size`", "or set `nnodes` and `tensor_parallel_size`"),
    ),
    Rule(
        id="R491",
        title="a number of tokens or parts needs steps that are divided",
        fields=(
            *("parallel.dbo_prefill_token_threshold", "parallel.dbo_decode_token_threshold"),
            *("parallel.enable_dbo", "parallel.ubatch_size"),
        ),
        severity="warning",
        is_broken=lambda v: (
            v.config.parallel.num_step_parts == 1
            and (
                v.enable_dbo
                or v.is_written("parallel.dbo_prefill_token_threshold")
                or v.is_written("parallel.dbo_decode_token_threshold")
            )
        ),
        message="`parallel.enable_dbo`, `dbo_prefill_token_threshold` and `dbo_decode_token_threshold` have no effect: "
        "steps are computed whole",
        why="`ubatch_size` is the number of parts of a step; 0 stands for two with `enable_dbo`.",
        fixes=("set `enable_dbo`, without `ubatch_size: 1`", "or remove these options"),
    ),
    Rule(
        id="R493",
        title="processes share prompts on CPUs, with all layers and all keys and values each",
        fields=(
            *("parallel.prefill_context_parallel_size", "device.device"),
            *("parallel.pipeline_parallel_size", "parallel.decode_context_parallel_size"),
            *("parallel.ubatch_size", "parallel.enable_eplb"),
            *("parallel.enable_expert_parallel", "parallel.data_parallel_size"),
            "parallel.distributed_executor_backend",
        ),
        is_broken=lambda v: v.prefill_context_parallel_size > 1 and bool(v.against_shared_prompts),
        message="`parallel.prefill_context_parallel_size` contradicts {against_shared_prompts}",
        why="Each process computes some tokens of a step through all layers, on CPUs, and has the keys and values of "
        "all tokens after it. These are two pieces of the step, which may be computed in turns. Experts move between "
        "processes that compute the same tokens, and processes of a launcher are those of one group.",
        fixes=("remove `prefill_context_parallel_size`, or the others",),
    ),
    Rule(
        id="R495",
        title="some steps have enough tokens to be shared",
        fields=("parallel.prefill_context_parallel_size", "scheduler.max_num_batched_tokens"),
        severity="warning",
        is_broken=lambda v: (
            v.prefill_context_parallel_size > 1
            and v.max_num_batched_tokens != "auto"
            and v.max_num_batched_tokens < v.fewest_shared_tokens
        ),
        message="`parallel.prefill_context_parallel_size` has no effect: a step has at most {max_num_batched_tokens} "
        "tokens, and those from {fewest_shared_tokens} on are shared",
        why="Every process computes a step of few tokens alone, because it has to read all weights for any of them.",
        fixes=("raise `max_num_batched_tokens`, or remove `prefill_context_parallel_size`",),
    ),
    Rule(
        id="R494",
        title="tokens of the model's prompts can be computed at the same time",
        fields=("parallel.prefill_context_parallel_size",),
        exit_code=EXIT_MODEL_FILES,
        is_broken=lambda v: bool(v.no_shared_prompts),
        message="{prefill_context_parallel_size} processes cannot share prompts "
        "(`parallel.prefill_context_parallel_size`): {no_shared_prompts}",
        why="Each process computes some tokens of a prompt through a layer, when the others compute theirs.",
        fixes=("remove `prefill_context_parallel_size`", "or set `tensor_parallel_size`, if the model allows it"),
    ),
    Rule(
        id="R386",
        title="each process of a model has a core",
        fields=(
            *("parallel.tensor_parallel_size", "parallel.pipeline_parallel_size"),
            *("parallel.prefill_context_parallel_size", "parallel.data_parallel_size", "device.device"),
        ),
        severity="warning",
        about_machine=True,
        is_broken=lambda v: (
            v.device == "cpu" and v.decisions.num_ranks > 1 and v.num_processes > v.decisions.whole_machine.num_cores
        ),
        message="{num_processes} processes share {num_machine_cores} cores",
        why="The processes of a model wait for each other many times a token: with fewer cores than processes each "
        "waits until the others had a core.",
        fixes=("lower `tensor_parallel_size`, `pipeline_parallel_size` or `prefill_context_parallel_size`",),
    ),
    Rule(
        id="R397",
        title="the executor fits the number of processes",
        fields=(
            *("parallel.distributed_executor_backend", "parallel.tensor_parallel_size"),
            *("parallel.pipeline_parallel_size", "parallel.prefill_context_parallel_size"),
        ),
        is_broken=lambda v: v.distributed_executor_backend == "uni" and v.decisions.num_ranks > 1,
        message="`parallel.distributed_executor_backend` is uni, and {num_ranks} processes are to compute the model",
        why="`uni` is one process, `mp` several; `auto` follows from the sizes.",
        fixes=("remove `distributed_executor_backend`, or set it to mp or ray",),
    ),
    Rule(
        id="R398",
        title="several processes need a size above 1",
        fields=(
            *("parallel.distributed_executor_backend", "parallel.tensor_parallel_size"),
            *("parallel.pipeline_parallel_size", "parallel.prefill_context_parallel_size"),
        ),
        severity="warning",
        is_broken=lambda v: (
            v.decisions.is_written("parallel.distributed_executor_backend")
            and v.distributed_executor_backend in ("mp", "ray")
            and v.decisions.num_ranks == 1
        ),
        message="`parallel.distributed_executor_backend: {distributed_executor_backend}` has no effect: one process "
        "computes the model",
        why="Processes are started for `tensor_parallel_size`, `pipeline_parallel_size` and "
        "`prefill_context_parallel_size`.",
        fixes=("remove `distributed_executor_backend`, or set one of the sizes",),
    ),
    Rule(
        id="R391",
        title="expert parallel needs a mixture of experts on several processes",
        fields=(
            *("parallel.enable_expert_parallel", "parallel.tensor_parallel_size"),
            "parallel.data_parallel_size",
        ),
        severity="warning",
        is_broken=lambda v: (
            v.enable_expert_parallel
            and v.decisions.model_files is not None
            and (v.tensor_parallel_size * v.data_parallel_size == 1 or not v.decisions.model_files.spec.has_experts)
        ),
        message="`parallel.enable_expert_parallel` has no effect: {no_placement}",
        why="Experts are placed on the replicas of `data_parallel_size`, or on the processes of "
        "`tensor_parallel_size`. Replicas of other models compute independently of each other.",
        fixes=("remove `enable_expert_parallel`, or set `data_parallel_size` or `tensor_parallel_size`",),
    ),
    Rule(
        id="R484",
        title="replicas share experts on CPUs",
        fields=("parallel.enable_expert_parallel", "parallel.data_parallel_size", "device.device"),
        is_broken=lambda v: v.shares_experts and v.device == "cuda",
        message="`parallel.enable_expert_parallel` with `data_parallel_size` {data_parallel_size} is for CPUs",
        why="Captured graphs of a GPU have a fixed number of tokens, and those of other replicas are as many as these "
        "have at the time; nothing exchanges them between GPUs.",
        fixes=("remove `enable_expert_parallel`: each replica has all experts", "set `data_parallel_size` to 1"),
    ),
    Rule(
        id="R485",
        title="a replica that shares experts is one process",
        fields=(
            *("parallel.enable_expert_parallel", "parallel.data_parallel_size"),
            "parallel.pipeline_parallel_size",
        ),
        is_broken=lambda v: v.shares_experts and v.decisions.num_ranks > 1,
        message="`parallel.enable_expert_parallel` is set, and {data_parallel_size} replicas of "
        "{pipeline_parallel_size} stages each are to share the experts",
        why="The process that samples for a replica also agrees with the other replicas on each step and exchanges "
        "tokens with them; its other stages have no part in that.",
        fixes=(
            "set `pipeline_parallel_size` to 1, and raise `data_parallel_size`",
            "set `tensor_parallel_size`: the processes of each stage share its experts",
            "or remove `enable_expert_parallel`: each replica has all experts",
        ),
    ),
    Rule(
        id="R486",
        title="replicas that share experts are on one machine and of one server",
        fields=(
            *("parallel.enable_expert_parallel", "parallel.data_parallel_size", "parallel.data_parallel_rank"),
            *("parallel.data_parallel_hybrid_lb", "parallel.data_parallel_address", "parallel.data_parallel_backend"),
            "parallel.data_parallel_multi_port_external_lb",
        ),
        is_broken=lambda v: (
            v.shares_experts
            and (
                len(v.config.parallel.ranks) < v.data_parallel_size
                or bool(v.config.parallel.remote_ranks)
                or v.data_parallel_multi_port_external_lb
            )
        ),
        message="`parallel.enable_expert_parallel` is set, and not all of the {data_parallel_size} replicas are "
        "processes of this machine and of one server",
        why="Replicas share experts through memory, and one server starts all of them again when one has ended.",
        fixes=(
            "remove `enable_expert_parallel`: each replica has all experts",
            "or run all replicas here, without `data_parallel_rank`, `data_parallel_hybrid_lb`, "
            "`data_parallel_address`, `data_parallel_multi_port_external_lb` and `data_parallel_backend: ray`",
        ),
    ),
    Rule(
        id="R487",
        title="replicas that share experts exchange with kernels in C++",
        fields=(
            *("parallel.enable_expert_parallel", "parallel.data_parallel_size"),
            *("model.enforce_eager", "parallel.disable_custom_all_reduce"),
        ),
        is_broken=lambda v: v.shares_experts and (v.enforce_eager or v.disable_custom_all_reduce),
        message="`parallel.enable_expert_parallel` with `data_parallel_size` {data_parallel_size} contradicts "
        "`model.enforce_eager` and `disable_custom_all_reduce`",
        why="Tokens of other replicas come through shared memory, which the kernels in C++ read; not through Gloo.",
        fixes=("remove `enforce_eager` and `disable_custom_all_reduce`, or `enable_expert_parallel`",),
    ),
    Rule(
        id="R488",
        title="the experts of the model can be shared by replicas",
        fields=("parallel.enable_expert_parallel", "parallel.data_parallel_size", "load.load_format"),
        exit_code=EXIT_MODEL_FILES,
        is_broken=lambda v: bool(v.not_shared),
        message="{data_parallel_size} replicas cannot share the experts of the model: {not_shared}",
        why="Each replica has some experts of every layer, and takes part in every layer of every step.",
        fixes=("remove `enable_expert_parallel`: each replica has all experts",),
    ),
    Rule(
        id="R489",
        title="replicas that share experts do not sleep",
        fields=("parallel.enable_expert_parallel", "parallel.data_parallel_size", "model.enable_sleep_mode"),
        is_broken=lambda v: v.shares_experts and v.enable_sleep_mode,
        message="`model.enable_sleep_mode` contradicts `parallel.enable_expert_parallel` with `data_parallel_size` "
        "{data_parallel_size}",
        why="A replica falls asleep by itself, and the others need its experts.",
        fixes=("remove `enable_sleep_mode`, or `enable_expert_parallel`",),
    ),
    Rule(
        id="R392",
        title="a placement of experts needs expert parallel",
        fields=("parallel.expert_placement_strategy", "parallel.enable_expert_parallel"),
        severity="warning",
        is_broken=lambda v: v.expert_placement_strategy != "linear" and not v.enable_expert_parallel,
        message="`parallel.expert_placement_strategy` has no effect without `enable_expert_parallel`",
        why="Otherwise each process has a part of every expert.",
        fixes=("set `enable_expert_parallel: true`, or remove `expert_placement_strategy`",),
    ),
    Rule(
        id="R142",
        title="expert load balancing needs expert parallelism",
        fields=("parallel.enable_eplb", "parallel.enable_expert_parallel", "parallel.tensor_parallel_size"),
        is_broken=lambda v: v.enable_eplb and not (v.enable_expert_parallel and v.tensor_parallel_size > 1),
        message="`parallel.enable_eplb` needs `enable_expert_parallel` and a `tensor_parallel_size` above 1",
        why="Whole experts move between the processes of `tensor_parallel_size`.",
        fixes=("set both", "remove `enable_eplb`"),
    ),
    Rule(
        id="R143",
        title="redundant experts need expert load balancing",
        fields=("parallel.eplb_config", "parallel.enable_eplb"),
        is_broken=lambda v: v.config.parallel.expert_balance.num_redundant_experts > 0 and not v.enable_eplb,
        message="`parallel.eplb_config` has `num_redundant_experts`, and `enable_eplb` is false",
        why="The load decides which experts have copies.",
        fixes=("set `enable_eplb: true`, or remove `num_redundant_experts`",),
    ),
    Rule(
        id="R460",
        title="settings of expert load balancing need it",
        fields=("parallel.eplb_config", "parallel.enable_eplb"),
        severity="warning",
        is_broken=lambda v: (
            bool(v.eplb_config) and not v.enable_eplb and not v.config.parallel.expert_balance.num_redundant_experts
        ),
        message="`parallel.eplb_config` has no effect without `enable_eplb`",
        why="Experts stay in the process that has read them.",
        fixes=("set `enable_eplb: true`, or remove `eplb_config`",),
    ),
    Rule(
        id="R461",
        title="experts move between CPUs",
        fields=("parallel.enable_eplb", "device.device"),
        is_broken=lambda v: v.enable_eplb and v.device == "cuda",
        message="`parallel.enable_eplb` is for CPUs",
        why="A GPU has all experts of a layer in one tensor, and captured graphs do not read where a token goes from a "
        "table.",
        fixes=("remove `enable_eplb`, or set `device.device: cpu`",),
    ),
    Rule(
        id="R462",
        title="results that do not depend on the batch need experts that stay",
        fields=("parallel.enable_eplb", "model.batch_invariant"),
        is_broken=lambda v: v.enable_eplb and v.batch_invariant,
        message="`parallel.enable_eplb` contradicts `model.batch_invariant`",
        why="Which process computes an expert depends on the load and on the place of the token in the batch, and with "
        "it the order in which the outputs of experts are added.",
        fixes=("remove `enable_eplb`, or `batch_invariant`",),
    ),
    Rule(
        id="R492",
        title="results that do not depend on the batch need sums in the order of the processes",
        fields=("model.batch_invariant", "parallel.tensor_parallel_size", "parallel.disable_custom_all_reduce"),
        is_broken=lambda v: v.batch_invariant and v.exchanges_over_gloo and v.decisions.rank_sizes[0] > 2,
        message="`model.batch_invariant` does not hold for the {tensor_parallel_size} processes of "
        "`tensor_parallel_size` that exchange over a network",
        why="Gloo adds what more than two processes have computed in an order that depends on the place of the token "
        "in the batch. In shared memory the order is that of the processes.",
        fixes=(
            "set `tensor_parallel_size: 2`",
            "or have the processes on one machine, without `disable_custom_all_reduce` and `enforce_eager`",
            "or remove `batch_invariant`",
        ),
    ),
    Rule(
        id="R463",
        title="the load of experts is measured after they have moved",
        fields=("parallel.eplb_config",),
        is_broken=lambda v: (
            v.config.parallel.expert_balance.window_size > v.config.parallel.expert_balance.step_interval
        ),
        message="`parallel.eplb_config` has a `window_size` above its `step_interval`: {expert_window} and "
        "{expert_interval} steps",
        why="Tokens are counted between one placement of the experts and the next.",
        fixes=("raise `step_interval`, or lower `window_size`",),
    ),
    Rule(
        id="R464",
        title="workers do not replace experts that move",
        fields=("parallel.enable_eplb", "parallel.worker_cls", "parallel.worker_extension_cls"),
        is_broken=lambda v: v.enable_eplb and bool(v.worker_options),
        message="`parallel.enable_eplb` contradicts {worker_options}",
        why="A worker replaces weights of the experts that its process has, while others may be on their way to it.",
        fixes=("remove `enable_eplb`, or {worker_options}",),
    ),
    Rule(
        id="R151",
        title="reductions need several processes",
        fields=("parallel.disable_custom_all_reduce", "parallel.tensor_parallel_size"),
        severity="warning",
        is_broken=lambda v: v.disable_custom_all_reduce and v.tensor_parallel_size == 1 and not v.shares_experts,
        message="`parallel.disable_custom_all_reduce` has no effect: one process computes the model",
        why="A process alone has nothing to exchange.",
        fixes=("remove `disable_custom_all_reduce`, or set `tensor_parallel_size`",),
    ),
    Rule(
        id="R420",
        title="the rank of a node is below the number of nodes",
        fields=("parallel.node_rank", "parallel.nnodes"),
        is_broken=lambda v: v.node_rank >= v.nnodes,
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
        is_broken=lambda v: v.decisions.num_ranks % v.nnodes != 0,
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
        is_broken=lambda v: v.headless != (v.node_rank > 0 or v.decisions.is_behind_another),
        message="`server.headless` is {headless}, and `parallel.node_rank` is {node_rank}, "
        "`data_parallel_start_rank` {data_parallel_start_rank}",
        why="The first node has the API; the others only compute.",
        fixes=(
            "remove `server.headless`: it follows from `parallel.node_rank`, or from `data_parallel_start_rank` with "
            "`data_parallel_address`",
        ),
    ),
    Rule(
        id="R423",
        title="several nodes compute one replica",
        fields=("parallel.nnodes", "parallel.data_parallel_size"),
        is_broken=lambda v: v.nnodes > 1 and v.data_parallel_size > 1,
        message="`parallel.nnodes` is {nnodes}, and `data_parallel_size` is {data_parallel_size}",
        why="Node 0 accepts the processes of one replica.",
        fixes=("set `data_parallel_size` to 1, and start a deployment for each replica behind a load balancer",),
    ),
    Rule(
        id="R424",
        title="nodes find node 0",
        fields=("parallel.master_addr", "parallel.nnodes"),
        severity="warning",
        is_broken=lambda v: (
            v.nnodes > 1
            and not v.decisions.is_written("parallel.master_addr")
            and v.distributed_executor_backend != "external_launcher"
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
            v.nnodes == 1
            and any(v.is_written(f"parallel.{name}") for name in ("master_addr", "master_port"))
            and v.distributed_executor_backend != "external_launcher"
        ),
        message="`parallel.master_addr` and `master_port` have no effect: there is one node",
        why="A node alone connects to no other.",
        fixes=("remove them, or set `nnodes`",),
    ),
    Rule(
        id="R426",
        title="Ray chooses the machines of its actors",
        fields=("parallel.distributed_executor_backend", "parallel.nnodes"),
        is_broken=lambda v: v.distributed_executor_backend == "ray" and v.nnodes > 1,
        message="`parallel.distributed_executor_backend` is ray, and `nnodes` is {nnodes}",
        why="With Ray one command is started, and the cluster of RAY_ADDRESS has the machines.",
        fixes=("remove `nnodes` and `node_rank`, or set `distributed_executor_backend` to mp",),
    ),
    Rule(
        id="R470",
        title="Ray places the replicas of one server",
        fields=(
            *("parallel.data_parallel_backend", "parallel.data_parallel_address"),
            *("parallel.data_parallel_rank", "parallel.data_parallel_hybrid_lb"),
        ),
        is_broken=lambda v: (
            v.data_parallel_backend == "ray"
            and (v.data_parallel_address is not None or v.data_parallel_rank is not None or v.data_parallel_hybrid_lb)
        ),
        message="`parallel.data_parallel_backend` is ray, and `data_parallel_address`, `data_parallel_rank` or "
        "`data_parallel_hybrid_lb` says where replicas are",
        why="With Ray one command is started, and the cluster of RAY_ADDRESS has the machines of all replicas.",
        fixes=("remove `data_parallel_backend`, or the others",),
    ),
    Rule(
        id="R471",
        title="replicas that Ray places compute on CPUs",
        fields=("parallel.data_parallel_backend", "parallel.data_parallel_size", "device.device"),
        is_broken=lambda v: v.config.parallel.are_replicas_on_ray and v.device != "cpu",
        message="`parallel.data_parallel_backend: ray` is for CPUs",
        why="GPUs and their memory are read on the machine with the API, and Ray could choose a machine with others.",
        fixes=("set `device.device: cpu`", "or use Ray Serve: `stoker.ray.build_app` reads the GPUs of each replica"),
    ),
    Rule(
        id="R472",
        title="an actor of Ray starts no others",
        fields=(
            *("parallel.data_parallel_backend", "parallel.data_parallel_size"),
            "parallel.distributed_executor_backend",
        ),
        is_broken=lambda v: v.config.parallel.are_replicas_on_ray and v.distributed_executor_backend == "ray",
        message="`parallel.data_parallel_backend` and `distributed_executor_backend` are ray",
        why="All processes of a replica are in its actor, with the CPUs that are reserved for it; further actors would "
        "wait for more.",
        fixes=("remove `distributed_executor_backend`, or `data_parallel_backend`",),
    ),
    Rule(
        id="R473",
        title="replicas that Ray places have no addresses for other engines",
        fields=(
            *("parallel.data_parallel_backend", "parallel.data_parallel_size"),
            "kv_transfer.kv_connector",
        ),
        is_broken=lambda v: v.config.parallel.are_replicas_on_ray and v.config.kv_transfer.is_between_engines,
        message="`kv_transfer.kv_connector: {kv_connector}` does not work with `parallel.data_parallel_backend: ray`",
        why="Other engines read blocks at `kv_transfer.kv_ip`, which is an address of one machine, and Ray chooses "
        "the machines of replicas.",
        fixes=("remove `data_parallel_backend`, or `kv_connector`",),
    ),
    Rule(
        id="R474",
        title="Ray places several replicas",
        fields=("parallel.data_parallel_backend", "parallel.data_parallel_size"),
        severity="warning",
        is_broken=lambda v: v.data_parallel_backend == "ray" and v.data_parallel_size == 1,
        message="`parallel.data_parallel_backend` has no effect: there is one replica, a process of this machine",
        why="The only replica runs beside the API.",
        fixes=("remove `data_parallel_backend`, or raise `data_parallel_size`",),
    ),
    Rule(
        id="R440",
        title="a launcher says where its processes are",
        fields=(
            *("parallel.distributed_executor_backend", "parallel.node_rank"),
            *("parallel.master_addr", "parallel.master_port"),
        ),
        is_broken=lambda v: (
            v.distributed_executor_backend == "external_launcher"
            and any(v.is_written(f"parallel.{name}") for name in ("node_rank", "master_addr", "master_port"))
        ),
        message="`parallel.distributed_executor_backend` is external_launcher, and `node_rank`, `master_addr` or "
        "`master_port` is written",
        why="The launcher sets RANK, MASTER_ADDR and MASTER_PORT in the environment of each process.",
        fixes=("remove `node_rank`, `master_addr` and `master_port`: they are arguments of torchrun",),
    ),
    Rule(
        id="R148",
        title="a profiler of Ray workers needs Ray",
        fields=("parallel.ray_workers_use_nsight", "parallel.distributed_executor_backend"),
        is_broken=lambda v: v.ray_workers_use_nsight and v.distributed_executor_backend != "ray",
        message="`parallel.ray_workers_use_nsight` needs `distributed_executor_backend: ray`",
        why="Ray starts its actors under `nsys profile`; other processes of a model are not started by Ray.",
        fixes=("set `distributed_executor_backend: ray`", "or run the command itself under `nsys profile`"),
    ),
    Rule(
        id="R446",
        title="worker_extension_cls is an import path",
        fields=("parallel.worker_extension_cls",),
        is_broken=lambda v: bool(v.worker_extension_cls) and split_import_path(v.worker_extension_cls) is None,
        message="`parallel.worker_extension_cls` is not the import path of a class: {worker_extension_cls}",
        why="Each process of the model imports the class from this module.",
        fixes=("write `package.module:Class`, or remove it",),
    ),
    Rule(
        id="R465",
        title="worker_cls is an import path",
        fields=("parallel.worker_cls",),
        is_broken=lambda v: v.worker_cls != "auto" and split_import_path(v.worker_cls) is None,
        message="`parallel.worker_cls` is not the import path of a class: {worker_cls}",
        why="Each process of the model imports the class from this module.",
        fixes=("write `package.module:Class`, or remove it",),
    ),
    Rule(
        id="R448",
        title="stored blocks are of the checkpoint's weights",
        fields=(
            *("parallel.worker_cls", "parallel.worker_extension_cls", "cache.kv_directory"),
            *("kv_transfer.kv_connector", "cache.kv_offloading_size"),
        ),
        is_broken=lambda v: bool(v.worker_options) and bool(v.block_stores),
        message="{block_stores} cannot be used with {worker_options}",
        why="A worker can replace weights, and stored KV blocks would be read that were computed with those before.",
        fixes=("remove {worker_options}, or {block_stores}",),
    ),
    Rule(
        id="R449",
        title="workers of GPUs are not called",
        fields=("parallel.worker_cls", "parallel.worker_extension_cls", "device.device"),
        is_broken=lambda v: bool(v.worker_options) and v.device != "cpu",
        message="`device.device` is {device}, and {worker_options} for CPUs",
        why="Weights are not replaced in the memory of a GPU, nor in the steps that are captured there.",
        fixes=("remove {worker_options}, or set `device.device: cpu`",),
    ),
    Rule(
        id="R450",
        title="workers on other nodes are started by a launcher, or by Ray",
        fields=(
            *("parallel.worker_cls", "parallel.worker_extension_cls"),
            *("parallel.nnodes", "parallel.distributed_executor_backend"),
        ),
        is_broken=lambda v: (
            bool(v.worker_options) and v.nnodes > 1 and v.distributed_executor_backend != "external_launcher"
        ),
        message="`parallel.nnodes` is {nnodes}, with {worker_options}",
        why="Other nodes run `engine up`, which has no workers of its own; a script cannot start them.",
        fixes=("start the script with torchrun on each node: `distributed_executor_backend: external_launcher`",),
    ),
    Rule(
        id="R441",
        title="the processes of a launcher compute one replica",
        fields=("parallel.distributed_executor_backend", "parallel.data_parallel_size"),
        is_broken=lambda v: v.distributed_executor_backend == "external_launcher" and v.data_parallel_size > 1,
        message="`parallel.distributed_executor_backend` is external_launcher, and `data_parallel_size` is "
        "{data_parallel_size}",
        why="All processes run the same script with the same prompts. Replicas would have different ones.",
        fixes=("set `data_parallel_size` to 1, and start the script once for each replica",),
    ),
    Rule(
        id="R442",
        title="events about the KV cache are of a server",
        fields=("parallel.distributed_executor_backend", "kv_events.enable_kv_cache_events"),
        is_broken=lambda v: v.distributed_executor_backend == "external_launcher" and v.config.kv_events.is_publishing,
        message="`kv_events` are published, and `parallel.distributed_executor_backend` is external_launcher",
        why="Each process has a scheduler, and all of them would publish the same events at the same port.",
        fixes=("remove `kv_events`",),
    ),
)

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R132",
        "the number of workers is tensor-parallel times pipeline-parallel size",
        ("parallel.distributed_executor_backend", "parallel.tensor_parallel_size", "parallel.pipeline_parallel_size"),
        "The engine or a launcher starts tensor_parallel_size times pipeline_parallel_size processes for a replica; "
        "the engine starts tensor_parallel_size times prefill_context_parallel_size where processes share prompts.",
    ),
    StatedRule(
        "R443",
        "the world of a launcher is one replica",
        ("parallel.distributed_executor_backend", "parallel.tensor_parallel_size", "parallel.pipeline_parallel_size"),
        "With `external_launcher` LLM refuses a WORLD_SIZE other than tensor_parallel_size times "
        "pipeline_parallel_size, and a LOCAL_WORLD_SIZE other than this divided by `nnodes`.",
    ),
    StatedRule(
        "R444",
        "a launcher describes each process in its environment",
        ("parallel.distributed_executor_backend",),
        "With `external_launcher` LLM refuses to start without RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT, and names those that are missing.",
    ),
    StatedRule(
        "R445",
        "a launcher starts scripts, not servers",
        ("parallel.distributed_executor_backend",),
        "`engine up` and other servers refuse `external_launcher`: each process would have an API of its own.",
    ),
    StatedRule(
        "R133",
        "only one executor supports TPUs",
        ("parallel.distributed_executor_backend",),
        "Cannot occur: this build does not support TPUs.",
    ),
    StatedRule(
        "R135",
        "experts are spread over tensor-parallel times data-parallel devices",
        ("parallel.data_parallel_size", "parallel.tensor_parallel_size"),
        "With `enable_expert_parallel`: over the processes of each replica or, where a replica is one process, over "
        "the replicas. Without it each replica has all experts, and replicas do not wait for each other.",
    ),
    StatedRule(
        "R136",
        "a rank means external load balancing",
        ("parallel.data_parallel_rank", "parallel.data_parallel_size"),
        "A server with a rank runs this one replica; `data_parallel_external_lb` need not be written.",
    ),
    StatedRule(
        "R141",
        "expert parallelism replaces tensor parallelism of experts",
        ("parallel.enable_expert_parallel",),
        "The processes of `tensor_parallel_size` have whole experts then; attention and shared experts stay divided. "
        "Replicas that share experts have all of attention and of shared experts each.",
    ),
    StatedRule(
        "R144",
        "four old options are keys of eplb_config",
        (
            "parallel.num_redundant_experts",
            "parallel.eplb_window_size",
            "parallel.eplb_step_interval",
            "parallel.eplb_log_balancedness",
            "parallel.eplb_config",
        ),
        "Each is mapped onto its key with a warning (C123); a key with different values in both places is an error "
        "(C124).",
    ),
    StatedRule(
        "R145",
        "experts are placed linearly or round-robin",
        ("parallel.expert_placement_strategy", "parallel.eplb_config"),
        "4 experts on 2 processes or replicas are {0,1} and {2,3} when placed linearly, {0,2} and {1,3} round-robin.",
    ),
    StatedRule(
        "R146",
        "thresholds of micro-batches need enable_dbo",
        ("parallel.dbo_decode_token_threshold", "parallel.dbo_prefill_token_threshold", "parallel.enable_dbo"),
        "Cannot occur: enable_dbo and other thresholds than the defaults are refused, so they cannot be set without "
        "an effect.",
    ),
    StatedRule(
        "R147",
        "parallel loading applies to files",
        ("parallel.max_parallel_loading_workers", "parallel.tensor_parallel_size"),
        "In other engines it limits the workers of several devices; with one device it is the number of weight files "
        "that are read at the same time.",
    ),
    StatedRule(
        "R149",
        "worker_use_ray selects an executor",
        ("parallel.worker_use_ray", "parallel.distributed_executor_backend"),
        "The old option becomes `distributed_executor_backend: ray`; false has no effect.",
    ),
    StatedRule(
        "R150",
        "a worker extension is a base class of the worker",
        ("parallel.worker_extension_cls", "parallel.worker_cls"),
        "It may be mixed into `worker_cls`. The start refuses one with an attribute that the worker has itself: rank, "
        "world_size, model.",
    ),
    StatedRule(
        "R447",
        "workers are called by scripts, not by clients",
        ("parallel.worker_cls", "parallel.worker_extension_cls"),
        "`engine up` refuses them: no endpoint calls `LLM.collective_rpc`.",
    ),
    StatedRule(
        "R155",
        "splitting the media encoder by its batch",
        ("multimodal.mm_encoder_tp_mode", "parallel.tensor_parallel_size"),
        "Cannot occur: this build reads no media.",
    ),
    StatedRule(
        "R156",
        "an old option is mm_encoder_tp_mode",
        ("parallel.enable_multimodal_encoder_data_parallel", "multimodal.mm_encoder_tp_mode"),
        "It becomes `mm_encoder_tp_mode: data`, which this build refuses; false has no effect.",
    ),
)
