"""What `auto` becomes: one decision per option, each with the rule that made it and the reason.

A written value is never touched. Decisions that need the model's files wait until they are known (`facts` is None
while a hub model is not on this machine).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..origin import DEFAULT, Layer, Origin
from ..quantised import held_in
from ..schema.options import options
from ..schema.types import format_about
from .gpu import LEAST_CAPABILITY
from .gpu_memory import activation_bytes
from .graphs import usual_sizes, written_sizes
from .resolved import GpuFacts, MachineFacts, MemoryPlan, ModelFacts

if TYPE_CHECKING:
    from ..deployment import Deployment

MAX_AUTO_KV_BYTES = 4 << 30  # on a CPU more is seldom filled, and it is memory that other programs miss
QUEUED_PER_KV_TOKEN = 16
LONG_PROMPT_SHARE = 0.04
MAX_NUM_SEQS = {"cpu": 64, "cuda": 256}
MAX_NUM_BATCHED_TOKENS = {"cpu": 2048, "cuda": 8192}
BLOCK_SIZE = {"cpu": 16, "cuda": 64}  # 64: what the kernels of a GPU read at once
NEED_MODEL = (  # what only the model's files decide
    *("model.tokenizer", "model.hf_config_path", "model.rope_theta", "model.dtype", "model.max_model_len"),
    *("load.load_format", "cache.kv_cache_memory_bytes"),
    *("scheduler.max_queued_tokens", "scheduler.max_num_batched_tokens"),
    *("cache.kv_cache_dtype", "scheduler.long_prefill_token_threshold"),
)


@dataclass
class Decisions:
    """Values by section and name, their origins, and the memory they lead to."""

    values: dict[str, dict[str, Any]]
    origins: dict[str, Origin]
    facts: ModelFacts | None
    machine: MachineFacts
    memory: MemoryPlan | None = None
    num_kv_blocks: int = 0
    undecided: set[str] = field(default_factory=set)  # paths that wait for the model's files

    @property
    def gpu(self) -> GpuFacts | None:
        """The GPU, if the deployment runs on one."""
        return self.machine.gpu if self.get("device.device") == "cuda" else None

    @property
    def is_interpreted(self) -> bool:
        return self.gpu is not None and self.gpu.is_interpreted

    @property
    def available_memory_bytes(self) -> int:
        """Free on the device. Without the GPU that is asked for, which a rule tells, that of the machine."""
        return (self.gpu or self.machine).available_memory_bytes

    def get(self, path: str) -> Any:
        section, _, name = path.partition(".")
        return self.values[section][name]

    def is_written(self, path: str) -> bool:
        """Whether a person set it: in a preset, a file, the environment or on the command line."""
        return self.origins.get(path, DEFAULT).layer not in (Layer.DEFAULT, Layer.MODEL, Layer.RULE)

    def decide(self, path: str, value: Any, name: str, reason: str, layer: Layer = Layer.RULE) -> None:
        section, _, key = path.partition(".")
        self.values[section][key] = value
        self.origins[path] = Origin(layer=layer, name=name, reason=reason)
        self.undecided.discard(path)


def decide(deployment: Deployment, facts: ModelFacts | None, machine: MachineFacts) -> Decisions:
    """Fill every `auto` that can be filled."""
    config = deployment.config
    sections = ("model", "load", "cache", "scheduler", "parallel", "device", "compilation", "server")
    # getattr, not model_dump: secrets and tuples stay as they are
    values = {
        section: {name: getattr(getattr(config, section), name) for name in type(getattr(config, section)).model_fields}
        for section in sections
    }
    for option in options().values():  # relative to the file that wrote them
        if option.path_kind == "path" and values.get(option.section, {}).get(option.name) is not None:
            values[option.section][option.name] = deployment.located(option.path)
    done = Decisions(values=values, origins=dict(deployment.origins), facts=facts, machine=machine)
    _spellings(done)
    _device(done)
    _server(done)
    _scheduler(done)
    if facts is None:
        if done.get("scheduler.max_num_batched_tokens") == "auto" and done.get("model.max_model_len") != "auto":
            _batched_tokens(done, done.get("model.max_model_len"))
        done.undecided |= {path for path in NEED_MODEL if done.get(path) == "auto"}
        return done
    _files(done, facts)
    _preset(done, facts)
    _precision(done, facts)
    _memory(done, facts)
    _context(done, facts)
    return done


def _spellings(done: Decisions) -> None:
    """Formats with several names keep one."""
    same = {"float": "float32", "half": "float16", "fp8_e4m3": "fp8"}
    for section, name in (("model", "dtype"), ("cache", "kv_cache_dtype")):
        written = done.values[section][name]
        done.values[section][name] = same.get(written, written)


def _device(done: Decisions) -> None:
    machine = done.machine
    if done.get("device.device") == "auto":
        done.decide("device.device", *_best_device(machine))
    device = done.get("device.device")
    if done.get("device.num_threads") == "auto":
        done.decide("device.num_threads", machine.num_cores, "R223", f"{machine.num_cores} cores for this process")
    if done.get("cache.block_size") == "auto":
        done.decide("cache.block_size", BLOCK_SIZE[device], "R086", f"the block size for {device}")


def _best_device(machine: MachineFacts) -> tuple[str, str, str]:
    """The device, the rule and the reason. An interpreter is never the best."""
    gpu = machine.gpu
    if gpu is None or gpu.is_interpreted:
        return "cpu", "R225", f"no GPU: {machine.no_gpu}" if machine.no_gpu else "there is no GPU"
    if gpu.compute_capability < LEAST_CAPABILITY:
        return "cpu", "R225", f"the {gpu.name} is older than this build's kernels"
    return "cuda", "R225", f"there is an {gpu.name}"


def _server(done: Decisions) -> None:
    if done.get("server.log_format") == "auto":
        shape, reason = ("human", "a terminal") if done.machine.has_terminal else ("json", "no terminal")
        done.decide("server.log_format", shape, "R224", f"stderr is {reason}")
    if done.get("server.uvicorn_log_level") == "auto":
        done.decide("server.uvicorn_log_level", done.get("server.log_level"), "R265", "like log_level")
    if done.get("server.h11_max_incomplete_event_size") == "auto":
        size = 2 * done.get("server.max_header_bytes")
        done.decide("server.h11_max_incomplete_event_size", size, "R266", "twice max_header_bytes")


def _scheduler(done: Decisions) -> None:
    device = done.get("device.device")
    if done.get("scheduler.max_num_seqs") == "auto":
        done.decide("scheduler.max_num_seqs", MAX_NUM_SEQS[device], "R102", f"the default for {device}")
    if done.get("scheduler.max_num_batched_tokens") == "auto" and done.get("scheduler.enable_chunked_prefill"):
        _batched_tokens(done, 0)
    _partial_prefills(done)
    if done.get("scheduler.async_scheduling") == "auto":
        reason = "the device computes while the CPU plans" if device == "cuda" else "a CPU computes with all its cores"
        done.decide("scheduler.async_scheduling", device == "cuda", "R123", reason)
    _graphs(done)


def _graphs(done: Decisions) -> None:
    """Sizes written under either name are kept, without what no step could have; else the usual ones."""
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
    """Why no graphs are captured on a device, `cpu` or `cuda`; empty if they are. A level of `auto` is no reason."""
    if device != "cuda":
        return "graphs belong to CUDA devices"
    if done.get("model.enforce_eager"):
        return "model.enforce_eager asks for single operations"
    if done.get("model.batch_invariant"):
        return "model.batch_invariant has no graphs on a GPU"
    is_off = done.is_written("compilation.level") and done.get("compilation.level") == 0
    return "compilation.level is 0" if is_off else ""


def _partial_prefills(done: Decisions) -> None:
    """As many prompts computed in part as run, so that only a written limit holds any back."""
    partial, long = "scheduler.max_num_partial_prefills", "scheduler.max_long_partial_prefills"
    if done.get(partial) == "auto":
        if done.get("scheduler.enable_chunked_prefill"):
            done.decide(partial, done.get("scheduler.max_num_seqs"), "R112", "as many as scheduler.max_num_seqs")
        else:
            done.decide(partial, 1, "R112", "without chunked prefill none is computed in part")
    if done.get(long) == "auto":
        done.decide(long, done.get(partial), "R113", f"as many as {partial}: nobody passes long prompts")


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


def _files(done: Decisions, facts: ModelFacts) -> None:
    """Where things are read from: names of the hub become directories."""
    if done.get("model.tokenizer") == "auto":
        done.decide("model.tokenizer", facts.model_path, "R044", "the model's own tokenizer")
    elif facts.tokenizer_path is not None:
        done.values["model"]["tokenizer"] = facts.tokenizer_path
    if done.get("model.hf_config_path") == "auto":
        done.decide("model.hf_config_path", facts.config_path, "R045", "the model's own config.json")
    else:
        done.values["model"]["hf_config_path"] = facts.config_path
    if done.get("model.rope_theta") == "auto":
        done.decide("model.rope_theta", facts.rope.theta, "config.json", "the model's own base", layer=Layer.MODEL)
    if done.get("load.load_format") == "auto":
        is_safe = facts.weight_format == "safetensors"
        reason = "the model has safetensors" if is_safe else "no safetensors, but files of torch, read as data"
        done.decide("load.load_format", facts.weight_format, "R079", reason)


def _preset(done: Decisions, facts: ModelFacts) -> None:
    """A preset is for every model: its context ends where the model's does."""
    path = "model.max_model_len"
    origin, length = done.origins.get(path, DEFAULT), done.get(path)
    if origin.layer is Layer.PRESET and length != "auto" and length > facts.max_context:
        reason = f"the model's own limit, below the {length} of preset {origin.name}"
        done.decide(path, facts.max_context, "config.json", reason, layer=Layer.MODEL)


def _precision(done: Decisions, facts: ModelFacts) -> None:
    if done.get("model.dtype") != "auto":
        return
    stored, is_on_cpu = facts.checkpoint_dtype, done.get("device.device") == "cpu"
    if stored == "bfloat16" and done.is_interpreted:
        done.decide("model.dtype", "float32", "R051", "a bfloat16 checkpoint; Triton's interpreter has no bfloat16")
    elif stored == "float16" and is_on_cpu:
        done.decide("model.dtype", "float32", "R051", "a float16 checkpoint; CPUs compute float16 in float32 anyway")
    elif stored == "bfloat16" and is_on_cpu and not done.machine.has_bfloat16:
        done.decide(
            "model.dtype", stored, "R051", "the checkpoint's own format; this CPU has no bfloat16 instructions: slow"
        )
    else:
        done.decide("model.dtype", stored, "R051", "the checkpoint's own format")


def _memory(done: Decisions, facts: ModelFacts) -> None:
    """Size the KV cache: blocks as told, else memory as told, else what the deployment can fill."""
    dtype, block_size = done.get("model.dtype"), done.get("cache.block_size")
    if done.get("cache.kv_cache_dtype") == "auto":
        done.decide("cache.kv_cache_dtype", dtype, "R088", "the model's own format")
    is_on_cpu = done.get("device.device") == "cpu"
    keeps_twelve_bits = is_on_cpu and done.machine.keeps_twelve_bits and not done.get("model.enforce_eager")
    weights = facts.weights_bytes(dtype, held_in(dtype, done.get("model.quantization"), keeps_twelve_bits))
    per_token = facts.kv_bytes_per_token(done.get("cache.kv_cache_dtype"))
    share = done.get("cache.gpu_memory_utilization")
    budget, activations = int(share * done.available_memory_bytes), 0
    if (gpu := done.gpu) is not None:  # a share of all there is, as GPUs are usually divided, if it is free
        budget = min(int(share * gpu.total_memory_bytes), gpu.available_memory_bytes)
        activations = _activations(done, facts, dtype)
    block_bytes = block_size * per_token
    written, blocks = done.get("cache.kv_cache_memory_bytes"), done.get("cache.num_gpu_blocks_override")
    if blocks is not None:
        if written == "auto":
            reason = f"{blocks} blocks, as cache.num_gpu_blocks_override says"
            done.decide("cache.kv_cache_memory_bytes", blocks * block_bytes, "R085", reason)
    elif written != "auto":
        blocks = written // block_bytes
    else:
        blocks = _auto_blocks(done, facts, budget - weights - activations, block_bytes, share)
    done.num_kv_blocks = blocks
    done.memory = MemoryPlan(
        budget_bytes=budget,
        weights_bytes=weights,
        activation_bytes=activations,
        kv_bytes_per_token=per_token,
        kv_cache_bytes=blocks * block_bytes,
    )
    if done.get("scheduler.max_queued_tokens") == "auto":
        tokens = max(1, QUEUED_PER_KV_TOKEN * blocks * block_size)
        reason = f"{QUEUED_PER_KV_TOKEN} x the {blocks * block_size} tokens that the KV cache holds"
        done.decide("scheduler.max_queued_tokens", tokens, "R222", reason)


def _activations(done: Decisions, facts: ModelFacts, dtype: str) -> int:
    seqs, tokens = done.get("scheduler.max_num_seqs"), done.get("scheduler.max_num_batched_tokens")
    if tokens == "auto":  # without chunked prefill a step holds the longest prompt
        longest = done.get("model.max_model_len")
        tokens = max(MAX_NUM_BATCHED_TOKENS["cuda"], facts.max_context if longest == "auto" else longest)
    return 0 if done.is_interpreted else activation_bytes(facts, dtype, seqs, tokens)


def _auto_blocks(done: Decisions, facts: ModelFacts, room: int, block_bytes: int, share: float) -> int:
    if done.gpu is not None and not done.is_interpreted:  # memory that nothing else uses
        blocks = max(0, room) // block_bytes
        is_short = done.gpu.available_memory_bytes < int(share * done.gpu.total_memory_bytes)
        others = f", as far as it is free ({format_about(done.gpu.available_memory_bytes)})," * is_short
        reason = f"what cache.gpu_memory_utilization ({share:g}){others} leaves beside weights and activations"
        done.decide("cache.kv_cache_memory_bytes", blocks * block_bytes, "R221", reason)
        return blocks
    block_size, seqs = done.get("cache.block_size"), done.get("scheduler.max_num_seqs")
    written_len = done.get("model.max_model_len")
    longest = facts.max_context if written_len == "auto" else written_len
    one = -(-longest // block_size) * block_bytes  # of one sequence of full length
    ceiling = MAX_AUTO_KV_BYTES if written_len == "auto" else max(MAX_AUTO_KV_BYTES, one)
    wanted, reason = min(
        (seqs * one, f"{seqs} sequences of {longest} tokens each"),
        (ceiling, f"the most that auto takes is {format_about(ceiling)}"),
        (room, f"what cache.gpu_memory_utilization ({share:g}) leaves beside the weights"),
        key=lambda choice: choice[0],
    )
    blocks = max(0, int(wanted) // block_bytes)
    done.decide("cache.kv_cache_memory_bytes", blocks * block_bytes, "R221", reason)
    return blocks


def _context(done: Decisions, facts: ModelFacts) -> None:
    held = done.num_kv_blocks * done.get("cache.block_size")
    if done.get("model.max_model_len") == "auto":
        if held < facts.max_context:
            reason = f"what the KV cache holds; the model itself goes to {facts.max_context}"
            done.decide("model.max_model_len", held, "R003", reason)
        else:
            done.decide(
                "model.max_model_len",
                facts.max_context,
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
