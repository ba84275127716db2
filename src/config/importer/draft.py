"""Sorts what a launch sets: values that a manifest can have, and everything else with the reason why not.

No word is lost: each is part of a value, of a finding about it, or of a note.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ..diagnostics import Diagnostic
from ..resolve.rule_tables.server import is_loopback
from ..schema.options import Option, options, sections
from ..source.check import check
from ..source.deprecated import modernise
from ..source.flags import Flag, read_flag
from ..source.interpolate import names_only
from ..source.merge import merge
from ..source.node import Node
from ..source.overrides import FLAG_NAME, Override, OverrideSource, parts_of
from ..source.secrets import looks_secret, mentions_secret
from ..source_text import Span
from ..suggest import close, did_you_mean
from . import llama_cpp, ollama, sglang, tgi, vllm
from .counterparts import Counterpart, Read, read_foreign
from .environment import variable
from .launch import Engine, Launch

Kind = Literal["refused", "unreadable", "unknown", "no counterpart", "needless"]
_TABLES: dict[Engine, Mapping[str, Counterpart]] = {
    "vllm": {},
    "sglang": sglang.TABLE,
    "llama.cpp": llama_cpp.TABLE,
    "tgi": tgi.TABLE,
    "ollama": ollama.TABLE,
    "stoker": {},
}
_DEFAULTS: dict[str, Mapping[str, str]] = {
    "vllm": vllm.NOTES,
    "sglang": sglang.NOTES,
    "llama.cpp": llama_cpp.NOTES,
    "tgi": tgi.NOTES,
    "ollama": ollama.NOTES,
    "stoker": {},
}
_SECRET_NAME = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)
_NAME = re.compile(r"\$\{([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class Left:
    """Something written that is not in effect. `path` and `node` are the option and the value it would have."""

    written: str
    kind: Kind
    reason: str
    path: str = ""
    node: Node | None = None
    suggestions: tuple[str, ...] = ()


@dataclass(slots=True)
class Draft:
    """Values and secrets by path, in no order; remarks on them; what is left; notes on the whole.

    secrets: names of the environment variables that are to hold them.
    """

    engine: Engine
    values: dict[str, Node] = field(default_factory=dict)
    secrets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=dict)
    left: list[Left] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def remark(self, path: str, said: str) -> None:
        known = self.remarks.setdefault(path, [])
        if said not in known:
            known.append(said)

    def leave(self, left: Left) -> None:
        if left not in self.left:
            self.left.append(left)


def draft_of(launch: Launch) -> Draft:
    """Sort what a launch says. Never raises."""
    draft = Draft(launch.engine, notes=list(launch.notes))
    overrides = [*_variables(launch, draft), *_options(launch, draft)]
    source = OverrideSource(overrides)
    for finding in source.found:
        if finding.code == "C122":
            draft.remark(finding.path or "", "it was given more than once; the last one counts")
        else:
            _leave_finding(draft, finding)
    _modernise(source, draft)
    for path, entry in merge([source.trees]).items():
        if entry.effective is not None and entry.origin is not None:
            _settle(draft, options()[path], entry.effective, entry.origin.span)
    _leave_repository_code(draft)
    for path in set(draft.remarks) - set(draft.values) - set(draft.secrets) - {left.path for left in draft.left}:
        for said in draft.remarks.pop(path):
            draft.leave(Left(path, "needless", said, path))
    _tell_defaults(draft)
    return draft


def _leave_repository_code(draft: Draft) -> None:
    """The flag is in many scripts whose model needs no code; here it needs a decision that the script does not have."""
    path = "model.trust_remote_code"
    node = draft.values.get(path)
    if draft.engine != "stoker" and node is not None and node.value is True:
        del draft.values[path]
        said = (
            "few models need code of their repository; for those that do, write it together with "
            "`model_impl: transformers` and a commit in `code_revision`"
        )
        draft.leave(Left(path, "refused", said, path, node))


def _options(launch: Launch, draft: Draft) -> list[Override]:
    if launch.engine in ("sglang", "llama.cpp", "tgi", "ollama"):
        is_modelfile = launch.engine == "ollama"
        table = _TABLES[launch.engine]
        reads = ollama.reads_of(launch.words) if is_modelfile else read_foreign(launch.words, table)
        return [override for read in reads for override in _foreign(read, launch.engine, draft)]
    overrides: list[Override] = []
    has_model = False
    for part in parts_of(launch.words, {}):
        first = part.words[0]
        if part.override is not None:
            overrides.append(part.override)
        elif part.finding is not None:
            kind: Kind = "unknown" if part.finding.code == "C120" else "unreadable"
            said = _reason(part.finding)
            shown = _shown(part.words, part.finding.suggestions)
            draft.leave(Left(shown, kind, said, suggestions=part.finding.suggestions))
        elif first == "--":
            continue
        elif not has_model:
            has_model = True
            overrides.append(Override(Flag(options()["model.model"], (), "MODEL", None), (first,), ("MODEL", first)))
        else:
            draft.leave(Left(_shown(part.words), "unknown", "a word that belongs to no option"))
    return overrides


def _foreign(read: Read, engine: Engine, draft: Draft) -> Iterable[Override]:
    found = read.counterpart
    if found is not None and found.says and read.overrides:
        draft.remark(_home(found.path), f"`{read.words[0].partition('=')[0]}`: {found.says}")
    if read.overrides:
        return read.overrides
    if found is not None:
        says = found.says or f"nothing has to be set for it: see `{found.path}`"
        kind: Kind = "needless" if found.is_needless or (found.path and not found.only) else "no counterpart"
        draft.leave(Left(_shown(read.words), kind, says, _home(found.path)))
    elif read.words[0].startswith("-") or engine == "ollama":
        near = close(read.words[0].partition("=")[0], _TABLES[engine], 0.75)
        said = did_you_mean(near) or "no option is known by this name"
        draft.leave(Left(_shown(read.words, near), "unknown", said, suggestions=tuple(near)))
    else:
        draft.leave(Left(_shown(read.words), "unknown", "a word that belongs to no option"))
    return ()


def _variables(launch: Launch, draft: Draft) -> list[Override]:
    overrides: list[Override] = []
    table = _TABLES[launch.engine]
    for name, value in launch.env.items():
        found: Counterpart | None = variable(name)
        if launch.engine == "llama.cpp" and found is None and name.startswith("LLAMA_ARG_"):
            spelling = "--" + name.removeprefix("LLAMA_ARG_").lower().replace("_", "-").replace(
                "n-parallel", "parallel"
            )
            found = replace(table[spelling], names=(name,), takes=1) if spelling in table else None
        if launch.engine == "tgi" and found is None:
            found = tgi.VARIABLES.get(name)
        if found is not None and found.path and options()[_home(found.path)].is_secret:
            value = f"${{{name}}}"  # it is in the environment already
        if found is None:
            said = "no option stands for this variable; if something else reads it, set it for `engine` too"
            draft.leave(Left(_shown((f"{name}={value}",)), "no counterpart", said))
            continue
        for read in read_foreign((f"-{name}={value}",), {f"-{name}": found}):
            written = replace(read, words=(f"{name}={value}",))
            overrides += _foreign(written, launch.engine, draft)
    return overrides


def _home(path: str) -> str:
    """The option's own path, without the keys below it."""
    return ".".join(path.split(".")[:2])


def _modernise(source: OverrideSource, draft: Draft) -> None:
    found: list[Diagnostic] = []
    modernise(source.trees, {}, found)
    failed = {finding.path for finding in found if finding.is_error}
    for finding in found:
        if finding.is_error:
            _leave_finding(draft, finding)
        elif finding.path not in failed:
            if finding.suggestions:
                draft.remark(_home(finding.suggestions[0]), f"formerly `{_written(finding)}`")
            else:
                draft.leave(Left(_written(finding), "needless", finding.labels[0].text, finding.path or ""))


def _leave_finding(draft: Draft, finding: Diagnostic) -> None:
    path = finding.path if finding.path in options() or finding.path in sections() else ""
    kind: Kind = "refused" if finding.code == "C118" else "unreadable"
    draft.leave(Left(_written(finding), kind, _reason(finding), path or "", suggestions=finding.suggestions))


def _settle(draft: Draft, option: Option, node: Node, span: Span) -> None:
    """Put a value into the manifest if this build takes it there."""
    if option.is_secret:
        draft.secrets[option.path] = tuple(_secret_names(option, node))
        return
    if not any("${" in (scalar.text or "").replace("$$", "") for scalar in node.scalars()):
        found: list[Diagnostic] = []
        check(option, node, {}, found)
        for finding in found:
            kind: Kind = "refused" if finding.code == "C118" else "unreadable"
            draft.leave(Left(_line(span), kind, _reason(finding), option.path, node, finding.suggestions))
        if found:
            return
    draft.values[option.path] = node


def _secret_names(option: Option, node: Node) -> list[str]:
    names: list[str] = []
    usual = {"model.hf_token": "HF_TOKEN", "server.api_key": "API_KEY"}.get(option.path, option.name.upper())
    for index, scalar in enumerate(node.scalars()):
        match = _NAME.match(scalar.text or "") if names_only(scalar.text or "") else None
        names.append(match[1] if match else usual + (f"_{index + 1}" if index else ""))
    return names


def _tell_defaults(draft: Draft) -> None:
    """What the other engine does without an option, where it matters; an open address is written down as such."""
    host = draft.values.get("server.host")
    is_set = {"server.host", "server.port"} & set(draft.values)
    if "server.uds" not in draft.values:
        draft.notes += [said for path, said in _DEFAULTS[draft.engine].items() if path not in is_set]
    has_auth = "server.api_key" in draft.secrets or "server.auth" in draft.values
    is_open = host is not None and "$" not in (host.text or "") and not is_loopback(host.text or "")
    if host is not None and is_open and not has_auth and draft.engine != "stoker":
        draft.values["server.auth"] = Node("none", host.span, text="none")
        said = "no key was given, so anyone can call the address; to require one, write `api_key: {env: API_KEY}`"
        draft.remark("server.auth", f"{said} instead")
    if "model.model" not in draft.values and "config" not in draft.values:
        draft.notes.append("No model was named: add `model.model`.")


def _reason(finding: Diagnostic) -> str:
    said = [label.text for label in finding.labels if label.text]
    if finding.code not in ("C118", "C120"):
        said.insert(0, finding.message)
    return "; ".join([*said, *finding.notes]) or finding.message


def _written(finding: Diagnostic) -> str:
    return _line(finding.labels[0].span) if finding.labels else (finding.path or "")


def _line(span: Span) -> str:
    return span.source.redacted().replace("$$", "$")


def _is_secret(flag: str) -> bool:
    """Whether one of the engines reads a secret from it."""
    paths = [_home(table[flag].path) for table in _TABLES.values() if flag in table and table[flag].path]
    known = read_flag(flag)
    return (known is not None and known.option.is_secret) or any(options()[path].is_secret for path in paths)


def _shown(words: Sequence[str], near: Sequence[str] = ()) -> str:
    """Words as they were written, without what may be a secret. `near`: flags that may have been meant."""
    name, equals, _ = words[0].partition("=")
    if _SECRET_NAME.search(name) and (equals or len(words) > 1):
        return f"{name}{'=' if equals else ' '}..."
    if looks_secret(name) or any(map(mentions_secret, words)) or any(map(_is_secret, near)):
        return f"{FLAG_NAME.match(name)[0]} ..."  # type: ignore[index]
    return " ".join(shlex.quote(word) if re.search(r"[\s\"']", word) else word for word in words).replace("$$", "$")
