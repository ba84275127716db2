"""Decided values as rules use them: by option name, with the derived values that messages show."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...input_file import read_file
from ...model.offload import WeightOffload
from ...model.quantised import scheme_of
from ...model.rope import SCALINGS
from ...model.sharding import holders_of_blocks, not_divided, not_divisible, not_parted, not_shared_in_time
from ...model.sizes import DTYPE_BYTES
from ...model.through_transformers import is_tested
from ..checkpoint.bounded_json import decode
from ..checkpoint.chat_templates import TemplateSource, TemplateUnreadable, template_of
from ..checkpoint.model_files import MAX_TEMPLATE_BYTES
from ..checkpoint.settings import settings_problem
from ..cpu_list import cpus_problem, format_cpus
from ..origin import Layer
from ..schema.kv_transfer import BUILT_IN
from ..schema.options import options
from ..schema.parallel import MIN_TOKENS_EACH
from ..schema.types import format_about, format_size
from ..suggest import close, did_you_mean
from . import sampling
from .decide import Decisions, decide, no_graphs
from .numa_places import fewest_cpus, idle_nodes, shared_cpus
from .resolved import MachineSpec, MemoryPlan

MAX_SHARING = 63  # replicas that exchange through shared memory: src/engine/memory/shared_memory.py

if TYPE_CHECKING:
    from ..deployment import Deployment
    from ..schema.deployment import DeploymentConfig

_OF_SUPERVISOR = (
    "parallel.data_parallel_supervisor_port",
    "parallel.dp_supervisor_probe_interval_s",
    "parallel.dp_supervisor_probe_timeout_s",
    "parallel.dp_supervisor_probe_failure_threshold",
)


class Values:
    """An option's value by its name (`v.max_num_seqs`), and what follows from several of them."""

    def __init__(self, deployment: Deployment, decisions: Decisions) -> None:
        self.deployment = deployment
        self.decisions = decisions

    def __getattr__(self, name: str) -> Any:
        for section in self.decisions.values.values():
            if name in section:
                return section[name]
        raise AttributeError(name)

    @property
    def config(self) -> DeploymentConfig:
        return self.deployment.config

    @property
    def machine(self) -> MachineSpec:
        return self.decisions.machine

    def is_written(self, path: str) -> bool:
        """Whether the user wrote a value that neither the preset nor a deployment without it would have."""
        if not self.decisions.is_written(path) or self.decisions.origins[path].layer is Layer.PRESET:
            return False
        return self.decisions.get(path) not in (*self._preset_values(path), self._value_without(path))

    def _preset_values(self, path: str) -> list[Any]:
        validate = options()[path].adapter.validate_python
        overridden = self.deployment.overridden.get(path, ())
        return [validate(weaker.value) for weaker in overridden if weaker.origin.layer is Layer.PRESET]

    def _value_without(self, path: str) -> Any:
        """The default, or what `auto` would choose."""
        if path == "model.rope_theta" and self.decisions.model_files is not None:
            own = self.decisions.model_files.own_rope_theta  # the rest depends on the written value
            return "auto" if own is None else own
        section, _, name = path.partition(".")
        unset = getattr(self.config, section).model_copy(update={name: options()[path].default})
        deployment = replace(
            self.deployment,
            config=self.config.model_copy(update={section: unset}),
            origins={known: origin for known, origin in self.deployment.origins.items() if known != path},
        )
        return decide(deployment, self.decisions.model_files, self.decisions.whole_machine).get(path)

    def located(self, path: str) -> str:
        return self.deployment.located(path)

    @property
    def is_kv_written(self) -> bool:
        """Whether the user fixed the size of the KV cache."""
        return self.num_gpu_blocks_override is not None or self.decisions.is_written("cache.kv_cache_memory_bytes")

    @property
    def num_kv_blocks(self) -> int:
        return self.decisions.num_kv_blocks

    @property
    def num_replicas(self) -> int:
        """That this server runs."""
        return self.decisions.num_replicas

    @property
    def last_port(self) -> int:
        """Of the servers of this machine."""
        return max(self.decisions.ports.values())

    @property
    def other_ways(self) -> str:
        """Options that place replicas elsewhere than `data_parallel_multi_port_external_lb` does."""
        parallel = self.config.parallel
        found = {
            "data_parallel_rank": parallel.data_parallel_rank is not None,
            "data_parallel_hybrid_lb": parallel.data_parallel_hybrid_lb,
            "data_parallel_address": parallel.data_parallel_address is not None,
            "data_parallel_backend: ray": parallel.data_parallel_backend == "ray",
            "nnodes": parallel.nnodes > 1,
            "server.headless": self.headless,
        }
        return ", ".join(f"`{name}`" for name, is_written in found.items() if is_written)

    @property
    def written_of_supervisor(self) -> str:
        """Options of the supervisor of several servers that are written."""
        return ", ".join(f"`{path}`" for path in _OF_SUPERVISOR if self.is_written(path))

    @property
    def num_processes(self) -> int:
        """That compute on this machine."""
        return self.decisions.num_processes

    @property
    def numa_entries(self) -> str:
        """Why the options of NUMA nodes cannot be meant as they are written; empty if they can."""
        nodes, cpus, count = self.numa_bind_nodes, self.numa_bind_cpus, self.num_processes
        if not self.numa_bind:
            return "`device.numa_bind` is false, and there is a list of places" if nodes or cpus else ""
        for name, entries in (("numa_bind_nodes", nodes), ("numa_bind_cpus", cpus)):
            if entries and len(entries) != count:
                processes = "1 process runs" if count == 1 else f"{count} processes run"
                said = "1 entry" if len(entries) == 1 else f"{len(entries)} entries"
                return f"`device.{name}` has {said}; {processes} on this machine"
        for text in cpus:
            if problem := cpus_problem(text):
                return f"`{text}` in `device.numa_bind_cpus` {problem}"
        if self.decisions.gpu is not None and not self.decisions.is_interpreted and not nodes:
            return "`device.numa_bind` with GPUs needs `device.numa_bind_nodes`"
        return ""

    @property
    def not_bound(self) -> str:
        """Who starts processes that `device.numa_bind` cannot bind; empty if there are none."""
        if self.disable_frontend_multiprocessing:
            return "the engine runs in the process of the API (`server.disable_frontend_multiprocessing`)"
        if self.distributed_executor_backend == "external_launcher":
            return "a launcher starts the processes (`parallel.distributed_executor_backend`)"
        if self.distributed_executor_backend == "ray" or self.config.parallel.are_replicas_on_ray:
            return "Ray places the processes"
        return ""

    @property
    def no_numa(self) -> str:
        """Why processes cannot be bound on this machine; empty if they can."""
        machine = self.decisions.whole_machine
        if not machine.numa_nodes:
            return f"this system ({machine.system}) lists no NUMA nodes"
        return f"the kernel refuses set_mempolicy: {machine.no_memory_policy}" if machine.no_memory_policy else ""

    @property
    def no_numa_places(self) -> str:
        """What this machine does not have, of what the options name; empty if it has all."""
        places = self.decisions.numa_places
        if places and self.num_threads > (cores := fewest_cpus(places)):
            process = next(place.process for place in places if len(place.cpus) == cores)
            said = "1 core" if cores == 1 else f"{cores} cores"
            return f"{process} has {said} for the {self.num_threads} threads of `device.num_threads`"
        return self.decisions.no_numa_places

    @property
    def numa_waste(self) -> str:
        """What the places of processes leave unused, or use twice; empty if nothing."""
        places = self.decisions.numa_places
        if shared := shared_cpus(places):
            return f"several processes have the cores {format_cpus(shared)}, and wait for each other there"
        files = self.decisions.model_files
        if files is not None and files.state is not None and len({place.node for place in places}) > 1:
            return "all processes map the same copy of the weights (`load.load_format: sharded_state`), of one node"
        if any(self.decisions.is_written(f"device.{name}") for name in ("numa_bind_nodes", "numa_bind_cpus")):
            return ""
        idle = idle_nodes(self.decisions.whole_machine.numa_nodes, places) if places else []
        if idle:
            nodes = f"node {idle[0]} has" if len(idle) == 1 else f"the nodes {', '.join(map(str, idle))} have"
            return f"{nodes} no process: their cores and memory are not used"
        if places and not self.decisions.is_written("device.num_threads"):
            most = max(places, key=lambda place: len(place.cpus))
            if 2 * self.num_threads <= len(most.cpus) and self.num_threads == fewest_cpus(places):
                used = f"{most.process} uses {self.num_threads} of its {len(most.cpus)} cores"
                return f"{used}: each process has as many threads as the one with the fewest cores"
        return ""

    @property
    def not_divided(self) -> str:
        """Why several processes cannot compute the model of this deployment; empty if they can."""
        files, (num_devices, num_stages) = self.decisions.model_files, self.decisions.rank_sizes
        if num_devices * num_stages == 1 or files is None:
            return ""
        if files.implementation == "transformers":
            return "the model runs through transformers"
        if self.load_format == "sharded_state":
            return "the weights are packed as a whole (`load.load_format: sharded_state`)"
        if files.own_codes and num_devices > 1:
            return "the checkpoint is quantised"
        if num_stages > 1 and self.device == "cuda" and self.kv_cache_dtype == "fp8":
            return "the factors of an fp8 cache (`cache.kv_cache_dtype`) are of all layers"
        if num_stages > 1 and self.weight_offload is not None:
            return "`cache.cpu_offload_gb` is of the layers of all stages"
        if self.block_stores and self.no_stored_parts:
            return f"{self.block_stores} cannot be used with {self.no_stored_parts}"
        return not_divided(files.spec, num_devices, num_stages) or ""

    @property
    def no_stored_parts(self) -> str:
        """Why parts of KV blocks that several processes have are not stored; empty if they are."""
        if self.device == "cuda":
            return "several GPUs"
        if self.decisions.num_stages > 1:
            return "`pipeline_parallel_size`: a block is complete when the last stage has computed it"
        if self.decode_context_parallel_size > 1:
            return "`decode_context_parallel_size`: each process has other tokens of a block"
        is_launched = self.distributed_executor_backend == "external_launcher"
        return "a launcher: each of its processes plans the same steps" if is_launched else ""

    @property
    def shares_experts(self) -> bool:
        """Whether the options say that replicas share experts, and the model may have some."""
        files = self.decisions.model_files
        return self.config.parallel.num_sharing_experts > 1 and (files is None or files.spec.has_experts)

    @property
    def not_shared(self) -> str:
        """Why replicas cannot share the experts of the model; empty if they can, or are not to."""
        files = self.decisions.model_files
        if not self.shares_experts or files is None:
            return ""
        if self.data_parallel_size > MAX_SHARING:
            return f"at most {MAX_SHARING} can exchange through shared memory"
        if files.implementation == "transformers":
            return "the model runs through transformers"
        if self.load_format == "sharded_state":
            return "the weights are packed with all experts (`load.load_format: sharded_state`)"
        return not_divisible(files.spec, 1) or ""

    @property
    def block_stores(self) -> str:
        """The options that keep KV blocks outside the KV cache; empty without."""
        offloading = "cache.kv_offloading_size"
        stores = {
            "cache.kv_directory": self.kv_directory,
            offloading: (self.kv_offloading_bytes if self.is_written(offloading) else 0) or None,
            "kv_transfer.kv_connector": self.kv_connector,
        }
        return " and ".join(f"`{option}`" for option, value in stores.items() if value is not None)

    @property
    def connector_meant(self) -> str:
        """Connectors of this build whose names resemble the one that is written."""
        meant = did_you_mean(close(self.kv_connector or "", BUILT_IN))
        return f" ({meant})" if meant else ""

    @property
    def worker_options(self) -> str:
        """The options that name a class of workers; empty without."""
        parallel = self.config.parallel
        names = {"worker_cls": parallel.worker_cls != "auto", "worker_extension_cls": parallel.worker_extension_cls}
        return " and ".join(f"`parallel.{name}`" for name, is_set in names.items() if is_set)

    @property
    def not_parted(self) -> str:
        """Why the processes cannot share the tokens of sequences as written; empty if they can."""
        files, (num_devices, num_stages) = self.decisions.model_files, self.decisions.rank_sizes
        num_parts = self.decode_context_parallel_size
        if files is None or num_devices % num_parts or not_divided(files.spec, num_devices, num_stages):
            return ""
        return not_parted(files.spec, num_devices, num_parts) or ""

    @property
    def against_shared_prompts(self) -> str:
        """The options with which processes do not share prompts; empty without."""
        parallel = self.config.parallel
        found = {
            "parallel.pipeline_parallel_size": parallel.pipeline_parallel_size > 1,
            "parallel.decode_context_parallel_size": parallel.decode_context_parallel_size > 1,
            "parallel.ubatch_size": parallel.num_step_parts > 2,
            "parallel.enable_eplb": parallel.enable_eplb,
            "parallel.distributed_executor_backend": parallel.distributed_executor_backend == "external_launcher",
            "device.device: cuda": self.device == "cuda",
        }
        options = [f"`{name}`" for name, is_set in found.items() if is_set]
        if self.shares_experts:
            options.append("`parallel.enable_expert_parallel` with `data_parallel_size`")
        return " and ".join(options)

    @property
    def fewest_shared_tokens(self) -> int:
        """Of a step."""
        return int(self.prefill_context_parallel_size) * MIN_TOKENS_EACH

    @property
    def no_shared_prompts(self) -> str:
        """Why processes cannot share prompts to the model; empty if they can, or are not to."""
        files = self.decisions.model_files
        if files is None or self.prefill_context_parallel_size == 1:
            return ""
        if files.implementation == "transformers":
            return "the model runs through transformers"
        return not_shared_in_time(files.spec) or ""

    @property
    def exchanges_over_gloo(self) -> bool:
        """Whether the processes of some stage do."""
        parallel, (num_devices, _) = self.config.parallel, self.decisions.rank_sizes
        if self.device != "cpu" or num_devices == 1:
            return False
        are_on_one_node = all(map(parallel.is_on_one_node, range(parallel.num_groups)))
        return parallel.disable_custom_all_reduce or self.enforce_eager or not are_on_one_node

    @property
    def max_cached_len(self) -> int:
        """Tokens of the longest sequence that the KV cache holds."""
        return self.decisions.max_cached_len

    @property
    def total_bytes(self) -> int:
        return self.decisions.memory.total_bytes if self.decisions.memory else 0

    @property
    def no_graphs(self) -> str:
        """Why no graphs are captured; empty if they are."""
        return no_graphs(self.decisions, self.decisions.get("device.device"))

    @property
    def has_states(self) -> bool:
        """Whether layers of the model keep a recurrent state; False if its files are not known."""
        model_files = self.decisions.model_files
        return model_files is not None and model_files.spec.has_states

    @property
    def has_keys(self) -> bool:
        """Whether a layer of the model keeps anything of each token; True if its files are not known."""
        model_files = self.decisions.model_files
        return model_files is None or model_files.spec.keeps.width > 0

    @property
    def has_uniform_heads(self) -> bool:
        """Whether all layers with keys and values have the same heads; True if the model's files are not known."""
        model_files = self.decisions.model_files
        if model_files is None:
            return True
        kept = [keeps for keeps in model_files.spec.kept_by_layer if keeps is not None]
        return len({keeps.tensors for keeps in kept}) <= 1 and all(keeps.kind != "latent" for keeps in kept)

    @property
    def weight_offload(self) -> WeightOffload | None:
        memory = self.decisions.memory
        return None if memory is None else memory.weight_offload

    @property
    def offloaded_bytes(self) -> int:
        """Of weights, in host memory."""
        return 0 if self.weight_offload is None else self.weight_offload.host_bytes

    @property
    def kv_offloading_bytes(self) -> int:
        return self.decisions.offload_bytes

    @property
    def kv_host_bytes(self) -> int:
        """Host memory for KV blocks outside the KV cache."""
        return self.decisions.offload_bytes + self.decisions.transfer_bytes

    @property
    def stored_block_bytes(self) -> int:
        """0 if the model's files are not known."""
        memory, files = self.decisions.memory, self.decisions.model_files
        if memory is None or files is None:
            return 0
        holders, _ = holders_of_blocks(files.spec, self.decisions.rank_sizes[0])
        return memory.kv_block_bytes * len(holders)

    @property
    def free_host_bytes(self) -> int:
        return self.decisions.machine.available_memory_bytes

    @property
    def has_kv_scales(self) -> bool:
        """Whether some layers can have scales of an fp8 cache; True if the model's files are not known."""
        files = self.decisions.model_files
        if files is None:
            return True
        kept = [keeps for keeps in files.spec.kept_by_layer if keeps is not None]
        return files.implementation == "native" and any(keeps.kind != "latent" for keeps in kept)

    @property
    def shares_keys(self) -> bool:
        """Whether layers read the keys and values of others; False if the model's files are not known."""
        model_files = self.decisions.model_files
        return model_files is not None and any(source is not None for source in model_files.spec.keys_of)

    @property
    def model_limit(self) -> int:
        return self.decisions.model_files.max_context if self.decisions.model_files else 0

    @property
    def window(self) -> int | None:
        """The model's sliding window, in use or not."""
        return self.decisions.model_files.window if self.decisions.model_files else None

    @property
    def is_through_transformers(self) -> bool:
        files = self.decisions.model_files
        return files is not None and files.implementation == "transformers"

    @property
    def is_tested_through_transformers(self) -> bool:
        files = self.decisions.model_files
        return files is not None and is_tested(files.spec)

    @property
    def has_repository_code(self) -> bool:
        files = self.decisions.model_files
        return files is not None and files.code is not None

    @property
    def rope_kind(self) -> Any:
        scaling = self.config.model.rope_scaling
        return scaling.get("rope_type") or scaling.get("type")

    @property
    def unused_overrides(self) -> str:
        names = self.decisions.model_files.unused_overrides if self.decisions.model_files else ()
        return ", ".join(f"`{name}`" for name in names)

    @cached_property
    def _template(self) -> tuple[TemplateSource | None, str]:
        """The chat template, and why there is none although one is set."""
        option, written = "server.chat_template", self.config.server.chat_template
        value = self.decisions.get(option)
        if value is None:
            return None, ""
        try:
            return template_of(value, option, lambda name: self.located(option) if written else name), ""
        except TemplateUnreadable as error:
            return None, str(error)

    @property
    def template(self) -> TemplateSource | None:
        """The chat template that is set; None if it cannot be read."""
        return self._template[0]

    @property
    def template_problem(self) -> str:
        """Why server.chat_template cannot be used; empty if it can."""
        return self._template[1]

    @cached_property
    def log_config_problem(self) -> str:
        """Why server.log_config_file cannot be used; empty if its format is valid."""
        if self.config.server.log_config_file is None:
            return ""
        path = Path(self.located("server.log_config_file"))
        try:
            content = decode(read_file(path, MAX_TEMPLATE_BYTES))
        except OSError as error:
            return f"{path}: {(error.strerror or 'cannot be read').lower()}"
        except json.JSONDecodeError as error:
            return f"{path}:{error.lineno}:{error.colno}: invalid JSON: {error.msg}"
        except ValueError as error:
            return f"{path}: invalid JSON: {error}"
        return "" if isinstance(content, dict) else f"{path}: not a JSON object"

    @cached_property
    def pattern_problem(self) -> str:
        """The error in logits_processor_pattern; empty if there is none."""
        try:
            re.compile(self.logits_processor_pattern or "")
        except re.error as error:
            return f"{error.msg} at character {(error.pos or 0) + 1}"
        return ""

    @cached_property
    def sampling_overrides(self) -> dict[str, Any]:
        """override_generation_config under this project's names."""
        return sampling.our_names(self.override_generation_config)

    @property
    def rope_problem(self) -> str:
        """Where hf_overrides contradicts the options on rotary positions; empty if nowhere."""
        overrides = self.hf_overrides
        newer = overrides.get("rope_parameters")
        newer = newer if isinstance(newer, Mapping) else {}
        theta, scaling = self.config.model.rope_theta, self.config.model.rope_scaling
        for where, value in (("rope_theta", overrides.get("rope_theta")), ("rope_parameters", newer.get("rope_theta"))):
            if theta != "auto" and value is not None and value != theta:
                return f"`{where}` gives the base {value}, `model.rope_theta` gives {theta:g}"
        for where in ("rope_scaling", "rope_parameters"):
            value = overrides.get(where)
            if isinstance(value, Mapping) and any(value.get(key, same) != same for key, same in scaling.items()):
                return f"`{where}` and `model.rope_scaling` differ"
        return ""

    def numbers(self) -> dict[str, Any]:
        """Every value that a message may name."""
        said: dict[str, Any] = {}
        for section, values in self.decisions.values.items():
            for name, value in values.items():
                said[name] = options()[f"{section}.{name}"].show(value)
        said |= {
            "num_cores": self.machine.num_cores,
            "max_open_files": self.machine.max_open_files,
            "available": format_about(self.decisions.available_memory_bytes) + self._for_each,
            "where": f"the {self.decisions.gpu.name}" if self.decisions.gpu else "this machine",
            "num_replicas": self.num_replicas,
            "last_port": self.last_port,
            "other_ways": self.other_ways,
            "written_of_supervisor": self.written_of_supervisor,
            "num_processes": self.num_processes,
            "num_ranks": self.decisions.num_ranks,
            "no_placement": "one process computes each layer"
            if self.tensor_parallel_size * self.data_parallel_size == 1
            else "the model has no experts",
            "expert_window": self.config.parallel.expert_balance.window_size,
            "expert_interval": self.config.parallel.expert_balance.step_interval,
            "not_divided": self.not_divided,
            "not_shared": self.not_shared,
            "block_stores": self.block_stores,
            "connector_meant": self.connector_meant,
            "worker_options": self.worker_options,
            "not_parted": self.not_parted,
            "against_shared_prompts": self.against_shared_prompts,
            "no_shared_prompts": self.no_shared_prompts,
            "fewest_shared_tokens": self.fewest_shared_tokens,
            "block_part": self.decode_context_parallel_size * self.cp_kv_cache_interleave_size,
            "num_machine_cores": self.decisions.whole_machine.num_cores,
            "num_gpus": self.decisions.gpu.num_visible if self.decisions.gpu else 0,
            "numa_entries": self.numa_entries,
            "not_bound": self.not_bound,
            "no_numa": self.no_numa,
            "no_numa_places": self.no_numa_places,
            "numa_waste": self.numa_waste,
            "no_graphs": self.no_graphs,
            "graph_sizes": ", ".join(map(str, self.cuda_graph_sizes)) or "none",
            **self._gpu_numbers(),
            "pattern_problem": self.pattern_problem,
            "log_config_problem": self.log_config_problem,
            "template_problem": self.template_problem,
            "unused_overrides": self.unused_overrides,
            "loader_problem": settings_problem(self.load_format, self.model_loader_extra_config),
            "rope_problem": self.rope_problem,
            "rope_kinds": ", ".join(("default", *SCALINGS)),
            "model_limit": self.model_limit,
            "architecture": self.decisions.model_files.spec.architecture if self.decisions.model_files else "",
            "num_kv_blocks": self.num_kv_blocks,
            "no_states": "without prefix caching" if self.has_states else "for this model: no layer keeps a state",
        }
        said["kv_host"] = format_about(self.kv_host_bytes)
        said["free_for_kv"] = format_about(max(0, self.free_host_bytes - self.offloaded_bytes))
        memory, model_files = self.decisions.memory, self.decisions.model_files
        if (offload := self.weight_offload) is not None:
            said |= {"offloaded": format_about(offload.host_bytes), "free_host": format_about(self.free_host_bytes)}
        if memory is not None and model_files is not None:
            one = self.decisions.bytes_of_longest
            beside = memory.transfer_bytes + memory.kept_bytes + memory.moving_bytes
            others = memory.state_bytes + memory.activation_bytes + beside
            room = max(0, self.decisions.available_memory_bytes - memory.weights_bytes - others)
            said |= {
                "max_cached_len": self.max_cached_len,
                "one_sequence": format_about(one),
                "one_sequence_exact": format_size(-(-one // 1024**2) * 1024**2),
                "one_block": format_size(memory.kv_block_bytes),
                "one_stored_block": format_size(self.stored_block_bytes),
                "written_kv_cache": format_size(self.kv_cache_memory_bytes),
                "kv_cache": format_about(memory.kv_cache_bytes),
                "weights": format_about(memory.weights_bytes),
                "budget": format_about(memory.budget_bytes),
                "total": format_about(memory.total_bytes),
                "others": "".join(
                    f", {name} {format_about(size)}"
                    for name, size in (
                        *(("states", memory.state_bytes), ("steps", memory.activation_bytes)),
                        ("blocks for other engines", memory.transfer_bytes),
                        ("blocks beside the KV cache", memory.kept_bytes),
                        ("experts that move", memory.moving_bytes),
                    )
                    if size
                ),
                "fewer_states": self._fewer_states(memory),
                "kv_room": format_size(room // 1024**2 * 1024**2),
                "smaller_weights": self._smaller_weights(),
            }
        return said

    @property
    def _for_each(self) -> str:
        """After an amount of memory that replicas, or the processes of one, divide among them."""
        what = "replicas" if self.decisions.num_local_ranks == 1 else "processes"
        if self.decisions.gpu is not None and not self.decisions.is_interpreted:
            return ""
        where = " on its NUMA node" * bool(self.decisions.numa_places)
        return (f" for each of {self.num_processes} {what}" if self.num_processes > 1 else "") + where

    def _gpu_numbers(self) -> dict[str, Any]:
        """Texts about the GPU and the memory that `gpu_memory_utilization` is a share of."""
        gpu = self.decisions.gpu
        if gpu is None:
            memory = f"{format_about(self.machine.available_memory_bytes)} available{self._for_each}"
            return {"no_gpu": self.machine.no_gpu or "none was found", "memory": memory}
        memory = f"{format_about(gpu.total_memory_bytes)} of the {gpu.name}"
        if gpu.available_memory_bytes < self.gpu_memory_utilization * gpu.total_memory_bytes:
            memory += f", as far as they are free ({format_about(gpu.available_memory_bytes)}),"
        return {"gpu": gpu.name, "capability": ".".join(map(str, gpu.compute_capability)), "memory": memory}

    def _fewer_states(self, memory: MemoryPlan) -> str:
        """What recurrent states need, as text; empty if there are none."""
        if not memory.num_states:
            return ""
        one = format_about(memory.state_bytes // memory.num_states)
        return f"or set `scheduler.max_num_seqs` below {self.max_num_seqs}: the states of each sequence need {one}"

    def _smaller_weights(self) -> str:
        """The memory that the next smaller format needs, as text; empty if there is none."""
        model_files, is_on_gpu = self.decisions.model_files, self.decisions.gpu is not None
        scheme = scheme_of(self.quantization)
        if model_files is None or scheme == "int4_pure" or (is_on_gpu and DTYPE_BYTES[self.dtype] == 2):
            return ""
        if DTYPE_BYTES[self.dtype] == 2 or scheme is not None:
            smaller = {None: "int8", "int8": "int4", "int4": "int4_pure"}[scheme]
            size = format_about(model_files.weights_bytes(self.dtype, smaller))
            return f"or `model.quantization: {smaller}`, in which the weights need {size}"
        half = format_about(model_files.weights_bytes("bfloat16"))
        smaller = "float16" if self.decisions.is_interpreted else "bfloat16"
        return f"or `model.dtype: {smaller}`, in which the weights need {half} and the KV cache half as much"
