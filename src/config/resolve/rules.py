"""All rules across options, in the order of their numbers.

Numbers up to R197 come from the catalogue of serving options that engines share; from R201 on they are ours.
A rule in `RULES` is checked on decided values (checker.py); these are declared in rule_tables/, by the section of their
first option, or by subject where a section has many. One in `STATED` always holds: rule_tables/stated.py names the
declaration that `engine explain` shows.
"""

from __future__ import annotations

from .rule import Rule, StatedRule
from .rule_tables import (
    cache,
    compilation,
    connections,
    device,
    division,
    exclusions,
    expert_parallel,
    implementation,
    kv_transfer,
    length,
    load,
    lora,
    model,
    nodes,
    numa,
    observability,
    packages,
    parallel,
    replicas,
    scheduler,
    server,
    speculative,
    stated,
    structured_outputs,
)

_TABLES = (
    *(model, length, implementation, load, cache, scheduler, parallel, division, replicas, nodes, expert_parallel),
    *(device, numa, compilation, structured_outputs, speculative, lora),
    *(kv_transfer, observability, server, connections, exclusions, packages),
)

RULES: tuple[Rule, ...] = tuple(sorted((rule for table in _TABLES for rule in table.RULES), key=lambda rule: rule.id))
STATED: tuple[StatedRule, ...] = tuple(stated.stated({rule.id: rule for rule in RULES}))
_EVERY: list[Rule | StatedRule] = [*RULES, *STATED]
BY_ID: dict[str, Rule | StatedRule] = {rule.id: rule for rule in sorted(_EVERY, key=lambda rule: rule.id)}


def rules_of(path: str) -> list[Rule | StatedRule]:
    """Rules about an option."""
    return [rule for rule in BY_ID.values() if path in rule.fields]
