"""What every section class shares, and what a field says about itself besides type, default and description."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

Reload = Literal["hot", "model", "process"]
Notation = Literal["commas", "pairs"]


class Section(BaseModel):
    """One section of the manifest: frozen, unknown keys refused, defaults checked like written values.

    json_flags: flags that set the whole section, as JSON or by dotted keys; its options then have no flags without it.
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
    refused: str | dict[str, str] | None = None,
    same: tuple[Any, ...] = (),
    repeats: bool = False,
    notation: Notation | None = None,
) -> dict[str, Any]:
    """The `json_schema_extra` of one field.

    Args:
        reload: what a change touches, at the next start: `hot` nothing that is loaded, `model` what is loaded,
            `process` the server's address, rights or process.
        unit: what a number counts.
        kind: for a text, `path` (relative to the file that wrote it) or `model` (path or hub id).
        devices: where the field has an effect.
        since: first release that has it.
        aliases: further spellings on the command line, such as `-tp`.
        refused: values that this build knows and cannot do, each with what to do instead. A text instead of a table
            refuses the whole option, that is, every value but the default, which says what this build does anyway.
        repeats: each further flag adds to the list.
        same: values of a refused option that mean the same as its default.
        notation: how its text on a command line may be written besides the usual: list items parted by `commas`, a
            mapping as `pairs` such as image=16,video=2.
    """
    extra: dict[str, Any] = {"reload": reload, "devices": list(devices), "since": since}
    if aliases:
        extra["aliases"] = list(aliases)
    if repeats:
        extra["repeats"] = True
    if same:
        extra["same"] = list(same)
    if notation is not None:
        extra["notation"] = notation
    if unit is not None:
        extra["unit"] = unit
    if kind is not None:
        extra["kind"] = kind
    if refused is not None:
        extra["refused"] = refused
    return extra
