"""All rules across options, in the order of their numbers.

Numbers up to R197 are those of the catalogue of serving options that engines share; from R201 on they are ours.
A rule in `RULES` is checked on decided values (checker.py); one in `STATED` always holds and is declared so that
`engine explain` can show it. They are declared in rule_tables/, by the section of their first option.
"""

from __future__ import annotations

from .rule import Rule, StatedRule
from .rule_tables import (
    cache,
    commands,
    compilation,
    deprecated,
    device,
    kv_transfer,
    load,
    lora,
    model,
    multimodal,
    observability,
    parallel,
    scheduler,
    server,
    speculative,
    structured_outputs,
)

_TABLES = (
    *(model, load, cache, scheduler, parallel, device, compilation, lora, multimodal, structured_outputs),
    *(speculative, kv_transfer, observability, server, commands, deprecated),
)

RULES: tuple[Rule, ...] = tuple(sorted((rule for table in _TABLES for rule in table.RULES), key=lambda rule: rule.id))
STATED: tuple[StatedRule, ...] = tuple(
    sorted((rule for table in _TABLES for rule in table.STATED), key=lambda rule: rule.id)
)
_EVERY: list[Rule | StatedRule] = [*RULES, *STATED]
BY_ID: dict[str, Rule | StatedRule] = {rule.id: rule for rule in sorted(_EVERY, key=lambda rule: rule.id)}


def rules_of(path: str) -> list[Rule | StatedRule]:
    """Those that are about an option."""
    return [rule for rule in BY_ID.values() if path in rule.fields]
