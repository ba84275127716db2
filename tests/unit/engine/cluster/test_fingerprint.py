"""What must be the same on all nodes, and what may differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.config import Resolved, load_deployment, read_model_files, resolve_deployment
from stoker.engine.cluster.fingerprint import differences, fingerprint

from ...config.deployments import MACHINE
from ...config.model_files import write_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def resolved(model: Path, words: str = "", num_cores: int = 4) -> Resolved:
    deployment = load_deployment([], ["--model", str(model), *words.split()], {})
    return resolve_deployment(
        deployment, read_model_files(deployment), MACHINE.model_copy(update={"num_cores": num_cores})
    )


@pytest.mark.parametrize("words", ["--node-rank 1", "--port 1", "--num-threads 3", "--log-level debug"])
def test_nodes_may_differ_in_what_is_of_a_machine(model: Path, words: str):
    on_two = "--nnodes 2 --tensor-parallel-size 2 --master-addr 127.0.0.1"
    here, there = fingerprint(resolved(model, on_two)), fingerprint(resolved(model, f"{on_two} {words}", 8))
    assert differences(here, there, "b") == ""


@pytest.mark.parametrize(
    ("words", "path"), [("--dtype float32", "model.dtype"), ("--block-size 32", "cache.block_size")]
)
def test_a_written_option_must_be_the_same(model: Path, words: str, path: str):
    found = differences(fingerprint(resolved(model)), fingerprint(resolved(model, words)), "b")
    assert found.startswith(f"`{path}` is not written on node 0 and ")
    assert found.endswith(" on b")


def test_another_checkpoint_of_the_same_shape_is_another_one(model: Path):
    (weights,) = model.glob("*.safetensors")
    here = fingerprint(resolved(model))
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    assert differences(here, fingerprint(resolved(model)), "b").startswith("weights is ")
