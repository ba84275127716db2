"""Mistral AI's own format: the same model as that of transformers, from params.json and consolidated safetensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stoker.config import ModelFilesError

from .checkpoints import YARN, build, reference_logits, save
from .conftest import Saved
from .consolidated import write_consolidated
from .engine import Engine, resolved
from .test_logits import TOKENS, our_logits

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12]]


@pytest.mark.effect("model.config_format", "load.load_format")
@pytest.mark.parametrize(("family", "num_files"), [("mistral", 1), ("mixtral", 3)])
def test_both_formats_are_the_same_model(
    family: str, num_files: int, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    """`auto` reads the own format where it is alone, and that of transformers where both are there."""
    model, source = saved(family)
    folder = write_consolidated(source, tmp_path / "own", num_files)
    assert (our_logits(folder, tmp_path) - reference_logits(model, TOKENS)).abs().max() < 1e-4
    assert (our_logits(folder, tmp_path, "torch") - reference_logits(model, TOKENS)).abs().max() < 1e-4
    (folder / "config.json").write_text((source / "config.json").read_text())
    (folder / "model.safetensors").symlink_to(source / "model.safetensors")
    theirs, ours = (
        resolved(folder, tmp_path, model={"config_format": "auto"}),
        resolved(folder, tmp_path, model={"config_format": "mistral"}, load={"safetensors_load_strategy": "eager"}),
    )
    assert (theirs.model.config_format, ours.model.config_format) == ("hf", "mistral")
    assert (theirs.load.load_format, ours.load.load_format) == ("safetensors", "mistral")
    assert len(ours.model_files.weight_files) == num_files
    assert theirs.model_files.num_parameters == ours.model_files.num_parameters
    assert Engine(ours).generate(PROMPTS) == Engine(theirs).generate(PROMPTS)


def test_scaled_positions_and_tied_embeddings_beside_a_vision_encoder(tmp_path: Path) -> None:
    """As the published Ministral 3: yarn that does not scale the products, queries that grow with their position."""
    rope = YARN | {"llama_4_scaling_beta": 0.3, "mscale": 1.0, "mscale_all_dim": 1.0}
    model = build("ministral3", rope_parameters=rope, tie_word_embeddings=True)
    folder = write_consolidated(
        save(model, tmp_path / "theirs"), tmp_path / "own", **{"vision_encoder.conv.weight": torch.zeros(2, 3)}
    )
    path = folder / "params.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "vision_encoder": {"hidden_size": 2}}))
    assert resolved(folder, tmp_path).model_spec.is_part
    assert (our_logits(folder, tmp_path) - reference_logits(model, TOKENS)).abs().max() < 1e-4


def test_weights_that_contradict_params_json_are_refused(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    folder = write_consolidated(saved("mistral")[1], tmp_path / "own")
    path = folder / "params.json"
    own = json.loads(path.read_text())
    for change, said in (
        ({"n_layers": 3}, "`n_layers` is 3, but its weight files have 2 layers"),
        ({"hidden_dim": 95}, r"has shape \[96, 64\], params.json says \[95, 64\]"),
    ):
        path.write_text(json.dumps({**own, **change}))
        with pytest.raises(ModelFilesError, match=said):
            resolved(folder, tmp_path)
