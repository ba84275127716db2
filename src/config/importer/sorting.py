"""Sorts what a launch sets: values that a manifest can have, and everything else with the reason why not.

No word is lost: each is part of a value, of a finding about it, or of a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..diagnostics import Diagnostic
from ..origin import Layer
from ..schema.options import Option, options, sections
from ..source.check import check
from ..source.deprecated import modernise
from ..source.flags import Flag
from ..source.interpolate import names_only
from ..source.merge import merge
from ..source.node import Node
from ..source.overrides import Override, OverrideSource, parts_of
from ..source_text import SourceText, Span
from ..suggest import close, did_you_mean
from . import infinity, ollama, tei, tgi
from .counterparts import Counterpart, Read, read_foreign, read_value
from .draft import Draft, Kind, Left
from .engine_tables import TABLES
from .environment import variable
from .implied import tell_defaults
from .launch import Launch
from .program_names import Engine
from .shown import line_of, option_path, reason_of, shown, shown_word, written_of
from .words import PLACE, as_written, is_undecided, undecided_parts

# Engines that read their options from variables, too.
_VARIABLES: Mapping[Engine, Mapping[str, Counterpart]] = {
    "tgi": tgi.VARIABLES,
    "tei": tei.VARIABLES,
    "infinity": infinity.VARIABLES,
}
_MANY = re.compile(r"\[[@*]\]|^\x00\$[@*]")  # expansions to several words
_OPEN_WORD = re.compile(r"\$\{.*\}|\x00[^\x00]*\x00", re.DOTALL)  # nothing but a variable or an expansion
_NAME = re.compile(r"\$\{([A-Za-z_]\w*)")


def draft_of(launch: Launch) -> Draft:
    """Sort what a launch says. Never raises."""
    draft = Draft(launch.engine, notes=list(launch.notes))
    overrides = [*_variables(launch, draft), *_options(launch, draft)]
    source = OverrideSource([override for override in overrides if not _leave_undecided(draft, override)])
    for finding in source.found:
        if finding.code == "C122":
            draft.remark(finding.path or "", "it was given more than once; the last one counts")
        else:
            _leave_finding(draft, finding)
    _modernise(source, draft)
    for path, entry in merge([source.trees]).items():
        if entry.effective is not None and entry.origin is not None:
            _settle(draft, options()[path], entry.effective, entry.origin.span)
    for path in set(draft.remarks) - set(draft.values) - set(draft.secrets) - {left.path for left in draft.left}:
        for said in draft.remarks.pop(path):
            draft.leave(Left(path, "needless", said, path))
    for name in launch.files:
        said = "variables come from there, and only there can be seen which"
        draft.leave(Left(name, "undecided", said))
    for other in launch.others:
        draft.leave(Left(other, "no counterpart", "a manifest is for one server: import this one on its own"))
    tell_defaults(draft, launch)
    return draft


def _leave_undecided(draft: Draft, override: Override) -> bool:
    """Whether a value holds what only the running launch can evaluate. A secret is read from a variable anyway."""
    option = override.flag.option
    parts = [part for value in override.values for part in undecided_parts(value)]
    if option.path != "server.chat_template" and option.kind != "mapping":
        parts += [part for value in override.values for part in PLACE.findall(value)]
    if not parts or (option.is_secret and not override.flag.keys):
        return False
    node = None
    if option.status == "effective" and not override.flag.keys and not option.is_list and option.kind != "mapping":
        text = override.values[0]
        node = Node(as_written(text), Span(SourceText(Layer.COMMAND_LINE, "", [""]), 1, 1, 1, 1), text=as_written(text))
    draft.leave(Left(shown(override.words), "undecided", _undecided(parts), option.path, node))
    return True


def _undecided(parts: Sequence[str]) -> str:
    named = " and ".join(part if "`" in part else f"`{part}`" for part in dict.fromkeys(parts))
    return f"{named}: only the running launch knows what that is; write what is meant"


def _options(launch: Launch, draft: Draft) -> list[Override]:
    if launch.engine not in ("vllm", "stoker"):
        is_modelfile = launch.engine == "ollama"
        table = TABLES[launch.engine]
        reads = ollama.reads_of(launch.words) if is_modelfile else read_foreign(launch.words, table)
        return [override for read in reads for override in _foreign(read, launch.engine, draft)]
    overrides: list[Override] = []
    has_model = any(word.partition("=")[0] == "--model" for word in launch.words)
    unknown: list[str] = []  # the flag before, which no option has, with its values
    for part in parts_of(launch.words, {}):
        first = part.words[0]
        if part.override is not None:
            kept, rest = _without_open_words(part.override)
            overrides.append(kept)
            _leave_words(draft, rest)
        elif part.finding is not None:
            if part.finding.code == "C120":
                unknown = [*part.words]
                _leave_unknown(draft, unknown, part.finding)
                continue
            written = shown(part.words, part.finding.suggestions)
            draft.leave(Left(written, "unreadable", reason_of(part.finding), suggestions=part.finding.suggestions))
        elif first == "--":
            _leave_words(draft, part.words[1:])
        elif unknown and len(unknown) > 1 and "=" not in unknown[0]:
            last = draft.left.pop()
            unknown.append(first)
            draft.leave(replace(last, written=shown(unknown, last.suggestions)))
            continue
        elif not has_model and (not is_undecided(first) or (first is launch.words[0] and not _MANY.search(first))):
            has_model = True
            overrides.append(Override(Flag(options()["model.model"], (), "MODEL", None), (first,), ("MODEL", first)))
        else:
            _leave_words(draft, part.words)
        unknown = []
    return overrides


def _without_open_words(override: Override) -> tuple[Override, tuple[str, ...]]:
    """A list without the variables at its end: one without quotes may hold options instead of a value."""
    values = override.values
    while len(values) > 1 and _OPEN_WORD.fullmatch(values[-1]):
        values = values[:-1]
    rest = override.values[len(values) :]
    return replace(override, values=values, words=override.words[: len(override.words) - len(rest)]), rest


def _leave_unknown(draft: Draft, words: Sequence[str], finding: Diagnostic) -> None:
    left = Left(shown(words, finding.suggestions), "unknown", reason_of(finding), suggestions=finding.suggestions)
    draft.left.append(left)


def _leave_words(draft: Draft, words: Sequence[str]) -> None:
    """Words that belong to no option; a variable or an expansion among them may hold options."""
    for word in words:
        if is_undecided(word):
            draft.leave(
                Left(shown_word(word), "undecided", f"it may hold options: {_undecided(undecided_parts(word))}")
            )
        elif _NAME.match(word):
            draft.leave(Left(shown((word,)), "undecided", "the variable may hold options: write them"))
        else:
            draft.leave(Left(shown((word,)), "unknown", "a word that belongs to no option"))


def _foreign(read: Read, engine: Engine, draft: Draft) -> Iterable[Override]:
    found = read.counterpart
    if found is not None and found.says and read.overrides:
        draft.remark(option_path(found.path), f"`{read.words[0].partition('=')[0]}`: {found.says}")
    if read.overrides:
        return read.overrides
    if found is not None:
        says = found.says or f"nothing has to be set for it: see `{found.path}`"
        kind: Kind = (
            "needless" if found.is_needless or (found.path and not (found.only or found.form)) else "no counterpart"
        )
        draft.leave(Left(shown(read.words), kind, says, option_path(found.path)))
    elif read.words[0].startswith("-") or engine == "ollama":
        near = close(read.words[0].partition("=")[0], TABLES[engine], 0.75)
        said = did_you_mean(near) or "no option is known by this name"
        draft.leave(Left(shown(read.words, near), "unknown", said, suggestions=tuple(near)))
    else:
        _leave_words(draft, read.words)
    return ()


def _variables(launch: Launch, draft: Draft) -> list[Override]:
    overrides: list[Override] = []
    table = TABLES[launch.engine]
    for name, value in launch.env.items():
        found: Counterpart | None = variable(name)
        if launch.engine == "llama.cpp" and found is None and name.startswith("LLAMA_ARG_"):
            spelling = "--" + name.removeprefix("LLAMA_ARG_").lower().replace("_", "-").replace(
                "n-parallel", "parallel"
            )
            found = _of_variable(table[spelling], name) if spelling in table else None
        if found is None:
            found = _VARIABLES.get(launch.engine, {}).get(name)
        if found is not None and found.path and options()[option_path(found.path)].is_secret:
            value = f"${{{name}}}"  # it is in the environment already
        if found is None and name in launch.used:
            continue  # its value is in the words of the command
        if found is None:
            said = "no option stands for this variable; if something else reads it, set it for `engine` too"
            draft.leave(Left(shown((f"{name}={value}",)), "no counterpart", said))
            continue
        overrides += _foreign(read_value(found, name, value, (f"{name}={value}",)), launch.engine, draft)
    return overrides


def _of_variable(found: Counterpart, name: str) -> Counterpart:
    """An option of llama.cpp as its variable: a flag is on or off there."""
    if found.takes != 0 or not found.path:
        return replace(found, names=(name,), takes=1)
    is_opposite = {"true": "false", "false": "true"}.get(found.value, "")
    on = dict.fromkeys(("on", "enabled", "true", "1", "True"), found.value)
    off = dict.fromkeys(("off", "disabled", "false", "0", "False"), is_opposite)
    return replace(found, names=(name,), takes=1, values={**on, **off})


def _modernise(source: OverrideSource, draft: Draft) -> None:
    found: list[Diagnostic] = []
    modernise(source.trees, {}, found)
    failed = {finding.path for finding in found if finding.is_error}
    for finding in found:
        if finding.is_error:
            _leave_finding(draft, finding)
        elif finding.path not in failed:
            if finding.suggestions:
                draft.remark(option_path(finding.suggestions[0]), f"formerly `{written_of(finding)}`")
            else:
                draft.leave(Left(written_of(finding), "needless", finding.labels[0].text, finding.path or ""))


def _leave_finding(draft: Draft, finding: Diagnostic) -> None:
    path = finding.path if finding.path in options() or finding.path in sections() else ""
    kind: Kind = "refused" if finding.code == "C118" else "unreadable"
    draft.leave(Left(written_of(finding), kind, reason_of(finding), path or "", suggestions=finding.suggestions))


def _settle(draft: Draft, option: Option, node: Node, span: Span) -> None:
    """Put a value into the manifest if this build takes it there."""
    if option.is_secret and not isinstance(node.value, dict):
        draft.secrets[option.path] = tuple(_secret_names(option, node))
        return
    is_open = option.is_secret or any("${" in (scalar.text or "").replace("$$", "") for scalar in node.scalars())
    if not is_open:  # a secret in a file, and a variable, are read at the start
        found: list[Diagnostic] = []
        check(option, node, {}, found)
        for finding in found:
            kind: Kind = "refused" if finding.code == "C118" else "unreadable"
            draft.leave(Left(line_of(span), kind, reason_of(finding), option.path, node, finding.suggestions))
        if found:
            return
        if option.status == "refused":
            said = "this is the one value that this build has for it"
            draft.leave(Left(line_of(span), "needless", said, option.path))
            return
    draft.values[option.path] = node


def _secret_names(option: Option, node: Node) -> list[str]:
    names: list[str] = []
    usual = {"model.hf_token": "HF_TOKEN", "server.api_key": "API_KEY"}.get(option.path, option.name.upper())
    for index, scalar in enumerate(node.scalars()):
        match = _NAME.match(scalar.text or "") if names_only(scalar.text or "") else None
        names.append(match[1] if match else usual + (f"_{index + 1}" if index else ""))
    return names
