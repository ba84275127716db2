"""The base class of all sections, and the declaration of a field besides its type, default and description."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypedDict, Unpack

from pydantic import BaseModel, ConfigDict

Reload = Literal["hot", "model", "process"]
Notation = Literal["commas", "pairs", "objects"]


class Section(BaseModel):
    """One section of the manifest: frozen, unknown keys refused, defaults checked like written values.

    json_flags: flags that set the whole section, as JSON or by dotted keys; its options then have no short flags.
    reload: what a change of its options affects at the next start, unless an option says otherwise (About).
    """

    json_flags: ClassVar[tuple[str, ...]] = ()
    reload: ClassVar[Reload] = "model"

    # defer_build: explaining an option, which needs no validator, takes half the time
    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, protected_namespaces=(), defer_build=True
    )


class About(TypedDict, total=False):
    """What `about` says of a field.

    Attributes:
        reload: what a change affects at the next start: `hot` nothing that is loaded, `model` what is loaded,
            `process` the server's address, permissions or process. By default the value of the section.
        unit: what a number counts.
        kind: for a text, `path` (relative to the file that holds it), `source` (path or hub id), `model` (the same, and
            clients see the name as it is written) or `template`.
        devices: where the field has an effect, by default everywhere.
        since: first release that has it, by default 0.1.
        aliases: further spellings on the command line, such as `-tp`.
        refused: values that this build recognises and does not support, each with what to use instead. An option that
            is not supported at all is a row in refused/.
        repeats: each further flag adds to the list.
        notation: a further way to write its value on a command line: list items separated by `commas`, a mapping as
            `pairs` such as image=16,video=2, texts of a list as JSON `objects`.
        json_schema: for a mapping, the JSON Schema (draft 2020-12, without `$ref`) of its value; part of the exported
            schema, and checked when a deployment is loaded.
    """

    reload: Reload
    unit: str
    kind: str
    devices: tuple[str, ...]
    since: str
    aliases: tuple[str, ...]
    refused: dict[str, str]
    repeats: bool
    notation: Notation
    json_schema: dict[str, Any]


def about(**said: Unpack[About]) -> dict[str, Any]:
    """The `json_schema_extra` of one field."""
    return {**said}
