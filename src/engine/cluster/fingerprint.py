"""What must be the same on all nodes of a deployment: the version, the model with its weights, the written options.

A value that a machine decides may differ: the processes of all nodes use node 0's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...config import Resolved
from ...config.origin import Layer
from ...config.schema.options import options
from ...model.weight_digest import weight_digest
from ...version import __version__

Fingerprint = Mapping[str, str]  # text by what it is of

_SECTIONS = ("model", "load", "cache", "scheduler", "parallel", "device", "compilation", "structured_outputs")
_OF_A_NODE = {
    "parallel.node_rank",
    "parallel.master_addr",  # a host has several names
    "parallel.master_port",  # Ray starts ranks of a port that is free
    "parallel.data_parallel_rank",
    "parallel.data_parallel_size_local",
    "parallel.data_parallel_start_rank",
    "parallel.data_parallel_address",
    "parallel.data_parallel_rpc_port",
    "model.served_model_name",
    "device.num_threads",
    "device.numa_bind",
    "device.numa_bind_nodes",
    "device.numa_bind_cpus",
}
_SHOWN = 60  # characters of a value


def fingerprint(resolved: Resolved) -> dict[str, str]:
    """Raises OSError if a file of the weights cannot be read."""
    files = resolved.model_files
    written = {path: _value(resolved, path) for path in resolved.origins if _is_compared(resolved, path)}
    return {
        "version": __version__,
        "model": _digest(files.spec.model_dump_json().encode()),
        "weights": weight_digest(Path(files.model_path), files.weight_files)[:12],
        **{f"`{path}`": value for path, value in sorted(written.items())},
    }


def differences(here: Fingerprint, there: Fingerprint, who: str) -> str:
    """What differs, as a text; empty if nothing does. who: the other one."""
    absent = "not written"
    return "; ".join(
        f"{name} is {_shown(here.get(name, absent))} on node 0 and {_shown(there.get(name, absent))} on {who}"
        for name in sorted({*here, *there})
        if here.get(name) != there.get(name)
    )


def _is_compared(resolved: Resolved, path: str) -> bool:
    section, _, _ = path.partition(".")
    option = options().get(path)
    if section not in _SECTIONS or path in _OF_A_NODE or option is None or option.is_secret:
        return False
    return option.path_kind is None and resolved.origin(path).layer not in (Layer.DEFAULT, Layer.MODEL, Layer.RULE)


def _value(resolved: Resolved, path: str) -> str:
    section, _, name = path.partition(".")
    dumped: dict[str, Any] = getattr(resolved, section).model_dump(mode="json", include={name})
    return json.dumps(dumped[name], sort_keys=True)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _shown(value: str) -> str:
    return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
