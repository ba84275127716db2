"""Decided values as rules use them: by option name, with the derived values that messages show."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...model.context_parallel import holders_of_blocks
from ...model.offload import WeightOffload
from ..checkpoint.chat_templates import TemplateSource, TemplateUnreadable, template_of
from ..memory.memory_plan import MemoryPlan
from ..origin import Layer
from ..schema.options import options
from ..schema.topology import Topology
from . import sampling
from .decide import decide
from .decide_steps import why_no_graphs
from .decisions import Decisions
from .described_model import ModelFiles
from .machine_spec import MachineSpec
from .sections import Sections

if TYPE_CHECKING:
    from ..deployment import Deployment
    from ..schema.deployment import DeploymentConfig


class Values(Sections):
    """The decided values by section (`v.scheduler.max_num_seqs`), and what follows from several of them.

    A rule waits until the values that it names are decided.
    """

    def __init__(self, deployment: Deployment, decisions: Decisions) -> None:
        super().__init__(**{each.name: getattr(decisions, each.name) for each in fields(Sections)})
        self.deployment = deployment
        self.decisions = decisions

    @property
    def config(self) -> DeploymentConfig:
        return self.deployment.config

    @property
    def files(self) -> ModelFiles | None:
        """The model's files; None if they are not known."""
        return self.decisions.model_files

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
        if path == "model.rope_theta" and self.files is not None:
            own = self.files.own_rope_theta  # the rest depends on the written value
            return "auto" if own is None else own
        section, _, name = path.partition(".")
        unset = getattr(self.config, section).model_copy(update={name: options()[path].default})
        deployment = replace(
            self.deployment,
            config=self.config.model_copy(update={section: unset}),
            origins={known: origin for known, origin in self.deployment.origins.items() if known != path},
        )
        return decide(deployment, self.files, self.decisions.whole_machine).get(path)

    def located(self, path: str) -> str:
        return self.deployment.located(path)

    @property
    def is_kv_written(self) -> bool:
        """Whether the user fixed the size of the KV cache."""
        return self.cache.num_gpu_blocks_override is not None or self.decisions.is_written(
            "cache.kv_cache_memory_bytes"
        )

    @property
    def topology(self) -> Topology:
        return self.decisions.topology

    @property
    def shares_experts(self) -> bool:
        """Whether the options say that replicas share experts, and the model may have some."""
        return self.topology.num_sharing_experts > 1 and (self.files is None or self.files.spec.has_experts)

    @property
    def block_stores(self) -> str:
        """The options that keep KV blocks outside the KV cache; empty without."""
        offloading = "cache.kv_offloading_size"
        stores = {
            "cache.kv_directory": self.cache.kv_directory,
            offloading: (self.decisions.offload_bytes if self.is_written(offloading) else 0) or None,
            "kv_transfer.kv_connector": self.kv_transfer.kv_connector,
        }
        return " and ".join(f"`{option}`" for option, value in stores.items() if value is not None)

    @property
    def ways_of_replicas(self) -> list[str]:
        """The options that say where replicas are; a deployment has one such way."""
        has_rank = self.parallel.data_parallel_rank is not None
        ways = {
            "data_parallel_rank": has_rank,
            "data_parallel_external_lb": self.parallel.data_parallel_external_lb and not has_rank,
            "data_parallel_hybrid_lb": self.parallel.data_parallel_hybrid_lb,
            "data_parallel_address": self.parallel.data_parallel_address is not None,
            "data_parallel_backend": self.parallel.data_parallel_backend == "ray",
        }
        return [f"`parallel.{name}`" for name, is_set in ways.items() if is_set]

    @property
    def exchanges_over_gloo(self) -> bool:
        """Whether the processes of some stage do."""
        topology = self.topology
        if self.device.device != "cpu" or topology.group_size == 1:
            return False
        are_on_one_node = all(map(topology.is_on_one_node, range(topology.num_groups)))
        return self.parallel.disable_custom_all_reduce or self.model.enforce_eager or not are_on_one_node

    @property
    def why_no_graphs(self) -> str:
        """Why no graphs are captured; empty if they are."""
        return why_no_graphs(self.decisions, self.device.device)

    @property
    def has_states(self) -> bool:
        """Whether layers of the model keep a recurrent state; False if its files are not known."""
        return self.files is not None and self.files.spec.has_states

    @property
    def memory(self) -> MemoryPlan:
        """Only where the model's files are known."""
        assert self.decisions.memory is not None
        return self.decisions.memory

    @property
    def weight_offload(self) -> WeightOffload | None:
        memory = self.decisions.memory
        return None if memory is None else memory.weight_offload

    @property
    def offloaded_bytes(self) -> int:
        """Bytes of weights in host memory."""
        return 0 if self.weight_offload is None else self.weight_offload.host_bytes

    @property
    def kv_host_bytes(self) -> int:
        """Host memory for KV blocks outside the KV cache."""
        return self.decisions.offload_bytes + self.decisions.transfer_bytes

    @property
    def stored_block_bytes(self) -> int:
        """Bytes of a stored block; 0 if the model's files are not known."""
        memory, files = self.decisions.memory, self.files
        if memory is None or files is None:
            return 0
        holders, _ = holders_of_blocks(files.spec, self.topology.group_size)
        return memory.kv_block_bytes * len(holders)

    @property
    def model_limit(self) -> int:
        return self.files.max_context if self.files else 0

    @property
    def template(self) -> TemplateSource | None:
        """The chat template that is set; None if there is none, or it cannot be read."""
        return self.read_template[0]

    @cached_property
    def read_template(self) -> tuple[TemplateSource | None, str]:
        """The chat template, and why there is none although one is set; empty if there is one, or none is set."""
        option, written = "server.chat_template", self.config.server.chat_template
        value = self.decisions.get(option)
        if value is None:
            return None, ""
        try:
            return template_of(value, option, lambda name: self.located(option) if written else name), ""
        except TemplateUnreadable as error:
            return None, str(error)

    @cached_property
    def sampling_overrides(self) -> dict[str, Any]:
        """override_generation_config under this project's names."""
        return sampling.our_names(self.model.override_generation_config)
