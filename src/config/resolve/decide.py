"""What `auto` becomes: one decision per option, each with the rule that made it and the reason.

A written value is never changed. Decisions that need the model's files wait until these are known (`model_files` is
None while a hub model is not on this machine). This module sets the order: a decision may use those before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...model.spec import WeightNames
from ..auto_values import LONG_PROMPT_SHARE
from ..model_facts import model_facts
from ..origin import DEFAULT, Layer
from ..schema.options import options
from .decide_memory import decide_memory, decide_num_seqs, decide_states
from .decide_process import (
    decide_adapters,
    decide_device,
    decide_executor,
    decide_numa,
    decide_offloading,
    decide_server,
    decide_shared_folder,
)
from .decide_steps import decide_batched_tokens, decide_drafts, decide_scheduler
from .decisions import Decisions
from .described_model import ModelFiles
from .machine_spec import MachineSpec
from .precision import own_dtype
from .resolved import Resolved

if TYPE_CHECKING:
    from ..deployment import Deployment

NEED_MODEL = (  # decided by the model's files only
    *("model.tokenizer", "model.hf_config_path", "model.rope_theta", "model.dtype", "model.max_model_len"),
    *("load.load_format", "cache.kv_cache_memory_bytes"),
    *("scheduler.max_queued_tokens", "scheduler.max_num_batched_tokens"),
    *("cache.kv_cache_dtype", "scheduler.long_prefill_token_threshold"),
    *("speculative.method", "lora.lora_dtype"),
)


def decide(deployment: Deployment, model_files: ModelFiles | None, machine: MachineSpec) -> Decisions:
    """Fill every `auto` that can be filled."""
    config = deployment.config
    # dict, not model_dump: secrets and tuples stay as they are
    kinds = Resolved.sections()
    values: dict[str, dict[str, Any]] = {section: dict(getattr(config, section)) for section in kinds}
    for option in options().values():  # relative to the file that wrote them
        if option.path_kind in ("path", "source") and values.get(option.section, {}).get(option.name) is not None:
            values[option.section][option.name] = deployment.located(option.path)
    sections: dict[str, Any] = {section: kinds[section].model_construct(**each) for section, each in values.items()}
    topology = config.parallel.topology
    done = Decisions(
        **sections,
        origins=dict(deployment.origins),
        model_files=model_files,
        whole_machine=machine,
        machine=machine.shared_by(topology.num_processes),
        topology=topology,
        transfer_bytes=config.kv_transfer.buffer_bytes,
    )
    decide_numa(done, topology)
    decide_device(done)
    decide_shared_folder(done, deployment)
    decide_offloading(done, deployment)
    decide_executor(done)
    decide_adapters(done)
    decide_server(done)
    if model_files is None:
        decide_scheduler(done)
        if done.is_auto("scheduler.max_num_batched_tokens") and not done.is_auto("model.max_model_len"):
            decide_batched_tokens(done, done.model.max_model_len)
        done.undecided |= {path for path in NEED_MODEL if done.is_auto(path)}
        return done
    _files(done, model_files)
    _preset(done, model_files)
    _precision(done, model_files)
    if done.is_auto("lora.lora_dtype"):
        done.decide("lora.lora_dtype", done.model.dtype, "R164", "the format of the model")
    decide_states(done, model_files)
    decide_drafts(done, model_files)
    decide_num_seqs(done, model_files)
    decide_scheduler(done)
    decide_memory(done, model_files.drafted_by(done.speculative.method))
    _context(done, model_files)
    return done


_DESCRIBED_BY: dict[WeightNames, str] = {
    "hf": "it has a config.json",
    "mistral": "it has a params.json",
    "gguf": "the header of a GGUF file",
}


def _files(done: Decisions, model_files: ModelFiles) -> None:
    """Decide where files are read from: hub ids become directories."""
    if done.is_auto("model.tokenizer"):
        own = model_files.tokenizer_path or model_files.model_path
        done.decide("model.tokenizer", own, "R044", "the model's own tokenizer")
    elif model_files.tokenizer_path is not None:
        done.put("model.tokenizer", model_files.tokenizer_path)
    if done.is_auto("model.hf_config_path"):
        done.decide("model.hf_config_path", model_files.config_path, "R045", "the model's own directory")
    else:
        done.put("model.hf_config_path", model_files.config_path)
    if done.is_auto("model.config_format"):
        described = model_files.spec.weight_names
        done.decide("model.config_format", described, "R074", _DESCRIBED_BY[described])
    if done.is_auto("model.rope_theta") and model_files.rope_theta is not None:
        done.decide(
            "model.rope_theta", model_files.rope_theta, "config.json", "the model's own base", layer=Layer.MODEL
        )
    if done.is_auto("load.load_format"):
        reason = {
            "safetensors": "the model has safetensors",
            "mistral": "the consolidated files that params.json describes",
            "gguf": "a GGUF file",
            "sharded_state": "written by `engine save-sharded --as-loaded`",
            "dummy": "no weight files on this machine; a start takes the format that they have",
        }.get(model_files.weight_format, "no safetensors, but files of torch, read as data")
        done.decide("load.load_format", model_files.weight_format, "R079", reason)
    fact = model_files.template_fact
    if fact is not None and done.server.chat_template is None:
        name = f"model facts {model_facts().version}"
        done.decide("server.chat_template", fact.template_path, name, f"of {fact.source}", layer=Layer.MODEL)


def _preset(done: Decisions, model_files: ModelFiles) -> None:
    """A preset is for every model: its context is limited by the model's own."""
    path = "model.max_model_len"
    origin, length = done.origins.get(path, DEFAULT), done.model.max_model_len
    if origin.layer is Layer.PRESET and not done.is_auto(path) and length > model_files.max_context:
        reason = f"the model's own limit, below the {length} of preset {origin.name}"
        done.decide(path, model_files.max_context, "config.json", reason, layer=Layer.MODEL)


def _precision(done: Decisions, model_files: ModelFiles) -> None:
    is_on_cpu = done.device.device == "cpu"
    if not done.is_auto("model.dtype") and not (is_on_cpu and done.model.dtype == "float16"):
        return
    found = own_dtype(
        model_files.checkpoint_dtype,
        is_on_cpu=is_on_cpu,
        has_bfloat16=done.machine.has_bfloat16 or not is_on_cpu,
        is_quantised=model_files.spec.quantization is not None,
        is_interpreted=done.is_interpreted,
    )
    done.decide("model.dtype", found[0], "R051", found[1])


def _context(done: Decisions, model_files: ModelFiles) -> None:
    assert done.memory is not None
    held = done.memory.max_cached_len
    if done.is_auto("model.max_model_len"):
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
    if done.is_auto("scheduler.max_num_batched_tokens"):
        decide_batched_tokens(done, done.model.max_model_len)
    if done.is_auto("scheduler.long_prefill_token_threshold"):
        tokens = max(1, int(LONG_PROMPT_SHARE * done.model.max_model_len))
        reason = f"{LONG_PROMPT_SHARE:.0%} of model.max_model_len"
        done.decide("scheduler.long_prefill_token_threshold", tokens, "R115", reason)
