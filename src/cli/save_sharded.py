"""`engine save-sharded`: writes a model's weights in the files that `load.load_format: sharded_state` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from ..config import fetch_model, load_deployment, read_model_files
from ..config.exit_codes import EXIT_WRONG_COMMAND_LINE
from ..config.schema.types import format_about, parse_size
from ..convert.sharded_state import plan_sharding, save
from .byte_progress import byte_progress
from .console import print_result
from .prepare import fail, failing

FORMAT_VERSION = 1


def run(
    model: str,
    *,
    target: str,
    max_part_size: str,
    revision: str | None = None,
    output: Literal["text", "json"] = "text",
) -> int:
    return failing(lambda: _run(model, Path(target), max_part_size, revision, output))


def _run(model: str, target: Path, max_part_size: str, revision: str | None, output: str) -> int:
    try:
        max_part_bytes = parse_size(max_part_size)
    except ValueError as error:
        return fail(f"--max-part-size {max_part_size}: {error}", EXIT_WRONG_COMMAND_LINE)
    if max_part_bytes <= 0:
        return fail(f"--max-part-size {max_part_size}: must be more than 0", EXIT_WRONG_COMMAND_LINE)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        return fail(f"{target}: exists; name a folder that does not, or an empty one", EXIT_WRONG_COMMAND_LINE)
    arguments: dict[str, Any] = {"model": model, "skip_tokenizer_init": True}
    deployment = load_deployment([], arguments=arguments | ({"revision": revision} if revision else {}))
    fetch_model(deployment)
    sharding = plan_sharding(read_model_files(deployment), max_part_bytes)
    with byte_progress(sharding.num_bytes, shown=output == "text") as advance:
        save(sharding, target, advance)
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
