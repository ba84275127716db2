"""Measured and planned memory of each engine start: one JSON line per start in the user's cache folder.

Written after every start of `engine up`, read by `engine plan --calibration`. The file is optional: errors in
reading or writing it are logged and never stop a start.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import os
import platform
from pathlib import Path

from pydantic import ValidationError

from ...model.quantised import scheme_of
from ...model.record import Record
from ..resolve.resolved import Measured, Resolved
from .ask import Ask
from .devices import this_machine
from .estimate import Range, activation_memory, grammar_memory, process_memory

MAX_BYTES = 256 << 10  # about 500 starts; then the older half is deleted
VARIABLE = "STOKER_CACHE_DIR"
logger = logging.getLogger(__name__)


class Calibration(Record):
    """One start. Bytes; None if the system does not report the value.

    peak: maximum memory of the engine process until then; planned_peak: planned maximum under full load.
    """

    date: str
    version: str
    system: str
    device: str
    model: str
    shape: str  # hash of all values that the sizes depend on
    dtype: str
    planned_weights: int
    weights: int
    planned_kv_cache: int
    kv_cache: int
    planned_resident: Range
    resident: int | None
    planned_peak: Range
    peak: int | None


def cache_dir() -> Path | None:
    """STOKER_CACHE_DIR, else $XDG_CACHE_HOME/stoker or ~/.cache/stoker; None if there is no home directory."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    root = os.environ.get("XDG_CACHE_HOME")
    if not root:
        home = os.environ.get("HOME")
        root = os.path.join(home, ".cache") if home else None
    return Path(root, "stoker") if root else None


def calibration_file() -> Path | None:
    folder = cache_dir()
    return folder / "calibration.jsonl" if folder is not None else None


def planned_memory(resolved: Resolved) -> tuple[Range, Range]:
    """Planned host memory of the engine process: after the start, and maximum under load.

    A GPU's weights, KV cache and activations are in its own memory.
    """
    spec, ask, host = resolved.model_spec, _ask(resolved), this_machine(resolved.machine)
    fixed = process_memory(spec, host, ask, resolved.model.max_model_len) + grammar_memory(spec, ask)
    if resolved.device.device != "cpu":
        return fixed, fixed
    started = fixed + (resolved.memory.weights_bytes + resolved.memory.kv_cache_bytes)
    return started, started + activation_memory(spec, host, ask)


def record(resolved: Resolved, measured: Measured, version: str) -> Calibration:
    started, peak = planned_memory(resolved)
    described = resolved.model_spec.model_dump_json()
    return Calibration(
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        version=version,
        system=f"{platform.system()} {platform.machine()} Python {platform.python_version()}",
        device=resolved.machine.cpu_name or resolved.machine.architecture,
        model=resolved.model.model,
        shape=hashlib.sha256(described.encode()).hexdigest()[:16],
        dtype=resolved.model.dtype,
        planned_weights=resolved.memory.weights_bytes,
        weights=measured.weights_bytes,
        planned_kv_cache=resolved.memory.kv_cache_bytes,
        kv_cache=measured.kv_cache_bytes,
        planned_resident=started,
        resident=measured.resident_bytes,
        planned_peak=peak,
        peak=measured.peak_bytes,
    )


def append(entry: Calibration, path: Path | None = None) -> None:
    """Appends one line to the file. Errors are logged at debug level only."""
    path = path or calibration_file()
    if path is None:
        return
    line = entry.model_dump_json().encode() + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists() and path.stat().st_size + len(line) > MAX_BYTES:
            _shorten(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)  # one write: lines of two concurrent starts do not mix
        finally:
            os.close(descriptor)
    except OSError as error:
        logger.debug("%s: the measurement was not written: %s", path, error)


def _shorten(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    kept = path.with_suffix(f".{os.getpid()}")
    kept.write_bytes(b"".join(lines[len(lines) // 2 :]))
    os.replace(kept, path)


def entries(path: Path | None = None) -> list[Calibration]:
    """Oldest first. Lines that cannot be read, such as lines of other releases, are left out."""
    path = path or calibration_file()
    found: list[Calibration] = []
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines() if path is not None else []
    except OSError:
        return []
    for line in lines:
        try:
            found.append(Calibration.model_validate_json(line))
        except ValidationError:
            continue
    return found


def error_in_per_cent(planned: int, measured: int | None) -> float | None:
    """Relative error of the plan, (planned - measured) / measured."""
    return None if not measured else (planned - measured) / measured * 100


def _ask(resolved: Resolved) -> Ask:
    return Ask(
        dtype=resolved.model.dtype,
        kv_dtype=resolved.cache.kv_cache_dtype,
        block_size=resolved.cache.block_size,
        max_num_seqs=resolved.scheduler.max_num_seqs,
        max_num_batched_tokens=resolved.scheduler.max_num_batched_tokens,
        max_model_len=resolved.model.max_model_len,
        memory_share=resolved.cache.gpu_memory_utilization,
        kv_cache_bytes=resolved.memory.kv_cache_bytes,
        has_graphs=False,
        has_grammars=not resolved.model.skip_tokenizer_init,
        quantization=scheme_of(resolved.model.quantization),
    )
