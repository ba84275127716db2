"""Flags of the verbs that check, show and plan deployments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from .types import TextOrJson, YamlOrJson


@dataclass(frozen=True, slots=True)
class ConfigFlags:
    path: Annotated[str | None, typer.Argument(metavar="PATH", help="One section or option.")] = None
    show_origin: Annotated[bool, typer.Option("--show-origin", help="Show where each value comes from.")] = False
    output: YamlOrJson = "yaml"
    minimal: Annotated[bool, typer.Option("--minimal", help="Only values that were written.")] = False
    hash_only: Annotated[bool, typer.Option("--hash", help="Only a hash of the written configuration.")] = False
    sources: Annotated[
        bool, typer.Option("--sources", help="The text of every file and preset that was read, weakest first.")
    ] = False


@dataclass(frozen=True, slots=True)
class PlanFlags:
    device_profile: Annotated[
        str,
        typer.Option(
            "--device-profile",
            metavar="NAME|FILE",
            help="Plan for another device: t4, l4, a10g, rtx-3090, rtx-4090, a100-40gb, l40s, h100-80gb, a100-80gb, "
            "h200, b200, mi300x, or a YAML file.",
        ),
    ] = "this-machine"
    devices: Annotated[
        int | None, typer.Option("--devices", metavar="N", min=1, max=1024, help="Plan for N of that device.")
    ] = None
    devices_per_node: Annotated[
        int, typer.Option("--devices-per-node", metavar="N", min=1, max=72, help="How many of them a machine has.")
    ] = 8
    output: TextOrJson = "text"
    strict_fit: Annotated[
        bool, typer.Option("--strict-fit", help="Fail also if only an estimate says that it does not fit.")
    ] = False
    calibration: Annotated[
        bool, typer.Option("--calibration", help="Compare earlier plans with what starts on this machine measured.")
    ] = False
