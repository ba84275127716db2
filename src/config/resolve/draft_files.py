"""DraftFiles: the network that drafts tokens, as its files or the model's describe it; no weights are loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.cache_groups import CacheGroups, kv_bytes_per_token, model_cache_groups
from ...model.config_json import ModelConfigError, shown
from ...model.drafts import OUTER_TENSORS, REMEMBERED_TOKENS, DraftSpec, draft_tensors
from ...model.mtp import mtp_spec
from ...model.read import read_config
from ...model.record import Record
from ...model.sizes import DTYPE_BYTES, weights_bytes
from ...model.spec import ModelSpec
from ...model.support import support_problem
from ...model.trained_drafts import dflash_spec, eagle3_spec, eagle_spec, mask_token_id
from ...model.wrappers import language_model
from ..checkpoint.chat_templates import TEKKEN_JSON
from ..checkpoint.draft_match import draft_tensors_of, has_join_bias, is_eagle
from ..checkpoint.layout import WeightFiles, read_weight_files
from ..checkpoint.match import tensors_of
from ..checkpoint.model_files import CONFIG_JSON, locate
from ..errors import ModelFilesError
from .model_config import read_values
from .model_location import hub_cache, shown_at
from .model_tokenizer import OLDER_VOCABULARIES, TOKENIZER_JSON

if TYPE_CHECKING:
    from ..deployment import Deployment

_ID_BYTES = 8  # of a token id in the tables of a draft model with other tokens
_MASK_EMBEDDING = "mask_embedding.pt"  # some folders of DFlash have it beside the weights
_SPECULATORS = {
    "eagle": "eagle",
    "eagle3": "eagle3",
    "peagle": "eagle3",
    "dflash": "dflash",
}  # kinds of the library, and their methods
MODEL_METHODS = ("draft_model", "mtp", "eagle", "eagle3", "dflash")  # of `speculative.method`, with a network
READING_METHODS = ("eagle3", "dflash")  # the ones that read inputs of the model's layers


class DraftFiles(Record):
    draft: DraftSpec
    path: str  # directory that holds the weights
    weight_files: tuple[str, ...]  # names relative to `path`; empty with load_format dummy

    @property
    def cache_groups(self) -> CacheGroups:
        """One group: all layers keep all tokens, in the same blocks."""
        spec = self.draft.spec
        return model_cache_groups(spec, spec.max_position_embeddings, is_hybrid=False)

    @property
    def max_length(self) -> int | None:
        """Tokens of the longest sequence that it can compute; None if it computes positions of any number."""
        spec = self.draft.spec
        return spec.max_position_embeddings if spec.has_position_table else None

    def held_bytes(self, dtype: str, held: str | None, num_seqs: int) -> int:
        """Bytes of its weights, and of what is remembered of the last tokens of all sequences."""
        weights = self.weights_bytes(dtype, held)
        if self.draft.translates:
            weights += _ID_BYTES * (self.draft.vocab_size + 2 * min(self.draft.vocab_size, self.draft.spec.vocab_size))
        if not self.draft.reads_model:
            return weights
        width = self.draft.spec.hidden_size * max(1, len(self.draft.read_layers))
        return weights + num_seqs * REMEMBERED_TOKENS * width * DTYPE_BYTES[dtype]

    def ends_bytes(self, target: ModelSpec, dtype: str, held: str | None, num_ranks: int) -> int:
        """Bytes of whole matrices of the model that it reads, where each of several ranks has a part of them."""
        if num_ranks == 1 or not self.draft.reads_model:
            return 0
        if self.draft.has_own_output and not target.is_tied:
            return target.vocab_size * target.hidden_size * DTYPE_BYTES[dtype]  # the embedding
        return weights_bytes(target.model_copy(update={"layers": ()}), dtype, held)

    def weights_bytes(self, dtype: str, held: str | None) -> int:
        """Bytes of its weights. dtype, held: as of `sizes.weights_bytes`."""
        spec = self.draft.spec
        if self.draft.kind == "model":
            return weights_bytes(spec, dtype, held)
        outer = set(OUTER_TENSORS)
        own = sum(tensor.size for tensor in draft_tensors(self.draft) if tensor.name in outer)
        layers = spec.model_copy(update={"vocab_size": 1, "is_tied": True})  # nearly nothing but the layers
        return weights_bytes(layers, dtype, held) + own * DTYPE_BYTES[dtype]

    def token_bytes(self, kv_dtype: str) -> int:
        """Bytes of what it keeps of a token."""
        return kv_bytes_per_token(self.draft.spec, kv_dtype, self.cache_groups)


def read_draft_files(
    deployment: Deployment, target: ModelSpec, values: Mapping[str, Any], folder: Path
) -> DraftFiles | None:
    """The network that `speculative` names; None if it names none.

    Args:
        target: the model that drafts are for.
        values: of its config.json.
        folder: of its weights.

    Raises ModelFilesError, at the option, for a network that does not fit the model.
    """
    own = deployment.config.speculative
    if own.method == "auto" and own.model is None:
        return _mtp_if_any(deployment, target, values, folder)
    if own.method not in (None, "auto", *MODEL_METHODS) or (own.method is None and own.model is None):
        return None
    if problem := _problem(target, own.method):
        with shown_at("speculative.method", True):
            raise ModelFilesError(problem, code="M304")
    if own.method == "mtp":
        with shown_at("speculative.method", True):
            return _mtp(deployment, target, values, folder)
    if own.model is None:
        return None  # a rule says so
    with shown_at("speculative.model", True):
        cache = hub_cache(deployment)
        path = locate(deployment.located("speculative.model"), None, cache)
        try:
            return _of_folder(deployment, target, path, None if own.method == "auto" else own.method)
        except ModelConfigError as error:
            raise ModelFilesError(f"{path / CONFIG_JSON}: {error}", code=error.code) from None


def _problem(target: ModelSpec, method: str | None) -> str:
    """Why no network drafts for a model; empty if one can."""
    groups = model_cache_groups(target, target.max_position_embeddings, is_hybrid=True)
    if None not in groups.windows:
        return "all layers of the model forget tokens beyond a window, and what drafts keeps all of them"
    if method != "draft_model" and (target.hyper_connections is not None or target.gated_residual is not None):
        return "the residual of the model is several streams, and what drafts goes on from a single one"
    return ""


def _mtp_if_any(
    deployment: Deployment, target: ModelSpec, values: Mapping[str, Any], folder: Path
) -> DraftFiles | None:
    """The layer of the checkpoint, if it has one that this build reads."""
    if _problem(target, "mtp"):
        return None
    try:
        return _mtp(deployment, target, values, folder)
    except ModelFilesError:
        return None


def _mtp(deployment: Deployment, target: ModelSpec, values: Mapping[str, Any], folder: Path) -> DraftFiles:
    try:
        draft = mtp_spec(target, values)
    except ModelConfigError as error:
        raise ModelFilesError(f"{folder / CONFIG_JSON}: {error}", code=error.code) from None
    return _with_weights(draft, folder, _weight_files(deployment, folder), target.num_layers)


def _of_folder(deployment: Deployment, target: ModelSpec, folder: Path, method: str | None) -> DraftFiles:
    values = read_values(folder / CONFIG_JSON)
    said = method or _method_of(values)
    if said == "eagle3":
        draft = _parallel(deployment, eagle3_spec(target, values))
        return _with_weights(draft, folder, _weight_files(deployment, folder), target.num_layers)
    if said == "dflash":
        if os.path.lexists(folder / _MASK_EMBEDDING):
            problem = "an embedding of the mask that the model does not have is not supported"
            raise ModelFilesError(f"{folder}: holds {_MASK_EMBEDDING}: {problem}", code="M304")
        return _with_weights(dflash_spec(target, values), folder, _weight_files(deployment, folder), target.num_layers)
    if said == "eagle":
        return _eagle(target, values, folder, _weight_files(deployment, folder))
    spec, _ = read_config(language_model(values))
    if reason := support_problem(spec):
        raise ModelFilesError(f"{folder}: {reason}", code="M304")
    if spec.ngram_size:
        raise ModelConfigError("describes a model with embeddings of n-grams, which does not draft")
    if spec.has_states:
        raise ModelConfigError("describes a model with recurrent states, which cannot take a rejected draft back")
    translates = deployment.config.speculative.use_heterogeneous_vocab
    if translates:
        _check_vocabularies(deployment, folder)
    elif spec.vocab_size != target.vocab_size:
        raise ModelConfigError(
            f"`vocab_size` is {spec.vocab_size}, and that of the model is {target.vocab_size}: drafts are its tokens. "
            "With `speculative.use_heterogeneous_vocab: true` those that both have are drafted"
        )
    files = _weight_files(deployment, folder)
    if method is None and files is not None and is_eagle(files.tensors):
        return _eagle(target, values, folder, files)
    mask = None if translates else mask_token_id(values, spec.vocab_size, "pard_token")
    draft = DraftSpec(kind="model", spec=spec, vocab_size=target.vocab_size, translates=translates, mask_token_id=mask)
    draft = _parallel(deployment, draft)
    return _with_weights(draft, folder, files, target.num_layers)


def _parallel(deployment: Deployment, draft: DraftSpec) -> DraftSpec:
    """The network, drafting in one pass or not as `speculative.parallel_drafting` says."""
    wanted = deployment.config.speculative.parallel_drafting
    if wanted is True and draft.mask_token_id is None:
        key = "pard_token" if draft.kind == "model" else "mask_token_id"
        raise ModelConfigError(
            f"`{key}` is missing, or another vocabulary's, so nothing stands for tokens that are not known; remove "
            "`speculative.parallel_drafting`"
        )
    return draft.model_copy(update={"mask_token_id": None}) if wanted is False else draft


def _eagle(target: ModelSpec, values: Mapping[str, Any], folder: Path, files: WeightFiles | None) -> DraftFiles:
    draft = eagle_spec(target, values)
    if files is not None:
        draft = draft.model_copy(update={"has_join_bias": has_join_bias(files.tensors)})
    return _with_weights(draft, folder, files, target.num_layers)


def _check_vocabularies(deployment: Deployment, folder: Path) -> None:
    """Whether there are two vocabularies to compare. What they hold is compared before weights load."""
    if deployment.model.skip_tokenizer_init:
        raise ModelFilesError(
            "`speculative.use_heterogeneous_vocab: true` compares the tokens of two vocabularies, and with "
            "`model.skip_tokenizer_init` the model has none",
            code="M307",
        )
    wanted = (TOKENIZER_JSON, TEKKEN_JSON, *OLDER_VOCABULARIES)
    if not any(os.path.lexists(folder / name) for name in wanted):
        raise ModelFilesError(f"{folder}: holds no {TOKENIZER_JSON}, whose tokens would be drafted", code="M307")


def _method_of(values: Mapping[str, Any]) -> str:
    """What a folder holds according to its config.json, if no method is written.

    Raises ModelConfigError for another kind of network in the form of the library `speculators`.
    """
    names = values.get("architectures")
    said = [str(name).lower() for name in names] if isinstance(names, list) else []
    if (kind := values.get("speculators_model_type")) is not None:
        if kind not in _SPECULATORS:
            known = ", ".join(_SPECULATORS)
            raise ModelConfigError(f"`speculators_model_type` is {shown(kind)}; supported: {known}", "M304")
        return _SPECULATORS[kind]
    for kind in ("eagle3", "dflash"):
        if any(kind in name for name in said):
            return kind
    return "eagle" if any("eagle" in name for name in said) else "draft_model"


def _weight_files(deployment: Deployment, folder: Path) -> WeightFiles | None:
    """The files with weights of a folder; None where weights are not read."""
    load = deployment.load
    if load.load_format == "dummy":
        return None
    return read_weight_files(folder, "auto", load.ignore_patterns, {}, load.pt_load_map_location)


def _with_weights(draft: DraftSpec, folder: Path, weights: WeightFiles | None, num_layers: int) -> DraftFiles:
    """The headers of its weight files are checked."""
    if weights is None:
        return DraftFiles(draft=draft, path=str(folder), weight_files=())
    if draft.kind == "model":
        tensors_of(folder, weights.tensors, draft.spec)
    else:
        draft_tensors_of(folder, weights.tensors, draft, num_layers)
    return DraftFiles(draft=draft, path=str(folder), weight_files=weights.names)
