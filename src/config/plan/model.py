"""The model to be planned: its shape, its size, and whether this build can run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..checkpoint.model_files import read_json
from ..errors import ModelFilesError, ModelNotLocal
from ..quantised import SCHEMES, TWELVE_BITS
from ..resolve.model_spec import config_folder, hub_cache, merge_deep, model_folder
from ..resolve.resolve import read_model_spec
from ..resolve.resolved import DTYPE_BYTES, ModelSpec, Record
from .config_reader import AbsurdValue
from .headers import Stored, read_stored
from .parameters import Parameters, count_parameters
from .shape import ModelShape, read_shape

if TYPE_CHECKING:
    from ..deployment import Deployment

_ENDS = ("M303", "M306", "M309")  # damaged: nothing can be planned; other models than this build runs can be
# Bytes of a quantised weight, its share of scales included, for models that this build does not run.
QUANTISED_BYTES = {"fp8": 1.01, "int8": 1.01, "int4": 0.53, "int4_pure": 0.53}


class PlannedModel(Record):
    """The model of a plan. `model_spec` is None if this build cannot run it; `why_not` is the reason."""

    name: str
    folder: str
    shape: ModelShape
    parameters: Parameters
    stored: Stored | None
    model_spec: ModelSpec | None
    why_not: str

    @property
    def num_parameters(self) -> int:
        if self.model_spec is not None:
            return self.model_spec.num_parameters
        is_plain = self.stored is not None and self.shape.quantization is None and not self.stored.missing_bytes
        return sum(self.stored.numbers.values()) if self.stored is not None and is_plain else self.parameters.total

    @property
    def checkpoint_dtype(self) -> str:
        if self.model_spec is not None:
            return self.model_spec.checkpoint_dtype
        numbers = self.stored.numbers if self.stored is not None else {}
        names = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
        plain = {name: count for name, count in numbers.items() if name in names}
        return names[max(plain, key=lambda name: plain[name])] if plain else self.shape.checkpoint_dtype

    @property
    def limit(self) -> int:
        """Maximum context length of the model, in tokens."""
        return self.model_spec.max_context if self.model_spec is not None else self.shape.max_position_embeddings

    @property
    def weights_source(self) -> str:
        if self.stored is None:
            return "counted from config.json"
        return f"headers of {self.stored.num_files} file{'s' * (self.stored.num_files != 1)}"

    def weights_bytes(self, dtype: str, quantization: str | None = None) -> int:
        """Bytes of all weights in memory. quantization: one that the checkpoint does not have, or TWELVE_BITS."""
        size = DTYPE_BYTES[dtype]
        if self.model_spec is not None and quantization in (None, TWELVE_BITS, *SCHEMES):
            return self.model_spec.weights_bytes(dtype, quantization)
        if quantization not in (None, TWELVE_BITS):
            matrices = min(self.parameters.matrices, self.num_parameters)
            return round(matrices * QUANTISED_BYTES[quantization] + (self.num_parameters - matrices) * size)
        if self.stored is not None:
            return self.stored.bytes_in(dtype)
        if self.shape.quantization is not None:
            matrices, bits = self.parameters.matrices, self.shape.quantization_bits
            return round(matrices * bits / 8 * (1.06 if bits < 8 else 1.01) + (self.num_parameters - matrices) * size)
        return self.num_parameters * size

    def active_bytes(self, dtype: str, quantization: str | None = None) -> int:
        """Bytes of weights that the device reads for one token."""
        share = min(1.0, self.parameters.active / max(1, self.parameters.total))
        return round(self.weights_bytes(dtype, quantization) * share)


def read_model(deployment: Deployment) -> PlannedModel:
    """Reads config.json and weight headers. Raises ModelFilesError if there is no config.json that can be read."""
    model = deployment.model
    try:
        model_spec, why_not = read_model_spec(deployment), ""
    except ModelNotLocal:
        raise
    except ModelFilesError as error:
        if error.code in _ENDS:
            raise
        model_spec, why_not = None, str(error)
    cache = hub_cache(deployment)
    folder = model_folder(deployment, cache)
    place = config_folder(deployment, folder, cache)
    try:
        shape = read_shape(merge_deep(read_json(place / "config.json"), model.hf_overrides))
        parameters = count_parameters(shape)
    except AbsurdValue as error:
        raise ModelFilesError(f"{place}/config.json: {error}", code="M306") from error
    if not shape.hidden_size or not shape.num_layers:
        raise ModelFilesError(why_not or f"{place}/config.json: names neither layers nor their width", code="M306")
    is_dummy = deployment.load.load_format == "dummy"
    stored = None if is_dummy else read_stored(folder, shape.is_tied)
    return PlannedModel(
        name=model.model,
        folder=str(folder),
        shape=shape,
        parameters=parameters,
        stored=stored,
        model_spec=model_spec,
        why_not=why_not.removeprefix(f"{place}/config.json: ").removeprefix(f"{folder}: "),
    )
