"""`engine save-sharded`: writes the files that `load.load_format: sharded_state` reads, in one of two forms.

The checkpoint's own tensors, for any machine, or packed weights, as a start of a deployment on this machine holds them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import fetch_model, load_deployment, read_model_files
from ..config.checkpoint.model_files import is_gguf
from ..config.exit_codes import EXIT_WRONG_COMMAND_LINE
from ..config.schema.types import format_about, parse_size
from ..convert.loaded_state import pack
from ..convert.loaded_state import save as save_packed
from ..convert.sharded_state import plan_sharding, save
from ..convert.target import check_space, target_problem
from ..engine.runner.measure import PhaseClock
from ..version import __version__
from .byte_progress import byte_progress
from .console import print_result
from .flags.writing import SaveShardedFlags
from .prepare import fail, failing, read, resolve_here
from .startup_view import StartupView

FORMAT_VERSION = 1


def run(overrides: Sequence[str], flags: SaveShardedFlags) -> int:
    """overrides: options of the deployment, which only packed weights depend on."""
    try:
        max_part_bytes = parse_size(flags.max_part_size)
    except ValueError as error:
        return fail(f"--max-part-size {flags.max_part_size}: {error}", EXIT_WRONG_COMMAND_LINE)
    if max_part_bytes <= 0:
        return fail(f"--max-part-size {flags.max_part_size}: must be more than 0", EXIT_WRONG_COMMAND_LINE)
    if overrides and not flags.as_loaded:
        said = f"{overrides[0]} does not change the tensors of a checkpoint; --as-loaded writes them as they are served"
        return fail(said, EXIT_WRONG_COMMAND_LINE)
    if problem := target_problem(Path(flags.target), may_replace=flags.force):
        return fail(problem, EXIT_WRONG_COMMAND_LINE)
    if flags.as_loaded:
        return failing(lambda: _run_as_loaded(overrides, flags, max_part_bytes))
    return failing(lambda: _run(flags, max_part_bytes))


def _run(flags: SaveShardedFlags, max_part_bytes: int) -> int:
    target, revision = Path(flags.target), flags.revision
    arguments: dict[str, Any] = {"model": flags.model, "skip_tokenizer_init": True}
    deployment = load_deployment([], arguments=arguments | ({"revision": revision} if revision else {}))
    fetch_model(deployment)
    sharding = plan_sharding(read_model_files(deployment), max_part_bytes)
    with byte_progress(sharding.num_bytes, shown=flags.output == "text") as advance:
        save(sharding, target, advance, replaces=flags.force)
    found = {
        "format_version": FORMAT_VERSION,
        "folder": str(target),
        "num_files": len(sharding.parts),
        "num_tensors": len(sharding.stored),
        "bytes": sharding.num_bytes,
        "left_out": list(sharding.left_out),
    }
    print_result(json.dumps(found, indent=2) if flags.output == "json" else "\n".join(_lines(target, found)))
    return 0


def _lines(target: Path, found: dict[str, Any]) -> list[str]:
    count, size, left_out = found["num_tensors"], format_about(found["bytes"]), found["left_out"]
    unread = f"; {len(left_out)} that the model does not read are left out" if left_out else ""
    return [
        f"{target}: {count} tensors, {size}, files: {found['num_files']}{unread}",
        f"serve it with `model: {target}` and `load.load_format: sharded_state`",
    ]


def _run_as_loaded(overrides: Sequence[str], flags: SaveShardedFlags, max_part_bytes: int) -> int:
    model, target, revision = flags.model, Path(flags.target), flags.revision
    overrides = [*overrides, *(["--revision", revision] if revision else [])]
    is_deployment = os.path.isfile(model) and not is_gguf(model)  # other models are folders or names
    files, words = ([model], overrides) if is_deployment else ([], ["--model", model, *overrides])
    with StartupView(f"stoker {__version__}", is_live=False) as view:
        resolved = resolve_here(read(files, words, view), view)
        check_space(target, resolved.memory.weights_bytes)
        view.begin("model")
        packed = pack(resolved, PhaseClock(view.part))
    parts = packed.parts(max_part_bytes)
    with byte_progress(packed.num_bytes, shown=flags.output == "text") as advance:
        save_packed(packed, parts, target, advance, replaces=flags.force)
    found = {
        "format_version": FORMAT_VERSION,
        "folder": str(target),
        "num_files": len(parts),
        "num_tensors": len(packed.tensors),
        "bytes": packed.num_bytes,
        "shape": packed.shape.model_dump(mode="json"),
    }
    lines = [
        f"{target}: {format_about(packed.num_bytes)}, files: {len(parts)}; {packed.shape.shown}",
        f"serve it with `model: {target}`",
    ]
    print_result(json.dumps(found, indent=2) if flags.output == "json" else "\n".join(lines))
    return 0
