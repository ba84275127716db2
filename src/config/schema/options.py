"""Every option by its dotted path, from the declarations: what messages, help, flags, schema and docs read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from pydantic import SecretStr, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from .annotation import Kind, read_annotation
from .deployment import DeploymentConfig
from .deprecated import DEPRECATED, Becomes
from .section import Notation, Reload, Section
from .types import REDACTED, format_duration, format_size

ENV_PREFIX = "ENGINE__"
FREE_PREFIX = "x-"

Status = Literal["effective", "deprecated", "refused"]
_ALLOWED = {
    "text": "a text",
    "flag": "true or false",
    "whole": "a whole number",
    "human int": "a whole number such as 4096, 32k (= 32000) or 32K (= 32768)",
    "size": "a size such as 512MiB, 4GiB or a number of bytes",
    "duration": "a duration such as 500ms, 30s, 2m or a number of seconds",
    "number": "a number",
    "texts": "a text or a list of texts",
    "wholes": "a whole number or a list of them",
    "mapping": "a mapping",
}


@dataclass(frozen=True)
class Option:
    """One field of one section, or a header key of the manifest (then `section` is empty)."""

    section: str
    name: str
    info: FieldInfo
    kind: Kind
    choices: tuple[str | int, ...]  # words it accepts; for a number usually just `auto`
    words: tuple[str, ...]  # that its list may have; empty: any texts
    has_text_values: bool  # of a mapping
    bounds: tuple[Any, ...]  # of annotated_types
    spellings: tuple[int, ...]  # numbers that mean `auto`
    min_length: int  # of a text
    pattern: str | None  # of a text, or of each
    is_nullable: bool
    is_secret: bool

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def description(self) -> str:
        return self.info.description or ""

    @property
    def is_required(self) -> bool:
        return self.info.default is PydanticUndefined and self.info.default_factory is None

    @property
    def default(self) -> Any:
        return None if self.is_required else self.info.default

    @property
    def examples(self) -> list[Any]:
        """Values to show. A flag whose declaration has none is shown as the opposite of its default."""
        if self.info.examples is None and self.kind == "flag" and self.status != "refused":
            return [not self.default]
        return list(self.info.examples or [])

    @property
    def _extra(self) -> dict[str, Any]:
        extra = self.info.json_schema_extra
        return extra if isinstance(extra, dict) else {}

    @property
    def reload(self) -> Reload:
        default: Reload = sections()[self.section].reload if self.section else "process"
        reload: Reload = self._extra.get("reload", default)
        return reload

    @property
    def unit(self) -> str | None:
        unit: str | None = self._extra.get("unit")
        return unit

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self._extra.get("devices", ("cpu", "cuda")))

    @property
    def since(self) -> str:
        return str(self._extra.get("since", "0.1"))

    @property
    def path_kind(self) -> str | None:
        """`path`, `source`, `model` or `template` for texts that may be file names."""
        kind: str | None = self._extra.get("kind")
        return kind

    @property
    def repeats(self) -> bool:
        """Whether each further flag adds to the list instead of replacing it."""
        return bool(self._extra.get("repeats"))

    @property
    def status(self) -> Status:
        """`effective`: changes what the system does; `deprecated`: mapped onto another; `refused`: default only."""
        if "becomes" in self._extra:
            return "deprecated"
        return "refused" if self.reason else "effective"

    @property
    def reason(self) -> str:
        """Why it is refused or deprecated, and what to use instead; empty for an effective option."""
        return str(self._extra.get("reason", ""))

    @property
    def accepted(self) -> tuple[Any, ...]:
        """All values that a refused option accepts: they describe what this build does anyway."""
        return (self.default, *self._extra.get("same", ()))

    @property
    def replaced_by(self) -> tuple[str, ...]:
        """Paths of the options that a deprecated one is mapped onto, keys of mapping options included."""
        return tuple(self._extra.get("replaced_by", ()))

    @property
    def becomes(self) -> Becomes:
        """What a deprecated option's value maps onto: values by path. ValueError for one without a counterpart."""
        becomes: Becomes = self._extra["becomes"]
        return becomes

    @property
    def refused(self) -> dict[str, str]:
        """Single values that this build recognises and does not support, each with what to use instead."""
        return dict(self._extra.get("refused", {}))

    @property
    def has_flag(self) -> bool:
        """apiVersion, kind and extends are about one file, so they can only be written in a file."""
        return bool(self.section) or self.name in ("preset", "config")

    @property
    def aliases(self) -> tuple[str, ...]:
        """Flags that are not derived from the name."""
        return tuple(self._extra.get("aliases", ()))

    @property
    def notation(self) -> Notation | None:
        """A further way to write its value on a command line."""
        notation: Notation | None = self._extra.get("notation")
        return notation

    @property
    def has_known_keys(self) -> bool:
        """Whether the declaration says which keys a mapping takes."""
        return "json_schema" in self._extra

    @property
    def json_schema(self) -> dict[str, Any]:
        """JSON Schema of a mapping's value; `{"type": "object"}` where the keys are not known."""
        schema: dict[str, Any] = self._extra.get("json_schema", {"type": "object"})
        return schema

    @property
    def is_flat(self) -> bool:
        """Whether `--name` is enough; keys of `--speculative-config` and others need the flag of their section."""
        return self.status == "deprecated" or not (self.section and sections()[self.section].json_flags)

    @property
    def flags(self) -> tuple[str, ...]:
        """All flags of the option, the usual one first."""
        if not self.has_flag:
            return ()
        name = self.name.replace("_", "-")
        spellings = [f"--{name}"] if self.is_flat else []
        if self.kind == "flag" and self.is_flat:
            spellings.append(f"--no-{name}")
        spellings += self.aliases
        if self.section:
            if not self.is_flat:
                spellings += [f"{flag}.{name}" for flag in sections()[self.section].json_flags]
            spellings.append(f"--{self.section}.{name}")
        return tuple(spellings)

    @property
    def variable(self) -> str:
        """Environment variable of the option; empty if it has none."""
        return ENV_PREFIX + self.path.replace(".", "__").upper() if self.has_flag else ""

    @property
    def flag(self) -> str:
        """Usual flag of the option; empty if it has none."""
        return self.flags[0] if self.flags else ""

    @property
    def type_name(self) -> str:
        """Type for programs: text, choice, flag, whole, human int, size, duration, number, texts, wholes, mapping."""
        return f"{self.kind}?" if self.is_nullable else self.kind

    @property
    def is_list(self) -> bool:
        return self.kind in ("texts", "wholes")

    @property
    def takes_text(self) -> bool:
        """Whether a scalar is used as it is written: `revision: 0123` is a text."""
        return self.is_secret or self.kind in ("text", "texts") or (self.kind == "choice" and self._words_only)

    @property
    def _words_only(self) -> bool:
        return all(isinstance(choice, str) for choice in self.choices)

    @property
    def allowed(self) -> str:
        """What the option accepts, for messages: `auto or a whole number, at least 1`."""
        words = [str(choice) for choice in self.choices]
        if self.kind == "choice":
            return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
        said = _ALLOWED[self.kind] + (" of texts" if self.has_text_values else "")
        if self.words:
            said = f"{', '.join(self.words)}, or a list of them"
        if self.is_secret:
            said = "a secret: a text, {env: NAME} or {file: path}"
            if self.kind == "texts":
                said += ", or a list of them"
        limits = [_limit(bound, self) for bound in self.bounds if not _is_guard(bound)]
        return " or ".join([*words, said]) + "".join(f", {limit}" for limit in limits)

    @property
    def limits(self) -> list[str]:
        """All bounds in words, including bounds that `allowed` leaves out."""
        return [_limit(bound, self) for bound in self.bounds]

    @property
    def adapter(self) -> TypeAdapter[Any]:
        return _adapter(self.path)

    def show(self, value: Any) -> Any:
        """A value for display: sizes and durations with units, secrets hidden."""
        if isinstance(value, SecretStr):
            return REDACTED
        if isinstance(value, tuple | list):
            return [self.show(item) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.kind == "size":
                size = format_size(int(value))
                return int(size) if size.isdigit() else size  # a number needs no quotes
            if self.kind == "duration":
                duration = format_duration(float(value))
                return float(value) if "e" in duration else duration  # 1e-07s is not a duration
        return value


def _is_guard(bound: Any) -> bool:
    """A bound that no realistic value reaches."""
    return isinstance(bound, Le) and isinstance(bound.le, int) and bound.le >= 31_536_000


def _limit(bound: Any, option: Option) -> str:
    match bound:
        case Ge(ge=number):
            return f"at least {option.show(number)}"
        case Gt(gt=number):
            return f"greater than {number}"
        case Le(le=number):
            return f"at most {option.show(number)}"
        case _:
            return f"less than {bound.lt}"


@cache
def _adapter(path: str) -> TypeAdapter[Any]:
    info = options()[path].info
    annotation: Any = info.annotation
    return TypeAdapter(Annotated[annotation, *info.metadata] if info.metadata else annotation)


@cache
def options() -> dict[str, Option]:
    """All options, sections in the order of the manifest, deprecated ones after the others."""
    found: dict[str, Option] = {}
    for name, info in DeploymentConfig.model_fields.items():
        section = section_class(name)
        if section is None:
            found[name] = _option("", name, info)
        else:
            fields = dict(section.model_fields)
            if name in DEPRECATED:
                fields |= DEPRECATED[name].model_fields
            for key, field in fields.items():
                option = _option(name, key, field)
                found[option.path] = option
    return found


@cache
def live_options() -> dict[str, Option]:
    """Options that a loaded deployment has: deprecated ones have been mapped onto them."""
    return {path: option for path, option in options().items() if option.status != "deprecated"}


@cache
def sections() -> dict[str, type[Section]]:
    """Section name -> class, in the order of the manifest."""
    return {name: section for name in DeploymentConfig.model_fields if (section := section_class(name)) is not None}


@cache
def section_option(name: str) -> Option:
    """A whole section as one mapping, for the flags of `section_flags`."""
    annotation: Any = dict[str, Any]
    about: Any = {"devices": []}
    description = (sections()[name].__doc__ or "").strip()
    return _option("", name, FieldInfo(annotation=annotation, description=description, json_schema_extra=about))


@cache
def section_flags() -> dict[str, str]:
    """Flags that set a whole section as JSON -> its name: `--speculative-config`, `-O`."""
    return {flag: name for name, section in sections().items() for flag in section.json_flags}


def option_and_keys(path: str) -> tuple[Option, list[str]]:
    """The option of a path such as `parallel.eplb_config.window_size`, and the keys below it."""
    section, name, *keys = path.split(".")
    return options()[f"{section}.{name}"], keys


def section_class(name: str) -> type[Section] | None:
    info = DeploymentConfig.model_fields.get(name)
    kind = info.annotation if info else None
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def options_of(section: str) -> list[Option]:
    """Options of one section, deprecated ones last; the header keys for an empty name."""
    return [option for option in options().values() if option.section == section]


def _option(section: str, name: str, info: FieldInfo) -> Option:
    parts = read_annotation(info)
    return Option(
        section=section,
        name=name,
        info=info,
        kind=parts.kind,
        choices=parts.choices,
        words=parts.words,
        has_text_values=parts.has_text_values,
        bounds=parts.bounds,
        spellings=parts.spellings,
        min_length=parts.min_length,
        pattern=parts.pattern,
        is_nullable=parts.is_nullable,
        is_secret=parts.is_secret,
    )
