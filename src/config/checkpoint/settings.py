"""`load.model_loader_extra_config`: the settings that each loader takes, and what is wrong with those given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any

from ..suggest import close, did_you_mean

SHARD_PATTERN = "model-rank-{rank}-part-{part}.safetensors"
CACHE_FOLDER = "npcache"
DUMMY_DEVIATION = 0.02
_ELSEWHERE = {  # names that other systems take here
    "enable_multithread_load": "`parallel.max_parallel_loading_workers` says how many files are read at a time",
    "num_threads": "`parallel.max_parallel_loading_workers` says how many files are read at a time",
    "concurrency": "`parallel.max_parallel_loading_workers` says how many files are read at a time",
}


def settings_problem(load_format: str, settings: Mapping[str, Any]) -> str:
    """What is wrong with the settings of a format's loader, in words; empty if nothing is."""
    known = _KNOWN.get(load_format, {})
    for name, value in settings.items():
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            hint = _ELSEWHERE.get(name) or did_you_mean(close(name, known)) or takes
            return f"the {load_format} loader has no setting `{name}`; {hint}"
        if said := known[name](value):
            return f"`{name}` is {value!r}; {said}"
    return ""


def _pattern(value: Any) -> str:
    try:
        fields = {name for _, name, _, _ in Formatter().parse(value) if name is not None}
        value.format(rank=0, part="*")
    except (TypeError, ValueError, AttributeError, LookupError):
        fields = set()
    is_file = isinstance(value, str) and "/" not in value and value.endswith(".safetensors")
    if fields == {"rank", "part"} and is_file:
        return ""
    return f"it must be a file name with {{rank}} and {{part}} in it, such as {SHARD_PATTERN}"


def _folder(value: Any) -> str:
    return "" if isinstance(value, str) and value else "it must be a folder"


def _deviation(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "" if is_number and 0 <= value <= 1 else "it must be a number from 0 to 1"


_KNOWN: dict[str, dict[str, Callable[[Any], str]]] = {
    "sharded_state": {"pattern": _pattern},
    "npcache": {"folder": _folder},
    "dummy": {"deviation": _deviation},
}
