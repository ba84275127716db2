"""The model to be planned: its shape, its size, and whether this build can run it."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from ...model.config_json import ModelConfigError
from ...model.guess import guess
from ...model.pipeline_stages import rank_share
from ...model.quantised import SCHEMES, TWELVE_BITS
from ...model.read import read_config
from ...model.record import Record
from ...model.sizes import DTYPE_BYTES, Parameters, count_parameters
from ...model.spec import ModelSpec
from ...model.weight_methods import CheckpointMethod, Rule, WeightMethod
from ..checkpoint.described import described_weights
from ..checkpoint.model_files import is_gguf
from ..errors import ModelFilesError, ModelNotLocal
from ..held_codes import CodesLayout
from ..resolve.described_model import ModelFiles
from ..resolve.model_config import is_consolidated, merge_deep, read_values
from ..resolve.model_files import check_method, read_model_files
from ..resolve.model_location import config_path, hub_cache, model_folder
from ..resolve.model_weights import own_codes
from .headers import Stored, read_stored, read_stored_gguf

if TYPE_CHECKING:
    from ..deployment import Deployment

_ENDS = ("M303", "M306", "M309")  # damaged: nothing can be planned; other models than this build runs can be
# Bytes of a quantised weight, its share of scales included, for models that this build does not run.
QUANTISED_BYTES = {"fp8": 1.01, "int8": 1.01, "int4": 0.53, "int4_pure": 0.53}
_OURS = (None, TWELVE_BITS, *SCHEMES)  # in which this build holds weights
_METHODS = {  # of checkpoints in these forms
    "fp8": WeightMethod(kind="fp8", bits=8, block=(1, 0)),
    "int8": WeightMethod(kind="integers", bits=8, block=(1, 0)),
    "int4": WeightMethod(kind="gptq", bits=4, block=(1, 128)),
}


class PlannedModel(Record):
    """The model of a plan. `files` is None if this build cannot run it; `why_not` is the reason."""

    name: str
    folder: str
    spec: ModelSpec
    stored: Stored | None
    files: ModelFiles | None
    why_not: str

    @property
    def missing_files(self) -> tuple[str, ...]:
        """What is missing on this machine, so that it was not checked."""
        return self.files.missing_files if self.files is not None else ()

    @property
    def is_native(self) -> bool:
        """Whether this build runs it with its own models."""
        return self.files is not None and self.files.implementation == "native"

    def in_form(self, form: str) -> PlannedModel | None:
        """A quantised checkpoint of the same model, as one usually is; None if this build has no own model for
        it. form: a key of QUANTISED_BYTES."""
        if self.files is None or not self.is_native:
            return None
        method = CheckpointMethod(name=form, bits=_METHODS[form].bits, rules=(Rule(kind="all", method=_METHODS[form]),))
        spec = self.files.spec.model_copy(update={"quantization": method})
        codes = own_codes(described_weights(Path(self.folder), spec), spec)
        files = self.files.model_copy(update={"spec": spec, "own_codes": codes})
        return self.model_copy(update={"spec": spec, "files": files, "stored": None})

    @property
    def parameters(self) -> Parameters:
        return count_parameters(self.spec)

    @property
    def num_parameters(self) -> int:
        if self.files is not None:
            return self.files.num_parameters
        is_plain = self.stored is not None and self.spec.quantization is None and not self.stored.missing_bytes
        if self.stored is not None and is_plain:
            return sum(self.stored.numbers.values())
        return self.parameters.total

    @property
    def num_active_parameters(self) -> int:
        """Number of parameters that are used for one token."""
        return min(self.parameters.active, self.num_parameters)

    @property
    def checkpoint_dtype(self) -> str:
        if self.files is not None:
            return self.files.checkpoint_dtype
        numbers = self.stored.numbers if self.stored is not None else {}
        names = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
        plain = {name: count for name, count in numbers.items() if name in names}
        return names[max(plain, key=lambda name: plain[name])] if plain else self.spec.dtype

    @property
    def limit(self) -> int:
        """Maximum context length of the model, in tokens."""
        return self.files.max_context if self.files is not None else self.spec.max_position_embeddings

    @property
    def tokenizer_path(self) -> str:
        """The directory or GGUF file that holds the tokenizer and the chat template."""
        own = self.files.tokenizer_path if self.files is not None else None
        return own or self.folder

    @property
    def weights_source(self) -> str:
        if self.files is not None and self.files.state is not None:
            return f"a sharded state in {len(self.files.weight_files)} file{'s' * (len(self.files.weight_files) != 1)}"
        if self.stored is None or "weight files" in self.missing_files:
            return "counted from config.json"
        return f"headers of {self.stored.num_files} file{'s' * (self.stored.num_files != 1)}"

    def weights_bytes(self, dtype: str, quantization: str | None = None, *, layout: CodesLayout | None = None) -> int:
        """Bytes of all weights in memory. quantization: one that the checkpoint does not have, or TWELVE_BITS.

        layout: as ModelFiles.weights_bytes.
        """
        size = DTYPE_BYTES[dtype]
        if self.files is not None and quantization in _OURS:
            return self.files.weights_bytes(dtype, quantization, layout=layout)
        if quantization not in (None, TWELVE_BITS):
            matrices = min(self.parameters.matrices, self.num_parameters)
            return round(matrices * QUANTISED_BYTES[quantization] + (self.num_parameters - matrices) * size)
        if self.stored is not None:
            return self.stored.bytes_in(dtype)
        if self.spec.quantization is not None:
            matrices, bits = self.parameters.matrices, self.spec.quantization.bits
            return round(matrices * bits / 8 * (1.06 if bits < 8 else 1.01) + (self.num_parameters - matrices) * size)
        return self.num_parameters * size

    def rank_bytes(self, num_ranks: int, dtype: str, held: str | None, layout: CodesLayout | None) -> int:
        """Bytes of the weights that each of several ranks has. held: the argument `quantization` of weights_bytes."""
        if self.files is not None and held in _OURS:
            return self.files.rank_bytes(num_ranks, dtype, held, layout)
        return ceil(self.weights_bytes(dtype, held, layout=layout) * rank_share(self.spec, num_ranks))

    def active_bytes(self, dtype: str, quantization: str | None = None, *, layout: CodesLayout | None = None) -> int:
        """Bytes of weights that the device reads for one token."""
        share = min(1.0, self.parameters.active / max(1, self.parameters.total))
        return round(self.weights_bytes(dtype, quantization, layout=layout) * share)


def read_model(deployment: Deployment) -> PlannedModel:
    """Reads config.json and weight headers. Raises ModelFilesError if there is no config.json that can be read."""
    model = deployment.model
    try:
        files, why_not = read_model_files(deployment, describes=True), ""
    except ModelNotLocal:
        raise
    except ModelFilesError as error:
        if error.code in _ENDS:
            raise
        files, why_not = None, str(error)
    cache = hub_cache(deployment)
    folder = model_folder(deployment, cache)
    path = config_path(deployment, folder, cache)
    spec = files.spec if files is not None else _spec(deployment, path)
    if files is None:
        try:
            check_method(spec, model.quantization)
        except ModelConfigError as error:
            raise ModelFilesError(f"{path}: {error}", code=error.code) from None
    if not spec.hidden_size or not spec.layers:
        raise ModelFilesError(why_not or f"{path}: names neither layers nor their width", code="M306")
    is_dummy = deployment.load.load_format == "dummy"
    stored = None
    if files is not None and files.state is not None:
        pass  # its tensors are not those of the model
    elif is_gguf(path):
        folder, stored = path.parent, None if is_dummy else read_stored_gguf(path)
    elif not is_dummy:
        stored = read_stored(folder, spec.is_tied, "mistral" if is_consolidated(path) else "safetensors")
    return PlannedModel(
        name=model.model,
        folder=str(folder),
        spec=spec,
        stored=stored,
        files=files,
        why_not=why_not.removeprefix(f"{path}: ").removeprefix(f"{folder}: "),
    )


def _spec(deployment: Deployment, path: Path) -> ModelSpec:
    """The description of a model that this build cannot run, as far as config.json describes it."""
    try:
        values = merge_deep(read_values(path), deployment.model.hf_overrides)
        try:
            return read_config(values)[0]
        except ModelConfigError as error:
            if error.code in _ENDS:
                raise
            return guess(values)
    except ModelConfigError as error:
        raise ModelFilesError(f"{path}: {error}", code="M306") from error
