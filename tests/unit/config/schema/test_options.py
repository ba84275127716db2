from __future__ import annotations

from stoker.config.schema.deployment import DeploymentConfig
from stoker.config.schema.options import Option, live_options, options, section_flags, sections


def written() -> list[Option]:
    return [option for option in options().values() if option.section]


def test_every_option_is_fully_declared() -> None:
    for option in options().values():
        assert option.description.endswith("."), option.path
        assert option.examples or option.status == "refused", option.path
        assert option.reload in ("hot", "model", "process"), option.path
        assert option.devices or option.status != "effective", option.path
        assert option.reason or option.status == "effective", option.path
        assert option.since, option.path


def test_every_example_and_every_default_is_allowed() -> None:
    for option in options().values():
        for example in option.examples:
            if not option.is_secret:
                option.adapter.validate_python(example)
        for value in option.accepted:
            option.adapter.validate_python(value) if option.status == "refused" else None
        if not option.is_required:
            option.adapter.validate_python(option.default)


def test_flat_flags_are_unique() -> None:
    """`--port` can only mean one option, so two sections may not share a name."""
    flags = [flag for option in written() for flag in option.flags]
    assert sorted(set(flags)) == sorted(flags)
    assert not set(flags) & set(section_flags())


def test_every_section_of_the_design_exists() -> None:
    assert list(sections()) == [
        *("model", "load", "cache", "scheduler", "parallel", "device", "compilation", "lora", "multimodal"),
        *("structured_outputs", "speculative", "kv_transfer", "kv_events", "observability", "server"),
    ]


def test_a_description_contains_more_than_the_name() -> None:
    for option in written():
        if option.status == "effective":
            assert len(option.description) > len(option.name) + 20, option.path


def test_a_deprecated_option_names_its_replacement() -> None:
    for option in written():
        for path in option.replaced_by:
            assert options()[".".join(path.split(".")[:2])].status != "deprecated", path
        if option.status == "deprecated":
            assert option.path not in live_options()


def test_what_an_option_accepts_is_described() -> None:
    said = {path: option.allowed for path, option in options().items()}
    assert said["scheduler.scheduling_policy"] == "fcfs or priority"
    assert said["scheduler.max_num_seqs"] == "auto or a whole number, at least 1"
    assert said["cache.gpu_memory_utilization"] == "a number, greater than 0, at most 1"
    assert said["server.api_key"] == "a secret: a text, {env: NAME} or {file: path}, or a list of them"


def test_the_environment_is_not_read_by_pydantic_settings() -> None:
    """pydantic-settings would read MODEL or LOAD from the environment."""
    import os

    os.environ["PRESET"] = "latency"
    try:
        config = DeploymentConfig(model={"model": "builtin:tiny"})  # type: ignore[arg-type]
    finally:
        del os.environ["PRESET"]
    assert config.preset is None
