"""Quantised networks that draft, and networks beside a quantised model: they draft what the stored values say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.slow_cases import slow, slow_but

from stoker.engine.api import SamplingParams

from .checkpoints import build, save
from .conftest import Saved
from .draft_checkpoints import add_mtp, save_eagle, save_eagle3
from .engine import Engine, resolved
from .quantised import METHODS, write, write_plain
from .test_drafts import assert_same
from .test_generation import make_prompts
from .test_model_drafts import ALONE, Drafted, drafting

GREEDY = SamplingParams(temperature=0, max_tokens=8)
Chains = list[tuple[list[int], list[int]]]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(build("llama", num_hidden_layers=4), tmp_path_factory.mktemp("llama") / "model")


def chains(folder: Path, place: Path, speculative: dict[str, Any], **model: Any) -> Chains:
    """What is drafted after known tokens. No token changes by it."""
    engine = drafting(resolved(folder, place, speculative=speculative, cache=ALONE, model=model), 3)
    with pytest.MonkeyPatch.context() as patch:
        recorded = Drafted(engine.runner.drafts, patch)
        found = engine.outputs(make_prompts(5), GREEDY)
    assert_same(found, Engine(resolved(folder, place, model=model)).outputs(make_prompts(5), GREEDY))
    assert len(recorded.chains) > 5
    return recorded.chains


def some_chains(found: Chains, expected: Chains) -> float:
    """The share of drafts that are the same after the same known tokens."""
    of_known = {tuple(known): chain for known, chain in expected}
    same = [
        of_known[tuple(known)] == chain for known, chain in found if len(chain) == len(of_known.get(tuple(known), ()))
    ]
    return sum(same) / len(same)


@pytest.mark.parametrize("method", slow_but(METHODS, "gptq", "fp8"))
def test_a_quantised_model_drafts_what_its_values_say(
    method: str, llama: Path, saved: Callable[[str], Saved], tmp_path: Path
):
    values = write(saved("qwen3")[1], tmp_path / "draft", METHODS[method])
    plain = write_plain(saved("qwen3")[1], tmp_path / "plain", values)
    found, expected = (chains(llama, tmp_path, {"model": str(folder)}) for folder in (tmp_path / "draft", plain))
    assert some_chains(found, expected) > 0.95


@pytest.mark.parametrize("method", slow_but(("gptq", "fp8", "packed", "nf4"), "gptq"))
def test_quantised_layers_of_eagle_draft_what_their_values_say(method: str, llama: Path, tmp_path: Path):
    layers = save_eagle(tmp_path / "layers")
    file = layers / "model.safetensors"
    save_file({f"model.{name}": each for name, each in load_file(file).items()}, file)
    plain = write_plain(layers, tmp_path / "plain", write(layers, tmp_path / "draft", METHODS[method]))
    own = {"method": "eagle"}
    found, expected = (chains(llama, tmp_path, {**own, "model": str(folder)}) for folder in (tmp_path / "draft", plain))
    assert some_chains(found, expected) > 0.95


@pytest.mark.parametrize("method", slow_but(("gptq", "fp8", "fp8 blocks", "awq"), "fp8"))
@pytest.mark.parametrize("layers", ["eagle3", slow("eagle")])
def test_layers_beside_a_quantised_model_are_not_quantised(method: str, layers: str, llama: Path, tmp_path: Path):
    plain = write_plain(llama, tmp_path / "plain", write(llama, tmp_path / "model", METHODS[method]))
    folder = (save_eagle3 if layers == "eagle3" else save_eagle)(tmp_path / "layers")
    own = {"method": layers, "model": str(folder)}
    found, expected = (chains(each, tmp_path, own) for each in (tmp_path / "model", plain))
    assert some_chains(found, expected) > 0.95


@pytest.mark.parametrize("method", slow_but(("gptq", "fp8", "bnb int8"), "fp8"))
@pytest.mark.parametrize("has_plain_join", [False, True], ids=["quantised fc", "plain fc"])
def test_mtp_of_a_quantised_checkpoint(method: str, has_plain_join: bool, tmp_path: Path):
    """Many checkpoints keep the product that joins the two in bfloat16, whatever their quantization_config says."""
    source = add_mtp(save(build("deepseek_v3"), tmp_path / "source"))
    values = write(source, tmp_path / "model", METHODS[method])
    if has_plain_join:
        file, name = tmp_path / "model" / "model.safetensors", "model.layers.2.eh_proj."
        stored = {each: tensor for each, tensor in load_file(file).items() if not each.startswith(name)}
        values[f"{name}weight"] = stored[f"{name}weight"] = load_file(source / "model.safetensors")[f"{name}weight"]
        save_file(stored, file, {"format": "pt"})
    plain = write_plain(source, tmp_path / "plain", values)
    found, expected = (chains(folder, tmp_path, {"method": "mtp"}) for folder in (tmp_path / "model", plain))
    assert some_chains(found, expected) > 0.95


@pytest.mark.parametrize("quantization", ["int8", slow("int4")])
@pytest.mark.parametrize("kind", ["mtp", "eagle3", slow("eagle"), slow("draft_model")])
def test_what_drafts_is_quantised_as_the_model(kind: str, quantization: str, llama: Path, tmp_path: Path):
    """The output layer of the model, which `mtp` and `eagle` use, is quantised too. Drafts are still good guesses."""
    folder, own = llama, {"method": kind}
    if kind == "mtp":
        folder = add_mtp(save(build("deepseek_v3"), tmp_path / "model"))
    elif kind == "draft_model":
        own["model"] = str(folder)
    else:
        own["model"] = str((save_eagle3 if kind == "eagle3" else save_eagle)(tmp_path / "layers"))
    found = chains(folder, tmp_path, own, quantization=quantization)
    assert torch.tensor([len(chain) for _, chain in found]).max() > 1
