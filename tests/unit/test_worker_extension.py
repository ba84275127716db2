"""Workers of one process: a class of the deployment's own reads and replaces the weights of a running LLM."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny_checkpoint import write_checkpoint

from stoker import LLM, SamplingParams
from stoker.config.schema.parallel import ParallelConfig
from stoker.engine.api import CallError
from stoker.engine.executor.launcher import OnlyOffline, check_serves
from stoker.engine.plugins import PluginError

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = list(range(5, 60))  # several blocks, which are cached
EXTENSION, OWN = "tests.own_code:WeightUpdates", "tests.own_code:OwnWorker"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def others(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of a model that was trained further."""
    generator = torch.Generator().manual_seed(1)
    return {name: value + 0.1 * torch.randn(value.shape, generator=generator) for name, value in weights.items()}


@pytest.fixture(scope="module")
def other_folder(folder: Path, others: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("other") / "checkpoint"
    shutil.copytree(folder, copy)
    save_file(others, copy / "model.safetensors", {"format": "pt"})
    return copy


def make(folder: Path, extension: str = EXTENSION, **options: object) -> LLM:
    small = {"dtype": "float32", "num_gpu_blocks_override": 64, "max_num_seqs": 4, "num_threads": 1, "block_size": 16}
    return LLM(str(folder), **{**small, "worker_extension_cls": extension, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with make(folder) as made:
        yield made


def tokens(llm: LLM) -> list[int]:
    return llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids


@pytest.mark.effect("parallel.worker_extension_cls")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replaced_weights_are_those_of_a_checkpoint_that_has_them(
    dtype: str, folder: Path, other_folder: Path, others: dict[str, torch.Tensor], weights: dict[str, torch.Tensor]
):
    with make(other_folder, "", dtype=dtype) as made:
        expected = tokens(made)
    with make(folder, dtype=dtype) as made:
        before = tokens(made)
        assert made.collective_rpc("load", (others,)) == [[]]
        assert tokens(made) == expected != before
        made.collective_rpc("load", (weights,))
        assert made.collective_rpc("load_through_one_buffer", (others,)) == [[]]
        assert tokens(made) == expected
        made.collective_rpc("load", kwargs={"tensors": weights})
        assert tokens(made) == before


def test_a_layer_waits_for_all_of_its_tensors(llm: LLM, weights: dict[str, torch.Tensor]):
    before = tokens(llm)
    place = "model.layers.0.self_attn"
    parts = [f"{place}.{part}_proj.weight" for part in "qkv"]
    zeros = {name: torch.zeros_like(weights[name]) for name in parts}
    assert llm.collective_rpc("load", ({parts[1]: zeros[parts[1]]},)) == [[parts[1]]]
    assert tokens(llm) == before
    assert llm.collective_rpc("load", ({name: zeros[name] for name in (parts[0], parts[2])},)) == [[]]
    assert tokens(llm) != before
    llm.collective_rpc("load", ({name: weights[name] for name in parts},))
    assert tokens(llm) == before


def test_a_worker_knows_its_place_and_its_weights(llm: LLM, weights: dict[str, torch.Tensor]):
    assert llm.collective_rpc("place") == [(0, 1)]
    assert llm.collective_rpc("shape", ("model.norm.weight",)) == [tuple(weights["model.norm.weight"].shape)]
    (sizes,) = llm.collective_rpc("sizes")
    assert sum(sizes.values()) >= sum(value.numel() for value in weights.values())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("nothing",), f"the workers have no method `nothing`: `parallel.worker_extension_cls` is {EXTENSION}"),
        (("_load", ({},)), "the workers have no method `_load`"),
        (("rank",), "the workers have no method `rank`"),
        (("fails_on", (0,)), "`fails_on` has failed on rank 0: ValueError: as asked"),
        (("place", (1,)), "`place` has failed on rank 0: TypeError: "),
        (("load", ({"x": torch.zeros(1)},)), "the model has no tensor `x`"),
        (("load", ({"model.norm.weight": torch.zeros(1)},)), "`model.norm.weight` has the shape [1]; allowed: ["),
    ],
)
def test_a_call_that_cannot_be_made_is_an_error_and_the_engine_goes_on(llm: LLM, call: tuple[object], message: str):
    before = tokens(llm)
    with pytest.raises(CallError) as failed:
        llm.collective_rpc(*call)  # type: ignore[arg-type]
    assert message in str(failed.value)
    assert tokens(llm) == before


@pytest.mark.effect("parallel.worker_cls")
def test_a_class_of_workers_has_methods_and_gets_those_of_the_extension(folder: Path):
    with make(folder, "", worker_cls=OWN) as made:
        assert made.collective_rpc("own_number") == [10]
        with pytest.raises(CallError) as failed:
            made.collective_rpc("place")
        assert str(failed.value) == f"the workers have no method `place`: `parallel.worker_cls` is {OWN}"
    with make(folder, worker_cls=OWN) as made:
        assert made.collective_rpc("own_number") == [10]
        assert made.collective_rpc("place") == [(0, 1)]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tests.own_code:WeightUpdates", "the class is not a subclass of stoker.engine.worker:Worker"),
        ("tests.own_code:run", "tests.own_code:run: not a class"),
        ("tests.nothing:Own", "tests.nothing cannot be imported: ModuleNotFoundError"),
    ],
)
def test_a_class_that_is_not_one_of_workers_is_refused(folder: Path, path: str, message: str):
    with pytest.raises(PluginError) as refused:
        make(folder, "", worker_cls=path)
    assert str(refused.value).startswith("`parallel.worker_cls`: ")
    assert message in str(refused.value)


def test_a_server_has_no_use_for_workers_of_its_own():
    for option in ("worker_cls", "worker_extension_cls"):
        with pytest.raises(OnlyOffline, match=f"`parallel.{option}` is for `stoker.LLM` in a script"):
            check_serves(ParallelConfig(**{option: OWN}))  # type: ignore[arg-type]
    check_serves(ParallelConfig())


def test_without_an_extension_workers_have_no_methods(folder: Path):
    with make(folder, "") as made, pytest.raises(CallError, match="worker_extension_cls` is not set"):
        made.collective_rpc("place")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tests.own_code:Nothing", "tests.own_code has no Nothing"),
        ("tests.nothing:Updates", "tests.nothing cannot be imported: ModuleNotFoundError"),
        ("tests.own_code:run", "tests.own_code:run: not a class"),
        ("tests.own_code:HasRank", "tests.own_code:HasRank: the class has rank, which a worker has itself"),
        ("tests.own_code:NeedsArguments", "tests.own_code:NeedsArguments: cannot be made: TypeError: "),
    ],
)
def test_a_class_that_cannot_be_used_is_refused(folder: Path, path: str, message: str):
    with pytest.raises(PluginError) as refused:
        make(folder, path)
    assert str(refused.value).startswith("`parallel.worker_extension_cls`: ")
    assert message in str(refused.value)
