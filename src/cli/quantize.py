"""`engine quantize`: writes a quantised copy of a model, without calibration: a folder, or a GGUF file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ..config import fetch_model, load_deployment, read_model_files
from ..config.checkpoint.model_files import is_gguf
from ..config.exit_codes import EXIT_WRONG_COMMAND_LINE
from ..config.resolve.described_model import ModelFiles
from ..config.schema.types import format_about
from ..convert.encoders import Method
from ..convert.gguf_file import GgufConversion, convert_gguf, plan_gguf
from ..convert.quantised import Conversion, convert, plan_conversion
from ..input_file import open_file
from ..vocabulary.gguf import WORDS_OF
from .byte_progress import byte_progress
from .console import print_result
from .flags.writing import QuantizeFlags
from .prepare import fail, failing

FORMAT_VERSION = 1
_GGUF = "gguf:"


def run(flags: QuantizeFlags) -> int:
    return failing(lambda: _run(flags))


def _run(flags: QuantizeFlags) -> int:
    method, target, text_file, output = flags.to, Path(flags.target), flags.perplexity, flags.output
    file_type = method.removeprefix(_GGUF) if method.startswith(_GGUF) else None
    if problem := _target_problem(target, file_type) or _option_problem(file_type, flags.pre_tokenizer):
        return fail(problem, EXIT_WRONG_COMMAND_LINE)
    text = None
    if text_file is not None:
        try:
            with open_file(text_file) as stream:
                text = stream.read().decode()
        except (OSError, UnicodeDecodeError) as error:
            return fail(f"{text_file}: cannot be read as text: {error}", EXIT_WRONG_COMMAND_LINE)
    has_no_tokenizer = text is None and file_type is None
    arguments = {
        "model": flags.model,
        "skip_tokenizer_init": has_no_tokenizer,
        **({"revision": flags.revision} if flags.revision else {}),
    }
    deployment = load_deployment([], arguments=arguments)
    fetch_model(deployment)
    files = read_model_files(deployment)
    work = _gguf(files, file_type, target, flags.pre_tokenizer) if file_type else _folder(files, method, target)
    measured: dict[str, Any] | None = None
    if text is not None:
        from .perplexity import perplexity

        before = perplexity(files.model_path, text, files.max_context)
    with byte_progress(work.found["bytes_before"], shown=output == "text") as advance:
        work.write(advance)
    if text is not None:
        after = perplexity(str(target.absolute()), text, files.max_context)
        measured = {"before": before.value, "after": after.value, "num_tokens": before.num_tokens}
    found = {"format_version": FORMAT_VERSION, "method": method, **work.found, "perplexity": measured}
    print_result(json.dumps(found, indent=2) if output == "json" else "\n".join([*work.lines, *_compared(measured)]))
    return 0


def _target_problem(target: Path, file_type: str | None) -> str | None:
    if file_type is None:
        is_taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
        return f"{target}: exists; name a folder that does not, or an empty one" if is_taken else None
    if os.path.lexists(target):
        return f"{target}: exists; name a file that does not"
    return None if is_gguf(target) else f"{target}: the name of a GGUF file ends in .gguf"


def _option_problem(file_type: str | None, pre_tokenizer: str | None) -> str | None:
    if pre_tokenizer is None:
        return None
    if file_type is None:
        return "--pre-tokenizer is for GGUF files: --to gguf:..."
    names = ", ".join(WORDS_OF)
    return None if pre_tokenizer in WORDS_OF else f"--pre-tokenizer {pre_tokenizer}: unknown; one of {names}"


@dataclass(frozen=True, slots=True)
class _Work:
    """found: for --output json. lines: the same for people."""

    write: Callable[[Callable[[int], None]], None]
    found: dict[str, Any]
    lines: list[str]


def _folder(files: ModelFiles, method: str, target: Path) -> _Work:
    conversion = plan_conversion(files, cast(Method, method))
    group, quantised = conversion.encoder.weights["group_size"], len(conversion.quantised)
    found = {
        "folder": str(target),
        "format": conversion.encoder.format,
        "group_size": group,
        "num_quantised": quantised,
        "num_kept": conversion.kept,
        **_sizes(conversion),
    }
    grouped = f" in groups of {group}" if group else ", a scale per output"
    return _Work(
        lambda advance: convert(conversion, target, advance),
        found,
        [
            f"{target}: {method}{grouped}, compressed-tensors {conversion.encoder.format}",
            f"{quantised} matrices quantised, {conversion.kept} kept; {_shown(conversion)}",
        ],
    )


def _gguf(files: ModelFiles, file_type: str, target: Path, pre_tokenizer: str | None) -> _Work:
    conversion = plan_gguf(files, file_type, pre_tokenizer)
    counts, architecture = conversion.count(), conversion.values["general.architecture"]
    matrices = ", ".join(f"{count} in {dtype}" for dtype, count in counts.items())
    return _Work(
        lambda advance: convert_gguf(conversion, target, advance),
        {"file": str(target), "format": "gguf", "num_matrices": counts, **_sizes(conversion)},
        [f"{target}: GGUF of architecture {architecture}", f"matrices: {matrices}; {_shown(conversion)}"],
    )


def _sizes(conversion: Conversion | GgufConversion) -> dict[str, int]:
    return {"bytes_before": conversion.bytes_before, "bytes_after": conversion.bytes_after}


def _shown(conversion: Conversion | GgufConversion) -> str:
    return f"{format_about(conversion.bytes_before)} -> {format_about(conversion.bytes_after)}"


def _compared(measured: dict[str, Any] | None) -> list[str]:
    if measured is None:
        return []
    before, after = measured["before"], measured["after"]
    return [f"perplexity {before:.4f} -> {after:.4f} over {measured['num_tokens']} tokens"]
