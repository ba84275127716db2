"""Worker: what the class of `parallel.worker_extension_cls` is mixed into, one in each process of a model.

`LLM.collective_rpc` calls a method of all of them, while no request runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .api import CallError
from .plugins import PluginError, import_class, named_by
from .rank_link import Call, Returned

if TYPE_CHECKING:
    from .runner.rank_model import RankModel  # imports torch

OPTION = "parallel.worker_extension_cls"


class Worker:
    rank: int  # of this process, from 0
    world_size: int  # processes that compute the model
    model: RankModel  # the weights of this rank


def worker_class(extension: str) -> type[Worker]:
    """extension: an import path; empty for none. Raises PluginError."""
    if not extension:
        return Worker
    with named_by(OPTION):
        found = import_class(extension, ())
        if taken := [name for name in Worker.__annotations__ if hasattr(found, name)]:
            raise PluginError(f"{extension}: the class has {', '.join(taken)}, which a worker has itself")
        try:
            return type("Worker", (found, Worker), {})
        except TypeError as error:
            raise PluginError(f"{extension}: the class cannot be a base class: {error}") from error


class Workplace:
    """The worker of this process."""

    def __init__(self, kind: type[Worker], extension: str, rank: int, world_size: int, model: RankModel) -> None:
        """Its constructor is called without arguments, when it has its attributes. Raises PluginError."""
        self._extension = extension
        self._worker = kind.__new__(kind)
        self._worker.rank, self._worker.world_size, self._worker.model = rank, world_size, model
        try:
            self._worker.__init__()  # type: ignore[misc]
        except Exception as error:
            raise PluginError(f"`{OPTION}`: {extension}: cannot be made: {type(error).__name__}: {error}") from error

    def check(self, method: str) -> None:
        """Raises CallError unless the worker has such a method."""
        if method.startswith("_") or not callable(getattr(self._worker, method, None)):
            place = f"`{OPTION}` is {self._extension}" if self._extension else f"`{OPTION}` is not set"
            raise CallError(f"the workers have no method `{method}`: {place}")

    def returned(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        """What the method returns, and an empty text, or what it raises, as text."""
        import torch

        try:
            with torch.inference_mode():
                return getattr(self._worker, method)(*args, **kwargs), ""
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"

    def call_alone(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """In a model of one process. Raises CallError."""
        self.check(method)
        return values_of(method, [self.returned(method, args, kwargs)])

    def answer(self, call: Call) -> Returned:
        """To a call of rank 0."""
        from .rank_values import packed_values, unpacked_values

        args, kwargs = unpacked_values(call.arguments)
        return packed_values(*self.returned(call.method, args, kwargs))


def values_of(method: str, returned: Sequence[tuple[Any, str]]) -> list[Any]:
    """By rank. Raises CallError if one of them has failed."""
    if errors := [f"rank {rank}: {error}" for rank, (_, error) in enumerate(returned) if error]:
        raise CallError(f"`{method}` has failed on {'; '.join(errors)}")
    return [value for value, _ in returned]
