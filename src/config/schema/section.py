"""The base class of all sections, and the declaration of a field besides its type, default and description."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

Reload = Literal["hot", "model", "process"]
Notation = Literal["commas", "pairs"]


class Section(BaseModel):
    """One section of the manifest: frozen, unknown keys refused, defaults checked like written values.

    json_flags: flags that set the whole section, as JSON or by dotted keys; its options then have no short flags.
    """

    json_flags: ClassVar[tuple[str, ...]] = ()

    # defer_build: explaining an option, which needs no validator, takes half the time
    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, protected_namespaces=(), defer_build=True
    )


def about(
    *,
    reload: Reload,
    unit: str | None = None,
    kind: str | None = None,
    devices: tuple[str, ...] = ("cpu", "cuda"),
    since: str = "0.1",
    aliases: tuple[str, ...] = (),
    refused: dict[str, str] | None = None,
    repeats: bool = False,
    notation: Notation | None = None,
    json_schema: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The `json_schema_extra` of one field.

    Args:
        reload: what a change affects at the next start: `hot` nothing that is loaded, `model` what is loaded,
            `process` the server's address, permissions or process.
        unit: what a number counts.
        kind: for a text, `path` (relative to the file that holds it), `source` (path or hub id), `model` (the same, and
            clients see the name as it is written) or `template`.
        devices: where the field has an effect.
        since: first release that has it.
        aliases: further spellings on the command line, such as `-tp`.
        refused: values that this build recognises and does not support, each with what to use instead. An option that
            is not supported at all is a row in refused.py.
        repeats: each further flag adds to the list.
        notation: a further way to write its value on a command line: list items separated by `commas`, a mapping as
            `pairs` such as image=16,video=2.
        json_schema: for a mapping, the JSON Schema (draft 2020-12, without `$ref`) of its value; part of the exported
            schema, and checked when a deployment is loaded.
    """
    extra: dict[str, Any] = {"reload": reload, "devices": list(devices), "since": since}
    if aliases:
        extra["aliases"] = list(aliases)
    if repeats:
        extra["repeats"] = True
    if notation is not None:
        extra["notation"] = notation
    if unit is not None:
        extra["unit"] = unit
    if kind is not None:
        extra["kind"] = kind
    if refused is not None:
        extra["refused"] = refused
    if json_schema is not None:
        extra["json_schema"] = json_schema
    return extra
