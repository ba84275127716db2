"""Verbs that measure speed and describe the machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ..bench.defaults import Kind
from ..flags.measuring import BenchFlags
from ..flags.types import File, Overlays, TextOrJson
from .arguments import end, expanded, files_of, overrides


@expanded
def bench(
    context: typer.Context,
    bench_type: Annotated[Kind, typer.Argument(help="What is measured; see above.")],
    file: File = None,
    overlays: Overlays = None,
    *,
    flags: BenchFlags,
    output: TextOrJson = "text",
) -> None:
    """Measure speed: times to the first token, between tokens and to the end, and tokens per second.

    latency: one batch of prompts after another. throughput: all prompts together. Both run the engine in this process.
    serve: requests to a running server, of this or another engine. embed: texts to one that embeds.
    startup: the phases of a start.
    spec: answers of a given text with drafts and without, by the number of sequences and the length of drafts.
    """
    from ..bench.run import run

    given = {name: value for name, value in asdict(flags).items() if value is not None}
    end(run(bench_type, files_of(file, overlays), overrides(context), given, output=output))


def collect_env(output: TextOrJson = "text") -> None:
    """Print what a bug report should contain about this machine and installation, without secrets."""
    from ..collect_env import run

    end(run(output))
