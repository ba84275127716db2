"""Adapters by the names that clients use: what is loaded, in use, loaded again in place, and forgotten.

A name stands for the digest of an adapter's files. Loading in place gives a name another digest: requests that have
begun go on with the old one, whose weights are freed when the last of them has ended. Two calls to load or unload the
same adapter run one after the other.

An adapter of `lora.resolver_folder` is loaded by the first request that names it, and again when its files have been
written again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..config import Resolved
from ..config.adapter_modules import name_problem
from ..config.checkpoint.adapter_config import ADAPTER_CONFIG
from ..config.errors import ModelFilesError
from ..config.resolve.adapter_files import FilesState, adapter_folder, files_state, read_one
from ..engine.api import AdapterError, AdapterRef, EngineDead
from ..engine.client.engine_client import EngineClient
from ..logs import log_fields
from .protocol.errors import ApiError, bad_request

MAX_LISTED = 1000  # adapters of the folder that GET /v1/models lists
_MISSING = ("M301", "M302")  # codes of errors about files that are not there
_OF_SERVER = ("adapter_memory", "adapter_unreadable")  # codes of AdapterError that are no fault of the files
logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Adapter:
    """An adapter under its name. `eq=False`: two are the same only if they are one object.

    path: as it was written. parent: a name that GET /v1/models shows; None: the model's. state: of its files when they
    were read, of an adapter of `lora.resolver_folder`; None: of any other.
    """

    ref: AdapterRef
    path: str
    parent: str | None = None
    state: FilesState | None = None
    num_users: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return self.ref.name

    @property
    def listed(self) -> Listed:
        return Listed(self.name, self.path, self.parent)


class Listed(NamedTuple):
    """What GET /v1/models shows of an adapter, which need not be loaded."""

    name: str
    path: str
    parent: str | None = None


class _Found(NamedTuple):
    """A folder of an adapter in `lora.resolver_folder`. Both paths are without links."""

    folder: Path
    root: str  # `lora.resolver_folder`
    state: FilesState


class _Failure(NamedTuple):
    """Why a folder of `lora.resolver_folder` cannot be used, as long as its files are the same."""

    state: FilesState
    status: int
    message: str
    code: str

    @property
    def error(self) -> ApiError:
        return ApiError(self.status, self.message, code=self.code, param="model")


class Adapters:
    def __init__(self, resolved: Resolved, client: EngineClient) -> None:
        """Know the adapters of the start, which `start` loads."""
        self._resolved, self._client = resolved, client
        self._folder = resolved.lora.resolver_folder if resolved.lora.enable_lora else None
        self._named: dict[str, Adapter] = {}
        self._replaced: set[Adapter] = set()  # which requests still use
        self._of_model = {*resolved.served_model_names, *resolved.server.model_aliases}
        self._failures: dict[str, _Failure] = {}
        self._closed: Counter[str] = Counter()  # names that calls are unloading
        self._locks: dict[str, asyncio.Lock] = {}  # of the names that calls are about
        self._num_calls: Counter[str] = Counter()  # that have or wait for a lock, by name
        self._forgetting: set[asyncio.Task[None]] = set()
        for each in resolved.adapters:
            ref = AdapterRef(each.name, each.digest, each.folder)
            self._named[each.name] = Adapter(ref, each.folder, each.base_model_name)

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._named.values())

    async def start(self) -> None:
        """Load the adapters of the deployment. Raises ModelFilesError if the engine cannot use one, EngineDead."""
        for adapter in list(self):
            try:
                await self._client.load_adapter(adapter.ref)
            except AdapterError as error:
                raise ModelFilesError(str(error), code="M310") from None
            self._log("an adapter is loaded", adapter)

    async def find(self, name: str) -> Adapter | None:
        """The adapter that a request names; one in `lora.resolver_folder` is loaded first. None: there is none.

        Raises ApiError for one that is there and cannot be used.
        """
        if name in self._closed:
            return None
        adapter = self._named.get(name)
        if not self._may_be_in_folder(name) or (adapter is not None and adapter.state is None):
            return adapter
        found = await self._in_folder(name)
        if name in self._closed:
            return None
        adapter = self._named.get(name)
        if found is None or _is_current(adapter, found):
            return adapter
        async with self._turn(name):
            found, adapter = await self._in_folder(name), self._named.get(name)
            if found is None or _is_current(adapter, found):  # another request has loaded it
                return adapter
            return await self._loaded_from_folder(name, found, adapter)

    async def look_up(self, name: str) -> Listed | None:
        """The adapter that a request names, which is not loaded."""
        if name in self._closed:
            return None
        if (adapter := self._named.get(name)) is not None:
            return adapter.listed
        found = await self._in_folder(name) if self._may_be_in_folder(name) else None
        return None if found is None else Listed(name, str(found.folder))

    async def listed(self) -> list[Listed]:
        """The adapters that are loaded, and those in `lora.resolver_folder`."""
        found = {each.name: each.listed for each in self}
        if self._folder is not None:
            for each in await asyncio.to_thread(_adapters_in, Path(self._folder)):
                if each.name not in self._of_model:
                    found.setdefault(each.name, each)
        return list(found.values())

    async def load(self, name: str, path: str, *, in_place: bool) -> None:
        """Raises ApiError: 400 for a name that is taken or an adapter that does not fit, 404 for files that are not
        there."""
        if problem := name_problem(name):
            raise bad_request(problem, code="invalid_adapter_name", param="lora_name")
        if name in self._of_model:
            raise bad_request(f"{name!r} is a name of the model", code="adapter_name_taken", param="lora_name")
        async with self._turn(name):
            if name in self._named and not in_place:
                message = f"an adapter {name!r} is loaded already; `load_inplace: true` replaces it"
                raise bad_request(message, code="adapter_name_taken", param="lora_name")
            before = self._named.get(name)
            await self._loaded(name, path, None if before is None else before.parent)
            self._replace(before)

    async def unload(self, name: str, wait_s: float) -> None:
        """Forget an adapter. Requests that name it from now on find none; those that use it are waited for.

        Raises ApiError: 404 for an unknown name, 409 if it is still used after `wait_s` seconds; it stays loaded then.
        """
        async with self._closing(name), self._turn(name):
            adapter = self._named.pop(name, None)
            if adapter is None:
                raise ApiError(404, f"there is no adapter {name[:200]!r}", code="adapter_not_found", param="lora_name")
            adapter.idle.clear()
            if adapter.num_users:
                try:
                    await asyncio.wait_for(adapter.idle.wait(), wait_s)
                except TimeoutError:
                    self._named[name] = adapter
                    message = f"the adapter {name!r} is used by {adapter.num_users} requests after {wait_s:g} s"
                    raise ApiError(409, message, code="adapter_in_use", param="lora_name") from None
                except BaseException:
                    self._named[name] = adapter
                    raise
            await self._forget(adapter.ref.digest)
            self._log("an adapter is unloaded", adapter)

    @contextlib.contextmanager
    def used(self, adapter: Adapter) -> Iterator[None]:
        """The block is a request that uses it."""
        adapter.num_users += 1
        try:
            yield
        finally:
            adapter.num_users -= 1
            if not adapter.num_users:
                adapter.idle.set()
                if adapter in self._replaced:
                    self._replaced.remove(adapter)
                    self._forget_soon(adapter)

    @contextlib.asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        """Wait for earlier calls about this name. A lock exists as long as one has it or waits for it."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._num_calls[name] += 1
        try:
            async with lock:
                yield
        finally:
            self._num_calls[name] -= 1
            if not self._num_calls[name]:
                del self._num_calls[name], self._locks[name]

    @contextlib.asynccontextmanager
    async def _closing(self, name: str) -> AsyncIterator[None]:
        """Requests do not find this name meanwhile."""
        self._closed[name] += 1
        try:
            yield
        finally:
            self._closed[name] -= 1
            if not self._closed[name]:
                del self._closed[name]

    def _may_be_in_folder(self, name: str) -> bool:
        return self._folder is not None and name not in self._of_model and not name_problem(name)

    async def _in_folder(self, name: str) -> _Found | None:
        assert self._folder is not None
        return await asyncio.to_thread(_inside, Path(self._folder), name)

    async def _loaded_from_folder(self, name: str, found: _Found, before: Adapter | None) -> Adapter:
        """Load an adapter, unless its files could not be used and are the same.

        Raises ApiError about `model`. The paths in it begin in the folder, because clients do not need the others.
        """
        failure = self._failures.get(name)
        if failure is not None and failure.state == found.state:
            raise failure.error
        try:
            adapter = await self._loaded(name, str(found.folder), None, found.state)
        except ApiError as error:
            message = error.message.replace(found.root + os.sep, "")
            failure = _Failure(found.state, error.status, message, error.code)
            if error.status < 500:
                if len(self._failures) >= MAX_LISTED:
                    self._failures.clear()
                self._failures[name] = failure
            raise failure.error from None
        self._failures.pop(name, None)
        self._replace(before)
        return adapter

    async def _loaded(self, name: str, path: str, parent: str | None, state: FilesState | None = None) -> Adapter:
        """Read an adapter, have the engine load it, and name it."""
        try:
            ref = await asyncio.to_thread(self._described, name, path)
            await self._client.load_adapter(ref)
        except ModelFilesError as error:
            status, code = (404, "adapter_files_not_found") if error.code in _MISSING else (400, "invalid_adapter")
            raise ApiError(status, f"adapter {name!r}: {error}", code=code, param="lora_path") from None
        except AdapterError as error:
            status = 500 if error.code in _OF_SERVER else 400
            raise ApiError(status, str(error), code=error.code, param="lora_path") from None
        adapter = self._named[name] = Adapter(ref, path, parent, state)
        self._log("an adapter is loaded", adapter)
        return adapter

    def _described(self, name: str, path: str) -> AdapterRef:
        folder = adapter_folder(path, self._resolved.load.download_dir)
        found = read_one(self._resolved.model_spec, self._resolved.lora, folder)
        return AdapterRef(name, found.digest, str(folder))

    def _replace(self, before: Adapter | None) -> None:
        """Another adapter has the name of this one, if there was one."""
        if before is None:
            return
        if before.num_users:
            self._replaced.add(before)
        else:
            self._forget_soon(before)

    def _forget_soon(self, adapter: Adapter) -> None:
        task = asyncio.ensure_future(self._forget(adapter.ref.digest))
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    async def _forget(self, digest: str) -> None:
        """Free the weights, unless another name has the same ones. An engine that has ended has none."""
        if all(each.ref.digest != digest for each in (*self, *self._replaced)):
            with contextlib.suppress(EngineDead):
                await self._client.unload_adapter(digest)

    def _log(self, message: str, adapter: Adapter) -> None:
        fields = {"adapter": adapter.name, "folder": adapter.ref.folder, "digest": adapter.ref.digest[:12]}
        log_fields(logger, logging.INFO, message, fields)


def _is_current(adapter: Adapter | None, found: _Found) -> bool:
    """Whether requests use this adapter. One whose files are gone is used as long as the engine has it."""
    return adapter is not None and (adapter.state in (None, found.state) or None in found.state)


def _inside(folder: Path, name: str) -> _Found | None:
    """The folder of an adapter; None if there is none, or if links lead out of `folder`."""
    place = os.path.realpath(folder / name)
    root = os.path.realpath(folder)
    if os.path.commonpath((root, place)) != root or place == root:
        return None
    if not os.path.isfile(os.path.join(place, ADAPTER_CONFIG)):
        return None
    return _Found(Path(place), root, files_state(Path(place)))


def _adapters_in(folder: Path) -> list[Listed]:
    """The adapters in a folder, and in the folders in it."""
    found: list[Listed] = []
    for name in _folders(folder):
        for each in (name, *(f"{name}/{inner}" for inner in _folders(folder / name))):
            place = None if name_problem(each) else _inside(folder, each)
            if place is not None:
                found.append(Listed(each, str(place.folder)))
        if len(found) >= MAX_LISTED:
            break
    return found[:MAX_LISTED]


def _folders(folder: Path) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())
    return []
