"""Loads the weights of a model as the deployment's `load` section says: reader, parallelism, progress."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import torch

from ...config import Resolved
from ...config.checkpoint.described import described_weights
from ...config.checkpoint.layout import READ_EAGERLY, read_tensors
from ...config.checkpoint.settings import CACHE_FOLDER, DUMMY_DEVIATION
from ...model.tensor_parallel import slices
from ..collectives import Ranks
from ..layers.loading import Loadable, TensorReader
from ..models.decoder import LaterStage
from ..models.model import Model
from .dummy_weights import DummyWeights
from .np_cache import cached_tensors
from .sliced_tensors import SlicedTensors
from .weights import Checkpoint


def load_weights(
    model: Model | LaterStage,
    resolved: Resolved,
    progress: Callable[[float], None] | None = None,
    loaded: Callable[[Loadable], None] | None = None,
    ranks: Ranks | None = None,
) -> None:
    """Fills the model, or the part of it that this one of `ranks` computes.

    progress: called with the share of the weights that is loaded, from 0 to 1.
    loaded: called with each part that is complete, in this thread.
    Raises ModelFilesError if the files do not have the weights of the model.
    """
    load_parts(list(model.loadables()), model, resolved, progress, loaded, ranks)


def load_parts(
    loadables: Sequence[Loadable],
    model: Model | LaterStage,
    resolved: Resolved,
    progress: Callable[[float], None] | None = None,
    loaded: Callable[[Loadable], None] | None = None,
    ranks: Ranks | None = None,
) -> None:
    """Fills some parts of a model. Else as `load_weights`."""
    tensors = _tensors(model, resolved)
    if ranks is not None:
        tensors = SlicedTensors(tensors, slices(resolved.model_spec, ranks.size, ranks.rank))
    sizes = [sum(math.prod(shape) for _, shape in loadable.wanted()) for loadable in loadables]
    num_workers = resolved.parallel.max_parallel_loading_workers or 1
    done, total = 0, max(sum(sizes), 1)

    def load(index: int) -> int:
        with torch.inference_mode():  # a setting of the thread
            loadables[index].load(tensors)
        return index

    for index in _each(load, len(loadables), num_workers):
        done += sizes[index]
        if loaded is not None:
            loaded(loadables[index])
        if progress is not None:
            progress(done / total)


def _each(load: Callable[[int], int], count: int, num_workers: int) -> Iterator[int]:
    """Calls `load(0)` to `load(count - 1)`; yields what they return, in the order of completion."""
    if num_workers == 1:  # in this thread, whose OpenMP threads exist already
        yield from map(load, range(count))
        return
    with ThreadPoolExecutor(num_workers, thread_name_prefix="weights") as pool:
        started = [pool.submit(load, index) for index in range(count)]
        try:
            for future in as_completed(started):
                yield future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _tensors(model: Model | LaterStage, resolved: Resolved) -> TensorReader:
    load, files = resolved.load, resolved.model_files
    settings, folder = load.model_loader_extra_config, Path(resolved.model_path)
    if load.load_format == "dummy":
        described = described_weights(folder, resolved.model_spec).tensors if files.stored_as else None
        return DummyWeights(resolved.model.seed, settings.get("deviation", DUMMY_DEVIATION), described)
    stored = read_tensors(folder, files.weight_files, load.pt_load_map_location)
    if load.load_format == "npcache":
        stored = cached_tensors(folder, stored, folder / Path(os.path.expanduser(settings.get("folder", CACHE_FOLDER))))
    is_eager = load.safetensors_load_strategy == "eager" and load.load_format in READ_EAGERLY
    found = model.tensors(folder, stored)  # again: files may have changed
    return Checkpoint(folder, found, is_eager=is_eager)
