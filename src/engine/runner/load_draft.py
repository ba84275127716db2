"""Loads the network that drafts for a model."""

from __future__ import annotations

from pathlib import Path

import torch

from ...config import Resolved
from ...config.checkpoint.draft_match import draft_tensors_of
from ...config.checkpoint.layout import read_tensors
from ...config.checkpoint.match import tensors_of
from ...config.checkpoint.settings import DUMMY_DEVIATION
from ...config.resolve.draft_files import DraftFiles
from ...model.quantised import scheme_of
from ..kernels import KernelSet
from ..layers.loading import TensorReader
from ..models.decoder import Decoder
from ..models.draft_network import BlockLayers, DraftLayers, DraftModel, DraftNetwork, ModelReader
from ..models.model import Model
from ..spec_decode.two_vocabularies import shared_tokens_of
from .dummy_weights import DummyWeights
from .kv_cache import KVCache, kv_dtype
from .loaded_draft import LoadedDraft
from .loading import load_parts
from .weights import Checkpoint


def load_draft(resolved: Resolved, model: Model, kernels: KernelSet, num_blocks: int) -> LoadedDraft | None:
    """The network, if the deployment has one. num_blocks: of the model's cache, of all groups of layers together.

    Raises ModelFilesError for weights that do not fit it.
    """
    files = resolved.model_files.draft
    if files is None:
        return None
    assert isinstance(model, Decoder), "rules exclude the others"
    dtype = getattr(torch, resolved.model.dtype)
    reader = ModelReader(files.draft, model, kernels) if files.draft.reads_model else None
    network = _network(resolved, files, model, kernels, dtype)
    weights = _weights(resolved, files)
    with torch.inference_mode():
        for loadable in network.loadables():
            loadable.load(weights)
    capture = kernels.capture if network.is_capturable else None
    return LoadedDraft(network, _cache(resolved, files, num_blocks), reader, dtype, capture)


def _network(
    resolved: Resolved, files: DraftFiles, model: Decoder, kernels: KernelSet, dtype: torch.dtype
) -> DraftNetwork:
    draft, model_len, device = files.draft, resolved.model.max_model_len, torch.device("cpu")
    scheme = scheme_of(resolved.model.quantization)
    if draft.reads_model and resolved.topology.group_size > 1:
        model = _whole_ends(resolved, files, kernels, dtype)
    if draft.kind == "model":
        decoder = Decoder(draft.spec, kernels, model_len, dtype, device, scheme)
        return DraftModel(draft, decoder, shared_tokens_of(resolved), device)
    layers = BlockLayers if draft.is_block else DraftLayers
    return layers(draft, model, kernels, model_len, dtype, device, scheme)


def _whole_ends(resolved: Resolved, files: DraftFiles, kernels: KernelSet, dtype: torch.dtype) -> Decoder:
    """The embedding and, if the network reads it, the output layer of the model, of which each rank has a part."""
    spec, model_len, device = resolved.model_spec, resolved.model.max_model_len, torch.device("cpu")
    scheme = scheme_of(resolved.model.quantization)
    ends = Decoder(spec, kernels, model_len, dtype, device, scheme, layers=range(0))
    own = ends.embed.loadables() if files.draft.has_own_output and not spec.is_tied else ends.loadables()
    load_parts(list(own), ends, resolved)
    return ends


def _weights(resolved: Resolved, files: DraftFiles) -> TensorReader:
    if not files.weight_files:
        deviation = resolved.load.model_loader_extra_config.get("deviation", DUMMY_DEVIATION)
        return DummyWeights(resolved.model.seed + 1, deviation)
    folder = Path(files.path)
    stored = read_tensors(folder, files.weight_files, resolved.load.pt_load_map_location)
    if files.draft.kind == "model":
        return Checkpoint(folder, tensors_of(folder, stored, files.draft.spec))
    return Checkpoint(folder, draft_tensors_of(folder, stored, files.draft, resolved.model_spec.num_layers))


def _cache(resolved: Resolved, files: DraftFiles, num_blocks: int) -> KVCache:
    keeps = files.draft.spec.kept_by_layer
    return KVCache(
        files.cache_groups,
        num_blocks,
        resolved.cache.block_size,
        files.draft.spec.keeps.tensors,
        kv_dtype(resolved.cache.kv_cache_dtype),
        tensors_by_layer=[None if each is None else each.tensors for each in keeps],
    )
