"""Rules about models that several processes cannot compute together. The format of a rule: ../rule.py."""

from __future__ import annotations

from ....model.context_parallel import context_parallel_problem, prompt_sharing_problem
from ....model.pipeline_stages import division_problem
from ....model.tensor_parallel import tensor_parallel_problem
from ...exit_codes import EXIT_MODEL_FILES
from ..rule import Rule
from ..values import Values

MAX_SHARING = 63  # replicas that exchange through shared memory: src/engine/host/shared_memory.py


def _division_problem(v: Values) -> str:
    """Why several processes cannot compute the model of this deployment; empty if they can."""
    files, num_devices, num_stages = v.files, v.topology.group_size, v.topology.num_stages
    if num_devices * num_stages == 1 or files is None:
        return ""
    if files.implementation == "transformers":
        return "the model runs through transformers"
    if v.load.load_format == "sharded_state":
        return "the weights are packed as a whole (`load.load_format: sharded_state`)"
    if files.own_codes and num_devices > 1:
        return "the checkpoint is quantised"
    if num_stages > 1 and v.device.device == "cuda" and v.cache.kv_cache_dtype == "fp8":
        return "the factors of an fp8 cache (`cache.kv_cache_dtype`) are of all layers"
    if num_stages > 1 and v.weight_offload is not None:
        return "`cache.cpu_offload_gb` is of the layers of all stages"
    return division_problem(files.spec, num_devices, num_stages) or ""


def _context_parallel_problem(v: Values) -> str:
    """Why the processes cannot share the tokens of sequences as written; empty if they can."""
    files, num_devices, num_stages = v.files, v.topology.group_size, v.topology.num_stages
    num_parts = v.topology.num_context_parts
    if files is None or num_devices % num_parts or division_problem(files.spec, num_devices, num_stages):
        return ""
    return context_parallel_problem(files.spec, num_devices, num_parts) or ""


def _prompt_sharing_problem(v: Values) -> str:
    """Why processes cannot share prompts to the model; empty if they can, or are not to."""
    files = v.files
    if files is None or v.parallel.prefill_context_parallel_size == 1:
        return ""
    if files.implementation == "transformers":
        return "the model runs through transformers"
    return prompt_sharing_problem(files.spec) or ""


def _expert_sharing_problem(v: Values) -> str:
    """Why replicas cannot share the experts of the model; empty if they can, or are not to."""
    files = v.files
    if not v.shares_experts or files is None:
        return ""
    if v.parallel.data_parallel_size > MAX_SHARING:
        return f"at most {MAX_SHARING} can exchange through shared memory"
    if files.implementation == "transformers":
        return "the model runs through transformers"
    if v.load.load_format == "sharded_state":
        return "the weights are packed with all experts (`load.load_format: sharded_state`)"
    return tensor_parallel_problem(files.spec, 1) or ""


RULES: tuple[Rule, ...] = (
    Rule(
        id="R385",
        title="the model can be divided",
        fields=(
            *("parallel.tensor_parallel_size", "parallel.pipeline_parallel_size"),
            *("cache.kv_directory", "kv_transfer.kv_connector", "cache.kv_offloading_size", "load.load_format"),
            *("parallel.decode_context_parallel_size", "parallel.distributed_executor_backend", "device.device"),
        ),
        exit_code=EXIT_MODEL_FILES,
        is_broken=_division_problem,
        message="the model cannot be divided over {num_ranks} processes: {problem}",
        why="With tensor parallel each process has as many heads, and as many columns of each feed-forward block, as "
        "the others; a stage of a pipeline has layers that read of other stages their results alone. Stored blocks are "
        "those of all heads, which the processes on CPUs put together after each step.",
        fixes=(
            "set `tensor_parallel_size` and `pipeline_parallel_size` to 1, or to a divisor",
            "or remove the other option that is named",
        ),
    ),
    Rule(
        id="R480",
        title="processes that share tokens hold the same keys and values",
        fields=("parallel.decode_context_parallel_size", "parallel.tensor_parallel_size"),
        exit_code=EXIT_MODEL_FILES,
        is_broken=_context_parallel_problem,
        message="{decode_context_parallel_size} processes cannot share the tokens of each sequence "
        "(`parallel.decode_context_parallel_size`): {problem}",
        why="Each process computes attention over the tokens that it keeps, for the heads of all of them; this needs "
        "keys and values that they otherwise hold several times, in layers of full attention.",
        fixes=("remove `decode_context_parallel_size`",),
    ),
    Rule(
        id="R494",
        title="tokens of the model's prompts can be computed at the same time",
        fields=("parallel.prefill_context_parallel_size",),
        exit_code=EXIT_MODEL_FILES,
        is_broken=_prompt_sharing_problem,
        message="{prefill_context_parallel_size} processes cannot share prompts "
        "(`parallel.prefill_context_parallel_size`): {problem}",
        why="Each process computes some tokens of a prompt through a layer, when the others compute theirs.",
        fixes=("remove `prefill_context_parallel_size`", "or set `tensor_parallel_size`, if the model allows it"),
    ),
    Rule(
        id="R488",
        title="the experts of the model can be shared by replicas",
        fields=("parallel.enable_expert_parallel", "parallel.data_parallel_size", "load.load_format"),
        exit_code=EXIT_MODEL_FILES,
        is_broken=_expert_sharing_problem,
        message="{data_parallel_size} replicas cannot share the experts of the model: {problem}",
        why="Each replica has some experts of every layer, and takes part in every layer of every step.",
        fixes=("remove `enable_expert_parallel`: each replica has all experts",),
    ),
)
