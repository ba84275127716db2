"""The record of a model as it is read."""

from __future__ import annotations

from math import ceil
from typing import Any, Literal

from pydantic import Field

from ...model.expert_placement import with_placed_experts
from ...model.pipeline_stages import rank_share
from ...model.quantised import TWELVE_BITS
from ...model.record import Record
from ...model.sizes import count_parameters, matrix_bytes, weights_bytes
from ...model.spec import ModelSpec
from ...model.tensor_parallel import of_one_device
from ...model.through_transformers import Implementation
from ..checkpoint.repository_code import RepositoryCode
from ..held_codes import CodesLayout
from ..model_facts import Fact
from ..schema.parallel import ParallelConfig
from .adapter_files import NamedAdapter
from .draft_files import MODEL_METHODS, DraftFiles
from .sharded_state import StateShape
from .stored_as import OwnCodes, StoredAs

WeightFormat = Literal["safetensors", "pt", "npcache", "sharded_state", "mistral", "gguf", "dummy"]


class ModelFiles(Record):
    """The model's files as they are found, without loading weights. `hf_overrides` are already applied."""

    model_path: str  # directory that holds the weights
    config_path: str  # directory whose config.json or params.json was read
    spec: ModelSpec
    implementation: Implementation = "native"
    code: RepositoryCode | None = None  # of the model's repository, which defines its class
    config_json: dict[str, Any] = Field(default_factory=dict)  # what transformers builds the model from; else empty
    max_context: int  # tokens; max_position_embeddings with model.rope_scaling and disable_sliding_window applied
    window: int | None  # the model's longest sliding window, also with disable_sliding_window
    rope_theta: float | None  # None: the model has no rotary embedding, or several
    own_rope_theta: float | None  # without model.rope_theta
    checkpoint_dtype: str  # float32, bfloat16 or float16
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None
    sampling_defaults: dict[str, Any]  # from generation_config.json, under this project's names
    tokenizer_path: str | None  # directory or GGUF file that holds the tokenizer; None with skip_tokenizer_init
    template_fact: Fact | None = None  # the chat template of a known model without one
    weight_files: tuple[str, ...]  # names relative to model_path; empty with load_format dummy
    weight_format: WeightFormat
    stored_as: tuple[StoredAs, ...] = ()  # the quantised matrices of the checkpoint
    own_codes: tuple[OwnCodes, ...] = ()  # of those, what kernels can hold as it is
    num_stored: int | None = None  # elements in the weight files, where the description is an estimate
    state: StateShape | None = None  # of a sharded state, whose weights are as kernels hold them
    missing_files: tuple[str, ...] = ()  # what is missing, and was described instead; only for a plan
    notes: tuple[str, ...] = ()  # what of the repository is not used, for people
    unused_overrides: tuple[str, ...] = ()  # keys of hf_overrides that nothing reads and config.json lacks
    draft: DraftFiles | None = None  # the network that drafts tokens for it
    adapters: tuple[NamedAdapter, ...] = ()  # that the deployment names

    @property
    def adapter_saved_elements(self) -> int:
        """Most of whole weights, and rows of weights, that one of the adapters has in place of the model's."""
        return max((each.num_saved_elements for each in self.adapters), default=0)

    @property
    def num_parameters(self) -> int:
        return count_parameters(self.spec).total if self.num_stored is None else self.num_stored

    def weights_bytes(self, dtype: str, held: str | None = None, *, layout: CodesLayout | None = None) -> int:
        """Bytes of all weights when held in `dtype`; linear layers are held as `quantised.held_in` says.

        layout: in which quantised matrices stay in the checkpoint's own codes, as far as kernels take them.
        """
        described = weights_bytes(self.spec, dtype, held)
        if layout is not None and held in (None, TWELVE_BITS):
            described += sum(self._more_bytes(codes, dtype, held, layout) for codes in self.own_codes)
        if self.num_stored is None:
            return described
        return described * self.num_stored // count_parameters(self.spec).total

    def _more_bytes(self, codes: OwnCodes, dtype: str, held: str | None, layout: CodesLayout) -> int:
        """Bytes that matrices take more in the checkpoint's own codes than without; below 0 if they take less."""
        is_taken = dtype == "bfloat16" or not codes.is_of_bfloat16
        if not is_taken or (codes.are_of_experts and layout == "rows"):
            return 0
        own_bytes = codes.row_bytes if layout == "rows" else codes.num_bytes
        more = own_bytes - codes.num_matrices * matrix_bytes(held, dtype, codes.outputs, codes.inputs)
        return int(more * self.spec.held_share) if codes.are_of_experts else more

    def rank_bytes(self, num_ranks: int, dtype: str, held: str | None, layout: CodesLayout | None) -> int:
        """Bytes of the weights that each of several ranks has; the arguments of weights_bytes."""
        if num_ranks > 1 and (self.own_codes or self.num_stored):  # not described tensor by tensor
            return ceil(self.weights_bytes(dtype, held, layout=layout) * rank_share(self.spec, num_ranks))
        return self.of_one_rank(num_ranks).weights_bytes(dtype, held, layout=layout)

    def drafted_by(self, method: str | None) -> ModelFiles:
        """The files without the network of another method."""
        is_unused = self.draft is not None and method not in MODEL_METHODS
        return self.model_copy(update={"draft": None}) if is_unused else self

    def placed(self, parallel: ParallelConfig) -> ModelFiles:
        """The files of a model whose experts are placed as the options say."""
        num_replicas = parallel.topology.num_sharing_experts
        if num_replicas * parallel.tensor_parallel_size == 1 or not parallel.enable_expert_parallel:
            return self
        if not self.spec.has_experts:
            return self
        redundant = parallel.expert_balance.num_redundant_experts if parallel.enable_eplb else None
        placed = with_placed_experts(self.spec, parallel.expert_placement_strategy, redundant, num_replicas)
        return self.model_copy(update={"spec": placed})

    def of_one_rank(self, num_ranks: int) -> ModelFiles:
        """The files of a model as large as what each rank of a stage has, if it can be divided."""
        return self.model_copy(update={"spec": of_one_device(self.spec, num_ranks)})
