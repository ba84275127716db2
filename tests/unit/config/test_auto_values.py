"""Numbers that descriptions state for `auto` are those that decide uses: they come from auto_values.py and nowhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.config import auto_values, graph_sizes
from stoker.config.deployment import Deployment
from stoker.config.resolve.decide import decide
from stoker.config.resolve.machine_spec import MachineSpec
from stoker.config.schema import options as declarations
from stoker.config.schema.deployment import DeploymentConfig
from stoker.config.schema.options import options

from .deployments import MACHINE, WITH_GPU

SCHEMA = Path(declarations.__file__).parent
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
NOT_COMPUTED = {  # numbers next to `auto` that are part of a value's name, not computed
    "compilation.level": "`auto` is 3 where graphs can be captured and 0 elsewhere.",
}


def descriptions() -> Iterator[tuple[str, str]]:
    """Option name -> the literal parts of its description; computed parts are left out."""
    for file in sorted(SCHEMA.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
                for keyword in node.value.keywords:
                    if keyword.arg == "description":
                        yield ast.unparse(node.target), literal_text(keyword.value)


def literal_text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(literal_text(part) for part in node.values)
    return node.value if isinstance(node, ast.Constant) else "{}"


def sentences_about_auto(text: str) -> list[str]:
    """`(or -1)` is a way to write auto, not what it becomes."""
    return [re.sub(r"\(or -?\d+\)", "", part) for part in re.split(r"(?<=[.;:])\s", text) if "`auto`" in part]


def test_no_description_states_a_number_for_auto_that_is_not_computed() -> None:
    found = dict(descriptions())
    assert len(found) > 100
    literal = [
        f"{name}: {sentence}"
        for name, text in found.items()
        for sentence in sentences_about_auto(text)
        if NUMBER.search(sentence) and sentence not in NOT_COMPUTED.values()
    ]
    assert literal == []


def test_the_check_finds_a_number_that_is_written_by_hand() -> None:
    (sentence,) = sentences_about_auto("Maximum number. `auto` is 64 on a CPU; more is 32. (or 3).")
    assert NUMBER.search(sentence)
    assert not NUMBER.search(sentences_about_auto("`auto` (or -1) is {} times the cache.")[0])


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("scheduler.max_num_seqs", auto_values.MAX_NUM_SEQS),
        ("scheduler.max_num_batched_tokens", auto_values.MAX_NUM_BATCHED_TOKENS),
        ("cache.block_size", auto_values.BLOCK_SIZE),
    ],
)
def test_a_description_states_what_is_decided_for_each_device(path: str, values: dict[str, int]) -> None:
    for device, machine in (("cpu", MACHINE), ("cuda", WITH_GPU)):
        assert decided(path, device, machine) == values[device]
    assert f"{values['cpu']} on a CPU, {values['cuda']} on a GPU" in options()[path].description


def decided(path: str, device: str, machine: MachineSpec) -> object:
    config = DeploymentConfig(model={"model": "builtin:tiny"}, device={"device": device})  # type: ignore[arg-type]
    return decide(Deployment(config), None, machine).get(path)


def test_other_constants_are_stated_in_the_units_of_their_description() -> None:
    said = {path: option.description for path, option in options().items()}
    assert f"at most {auto_values.MAX_AUTO_KV_BYTES >> 30} GiB" in said["cache.kv_cache_memory_bytes"]
    assert f"{auto_values.QUEUED_PER_KV_TOKEN} times the number of tokens" in said["scheduler.max_queued_tokens"]
    assert f"{auto_values.LONG_PROMPT_SHARE:.0%} of the context" in said["scheduler.long_prefill_token_threshold"]
    sizes = ", ".join(map(str, graph_sizes.usual_sizes(256)[:-1]))
    assert f"Unset, the sizes are {sizes} and so on" in said["scheduler.cuda_graph_sizes"]
