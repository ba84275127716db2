"""Compares the tensors of a checkpoint with the tensors that its model needs, before anything is built of either."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...model import gguf
from ...model.drafts import TOKEN_OFFSETS
from ...model.families import FusedExperts, known_family
from ...model.families.mistral import CONSOLIDATED_NAMES, CONSOLIDATED_TOWERS
from ...model.mixer_tensors import CONVOLUTIONS, DISTANCE_BIASES
from ...model.pooling import OUTPUT_LAYER
from ...model.spec import ModelSpec, WeightNames
from ...model.tensors import ADAPTERS, EXPERT_LISTS, FUSED, NGRAM_TABLE, model_shapes, unused_tensors
from ..errors import ModelFilesError
from .kv_scales import is_kv_scale
from .left_out import Part, left_out
from .model_files import CONFIG_JSON, PARAMS_JSON
from .packed import unpacked
from .stored import DTYPE_BYTES, FLOAT_DTYPES, INTEGER_DTYPES, StoredTensor, bytes_of, contiguous_strides

_FUSED_EXPERTS = re.compile(
    r"(?P<place>.*\.experts)\.(?P<part>gate_up_proj|gate_proj|up_proj|down_proj)(?P<bias>_bias)?"
)
_SOURCES: dict[WeightNames, str] = {"hf": CONFIG_JSON, "mistral": PARAMS_JSON, "gguf": "the header"}
# Buffers, which follow from config.json: of positions and masks in old checkpoints, of MiniMax's decays, of n-grams
_UNUSED = (
    *("inv_freq", "masked_bias", "attn.bias", "attention.bias", "embeddings.position_ids"),
    *("self_attn.slope_rate", "self_attn.query_decay", "self_attn.key_decay", "self_attn.diagonal_decay"),
    *("ple_embedding.layer_multipliers", "ple_embedding.ngram_heads_vocab_sizes", "ple_embedding.ngram_heads_offsets"),
)
_OF_MODEL = ("layers.", "embed_tokens.", "norm.")
_ADAPTER = re.compile(rf"model\.layers\.\d+\.(?P<part>{ADAPTERS}\.\w+)\.(?P<number>\d+)\.(?P<end>[01]\.weight)")
Shapes = Mapping[str, tuple[int, ...]]


def matched(
    folder: Path, tensors: Mapping[str, StoredTensor], shapes: Shapes, *, is_tied: bool, source: str = CONFIG_JSON
) -> dict[str, StoredTensor]:
    """The model's tensors. Raises ModelFilesError unless the files have exactly these, in the right shapes.

    Args:
        shapes: name -> shape of each tensor that the model reads.
        is_tied: the output layer is the embedding, so `lm_head.weight` in the files is a copy and is ignored.
        source: of the shapes, for messages.
    """
    missing = [name for name in shapes if name not in tensors]
    if missing:
        raise ModelFilesError(f"{folder}: {_some(missing)} not in any of its weight files", code="M302")
    for name, shape in shapes.items():
        stored = tensors[name]
        if stored.shape != shape:
            raise ModelFilesError(
                f"{stored.file}: tensor `{name}` has shape {list(stored.shape)}, {source} says {list(shape)}",
                code="M306",
            )
        dtypes = INTEGER_DTYPES if name.endswith((EXPERT_LISTS, TOKEN_OFFSETS)) else FLOAT_DTYPES
        if stored.dtype not in dtypes and not stored.is_quantised:
            raise ModelFilesError(
                f"{stored.file}: tensor `{name}` has dtype {stored.dtype}; supported: {', '.join(dtypes)}",
                code="M304",
            )
    known = (*_UNUSED, *gguf.FACTORS)
    surplus = [name for name in tensors if name not in shapes and not name.endswith(known) and not is_kv_scale(name)]
    if is_tied:
        surplus = [name for name in surplus if name != "lm_head.weight"]
    if surplus:
        raise ModelFilesError(
            f"{folder}: {_some(surplus)} in its weight files, but the model does not use it", code="M304"
        )
    return {name: tensors[name] for name in shapes}


def tensors_of(folder: Path, stored: Mapping[str, StoredTensor], spec: ModelSpec) -> dict[str, StoredTensor]:
    """The model's tensors under the names of model/tensors.py, whatever its checkpoints call and fuse.

    Raises ModelFilesError unless the files have exactly these, in the right shapes.
    """
    shapes, family = model_shapes(spec), known_family(spec.architecture)
    stored = unpacked(stored, spec.quantization, spec.dtype)
    renames, fused_experts = renames_of(spec, spec.weight_names), family.fused_experts
    if spec.weight_names == "gguf":
        fused_experts = "stacked"
    unused = unused_parts(stored, spec)
    used = {name: tensor for name, tensor in stored.items() if name not in unused}
    tensors = _in_model({renamed(name, renames): tensor for name, tensor in used.items()})
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(unused_tensors(spec))}
    if spec.blocks:
        tensors = {_in_own_layer(name, list(spec.blocks)): tensor for name, tensor in tensors.items()}
    if family.is_transposed:
        tensors = {name: _transposed(name, tensor) for name, tensor in tensors.items()}
    if (biases := tensors.pop(f"model.{DISTANCE_BIASES}.weight", None)) is not None:  # one tensor for all layers
        names = (f"model.layers.{index}.self_attn.{DISTANCE_BIASES}.weight" for index in range(spec.num_layers))
        tensors |= dict.fromkeys(names, biases)
    tensors = {name: _without_rows(tensor, shapes.get(name)) for name, tensor in tensors.items()}
    if fused_experts == "columns_or_stacked":
        downs = {tensor.shape[-1] for name, tensor in tensors.items() if name.endswith(".experts.down_proj")}
        fused_experts = "columns" if downs <= {spec.hidden_size} else "stacked"
    tensors = split_tables(split_experts(tensors, fused_experts), shapes)
    source = _SOURCES[spec.weight_names]
    found = matched(
        folder, divided_anew(split_fused(tensors, shapes), shapes), shapes, is_tied=spec.is_tied, source=source
    )
    for scale in spec.weight_scales:
        for index in range(spec.num_layers):
            name = f"model.layers.{index}.{scale.name}"
            if name in found:
                found[name] = replace(found[name], factors=scale.parts)
    return found


def unused_parts(names: Collection[str], spec: ModelSpec) -> dict[str, Part]:
    """Tensors of a checkpoint that the model does not use, and what they are a part of."""
    family = known_family(spec.architecture)
    encoders = {"mistral": CONSOLIDATED_TOWERS, "gguf": ()}.get(spec.weight_names, family.ignored)
    heads = family.unused_heads if spec.has_output else (*family.unused_heads, f"{OUTPUT_LAYER}.")
    if any(name.startswith(heads) for name in names):
        shapes, renames = model_shapes(spec), renames_of(spec, spec.weight_names)
        names = [name for name in names if not name.startswith(heads) or renamed(name, renames) not in shapes]
    return left_out(names, spec.num_layers, encoders, heads)


def renames_of(spec: ModelSpec, names: WeightNames) -> dict[str, str]:
    """What parts of the names in files are in model/tensors.py, as `Family.renames` has them.

    names: of the files.
    """
    renames = dict(known_family(spec.architecture).renames)
    if names == "mistral":
        renames = dict(CONSOLIDATED_NAMES)
    elif names == "gguf":
        renames = dict(gguf.names_of(spec.architecture))
    if not spec.has_experts:  # the block that others share between the experts is all that there is
        renames[".mlp.shared_experts."] = ".mlp."
    return renames


def renamed(name: str, renames: Mapping[str, str]) -> str:
    """The name in model/tensors.py of a tensor in files. renames: of `renames_of`."""
    for old, new in renames.items():
        if not old.startswith("^"):
            name = name.replace(old, new, 1)
        elif name.startswith(old[1:]):
            name = new + name.removeprefix(old[1:])
    return name


def _in_model(tensors: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
    """The same for files of a model that was saved without its head, whose names lack what a head has before them."""
    if any(name.startswith("model.") for name in tensors):
        return tensors
    return {f"model.{name}" if name.startswith(_OF_MODEL) else name: tensor for name, tensor in tensors.items()}


def _in_own_layer(name: str, layers: Sequence[int]) -> str:
    """The name of an adapter in its own layer: files have all adapters of shared weights where these are, by number.

    layers: those with a shared block.
    """
    match = _ADAPTER.fullmatch(name)
    if match is None or int(match["number"]) >= len(layers):
        return name
    return f"model.layers.{layers[int(match['number'])]}.{match['part']}.{match['end']}"


def _without_rows(stored: StoredTensor, shape: tuple[int, ...] | None) -> StoredTensor:
    """A vector that is stored as a matrix of one row."""
    is_row = shape is not None and stored.shape == (1, *shape) and stored.strides is None
    return replace(stored, shape=stored.shape[1:]) if is_row else stored


def _transposed(name: str, stored: StoredTensor) -> StoredTensor:
    """A matrix of a layer, from [inputs, outputs] to [outputs, inputs], which quantised ones are already."""
    if len(stored.shape) != 2 or stored.packed is not None or not name.startswith("model.layers."):
        return stored
    strides = stored.strides or contiguous_strides(stored.shape)
    return replace(stored, shape=stored.shape[::-1], strides=strides[::-1])


def split_experts(tensors: Mapping[str, StoredTensor], layout: FusedExperts) -> dict[str, StoredTensor]:
    """Split tensors of all experts into tensors of each. Interleaved ones become strided."""
    split: dict[str, StoredTensor] = {}
    for name, stored in tensors.items():
        match = _FUSED_EXPERTS.fullmatch(name)
        if match is None or len(stored.shape) != (2 if match["bias"] else 3):
            split[name] = stored
            continue
        place, part, kind = match["place"], match["part"], "bias" if match["bias"] else "weight"
        names = FUSED.get(part, (part,))
        parts = _stacked(stored, len(names)) if layout == "stacked" else _columns(stored, len(names), layout)
        for index, own in enumerate(parts):
            expert, at = divmod(index, len(names))
            split[f"{place}.{expert}.{names[at]}.{kind}"] = own
    return split


def _columns(stored: StoredTensor, width: int, layout: FusedExperts) -> Iterator[StoredTensor]:
    """Split [experts, inputs, outputs] into matrices. The outputs of `width` parts alternate, or follow one another."""
    count, *inputs, outputs = stored.shape
    size = DTYPE_BYTES[stored.dtype]
    first_of_part, step = (1, width) if layout == "interleaved" else (outputs // width, 1)
    for expert in range(count):
        first = stored.offset + expert * math.prod(stored.shape[1:]) * size
        for index in range(width):
            yield replace(
                stored,
                shape=(outputs // width, *inputs),
                offset=first + index * first_of_part * size,
                strides=(step, outputs) if inputs else (step,),
            )


def _stacked(stored: StoredTensor, width: int) -> Iterator[StoredTensor]:
    """Split [experts, outputs, inputs] into matrices. The outputs of `width` parts follow one another."""
    count, outputs, *inputs = stored.shape
    shape = outputs // width, *inputs
    for index in range(count * width):
        offset = stored.offset + index * bytes_of(stored.dtype, math.prod(shape))
        yield replace(stored, shape=shape, offset=offset)


def split_tables(tensors: Mapping[str, StoredTensor], shapes: Shapes) -> dict[str, StoredTensor]:
    """The tables of n-grams in several tensors, as published checkpoints have them: others have one for each layer."""
    split = dict(tensors)
    for whole in [name for name in tensors if name.endswith(f".{NGRAM_TABLE}.weight") and name not in shapes]:
        stored, first = split.pop(whole), 0
        for name in (name for name in shapes if name.startswith(whole.removesuffix("weight"))):
            rows, width = shapes[name]
            offset = stored.offset + bytes_of(stored.dtype, first * width)
            split[name] = replace(stored, shape=(rows, *stored.shape[1:]), offset=offset)
            first += rows
        if stored.shape[:1] != (first,):
            raise ModelFilesError(
                f"{stored.file}: tensor `{whole}` has shape {list(stored.shape)}; it must have {first} rows",
                code="M306",
            )
    return split


def split_fused(tensors: Mapping[str, StoredTensor], shapes: Shapes) -> dict[str, StoredTensor]:
    """The tensors under the names of the original checkpoint: a saved state may hold `qkv_proj` as one tensor.

    The rows of its parts are consecutive. Raises ModelFilesError if the number of rows is wrong.
    """
    split = dict(tensors)
    for name in shapes:
        for whole, parts in FUSED.items():
            if f".{parts[0]}." not in name or (fused := name.replace(f".{parts[0]}.", f".{whole}.")) not in tensors:
                continue
            stored = split.pop(fused)
            names = [fused.replace(f".{whole}.", f".{part}.") for part in parts]
            rows = [shapes[part][0] for part in names]
            if not stored.shape or stored.shape[0] != sum(rows):
                raise ModelFilesError(
                    f"{stored.file}: tensor `{fused}` has shape {list(stored.shape)}; {', '.join(parts)} need "
                    f"{sum(rows)} rows",
                    code="M306",
                )
            row = bytes_of(stored.dtype, (stored.strides or contiguous_strides(stored.shape))[0])
            first = 0
            for part, count in zip(names, rows, strict=True):
                own = replace(stored, shape=(count, *stored.shape[1:]), offset=stored.offset + first * row)
                if stored.packed is not None:
                    of_part = stored.packed.rows[first : first + count]
                    own = replace(own, offset=stored.offset, packed=replace(stored.packed, rows=of_part))
                split[part] = own
                first += count
    return split


def divided_anew(tensors: Mapping[str, StoredTensor], shapes: Shapes) -> dict[str, StoredTensor]:
    """The convolutions of queries, keys and values, of which transformers stores a third of all under each name."""
    found = dict(tensors)
    first, *_ = CONVOLUTIONS
    for name in shapes:
        if f".{first}." not in name:
            continue
        names = [name.replace(f".{first}.", f".{part}.") for part in CONVOLUTIONS]
        stored = [tensors[each] for each in names if each in tensors]
        rows = [shapes[each][0] for each in names]
        if len(stored) < len(names) or any(each.strides is not None for each in stored):
            continue
        if any(each.shape[1:] != shapes[name][1:] or not each.shape for each in stored):
            continue
        if [each.shape[0] for each in stored] == rows or sum(each.shape[0] for each in stored) != sum(rows):
            continue
        start = 0
        for each, count in zip(names, rows, strict=True):
            pieces = tuple(_rows_between(stored, start, start + count))
            found[each] = replace(pieces[0], shape=(count, *pieces[0].shape[1:]), pieces=pieces)
            start += count
    return found


def _rows_between(tensors: Iterable[StoredTensor], start: int, end: int) -> Iterator[StoredTensor]:
    """These rows of contiguous tensors that follow one another, as parts of them."""
    for tensor in tensors:
        rows, row = tensor.shape[0], bytes_of(tensor.dtype, math.prod(tensor.shape[1:]))
        first, last = max(start, 0), min(end, rows)
        if first < last:
            yield replace(tensor, shape=(last - first, *tensor.shape[1:]), offset=tensor.offset + first * row)
        start, end = start - rows, end - rows


def _some(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"tensor{'s' if len(names) > 1 else ''} {shown}{more} {'are' if len(names) > 1 else 'is'}"
