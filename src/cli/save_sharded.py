"""`engine save-sharded`: writes the files that `load.load_format: sharded_state` reads, in one of two forms.

The checkpoint's own tensors, for any machine, or packed weights, as a start of a deployment on this machine holds them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

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
from .prepare import fail, failing, read, resolve_here
from .startup_view import StartupView

FORMAT_VERSION = 1


def run(
    model: str,
    overrides: Sequence[str],
    *,
    target: str,
    is_as_loaded: bool,
    replaces: bool,
    max_part_size: str,
    revision: str | None = None,
    output: Literal["text", "json"] = "text",
) -> int:
    """overrides: options of the deployment, which only packed weights depend on."""
    try:
        max_part_bytes = parse_size(max_part_size)
    except ValueError as error:
        return fail(f"--max-part-size {max_part_size}: {error}", EXIT_WRONG_COMMAND_LINE)
    if max_part_bytes <= 0:
        return fail(f"--max-part-size {max_part_size}: must be more than 0", EXIT_WRONG_COMMAND_LINE)
    if overrides and not is_as_loaded:
        said = f"{overrides[0]} does not change the tensors of a checkpoint; --as-loaded writes them as they are served"
        return fail(said, EXIT_WRONG_COMMAND_LINE)
    if problem := target_problem(Path(target), may_replace=replaces):
        return fail(problem, EXIT_WRONG_COMMAND_LINE)
    if is_as_loaded:
        given = [*overrides, *(["--revision", revision] if revision else [])]
        return failing(lambda: _run_as_loaded(model, given, Path(target), replaces, max_part_bytes, output))
    return failing(lambda: _run(model, Path(target), replaces, max_part_bytes, revision, output))


def _run(model: str, target: Path, replaces: bool, max_part_bytes: int, revision: str | None, output: str) -> int:
    arguments: dict[str, Any] = {"model": model, "skip_tokenizer_init": True}
    deployment = load_deployment([], arguments=arguments | ({"revision": revision} if revision else {}))
    fetch_model(deployment)
    sharding = plan_sharding(read_model_files(deployment), max_part_bytes)
    with byte_progress(sharding.num_bytes, shown=output == "text") as advance:
        save(sharding, target, advance, replaces=replaces)
    found = {
        "format_version": FORMAT_VERSION,
        "folder": str(target),
        "num_files": len(sharding.parts),
        "num_tensors": len(sharding.stored),
        "bytes": sharding.num_bytes,
        "left_out": list(sharding.left_out),
    }
    print_result(json.dumps(found, indent=2) if output == "json" else "\n".join(_lines(target, found)))
    return 0


def _lines(target: Path, found: dict[str, Any]) -> list[str]:
    count, size, left_out = found["num_tensors"], format_about(found["bytes"]), found["left_out"]
    unread = f"; {len(left_out)} that the model does not read are left out" if left_out else ""
    return [
        f"{target}: {count} tensors, {size}, files: {found['num_files']}{unread}",
        f"serve it with `model: {target}` and `load.load_format: sharded_state`",
    ]


def _run_as_loaded(
    model: str,
    overrides: Sequence[str],
    target: Path,
    replaces: bool,
    max_part_bytes: int,
    output: Literal["text", "json"],
) -> int:
    is_deployment = os.path.isfile(model) and not is_gguf(model)  # other models are folders or names
    files, words = ([model], overrides) if is_deployment else ([], ["--model", model, *overrides])
    with StartupView(f"stoker {__version__}", is_live=False) as view:
        resolved = resolve_here(read(files, words, view), view)
        check_space(target, resolved.memory.weights_bytes)
        view.begin("model")
        packed = pack(resolved, PhaseClock(view.part))
    parts = packed.parts(max_part_bytes)
    with byte_progress(packed.num_bytes, shown=output == "text") as advance:
        save_packed(packed, parts, target, advance, replaces=replaces)
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
    print_result(json.dumps(found, indent=2) if output == "json" else "\n".join(lines))
    return 0
