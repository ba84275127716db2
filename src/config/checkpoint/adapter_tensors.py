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
_PAIR = re.compile(r"(?P<module>.+)\.lora_(?:(?P<matrix>[AB])\.weight|(?P<bias>B\.bias))")
_BASE = ".base_layer.weight"
_OTHERS = (  # ends of other names, and why this build does not read them
    (("lora_embedding_A", "lora_embedding_B"), f"this build adds nothing to the embedding; {MERGE}"),
    (
        ("lora_magnitude_vector", "lora_magnitude_vector.weight"),
        f"this build computes no magnitudes of rows (DoRA); {MERGE}",
    ),
    (("trainable_tokens_delta",), f"this build replaces no rows of the embedding; {MERGE}"),
    (("lora_diag",), f"this build computes no singular values between A and B (KaSA); {MERGE}"),
    (("bias",), f"it replaces a bias of the model, which this build does not do for one adapter; {MERGE}"),
    (("weight",), f"it replaces a whole module of the model, which this build does not do for one adapter; {MERGE}"),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A and B of one module, and the bias of B if there is one. The names are those in the file.

    module: its path in the class that was trained; wrappers of the same module differ by a `base_layer` at the
        end.
    """

    module: str
    a_name: str
    b_name: str
    a: StoredTensor
    b: StoredTensor
    bias_name: str | None = None
    bias: StoredTensor | None = None


def pairs_in(file: Path, stored: Mapping[str, StoredTensor]) -> list[Pair]:
    """All pairs of a file, in the order of its names.

    Raises ModelFilesError that names a tensor: M310 for one of another kind, M311 for one without its counterpart.
    """
    found: dict[str, dict[str, str]] = {}
    others: list[str] = []
    for name, tensor in stored.items():
        match = _PAIR.fullmatch(name.removeprefix(_PREFIX))
        if match is None:
            others.append(name)
            continue
        if tensor.dtype not in FLOAT_DTYPES:
            allowed = ", ".join(FLOAT_DTYPES)
            raise ModelFilesError(
                f"{file}: tensor `{name}` has dtype {tensor.dtype}; supported: {allowed}", code="M310"
            )
        kind = "bias" if match["bias"] else match["matrix"]
        if kind in found.setdefault(match["module"], {}):
            raise ModelFilesError(
                f"{file}: tensors `{found[match['module']][kind]}` and `{name}` are of the same module", code="M311"
            )
        found[match["module"]][kind] = name
    for name in others:
        _check_other(file, name, stored, found)
    return list(_paired(file, stored, found))


def _paired(file: Path, stored: Mapping[str, StoredTensor], found: Mapping[str, dict[str, str]]) -> Iterator[Pair]:
    for module, names in found.items():
        for kind, other in ("A", "B"), ("B", "A"):
            if kind not in names:
                known = names.get(other) or names["bias"]
                missing = known.replace("lora_B.bias", f"lora_{kind}.weight").replace(f"lora_{other}.", f"lora_{kind}.")
                raise ModelFilesError(f"{file}: tensor `{known}` is there without `{missing}`", code="M311")
        bias = names.get("bias")
        yield Pair(
            module=module,
            a_name=names["A"],
            b_name=names["B"],
            a=stored[names["A"]],
            b=stored[names["B"]],
            bias_name=bias,
            bias=None if bias is None else stored[bias],
        )


def _check_other(
    file: Path, name: str, stored: Mapping[str, StoredTensor], found: Mapping[str, Mapping[str, str]]
) -> None:
    """Raise M310 for a tensor of another kind.

    PEFT saves the weight of an output layer or an embedding beside its matrices. It was not trained, and is not read if
    it has the shape of the model's.
    """
    module = name.removeprefix(_PREFIX).removesuffix(_BASE)
    if name.endswith(_BASE) and module in found and {"A", "B"} <= found[module].keys():
        a, b = stored[found[module]["A"]], stored[found[module]["B"]]
        if stored[name].shape == (*b.shape[:1], *a.shape[1:]):
            return
        raise ModelFilesError(
            f"{file}: tensor `{name}` has shape {list(stored[name].shape)}, and the adapter of its module is for "
            f"[{b.shape[0]}, {a.shape[-1]}]",
            code="M311",
        )
    for ends, reason in _OTHERS:
        if name.rpartition(".")[2] in ends or name.endswith(ends):
            raise ModelFilesError(f"{file}: tensor `{name}` is not read: {reason}", code="M310")
    raise ModelFilesError(
        f"{file}: tensor `{name}` has none of the names that PEFT gives to the tensors of an adapter", code="M310"
    )
