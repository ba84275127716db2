"""The tensors of an adapter's file, as pairs of matrices by the modules that they change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelFilesError
from .adapter_config import MERGE
from .stored import FLOAT_DTYPES, StoredTensor

_PREFIX = "base_model.model."
_PAIR = re.compile(
    r"(?P<module>.+)\.lora_(?:(?P<matrix>[AB])\.weight|(?P<bias>B\.bias)|embedding_(?P<embedding>[AB])"
    r"|(?P<magnitude>magnitude_vector)(?:\.weight)?)"
)
_ROWS = re.compile(r"(?P<module>.+)\.token_adapter\.trainable_tokens_delta")
_SAVED = re.compile(r"(?P<module>.+?)(?P<base>\.base_layer)?\.(?P<kind>weight|bias)")


@dataclass(frozen=True, slots=True)
class Pair:
    """A and B of one module, and the bias of B or the magnitudes of rows if there are some. The names are those in the
    file.

    module: its path in the class that was trained; wrappers of the same module differ by a `base_layer` at the
        end.
    is_embedding: A is [rank, vocabulary], and a token's column of it is multiplied.
    """

    module: str
    a_name: str
    b_name: str
    a: StoredTensor
    b: StoredTensor
    bias_name: str | None = None
    bias: StoredTensor | None = None
    magnitude_name: str | None = None
    magnitude: StoredTensor | None = None
    is_embedding: bool = False


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor in place of one of the model, or of some of its rows.

    kind: `weight`, `bias`, or `rows` of a weight.
    """

    module: str
    kind: str
    name: str
    tensor: StoredTensor


@dataclass(frozen=True, slots=True)
class AdapterTensors:
    pairs: tuple[Pair, ...]
    saved: tuple[Saved, ...]


def tensors_in(file: Path, stored: Mapping[str, StoredTensor]) -> AdapterTensors:
    """All tensors of a file, in the order of its names.

    Raises ModelFilesError that names a tensor: M310 for one of another kind, M311 for one without its counterpart.
    """
    found: dict[str, dict[str, str]] = {}
    others: list[str] = []
    for name, tensor in stored.items():
        if tensor.dtype not in FLOAT_DTYPES:
            allowed = ", ".join(FLOAT_DTYPES)
            raise ModelFilesError(
                f"{file}: tensor `{name}` has dtype {tensor.dtype}; supported: {allowed}", code="M310"
            )
        match = _PAIR.fullmatch(name.removeprefix(_PREFIX))
        if match is None:
            others.append(name)
            continue
        kind = match["matrix"] or match["embedding"] or ("bias" if match["bias"] else "magnitude")
        if kind in found.setdefault(match["module"], {}):
            raise ModelFilesError(
                f"{file}: tensors `{found[match['module']][kind]}` and `{name}` are of the same module", code="M311"
            )
        found[match["module"]][kind] = name
    saved = [each for name in others if (each := _saved(file, name, stored, found)) is not None]
    return AdapterTensors(tuple(_paired(file, stored, found)), tuple(saved))


def _paired(file: Path, stored: Mapping[str, StoredTensor], found: Mapping[str, dict[str, str]]) -> Iterator[Pair]:
    for module, names in found.items():
        for kind, other in ("A", "B"), ("B", "A"):
            if kind not in names:
                known = names.get(other) or next(iter(names.values()))
                missing = known.replace(f"_{other}", f"_{kind}").replace("lora_B.bias", f"lora_{kind}.weight")
                missing = re.sub(r"lora_magnitude_vector(\.weight)?", f"lora_{kind}.weight", missing)
                raise ModelFilesError(f"{file}: tensor `{known}` is there without `{missing}`", code="M311")
        bias, magnitude = names.get("bias"), names.get("magnitude")
        yield Pair(
            module=module,
            a_name=names["A"],
            b_name=names["B"],
            a=stored[names["A"]],
            b=stored[names["B"]],
            bias_name=bias,
            bias=None if bias is None else stored[bias],
            magnitude_name=magnitude,
            magnitude=None if magnitude is None else stored[magnitude],
            is_embedding="lora_embedding_" in names["A"],
        )


def _saved(
    file: Path, name: str, stored: Mapping[str, StoredTensor], found: Mapping[str, Mapping[str, str]]
) -> Saved | None:
    """A tensor of another kind; None of one that is not read.

    PEFT saves the weight of an output layer or an embedding beside its matrices. It was not trained, and is not read if
    it has the shape of the model's. Raises M310, M311.
    """
    own = name.removeprefix(_PREFIX)
    if (match := _ROWS.fullmatch(own)) is not None:
        return Saved(match["module"], "rows", name, stored[name])
    match = _SAVED.fullmatch(own)
    if match is None:
        raise ModelFilesError(
            f"{file}: tensor `{name}` has none of the names that PEFT gives to the tensors of an adapter that this "
            f"build computes; {MERGE}",
            code="M310",
        )
    if match["base"] is None or match["kind"] == "bias":
        return Saved(match["module"], match["kind"], name, stored[name])
    pair = found.get(match["module"], {})
    if not {"A", "B"} <= pair.keys():
        raise ModelFilesError(
            f"{file}: tensor `{name}` is the weight of a layer that the adapter does not change; remove it", code="M310"
        )
    a, b = stored[pair["A"]], stored[pair["B"]]
    shape = (*b.shape[:1], *a.shape[1:])
    if stored[name].shape not in (shape, shape[::-1] if "lora_embedding_" in pair["A"] else shape):
        raise ModelFilesError(
            f"{file}: tensor `{name}` has shape {list(stored[name].shape)}, and the adapter of its module is for "
            f"[{b.shape[0]}, {a.shape[-1]}]",
            code="M311",
        )
    return None
