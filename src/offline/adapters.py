"""LoRARequest: the adapter of a prompt; and the adapters that an LLM has been asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config import ModelFilesError, Resolved
from ..config.resolve.adapter_files import FilesState, adapter_folder, files_state, read_one
from ..engine.api import AdapterError, AdapterRef, InvalidRequest
from ..engine.loop.engine_core import EngineCore

_PARAM = "lora_request"


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter (LoRA) for the prompts of one call, with the fields of vLLM's class.

    lora_int_id: above 0; adapters are known by their contents, and the number has no effect.
    lora_path: a folder that PEFT has written, or a hub id; empty: the adapter with this name in `lora.modules`.
    base_model_name, is_3d_lora_weight: have no effect: names and shapes of the tensors say what they are for.
    load_inplace: read the files again, though nothing shows that they have changed.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False

    def __post_init__(self) -> None:
        if self.lora_int_id < 1:
            raise ValueError(f"lora_int_id is {self.lora_int_id}; it must be above 0")

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return self.lora_path

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id


@dataclass(frozen=True, slots=True)
class _Known:
    ref: AdapterRef
    state: FilesState


class OfflineAdapters:
    """The adapters of an LLM by their names. Files that have changed are read again."""

    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved
        self._known: dict[str, _Known] = {}

    def load(self, core: EngineCore, request: LoRARequest) -> AdapterRef:
        """Have the engine read an adapter. Raises InvalidRequest for one that it cannot use."""
        if not self._resolved.lora.enable_lora:
            raise InvalidRequest("adapters are not enabled: make the LLM with enable_lora=True", param=_PARAM)
        try:
            folder = self._folder(request)
            state = files_state(folder)
            before = self._known.get(request.lora_name)
            is_known = before is not None and (before.ref.folder, before.state) == (str(folder), state)
            if before is not None and is_known and not request.load_inplace:
                return before.ref
            digest = read_one(self._resolved.model_spec, self._resolved.lora, folder).digest
            ref = AdapterRef(request.lora_name, digest, str(folder))
            core.load_adapter(ref).result()
        except (ModelFilesError, AdapterError) as error:
            raise InvalidRequest(f"adapter {request.lora_name!r}: {error}", param=_PARAM) from None
        self._known[request.lora_name] = _Known(ref, state)
        if before is not None and all(each.ref.digest != before.ref.digest for each in self._known.values()):
            core.unload_adapter(before.ref.digest)
        return ref

    def _folder(self, request: LoRARequest) -> Path:
        if request.lora_path:
            return adapter_folder(request.lora_path, self._resolved.load.download_dir)
        for each in self._resolved.adapters:
            if each.name == request.lora_name:
                return Path(each.folder)
        raise InvalidRequest(
            f"lora_path is empty, and `lora.modules` has no adapter {request.lora_name!r}", param=_PARAM
        )


def one_each(requests: LoRARequest | Sequence[LoRARequest | None] | None, count: int) -> Sequence[LoRARequest | None]:
    """The adapter of each prompt, from one for all or a list."""
    if requests is None or isinstance(requests, LoRARequest):
        return [requests] * count
    if len(requests) != count:
        raise InvalidRequest(f"{len(requests)} adapters in lora_request for {count} prompts", param=_PARAM)
    return requests
