"""Pages about options, sections, rules, error codes and presets, generated from their declarations.

find("--max-num-seqs")  find("cache.block_size")  find("cache")  find("ENGINE__SERVER__PORT")
find("R104")  find("C103")  find("presets")  find("latency")  find("prefix")      any word: pages that mention it
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from .codes import CODES, Code
from .deployment import Deployment
from .page import Fact, Page
from .presets import preset_names
from .resolve.decide import decide
from .resolve.machine import read_machine_spec
from .resolve.rule import Rule, StatedRule
from .resolve.rules import BY_ID, rules_of
from .schema.deployment import DeploymentConfig
from .schema.model import ModelConfig
from .schema.options import Option, options, options_of, sections
from .schema.types import format_about
from .source.flags import flat_options, read_flag
from .suggest import close, normal
from .yaml_writer import inline

RELOAD = {
    "hot": "used from the next start; the loaded model does not depend on it",
    "model": "the model is loaded again",
    "process": "the server is restarted",
}


def find(what: str, recursive: bool = False) -> list[Page]:
    """Pages for a name; for any other word, pages that mention it; empty if nothing does.

    recursive: a section comes with a page for each of its options.
    """
    what = what.strip()
    if not what:
        return [_overview()]
    if what.upper() in CODES:
        return [code_page(CODES[what.upper()])]
    if what.upper() in BY_ID:
        return [rule_page(BY_ID[what.upper()])]
    name = _option_name(what)
    if name in sections() and (not what.startswith("-") or name not in flat_options()):
        pages = [section_page(name)]
        own = name in {option.name for option in options_of(name)}  # `model` is a section and an option in it
        return pages + [
            option_page(option) for option in options_of(name) if recursive or (own and option.name == name)
        ]
    if option := _option(name):
        return [option_page(option)]
    lists = {
        "rules": _rules_list,
        "codes": _codes_list,
        "presets": _presets_list,
        "options": _overview,
        "device_profiles": _devices_list,
    }
    if name in lists:
        return [lists[name]()]
    if what in preset_names():
        return [preset_page(what)]
    return _search(what)


def _option_name(what: str) -> str:
    """A flag, variable or path in any notation as a path or an option's name."""
    if what.startswith("-") and (flag := read_flag(what)):
        return flag.option.path
    by_variable = {option.variable: option.path for option in options().values() if option.variable}
    return by_variable.get(what.upper(), normal(what).replace("__", "."))


def _option(name: str) -> Option | None:
    if name in options():
        return options()[name]
    return next((option for option in options().values() if option.name.lower() == name), None)


def option_page(option: Option, here: bool = True) -> Page:
    """`here`: show what `auto` is on this machine; False for pages that are read elsewhere."""
    rules = [rule for rule in rules_of(option.path) if isinstance(rule, Rule) or not rule.is_derived]
    facts = [
        Fact("status", (_status(option),) if option.status != "effective" else ()),
        Fact("replaced by", option.replaced_by),
        Fact("takes", (_takes(option),)),
        Fact("default", (_default(option) if here else _shown_default(option),)),
        Fact("unit", (option.unit,) if option.unit else ()),
        Fact("file", tuple(_file_example(option)) if option.status == "effective" else ()),
        Fact("flags", tuple(f"{flag}{_flag_value(option, flag)}" for flag in option.flags)),
        Fact("variable", _variable(option)),
        Fact("not supported", tuple(_not_here(option))),
        Fact("on change", (RELOAD[option.reload],) if option.status == "effective" else ()),
        Fact("devices", (", ".join(option.devices),) if option.devices else ()),
        Fact("since", (option.since,)),
        Fact("rules", tuple(f"{rule.id} {rule.title}" for rule in rules)),
    ]
    return Page(
        "option",
        option.path,
        option.path,
        option.description,
        tuple(fact for fact in facts if fact.lines),
        tuple(rule.id for rule in rules),
    )


def _not_here(option: Option) -> Iterator[str]:
    """A line for each reason, with the values that are refused for it; consecutive numbers are abbreviated."""
    values: dict[str, list[str]] = {}
    for value, why in option.refused.items():
        values.setdefault(why, []).append(value)
    for why, alike in values.items():
        is_count = len(alike) > 2 and len({value.rstrip("0123456789") for value in alike}) == 1
        yield f"{f'{alike[0]} to {alike[-1]}' if is_count else ', '.join(alike)}: {why}"


def _status(option: Option) -> str:
    return f"{option.status}: {option.reason}"


def _takes(option: Option) -> str:
    if option.status != "refused":
        return option.allowed
    return " or ".join(inline(option.show(value)) for value in option.accepted)


def section_page(name: str) -> Page:
    """Effective options first, then refused ones, then deprecated ones."""
    section = sections()[name]
    parts = options_of(name)
    defaults = {option.name: _shown_default(option) for option in parts}
    width = max((len(defaults[option.name]) for option in parts if option.status == "effective"), default=0)
    facts: list[Fact] = []
    if section.json_flags:
        is_refused = all(option.status != "effective" for option in parts)
        status = "refused: see each key" if is_refused else "effective"
        facts += [Fact("takes", ("a mapping of these keys",)), Fact("default", ("{}",)), Fact("status", (status,))]
        facts.append(Fact("flags", section.json_flags))
    facts += [
        Fact(option.name, (f"{defaults[option.name]:<{width}}  {first_sentence(option.description)}",))
        for option in parts
        if option.status == "effective"
    ]
    facts += [Fact(option.name, (f"refused: {option.reason}",)) for option in parts if option.status == "refused"]
    facts += [Fact(option.name, (f"deprecated: {option.reason}",)) for option in parts if option.status == "deprecated"]
    return Page("section", name, f"section {name}", (section.__doc__ or "").strip(), tuple(facts))


def rule_page(rule: Rule | StatedRule) -> Page:
    facts = [Fact("options", rule.fields)]
    if isinstance(rule, Rule):
        facts += [Fact("severity", (rule.severity,)), Fact("message", (template_text(rule.message),))]
        facts.append(Fact("fix", tuple(map(template_text, rule.fixes))))
        if rule.about_machine:
            facts.append(Fact("note", ("depends on the machine; `engine validate` only warns",)))
    else:
        facts.append(Fact("severity", (f"that of {rule.checked_by}" if rule.checked_by else "none: it always holds",)))
    title = rule.id if rule.title in rule.why else f"{rule.id}: {rule.title}"
    return Page("rule", rule.id, title, rule.why, tuple(facts), rule.fields)


def template_text(text: str) -> str:
    """A message or a fix as it is declared, with the names of its values in braces."""
    return text.replace("{{", "{").replace("}}", "}")


def code_page(code: Code) -> Page:
    facts = (Fact("fix", (code.fix,)), Fact("exit code", (str(code.exit_code),)))
    return Page("code", code.code, f"{code.code}: {code.title}", code.meaning, facts)


def preset_page(name: str) -> Page:
    from .source.presets import PresetSource  # here: pydantic-settings takes a third of the time that a page does

    source = PresetSource(name)
    facts = []
    for section, home in source.tree.items():
        assert isinstance(home.value, dict)
        for key, node in home.value.items():
            facts.append(Fact(f"{section}.{key}", (f"{node.text}: {node.reason}",)))
    return Page("preset", name, f"preset {name}", source.title, tuple(facts))


def _overview() -> Page:
    facts = tuple(
        Fact(name, ((section.__doc__ or "").strip().partition("\n")[0],)) for name, section in sections().items()
    )
    lists = "rules, codes, presets, device-profiles"
    text = f"Sections of a deployment. `engine explain SECTION` lists its options; other lists: {lists}."
    return Page("list", "options", "options", text, facts)


def _rules_list() -> Page:
    facts = tuple(Fact(rule.id, (rule.title,)) for rule in BY_ID.values())
    return Page("list", "rules", "rules", "Conditions on the values of several options.", facts)


def _codes_list() -> Page:
    facts = tuple(Fact(code.code, (code.title,)) for code in CODES.values())
    return Page("list", "codes", "error codes", "Errors in a deployment or in a model's files.", facts)


def _presets_list() -> Page:
    from .source.presets import PresetSource

    facts = tuple(Fact(name, (PresetSource(name).title,)) for name in preset_names())
    return Page("list", "presets", "presets", "Sets of values that all other layers override: `preset: NAME`.", facts)


def _devices_list() -> Page:
    from .plan.devices import THIS_MACHINE, profiles

    facts = (
        Fact(THIS_MACHINE, ("the device that a start would use here",)),
        *(Fact(each.name, (f"{each.shown}, {format_about(each.memory)}",)) for each in profiles().values()),
    )
    return Page("list", "device-profiles", "device profiles", "Devices for `engine plan --device-profile`.", facts)


def _search(what: str) -> list[Page]:
    """One list of pages whose name is similar to the words or that mention them."""
    words = [normal(word) for word in what.split()]
    names = {option.name: option for option in options().values()}
    named = [option for option in options().values() if all(word in option.path for word in words)]
    near = [names[match] for match in close(what, names, 0.6)]
    near += [option for option in options().values() if option.path in close(what, options(), 0.6)]
    mentioned = [
        option
        for option in options().values()
        if all(word in f"{option.path} {option.description}".lower().replace("-", "_") for word in words)
    ]
    found = list(dict.fromkeys(option.path for option in (*named, *near, *mentioned)))
    facts = [Fact(path, (first_sentence(options()[path].description),)) for path in found]
    pages = [*map(rule_page, BY_ID.values()), *map(code_page, CODES.values())]
    facts += [
        Fact(page.name, (page.title.partition(": ")[2],))
        for page in pages
        if all(word in f"{page.title} {page.text}".lower() for word in words)
    ]
    if not facts:
        return []
    return [Page("list", what, f"pages similar to `{what}` or mentioning it", "", tuple(facts[:20]))]


def first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".").replace("\n", " ")


def _shown_default(option: Option) -> str:
    return "required" if option.is_required else inline(option.show(option.default))


def _default(option: Option) -> str:
    shown = _shown_default(option)
    if option.default != "auto" or option.status != "effective":
        return shown
    here = _decided_here().get(option.path)
    return f"{shown}; here {here}" if here else f"{shown}; depends on the model"


@cache
def _decided_here() -> dict[str, str]:
    """What `auto` is on this machine, for options that do not depend on the model."""
    as_declared: dict[str, Any] = {name: section.model_construct() for name, section in sections().items()}
    as_declared["model"] = ModelConfig.model_construct(model="builtin:tiny")
    config = DeploymentConfig.model_construct(**as_declared)
    decisions = decide(Deployment(config), None, read_machine_spec())
    return {
        path: f"{options()[path].show(decisions.get(path))} ({origin.reason})"
        for path, origin in decisions.origins.items()
        if path in options()
    }


def _example(option: Option) -> Any:
    return option.examples[0] if option.examples else option.default


def _file_example(option: Option) -> list[str]:
    line = f"{option.name}: {inline(_example(option))}"
    return [f"{option.section}:", f"  {line}"] if option.section else [line]


def _flag_value(option: Option, flag: str) -> str:
    if option.kind == "flag" or option.status == "refused":
        return ""
    example = _example(option)
    if option.kind == "mapping":
        return f" '{json.dumps(example)}'"
    if option.is_secret:
        return " KEY"
    if isinstance(example, list):
        return f" {' '.join(map(str, example))}"
    return f" {example}"


def _variable(option: Option) -> tuple[str, ...]:
    if not option.variable:
        return ()
    return (option.variable if option.status == "refused" else f"{option.variable}={_variable_value(option)}",)


def _variable_value(option: Option) -> str:
    example = _example(option)
    if option.is_secret:
        return "KEY"
    if option.kind == "mapping":
        return f"'{json.dumps(example)}'"
    if option.kind == "flag":
        return "true" if example else "false"
    return ",".join(map(str, example)) if isinstance(example, list) else str(example)
