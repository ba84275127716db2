"""The weights of a model as its kernels hold them, in files: packed once, then mapped at every start.

A rank has tensors in safetensors files and a layout in JSON, which says how they make up the layers. Files are mapped
and stay mapped: reading them into new memory would take several times as long, and processes share the pages. Each
tensor begins at a multiple of 64 bytes, as the kernels' own memory does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field, ValidationError

from ...config import ModelFilesError, Resolved
from ...config.checkpoint.layout import read_tensors
from ...config.checkpoint.model_files import read_json
from ...config.checkpoint.stored import StoredTensor
from ...config.resolve.sharded_state import StateShape, check_same
from ...model.record import Record
from ..kernels import ExpertGate, KernelSet, PackedExpert, PackedExperts, PackedLinear
from ..kernels.stored_linear import placed, stored_tensors
from ..layers.loading import Held, Loadable
from ..models.decoder import LaterStage
from ..models.model import Model
from .weight_reader import LazyReader

LAYOUT_JSON = "model-rank-{rank}-layout.json"
ALIGNMENT = 64  # bytes
DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MAX_LAYOUT_BYTES = 256 << 20  # 30 MB for a model of 60 layers with 384 experts
_GATE = ExpertGate()  # replaced by the model's

Take = Callable[[str], torch.Tensor]  # the tensor of a name; raises ValueError
_TensorName = Literal["weight", "bias", "scales", "order"]  # of a PackedLinear


class LinearLayout(Record):
    """A PackedLinear without its tensors."""

    out_features: int = Field(ge=1)
    in_features: int = Field(ge=1)
    dtype: Literal["float32", "bfloat16", "float16"]
    is_packed: bool
    rounds_rows: bool = False
    tensors: tuple[_TensorName, ...] = ()
    pieces: tuple[LinearLayout, ...] = ()


class ExpertsLayout(Record):
    """Gates with ups, and downs, of each expert."""

    experts: tuple[tuple[LinearLayout, LinearLayout], ...] = Field(min_length=1)


class PartLayout(Record):
    """What one Loadable holds, by name."""

    wants: str  # digest of the names and shapes that it has in a checkpoint
    held: dict[str, LinearLayout | ExpertsLayout | None]  # None: a tensor


class RankLayout(Record):
    parts: tuple[PartLayout, ...]


def shape_of(resolved: Resolved, kernels: KernelSet) -> StateShape:
    """What a state of this start is for."""
    model, files = resolved.model, resolved.model_files
    return StateShape(
        kernels=kernels.layout,
        dtype=model.dtype,
        quantization=model.quantization,
        activation_quantization=model.activation_quantization,
        batch_invariant=model.batch_invariant,
        enforce_eager=model.enforce_eager,
        implementation=files.implementation,
        weight_names=files.spec.weight_names,
        hf_overrides=model.hf_overrides,
    )


# ---- writing


def state_of(model: Model | LaterStage) -> tuple[RankLayout, dict[str, torch.Tensor]]:
    """The layout of a loaded model and its tensors, by the names that they have in the files."""
    tensors: dict[str, torch.Tensor] = {}
    parts: list[PartLayout] = []
    for index, loadable in enumerate(model.loadables()):
        held: dict[str, LinearLayout | ExpertsLayout | None] = {}
        for name, each in loadable.held().items():
            place = _place(index, loadable, name)
            if isinstance(each, PackedLinear):
                held[name] = stored_linear(each, place, tensors)
            elif isinstance(each, PackedExperts):
                held[name] = _stored_experts(each, place, tensors)
            else:
                tensors[place], held[name] = each, None
        parts.append(PartLayout(wants=_digest(loadable), held=held))
    return RankLayout(parts=tuple(parts)), tensors


def _place(index: int, loadable: Loadable, name: str) -> str:
    """Prefix of the names of a part's tensors: its number, because a norm without weights has no name, and the name of
    its first tensor."""
    first = next((each for each, _ in loadable.wanted()), "")
    return f"{index}.{first}:{name}"


def _digest(loadable: Loadable) -> str:
    return hashlib.sha256(repr(list(loadable.wanted())).encode()).hexdigest()[:16]


def stored_linear(packed: PackedLinear, place: str, tensors: dict[str, torch.Tensor]) -> LinearLayout:
    """The layout of a packed matrix. Adds its tensors to `tensors`, by names that begin with `place`."""
    pieces = tuple(stored_linear(piece, f"{place}.{at}", tensors) for at, piece in enumerate(packed.pieces))
    own = {} if pieces else stored_tensors(packed)
    tensors.update({f"{place}.{name}": tensor for name, tensor in own.items()})
    return LinearLayout.model_validate(
        {
            "out_features": packed.out_features,
            "in_features": packed.in_features,
            "dtype": str(packed.dtype).removeprefix("torch."),
            "is_packed": packed.is_packed,
            "rounds_rows": packed.rounds_rows,
            "tensors": tuple(own),
            "pieces": pieces,
        }
    )


def _stored_experts(packed: PackedExperts, place: str, tensors: dict[str, torch.Tensor]) -> ExpertsLayout:
    return ExpertsLayout(
        experts=tuple(
            (
                stored_linear(expert.gate_up, f"{place}.{at}.gate_up", tensors),
                stored_linear(expert.down, f"{place}.{at}.down", tensors),
            )
            for at, expert in enumerate(packed.experts)
        )
    )


# ---- reading


def load_state(
    model: Model, resolved: Resolved, kernels: KernelSet, progress: Callable[[float], None] | None = None
) -> None:
    """Fills the model from a sharded state.

    progress: as `load_weights` takes it.
    Raises ModelFilesError for a state of other options, kernels or shapes, and for files that are damaged.
    """
    folder, files = Path(resolved.model_path), resolved.model_files
    assert files.state is not None, "no sharded state"
    check_same(folder, files.state, shape_of(resolved, kernels))
    path = folder / LAYOUT_JSON.format(rank=0)
    layout = _read_layout(path)
    loadables = list(model.loadables())
    if [part.wants for part in layout.parts] != [_digest(each) for each in loadables]:
        raise ModelFilesError(f"{path}: of a model with other layers than config.json describes", code="M306")
    stored = read_tensors(folder, files.weight_files)  # again: files may have changed
    tensors = _Tensors(stored, is_mapped=resolved.load.safetensors_load_strategy == "lazy")
    with torch.inference_mode():
        for index, (part, loadable) in enumerate(zip(layout.parts, loadables, strict=True)):
            try:
                loadable.hold(_held(part, partial(_place, index, loadable), tensors))
            except ValueError as error:
                first = next((name for name, _ in loadable.wanted()), "")
                raise ModelFilesError(f"{path}: `{first}`: {error}", code="M303") from None
            if progress is not None:
                progress(tensors.share)


def _read_layout(path: Path) -> RankLayout:
    try:
        return RankLayout.model_validate(read_json(path, _MAX_LAYOUT_BYTES))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ModelFilesError(f"{path}: `{'.'.join(map(str, first['loc']))}`: {first['msg']}", code="M303") from None


class _Tensors:
    """The tensors of the files, which are mapped or read as a whole when the first of their tensors is needed."""

    def __init__(self, stored: Mapping[str, StoredTensor], *, is_mapped: bool) -> None:
        self._stored = stored
        self._reader = LazyReader()
        self._is_mapped = is_mapped
        self._whole: dict[Path, torch.Tensor] = {}
        self._total = max(1, sum(tensor.num_bytes for tensor in stored.values()))
        self._done = 0

    @property
    def share(self) -> float:
        """Share of the bytes that have been taken, from 0 to 1."""
        return self._done / self._total

    def take(self, name: str) -> torch.Tensor:
        """Raises ValueError if there is no such tensor."""
        stored = self._stored.get(name)
        if stored is None or stored.dtype not in DTYPES or stored.offset % ALIGNMENT:
            raise ValueError(f"tensor `{name}` is missing, or of a kind that is not written")
        if stored.file not in self._whole:
            self._whole[stored.file] = self._read(stored.file)
        self._done += stored.num_bytes
        content = self._whole[stored.file][stored.offset : stored.offset + stored.num_bytes]
        if len(content) < stored.num_bytes:
            raise ModelFilesError(f"{stored.file}: cut short while reading tensor `{name}`", code="M303")
        return content.view(DTYPES[stored.dtype]).view(stored.shape)

    def _read(self, file: Path) -> torch.Tensor:
        end = max(each.offset + each.num_bytes for each in self._stored.values() if each.file == file)
        mapped = self._reader.map(file, 0, end) if self._is_mapped else None
        if mapped is not None:
            return torch.frombuffer(mapped, dtype=torch.uint8)
        whole = torch.empty(end, dtype=torch.uint8)
        self._reader.read(file, 0, memoryview(whole.numpy().data), "")
        return whole


def _held(part: PartLayout, place_of: Callable[[str], str], tensors: _Tensors) -> Held:
    held: dict[str, torch.Tensor | PackedLinear | PackedExperts] = {}
    for name, layout in part.held.items():
        place = place_of(name)
        if isinstance(layout, LinearLayout):
            held[name] = linear_of(layout, place, tensors.take)
        elif isinstance(layout, ExpertsLayout):
            held[name] = PackedExperts(tuple(_experts(layout, place, tensors)), _GATE)
        else:
            held[name] = tensors.take(place)
    return held


def _experts(layout: ExpertsLayout, place: str, tensors: _Tensors) -> Iterator[PackedExpert]:
    for at, (gate_up, down) in enumerate(layout.experts):
        yield PackedExpert(
            linear_of(gate_up, f"{place}.{at}.gate_up", tensors.take),
            linear_of(down, f"{place}.{at}.down", tensors.take),
        )


def linear_of(layout: LinearLayout, place: str, take: Take) -> PackedLinear:
    """What `stored_linear` has described. Raises ValueError for tensors that such a layer does not have."""
    if not layout.pieces:
        return _piece(layout, place, take, layout.out_features)
    pieces = tuple(_piece(piece, f"{place}.{at}", take, layout.out_features) for at, piece in enumerate(layout.pieces))
    are_sound = all(
        (piece.is_packed, piece.dtype, piece.in_features)
        == (layout.is_packed, _FLOATS[layout.dtype], layout.in_features)
        for piece in pieces
    )
    if not are_sound or sum(piece.out_features for piece in pieces) != layout.out_features:
        raise ValueError("the pieces of a layer do not fit together")
    first = pieces[0]
    return PackedLinear(
        first.weight,
        first.bias,
        layout.out_features,
        layout.in_features,
        is_packed=first.is_packed,
        dtype=first.dtype,
        scales=first.scales,
        rounds_rows=first.rounds_rows,
        order=first.order,
        pieces=pieces,
    )


def _piece(layout: LinearLayout, place: str, take: Take, stride: int) -> PackedLinear:
    found = {name: take(f"{place}.{name}") for name in layout.tensors}
    if "weight" not in found or layout.pieces:
        raise ValueError("a layer without a weight")
    if "scales" in found and found["scales"].dtype == torch.uint8:
        found["scales"] = found["scales"].clone()  # a format, which gets addresses of this process
    return placed(
        PackedLinear(
            found["weight"],
            found.get("bias"),
            layout.out_features,
            layout.in_features,
            is_packed=layout.is_packed,
            dtype=_FLOATS[layout.dtype],
            scales=found.get("scales"),
            rounds_rows=layout.rounds_rows,
            order=found.get("order"),
        ),
        stride,
    )
