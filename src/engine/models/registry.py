"""The class of a model, by the parts of its description."""

from __future__ import annotations

from ...config import ModelFilesError
from ...model.spec import ModelSpec
from ...model.support import not_supported
from .decoder import Decoder


def model_class(model_spec: ModelSpec) -> type[Decoder]:
    """Raises ModelFilesError, with the reason, for a model with parts that are not supported."""
    if reason := not_supported(model_spec):
        raise ModelFilesError(reason, code="M304")
    return Decoder
