"""Verbs that write deployments, files for supervisors, and completion scripts."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ..flags.types import File, Overlays
from ..flags.writing import ConnectFlags, ImportFlags, InitFlags, QuantizeFlags, RenderFlags, SaveShardedFlags
from .arguments import end, expanded, files_of, overrides


@expanded
def init(flags: InitFlags) -> None:
    """Write a first deployment file."""
    from ..init import run

    end(run(flags))


@expanded
def import_(flags: ImportFlags) -> None:
    """Convert a launch command of vLLM, SGLang, TGI or llama.cpp, or an Ollama Modelfile, to a manifest."""
    from ..import_ import run

    end(run(flags))


def migrate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The deployment.")],
    write: Annotated[
        bool, typer.Option("--write", help="Change the file; without it the changes are only shown.")
    ] = False,
) -> None:
    """Replace deprecated names in a deployment file."""
    from ..migrate import run

    end(run(file, write=write))


@expanded
def render(flags: RenderFlags) -> None:
    """Write Kubernetes objects, an LLMInferenceService of KServe, a compose file or a systemd unit for a deployment."""
    from ..render import run

    end(run(flags))


@expanded
def connect(
    context: typer.Context,
    client: Annotated[
        Literal["claude-code", "codex", "opencode", "continue"], typer.Argument(help="The coding agent.")
    ],
    file: File = None,
    overlays: Overlays = None,
    *,
    flags: ConnectFlags,
) -> None:
    """Print the configuration with which a coding agent uses a deployment."""
    from ..connect import run

    end(run(client, files_of(file, overlays), overrides(context), flags))


@expanded
def quantize(flags: QuantizeFlags) -> None:
    """Write a quantised copy of a model, compressed-tensors or GGUF, which others read too; without calibration."""
    from ..quantize import run

    end(run(flags))


@expanded
def save_sharded(context: typer.Context, flags: SaveShardedFlags) -> None:
    """Write a model's tensors, unchanged or packed for this machine, for `load.load_format: sharded_state`."""
    from ..save_sharded import run

    end(run(overrides(context), flags))


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.")],
) -> None:
    """Print a shell script that completes `engine`: verbs, options, values and topics."""
    from ..completion import run

    end(run(shell))
