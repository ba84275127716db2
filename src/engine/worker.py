"""Worker: one in each process of a model, or one of a subclass (`parallel.worker_cls`), with the methods of a class
that is mixed in (`parallel.worker_extension_cls`).

`LLM.collective_rpc` calls a method of all of them, while no request runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..config.schema.parallel import ParallelConfig
from .api import CallError
from .plugins import PluginError, import_class, named_by
from .transport.rank_messages import Call, Returned

if TYPE_CHECKING:
    from .runner.rank_model import RankModel  # imports torch

WorkerCall = Callable[[str, Sequence[Any], Mapping[str, Any]], list[Any]]  # a method of all workers, with its arguments
CLASS, EXTENSION = "parallel.worker_cls", "parallel.worker_extension_cls"


class Worker:
    rank: int  # of this process, from 0
    world_size: int  # processes that compute the model
    model: RankModel  # the weights of this rank


def worker_class(parallel: ParallelConfig) -> type[Worker]:
    """The class that the options name. Raises PluginError."""
    kind, extension = Worker, parallel.worker_extension_cls
    if parallel.worker_cls != "auto":
        with named_by(CLASS):
            kind = _imported(parallel.worker_cls)
            if not issubclass(kind, Worker):
                base = f"{Worker.__module__}:{Worker.__name__}"
                raise PluginError(f"{parallel.worker_cls}: the class is not a subclass of {base}")
    if not extension:
        return kind
    with named_by(EXTENSION):
        found = _imported(extension)
        try:
            return type("Worker", (found, kind), {})
        except TypeError as error:
            raise PluginError(f"{extension}: the class cannot be a base class: {error}") from error


def _imported(path: str) -> Any:
    found = import_class(path, ())
    if taken := [name for name in Worker.__annotations__ if hasattr(found, name)]:
        raise PluginError(f"{path}: the class has {', '.join(taken)}, which a worker has itself")
    return found


class Workplace:
    """The worker of this process."""

    def __init__(self, kind: type[Worker], parallel: ParallelConfig, rank: int, model: RankModel) -> None:
        """kind: of `worker_class`. Its constructor is called without arguments, when it has its attributes. Raises
        PluginError."""
        paths = {CLASS: parallel.worker_cls, EXTENSION: parallel.worker_extension_cls}
        self._paths = {option: path for option, path in paths.items() if path not in ("", "auto")}
        try:
            self._worker = kind.__new__(kind)
            self._worker.rank, self._worker.world_size, self._worker.model = rank, parallel.topology.num_ranks, model
            self._worker.__init__()  # type: ignore[misc]
        except Exception as error:
            named = ", ".join(f"`{option}`: {path}" for option, path in self._paths.items())
            raise PluginError(f"{named}: cannot be made: {type(error).__name__}: {error}") from error

    def check(self, method: str) -> None:
        """Raises CallError unless the worker has such a method."""
        if method.startswith("_") or not callable(getattr(self._worker, method, None)):
            places = [f"`{option}` is {path}" for option, path in self._paths.items()] or [f"`{EXTENSION}` is not set"]
            raise CallError(f"the workers have no method `{method}`: {', '.join(places)}")

    def returned(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        """What the method returns, and an empty text, or what it raises, as text."""
        import torch

        try:
            with torch.inference_mode():
                return getattr(self._worker, method)(*args, **kwargs), ""
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"

    def call_alone(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Call a method in a model of one process. Raises CallError."""
        self.check(method)
        return values_of(method, [self.returned(method, args, kwargs)])

    def answer(self, call: Call) -> Returned:
        """Answer a call of rank 0."""
        from .transport.rank_values import packed_values, unpacked_values

        args, kwargs = unpacked_values(call.arguments)
        return packed_values(*self.returned(call.method, args, kwargs))


def values_of(method: str, returned: Sequence[tuple[Any, str]]) -> list[Any]:
    """Returned values, by rank. Raises CallError if a rank has failed."""
    if errors := [f"rank {rank}: {error}" for rank, (_, error) in enumerate(returned) if error]:
        raise CallError(f"`{method}` has failed on {'; '.join(errors)}")
    return [value for value, _ in returned]
