"""Adapters by the names that clients use: what is loaded, in use, loaded again in place, and forgotten.

A name stands for the digest of an adapter's files. Loading in place gives a name another digest: requests that have
begun go on with the old one, whose weights are freed when the last of them has ended. One lock for each name: two
calls to load or unload the same adapter run one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..config import Resolved
from ..config.adapter_modules import name_problem
from ..config.checkpoint.adapter_config import ADAPTER_CONFIG
from ..config.checkpoint.model_files import locate
from ..config.errors import ModelFilesError
from ..config.resolve.adapter_files import read_one
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

    path: as it was written. parent: a name that GET /v1/models shows; None: the model's.
    """

    ref: AdapterRef
    path: str
    parent: str | None = None
    num_users: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return self.ref.name


class Adapters:
    def __init__(self, resolved: Resolved, client: EngineClient) -> None:
        """Know the adapters of the start, which `start` loads."""
        self._resolved, self._client = resolved, client
        self._folder = resolved.lora.resolver_folder if resolved.lora.enable_lora else None
        self._named: dict[str, Adapter] = {}
        self._replaced: set[Adapter] = set()  # which requests still use
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
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
        if name in self._named or self._folder is None or name_problem(name):
            return self._named.get(name)
        async with self._lock(name):
            if name in self._named:  # another request has loaded it
                return self._named[name]
            folder = await asyncio.to_thread(_inside, Path(self._folder), name)
            return None if folder is None else await self._loaded(name, str(folder), None)

    async def listed(self) -> list[tuple[str, str, str | None]]:
        """Name, path and parent of each: those that are loaded, and those in `lora.resolver_folder`."""
        found = {each.name: (each.name, each.path, each.parent) for each in self}
        if self._folder is not None:
            for name, path in await asyncio.to_thread(_adapters_in, Path(self._folder)):
                found.setdefault(name, (name, path, None))
        return list(found.values())

    async def load(self, name: str, path: str, *, in_place: bool) -> None:
        """Raises ApiError: 400 for a name that is taken or an adapter that does not fit, 404 for files that are not
        there."""
        if problem := name_problem(name):
            raise bad_request(problem, code="invalid_adapter_name", param="lora_name")
        if name in self._resolved.served_model_names:
            raise bad_request(f"{name!r} is a name of the model", code="adapter_name_taken", param="lora_name")
        async with self._lock(name):
            if name in self._named and not in_place:
                message = f"an adapter {name!r} is loaded already; `load_inplace: true` replaces it"
                raise bad_request(message, code="adapter_name_taken", param="lora_name")
            before = self._named.get(name)
            await self._loaded(name, path, None if before is None else before.parent)
            if before is not None:
                self._replace(before)

    async def unload(self, name: str, wait_s: float) -> None:
        """Forget an adapter. Requests that name it from now on find none; those that use it are waited for.

        Raises ApiError: 404 for an unknown name, 409 if it is still used after `wait_s` seconds; it stays loaded then.
        """
        async with self._lock(name):
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

    def _lock(self, name: str) -> asyncio.Lock:
        if len(self._locks) > 2 * MAX_LISTED:  # clients choose the names
            self._locks = defaultdict(asyncio.Lock, {key: lock for key, lock in self._locks.items() if lock.locked()})
        return self._locks[name]

    async def _loaded(self, name: str, path: str, parent: str | None) -> Adapter:
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
        adapter = self._named[name] = Adapter(ref, path, parent)
        self._log("an adapter is loaded", adapter)
        return adapter

    def _described(self, name: str, path: str) -> AdapterRef:
        folder = locate(path, None, self._resolved.load.download_dir, ADAPTER_CONFIG).absolute()
        found = read_one(self._resolved.model_spec, self._resolved.lora, folder)
        return AdapterRef(name, found.digest, str(folder))

    def _replace(self, before: Adapter) -> None:
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


def _inside(folder: Path, name: str) -> Path | None:
    """The folder of an adapter; None if there is none, or if links lead out of `folder`."""
    place = os.path.realpath(folder / name)
    root = os.path.realpath(folder)
    if os.path.commonpath((root, place)) != root or place == root:
        return None
    return Path(place) if os.path.isfile(os.path.join(place, ADAPTER_CONFIG)) else None


def _adapters_in(folder: Path) -> list[tuple[str, str]]:
    """Names and paths of the adapters in a folder, and in the folders in it."""
    found: list[tuple[str, str]] = []
    for name in _folders(folder):
        for each in (name, *(f"{name}/{inner}" for inner in _folders(folder / name))):
            place = None if name_problem(each) else _inside(folder, each)
            if place is not None:
                found.append((each, str(place)))
        if len(found) >= MAX_LISTED:
            break
    return found[:MAX_LISTED]


def _folders(folder: Path) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())
    return []
