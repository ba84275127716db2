"""The model of a deployment, of this engine or of the transformers library, without its weights."""

from __future__ import annotations

import torch

from ...config import ModelFilesError, Resolved
from ...model.quantised import scheme_of
from ...model.spec import ModelSpec
from ...model.support import support_problem
from ..collectives import Ranks, SharedExperts
from ..kernels import KernelSet
from .decoder import Decoder, LaterStage
from .model import Model


def make_model(
    resolved: Resolved,
    kernels: KernelSet,
    device: torch.device,
    ranks: Ranks | None = None,
    replicas: SharedExperts | None = None,
) -> Model:
    """The model, or its first stage.

    ranks: compute it together. replicas: share its experts. Raises ModelFilesError, with the reason, for a model that
    cannot run.
    """
    spec, dtype = resolved.model_spec, getattr(torch, resolved.model.dtype)
    quantization = scheme_of(resolved.model.quantization)
    if resolved.model_files.implementation == "transformers":
        # Imported here: the library takes seconds to import, and models of this engine do not need it.
        from .transformers_model import TransformersModel

        return TransformersModel(resolved.model_files, kernels, dtype, device, quantization)
    skips_shared, layers = resolved.cache.kv_sharing_fast_prefill, resolved.stage_layers(0)
    model_len, make = resolved.model.max_model_len, model_class(spec)
    return make(
        spec,
        kernels,
        model_len,
        dtype,
        device,
        quantization,
        skips_shared=skips_shared,
        ranks=ranks,
        layers=layers,
        replicas=replicas,
    )


def make_later_stage(
    resolved: Resolved, stage: int, kernels: KernelSet, device: torch.device, ranks: Ranks | None
) -> LaterStage:
    """Stage 1 or a later one. ranks: compute it together."""
    dtype, quantization = getattr(torch, resolved.model.dtype), scheme_of(resolved.model.quantization)
    layers, model_len = resolved.stage_layers(stage), resolved.model.max_model_len
    return LaterStage(resolved.model_spec, kernels, model_len, dtype, device, quantization, ranks=ranks, layers=layers)


def model_class(model_spec: ModelSpec) -> type[Decoder]:
    """Raises ModelFilesError, with the reason, for a model with parts that are not supported."""
    if reason := support_problem(model_spec):
        raise ModelFilesError(reason, code="M304")
    return Decoder
