"""`engine quantize`: writes a quantised copy of a model, without calibration."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ..config import fetch_model, load_deployment, read_model_files
from ..config.exit_codes import EXIT_WRONG_COMMAND_LINE
from ..config.schema.types import format_about
from ..input_file import open_file
from ..quantise.checkpoint import Conversion, convert, plan_conversion
from ..quantise.encoders import Method
from .console import print_result
from .prepare import fail, failing

FORMAT_VERSION = 1


def run(
    model: str,
    *,
    method: Method,
    folder: str,
    revision: str | None = None,
    text_file: str | None = None,
    output: Literal["text", "json"] = "text",
) -> int:
    return failing(lambda: _run(model, method, Path(folder), revision, text_file, output))


def _run(
    model: str,
    method: Method,
    folder: Path,
    revision: str | None,
    text_file: str | None,
    output: Literal["text", "json"],
) -> int:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        return fail(f"{folder}: exists; name a folder that does not, or an empty one", EXIT_WRONG_COMMAND_LINE)
    text = None
    if text_file is not None:
        try:
            with open_file(text_file) as stream:
                text = stream.read().decode()
        except (OSError, UnicodeDecodeError) as error:
            return fail(f"{text_file}: cannot be read as text: {error}", EXIT_WRONG_COMMAND_LINE)
    arguments = {"model": model, "skip_tokenizer_init": text is None, **({"revision": revision} if revision else {})}
    deployment = load_deployment([], arguments=arguments)
    fetch_model(deployment)
    files = read_model_files(deployment)
    conversion = plan_conversion(files, method)
    measured: dict[str, Any] | None = None
    if text is not None:
        from .perplexity import perplexity

        before = perplexity(files.model_path, text, files.max_context)
    with _progress(conversion.bytes_before, shown=output == "text") as advance:
        convert(conversion, folder, advance)
    if text is not None:
        after = perplexity(str(folder.absolute()), text, files.max_context)
        measured = {"before": before.value, "after": after.value, "num_tokens": before.num_tokens}
    found = _result(conversion, method, folder, measured)
    print_result(json.dumps(found, indent=2) if output == "json" else _text(found))
    return 0


def _result(conversion: Conversion, method: str, folder: Path, measured: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "format_version": FORMAT_VERSION,
        "folder": str(folder),
        "method": method,
        "format": conversion.encoder.format,
        "group_size": conversion.encoder.weights["group_size"],
        "num_quantised": len(conversion.quantised),
        "num_kept": conversion.kept,
        "bytes_before": conversion.bytes_before,
        "bytes_after": conversion.bytes_after,
        "perplexity": measured,
    }


def _text(found: dict[str, Any]) -> str:
    group = f" in groups of {found['group_size']}" if found["group_size"] else ", a scale per output"
    lines = [
        f"{found['folder']}: {found['method']}{group}, compressed-tensors {found['format']}",
        f"{found['num_quantised']} matrices quantised, {found['num_kept']} kept; "
        f"{format_about(found['bytes_before'])} -> {format_about(found['bytes_after'])}",
    ]
    if (measured := found["perplexity"]) is not None:
        lines.append(
            f"perplexity {measured['before']:.4f} -> {measured['after']:.4f} over {measured['num_tokens']} tokens"
        )
    return "\n".join(lines)


@contextmanager
def _progress(total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("weights"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
