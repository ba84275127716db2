"""Every option says the same in a file, a variable, a flag and an argument; each layer is stronger than those before.

Values are plain examples of each option; what odd ones do is in test_load.py and test_fuzz.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.slow_cases import slow_but

from stoker.config import Deployment, Layer, load_deployment
from stoker.config.presets import preset_names
from stoker.config.schema.options import Option, live_options, options, sections
from stoker.config.source.presets import PresetSource
from stoker.config.yaml_writer import inline

from .generated import mappings

FIELDS = [option for option in live_options().values() if option.section and option.status == "effective"]
CANDIDATES: dict[str, list[Any]] = {
    "flag": [True, False],
    "whole": [7, 16, 2, 1, 0],
    "human int": ["32k", 4096, "2M"],
    "size": ["4GiB", 1000, "512MiB"],
    "duration": ["1m30s", 7, "500ms"],
    "number": [0.5, 0.25, 1],
    "text": ["plain", "/a", "0123", "b-2"],
    "texts": [["a", "0123"], ["b"], ["https://a.example"], ["https://b.example", "*"]],
    "wholes": [[1, 2, 8], [64]],
}


def typed(option: Option, value: Any) -> Any:
    return option.adapter.validate_python(tuple(value) if isinstance(value, list) else value)


def two_values(option: Option) -> list[Any]:
    """Two values that the option takes, as people write them; neither is the default if there are enough of them."""
    found: dict[str, Any] = {}
    examples = [] if option.is_secret else option.examples
    for value in [
        *option.choices,
        *examples,
        *CANDIDATES.get(option.kind, []),
        *mappings_of(option),
        *([word] for word in option.words),
    ]:
        try:
            key = repr(typed(option, value))
            found.setdefault(repr(value) if option.is_secret else key, value)
        except (ValidationError, ValueError):
            continue
    default = repr(option.default)
    ranked = sorted(found, key=lambda key: key == default)
    assert len(ranked) >= 2 or len(option.choices) == 1, f"{option.path}: add two values to CANDIDATES"
    return [found[key] for key in ranked[:2]] * (1 if len(ranked) >= 2 else 2)


def mappings_of(option: Option) -> list[Any]:
    return mappings(option) if option.kind == "mapping" else []


VALUES = {option.path: two_values(option) for option in FIELDS}
# One of each kind in every run.
QUICK = {(each.kind, each.is_flat, each.is_secret, each.is_required): each for each in FIELDS}.values()
each = pytest.mark.parametrize("option", slow_but(FIELDS, *QUICK), ids=lambda option: option.path)
# Layers are merged by code that knows only the kind of an option.
of_each_kind = pytest.mark.parametrize("option", QUICK, ids=lambda option: option.path)


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def model(option: Option) -> list[str]:
    """So that only the option at hand differs."""
    return [] if option.path == "model.model" else ["--model", "x"]


def write(path: Path, option: Option, value: Any, **more: Any) -> Path:
    lines = [f"{name}: {inline(other)}" for name, other in more.items()]
    path.write_text("\n".join([*lines, f"{option.section}:", f"  {option.name}: {inline(value)}", ""]))
    return path


def value_of(deployment: Deployment, option: Option) -> Any:
    return getattr(getattr(deployment.config, option.section), option.name)


def revealed(deployment: Deployment) -> Any:
    return deployment.config.model_dump(context={"reveal_secrets": True}, exclude={"config", "extends"})


@each
def test_every_way_of_saying_a_value_means_the_same(option: Option, tmp_path: Path) -> None:
    for value in VALUES[option.path]:
        block = write(tmp_path / "block.yaml", option, value)
        quoted = tmp_path / "quoted.yaml"
        quoted.write_text(json.dumps({option.section: {option.name: value}}))
        written: dict[str, Deployment] = {
            "file": load_deployment([block], model(option), {}),
            "json": load_deployment([quoted], model(option), {}),
            "variable": load_deployment([], model(option), {option.variable: text_of(value)}),
            "argument": load_deployment(
                [], model(option), {}, {option.name: value} if option.is_flat else {option.path: value}
            ),
            "path argument": load_deployment([], model(option), {}, {option.path: value}),
        }
        if not isinstance(value, list | dict):
            plain = tmp_path / "plain.yaml"
            plain.write_text(f"{option.section}:\n  {option.name}: ${{VALUE}}\n")
            written["interpolated"] = load_deployment([plain], model(option), {"VALUE": text_of(value)})
        for flag in option.flags:
            if not flag.startswith("--no-"):
                written[flag] = load_deployment([], [*model(option), f"{flag}={text_of(value)}"], {})
        apart = [text_of(item) for item in value] if value and isinstance(value, list) else [text_of(value)]
        for flag in (option.flags[0], "--" + option.flags[0][2:].replace("-", "_")):
            written[f"{flag} apart"] = load_deployment([], [*model(option), flag, *apart], {})
        if option.is_flat:
            flat = tmp_path / "flat.yaml"
            flat.write_text(json.dumps({option.name.replace("_", "-"): value}))
            written["flat file"] = load_deployment([], [*model(option), "--config", str(flat)], {})
        wanted = typed(option, value)
        assert {name: value_of(each, option) for name, each in written.items()} == dict.fromkeys(written, wanted)
        whole = [revealed(each) for each in written.values()]
        assert whole == [whole[0]] * len(whole)


LAYERS = ("base", "file", "overlay", "flat", "variable", "argument", "flag")
LAYER_OF = [Layer.FILE] * 4 + [Layer.ENVIRONMENT, Layer.ARGUMENT, Layer.COMMAND_LINE]


def layered(folder: Path, option: Option, said: dict[str, Any], *below: Path) -> Deployment:
    """Each layer saying its value; None unsets."""
    files = [*below]
    if "base" in said:
        write(folder / "base.yaml", option, said["base"])
    if "file" in said or "base" in said:
        more = {"extends": ["base.yaml"]} if "base" in said else {}
        file = folder / "deploy.yaml"
        if "file" in said:
            write(file, option, said["file"], **more)
        else:
            file.write_text("extends: base.yaml\n")
        files.append(file)
    if "overlay" in said:
        files.append(write(folder / "overlay.yaml", option, said["overlay"]))
    words: list[str] = []
    if "flat" in said:
        flat = folder / "flat.yaml"
        flat.write_text(json.dumps({option.name.replace("_", "-"): said["flat"]}))
        words = ["--config", str(flat)]
    env = (
        {option.variable: text_of("None" if said["variable"] is None else said["variable"])}
        if "variable" in said
        else {}
    )
    arguments = {option.path: said["argument"]} if "argument" in said else {}
    if "flag" in said:
        value = said["flag"]
        words += [f"{option.flags[0]}!"] if value is None else [f"{option.flags[0]}={text_of(value)}"]
    if option.path != "model.model":
        arguments["model"] = "x"
    return load_deployment(files, words, env, arguments)


def layers_of(option: Option) -> Sequence[str]:
    return LAYERS if option.is_flat else [layer for layer in LAYERS if layer != "flat"]


@of_each_kind
@pytest.mark.quick_cases(8)
def test_each_layer_is_stronger_than_all_before(option: Option, tmp_path: Path) -> None:
    below, above = VALUES[option.path]
    layers = layers_of(option)
    for index, layer in enumerate(layers):
        deployment = layered(tmp_path, option, {**dict.fromkeys(layers[:index], below), layer: above})
        alone = layered(tmp_path, option, {layer: above})
        is_mapping = option.kind == "mapping" and isinstance(above, dict) and isinstance(below, dict)
        if not is_mapping:  # those are merged key by key
            assert value_of(deployment, option) == value_of(alone, option) == typed(option, above)
            assert len(deployment.overridden[option.path]) == index
        else:
            assert value_of(alone, option).items() <= value_of(deployment, option).items()
        assert deployment.origin(option.path).layer is LAYER_OF[LAYERS.index(layer)]


@of_each_kind
@pytest.mark.quick_cases(8)
def test_null_in_any_layer_leaves_nothing_of_those_below(option: Option, tmp_path: Path) -> None:
    below, above = VALUES[option.path]
    layers = layers_of(option)
    for index, layer in enumerate(layers):
        said = {**dict.fromkeys(layers[:index], below), layer: None}
        if option.is_required:
            if layer != "flag":  # else there is no model at all
                stronger = layered(tmp_path, option, {**said, "flag": above})
                assert value_of(stronger, option) == typed(option, above)
            continue
        unset = layered(tmp_path, option, said)
        assert value_of(unset, option) == value_of(load_deployment([], ["--model=x"], {}), option)
        assert unset.origin(option.path).layer is Layer.DEFAULT
        for stronger_layer in layers[index + 1 : index + 2]:
            stronger = layered(tmp_path, option, {**said, stronger_layer: above})
            assert value_of(stronger, option) == typed(option, above)


PRESETS = [
    (name, f"{section}.{key}")
    for name in preset_names()
    for section, node in PresetSource(name).tree.items()
    for key in node.plain()
]


@pytest.mark.parametrize(("preset", "path"), PRESETS)
@pytest.mark.quick_cases(9)
def test_a_preset_is_stronger_than_the_default_and_weaker_than_all_else(preset: str, path: str, tmp_path: Path) -> None:
    option = options()[path]
    chosen = tmp_path / "preset.yaml"
    chosen.write_text(f"preset: {preset}\n")
    assert load_deployment([chosen], ["--model=x"], {}).origin(path).layer is Layer.PRESET
    for layer in layers_of(option):
        for value in (*VALUES[path], None):
            alone, on_top = (layered(tmp_path, option, {layer: value}, *files) for files in ([], [chosen]))
            assert value_of(on_top, option) == value_of(alone, option)
            assert on_top.origin(path) == alone.origin(path)


@pytest.mark.parametrize("section", sections())
def test_a_section_that_is_null_unsets_all_of_it(section: str, tmp_path: Path) -> None:
    parts = [option for option in FIELDS if option.section == section and option.path != "model.model"]
    base = tmp_path / "base.yaml"
    base.write_text(json.dumps({section: {option.name: VALUES[option.path][0] for option in parts}}))
    top = tmp_path / "deploy.yaml"
    top.write_text(f"extends: base.yaml\n{section}: null\n")
    deployment = load_deployment([top], ["--model=x"], {})
    assert revealed(deployment) == revealed(load_deployment([], ["--model=x"], {}))
