"""What an adapter has in place of weights of the model: whole modules, biases, and rows of the embedding.

PEFT saves modules of `modules_to_save` whole, biases of the model with `bias`, and with `trainable_token_indices` the
rows of some tokens, of which the configuration has the ids. Where the output layer is the embedding, trained rows are
those of both; a whole embedding only with `ensure_weight_tying`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ...model.adapted_layers import is_of_expert
from ...model.adapter import LowRank, Replaced, StoredMatrix
from ...model.tensors import EMBEDDING, OUTPUT, model_shapes
from ..errors import ModelFilesError
from .adapter_config import MERGE, AdapterConfig
from .adapter_targets import Targets
from .adapter_tensors import Pair, Saved

_CLASSIFIERS = ("score", "classifier")  # what PEFT saves of an adapter that was trained for labels
_EMBEDDING, _OUTPUT = EMBEDDING.removesuffix(".weight"), OUTPUT.removesuffix(".weight")


def embedding_delta(file: Path, pair: Pair, config: AdapterConfig, targets: Targets) -> LowRank:
    """What a pair of an embedding adds to the rows of tokens: scale * B times a column of A.

    Raises ModelFilesError: M310 for another embedding, M311 for shapes that do not fit.
    """
    if targets.name_of(pair.module) != _EMBEDDING or pair.magnitude is not None:
        what = "magnitudes of its rows" if pair.magnitude is not None else "another one than that of tokens"
        raise ModelFilesError(
            f"{file}: tensor `{pair.a_name}` is of an embedding, and this build does not compute {what}; {MERGE}",
            code="M310",
        )
    vocabulary, hidden = targets.spec.vocab_size, targets.spec.hidden_size
    rank = pair.a.shape[0] if pair.a.shape else 0
    for name, tensor, shape in (
        (pair.a_name, pair.a, (rank, vocabulary)),
        (pair.b_name, pair.b, (hidden, rank)),
    ):
        if tensor.shape != shape:
            raise _unfit(file, name, tensor.shape, _EMBEDDING, shape)
    return LowRank(
        target=_EMBEDDING,
        rank=rank,
        scale=config.scale_of(pair.module),
        in_features=vocabulary,
        out_features=hidden,
        a=StoredMatrix(pair.a_name, (rank, vocabulary)),
        b=StoredMatrix(pair.b_name, (hidden, rank)),
    )


def replaced_by(file: Path, saved: tuple[Saved, ...], config: AdapterConfig, targets: Targets) -> Iterator[Replaced]:
    """What the saved tensors of an adapter are in place of; of the embedding with the target `model.embed_tokens`.

    Raises ModelFilesError: M310 for what this build does not replace, M311 for tensors that do not fit or are missing.
    """
    found: list[Replaced] = []
    for each in saved:
        found += (
            _of_rows(file, each, config, targets) if each.kind == "rows" else _of_module(file, each, config, targets)
        )
    modules = [each.module for each in saved if each.kind == "weight"]
    for name in config.saved:
        if not any(f".{name}." in f".{module}." for module in modules):
            raise ModelFilesError(
                f"{file}: no tensors of `{name}`, which `modules_to_save` in {config.path.name} has", code="M311"
            )
    for name, ids in config.token_ids:
        is_there = any(config.token_ids_of(each.module) == ids for each in saved if each.kind == "rows")
        if ids and not is_there:
            raise ModelFilesError(
                f"{file}: no rows of `{name}`, which `trainable_token_indices` in {config.path.name} has", code="M311"
            )
    yield from found
    embedding = next((each for each in found if each.target == _EMBEDDING), None)
    has_output = any(each.target == _OUTPUT and not each.is_bias for each in found)
    if embedding is None or has_output or not targets.spec.is_tied:
        return
    if embedding.rows is not None or config.is_tied:
        yield replace(embedding, target=_OUTPUT)


def _of_rows(file: Path, saved: Saved, config: AdapterConfig, targets: Targets) -> Iterator[Replaced]:
    name, ids = targets.name_of(saved.module), config.token_ids_of(saved.module)
    if name not in (_EMBEDDING, _OUTPUT):
        raise ModelFilesError(
            f"{file}: tensor `{saved.name}` has rows of `{name}`; this build replaces rows of the embedding and of the "
            f"output layer; {MERGE}",
            code="M310",
        )
    shape = (len(ids), targets.spec.hidden_size)
    if saved.tensor.shape != shape:
        raise _unfit(file, saved.name, saved.tensor.shape, name, shape)
    if ids and max(ids) >= targets.spec.vocab_size:
        raise ModelFilesError(
            f"{config.path}: `trainable_token_indices` has {max(ids)}, and the model has {targets.spec.vocab_size} "
            "tokens",
            code="M311",
        )
    yield Replaced(name, StoredMatrix(saved.name, shape), shape, rows=ids)


def _of_module(file: Path, saved: Saved, config: AdapterConfig, targets: Targets) -> Iterator[Replaced]:
    """The weight or the bias of a linear layer, or of the parts of a fused one, or the whole embedding."""
    is_bias, name = saved.kind == "bias", targets.name_of(saved.module)
    is_trained = config.saves(saved.module) or (is_bias and config.bias != "none")
    if not is_trained and not (config.is_tied and name == _OUTPUT and config.saved):
        key = "bias" if is_bias else "modules_to_save"
        raise ModelFilesError(
            f"{file}: tensor `{saved.name}` is a {saved.kind} of the model, and `{key}` in {config.path.name} does not "
            f"say that it was trained; remove it, or {MERGE}",
            code="M310",
        )
    if name == _EMBEDDING and not is_bias:
        table = (targets.spec.vocab_size, targets.spec.hidden_size)
        if saved.tensor.shape != table:
            raise _unfit(file, saved.name, saved.tensor.shape, name, table)
        yield Replaced(name, StoredMatrix(saved.name, table), table)
        return
    parts = targets.parts_of(name)
    if not parts and name.rpartition(".")[2] in _CLASSIFIERS:
        raise ModelFilesError(
            f"{file}: tensor `{saved.name}` is a head that was trained with the adapter (task_type SEQ_CLS or "
            f"TOKEN_CLS), and the base model's heads serve all its adapters; {MERGE}",
            code="M310",
        )
    if not parts or is_of_expert(parts[0]) or any(targets.factor(part) != 1 for part in parts):
        raise ModelFilesError(
            f"{file}: tensor `{saved.name}` is in place of `{name}.{saved.kind}`; this build replaces linear layers, "
            f"the embedding and the output layer, and neither norms nor experts; {MERGE}",
            code="M310",
        )
    known = model_shapes(targets.spec)
    if is_bias and any(f"{part}.bias" not in known for part in parts):
        raise ModelFilesError(
            f"{file}: tensor `{saved.name}` is a bias of `{parts[0]}`, which has none in the model", code="M311"
        )
    rows, inputs = [targets.shapes[part][0] for part in parts], 1 if is_bias else targets.shapes[parts[0]][1]
    shape: tuple[int, ...] = (sum(rows),) if is_bias else (sum(rows), inputs)
    if saved.tensor.shape != shape:
        raise _unfit(file, saved.name, saved.tensor.shape, parts[0], shape)
    first = 0
    for part, count in zip(parts, rows, strict=True):
        values = StoredMatrix(
            saved.name, (sum(rows), inputs), rows=(first, first + count), head_dim=targets.row_pairs(part)
        )
        yield Replaced(part, values, (count, inputs), is_bias)
        first += count


def _unfit(file: Path, name: str, shape: tuple[int, ...], target: str, needed: tuple[int, ...]) -> ModelFilesError:
    return ModelFilesError(
        f"{file}: tensor `{name}` has shape {list(shape)}; `{target}` needs {list(needed)}", code="M311"
    )
