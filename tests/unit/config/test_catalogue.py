"""Our options against the catalogue of those that serving engines share: every name and every spelling is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from stoker.cli.app import commands
from stoker.cli.parameters import parameter_pages, parameter_records
from stoker.config.catalogue import by_status, counts, records
from stoker.config.explain import find
from stoker.config.schema.options import options

CATALOGUE: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "catalogue.yaml").read_text())
SERVE = [entry for entry in CATALOGUE if entry["command"] == "serve"]
COMMANDS = [entry for entry in CATALOGUE if entry not in SERVE]
RECORDS = {record["name"]: record for record in reversed(records())}  # `model` is the model, not the draft one
SECTIONS = {  # classes of the catalogue -> ours, where the name does not say it
    "ServeConfig": "server",
    "FrontendConfig": "server",
    "ModelConfig": "model",
    "LoadConfig": "load",
    "StructuredOutputsConfig": "structured_outputs",
    "ParallelConfig": "parallel",
    "CacheConfig": "cache",
    "MultiModalConfig": "multimodal",
    "LoRAConfig": "lora",
    "PromptAdapterConfig": "lora",
    "SpeculativeConfig": "speculative",
    "ObservabilityConfig": "observability",
    "SchedulerConfig": "scheduler",
    "CompilationConfig": "compilation",
    "KVTransferConfig": "kv_transfer",
    "KVEventsConfig": "kv_events",
    "DeviceConfig": "device",
    "TokenizerPoolConfig": "server",
}
NO_NAME = {"", None, False, "auto"}


def test_every_option_of_the_catalogue_is_ours_under_its_name_and_section() -> None:
    for entry in SERVE:
        name = entry["name"]
        record = RECORDS[name]
        assert record["section"] == ("" if name == "config" else SECTIONS[entry["group"]]), name
        assert record["status"] in ("effective", "deprecated", "refused"), name
        assert record["reason"] or record["status"] == "effective", name


def test_every_spelling_of_the_catalogue_is_explained() -> None:
    for entry in SERVE:
        record = RECORDS[entry["name"]]
        for flag in entry["flags"]:
            assert flag in record["flags"], flag
            assert record["path"] in [page.name for page in find(flag)], flag
            if flag.startswith("--"):
                assert record["path"] in [page.name for page in find("--" + flag[2:].replace("-", "_"))], flag


def test_every_argument_of_the_other_commands_is_explained() -> None:
    names = {(record["section"], flag) for record in parameter_records(commands()) for flag in record["flags"] or [""]}
    for entry in COMMANDS:
        command = entry["command"]
        for flag in entry["flags"]:
            assert (f"command:{command}", flag) in names
            assert parameter_pages(f"{command} {flag}", commands()), f"{command} {flag}"


def test_a_record_has_all_fields_of_an_option() -> None:
    for record in [*records(), *parameter_records(commands())]:
        assert set(record) == {
            *("name", "section", "path", "flags", "env", "type", "default", "choices", "unit", "status"),
            *("replaced_by", "reason", "reload", "rules", "description"),
        }
    assert RECORDS["tensor-parallel-size"]["flags"][:2] == ["--tensor-parallel-size", "-tp"]
    assert {"R099", "R102", "R105", "R211"} <= set(RECORDS["max-num-seqs"]["rules"])
    assert RECORDS["disable-log-requests"]["replaced_by"] == ["server.enable_log_requests"]


def test_the_three_lists_contain_every_option_once() -> None:
    paths = [option.path for listed in by_status().values() for option in listed]
    assert sorted(paths) == sorted(options())
    assert sum(number for row in counts().values() for number in row.values()) == len(options())


def test_choices_of_other_engines_are_accepted_or_refused_by_name() -> None:
    """No word of another system's choice is simply unknown here, so that the message can say what to do."""
    missing = []
    for entry in SERVE:
        option = options().get(RECORDS[entry["name"]]["path"])
        if option is None or option.status != "effective":
            continue
        known = {str(choice) for choice in (*option.choices, *option.words)} | set(option.refused)
        missing += [
            f"{option.path}: {choice}"
            for choice in entry.get("choices", ())
            if choice is not None and str(choice) not in known
        ]
    assert missing == []
