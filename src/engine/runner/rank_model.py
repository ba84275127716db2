"""RankModel: the weights of one rank, and their replacement while the engine runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

import torch

from ...config import Resolved
from ...config.checkpoint.layout import read_tensors
from ...model.tensor_parallel import slices
from ...model.tensors import OUTPUT, model_shapes
from ..kernels import Grouped, Integers
from ..layers.loading import Loadable, TensorReader
from ..models.decoder import LaterStage
from ..models.model import Model
from .sharded_state import state_of
from .sliced_tensors import SlicedTensors


class _Given:
    """A TensorReader of tensors in memory."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def read(self, name: str, into: torch.Tensor) -> None:
        into.copy_(self._tensors[name])

    def view(self, name: str, dtype: torch.dtype) -> torch.Tensor | None:
        return None

    def grouped(self, name: str, dtype: torch.dtype) -> Grouped | None:
        return None

    def integers(self, name: str) -> Integers | None:
        return None


class RankModel:
    def __init__(
        self, model: Model | LaterStage, resolved: Resolved, rank: int, replace: Callable[[Callable[[], None]], None]
    ) -> None:
        """
        rank: among the ranks of its stage.
        replace: calls a function that replaces weights, between two steps.
        """
        self._model, self._resolved, self._replace = model, resolved, replace
        self._size, self._rank = resolved.topology.group_size, rank
        self._pending: dict[str, torch.Tensor] = {}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Whole shapes, by name, of the checkpoint's tensors of which this rank has a part."""
        return {name: self._whole[name] for name, _ in self._model.wanted()}

    @property
    def pending(self) -> list[str]:
        """Names of tensors that were given, and wait for others of the same layer: the query projection for the
        projections of keys and values."""
        return list(self._pending)

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What this rank holds, in the layout of its kernels: parts that are fused, packed or quantised. A name is that
        of the first tensor of the checkpoint, and what it is."""
        _, tensors = state_of(self._model)
        for name, tensor in tensors.items():
            yield name.partition(".")[2], tensor

    def load_weights(self, tensors: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replaces weights. This rank takes its part of each.

        tensors: by the names and in the shapes of the checkpoint; some of them, or all. Each is copied before the next
        one is taken, so that an iterator may give all of them in the same memory.
        Raises ValueError for a tensor that the model does not have, or in another form; then none is replaced.
        """
        if self._why_fixed:
            raise ValueError(f"no weights can be replaced: {self._why_fixed}")
        own, given = {name for name, _ in self._model.wanted()}, {}
        for name, tensor in tensors.items() if isinstance(tensors, Mapping) else tensors:
            self._check(name, tensor)
            if name in own:
                given[name] = tensor.detach().to("cpu", copy=True)
        self._pending |= given
        complete = [part for part in self._model.loadables() if self._is_complete(part)]
        reader: TensorReader = _Given(self._pending)
        if self._size > 1:
            reader = SlicedTensors(reader, slices(self._resolved.model_spec, self._size, self._rank))

        def load() -> None:
            for part in complete:
                part.load(reader)
                for name, _ in part.wanted():
                    del self._pending[name]

        if complete:
            self._replace(load)

    def _check(self, name: str, tensor: torch.Tensor) -> None:
        whole = self._whole
        if name == OUTPUT and name not in whole:  # a copy of the embedding, which it is tied to
            return
        if name not in whole:
            raise ValueError(f"the model has no tensor `{name}`")
        if tuple(tensor.shape) != whole[name]:
            raise ValueError(f"`{name}` has the shape {list(tensor.shape)}; allowed: {list(whole[name])}")
        if not tensor.is_floating_point():
            raise ValueError(f"`{name}` is in {tensor.dtype}; allowed: floating-point numbers")
        if name in self._derived:
            raise ValueError(f"`{name}` is made of other tensors of the checkpoint, and cannot be replaced")

    def _is_complete(self, part: Loadable) -> bool:
        names = [name for name, _ in part.wanted()]
        return bool(names) and all(name in self._pending for name in names)

    @cached_property
    def _whole(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of all tensors of the model."""
        is_native = self._resolved.model_files.implementation == "native"
        return model_shapes(self._resolved.model_spec) if is_native else dict(self._model.wanted())

    @property
    def _why_fixed(self) -> str:
        files = self._resolved.model_files
        if files.state is not None:
            return "they are those of a sharded state"
        return "those of the checkpoint are quantised" if files.own_codes else ""

    @cached_property
    def _derived(self) -> frozenset[str]:
        """Tensors of this rank that are not loaded as the checkpoint has them."""
        files, load = self._resolved.model_files, self._resolved.load
        if load.load_format == "dummy":
            return frozenset()
        folder = Path(self._resolved.model_path)
        stored = read_tensors(folder, files.weight_files, load.pt_load_map_location)
        found = self._model.tensors(folder, stored)
        return frozenset(name for name, _ in self._model.wanted() if found[name] != stored.get(name))
