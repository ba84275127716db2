"""Checkpoints in each form that transformers writes: in several files, under the names of its classes, with copies.

Under the names of its classes all experts of a layer are one tensor, and convolutions and projections may be fused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from .checkpoints import save
from .conftest import Saved
from .test_logits import our_logits

OUTPUT = "lm_head.weight"


def in_several_files(model: PreTrainedModel, folder: Path) -> Path:
    save(model, folder, max_shard_size="60KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def under_names_of_its_class(model: PreTrainedModel, folder: Path) -> Path:
    return save(model, folder, save_original_format=False)


def with_copies_of_tied_weights(model: PreTrainedModel, folder: Path) -> Path:
    """The output layer is stored although it is the embedding, and so are blocks that layers share; of other models
    nothing is tied."""
    save(model, folder)
    if model.config.tie_word_embeddings:
        file = folder / "model.safetensors"
        tensors = load_file(file)
        copies = {copy: model.get_parameter(copy).clone() for copy in model.all_tied_weights_keys}
        assert OUTPUT in copies
        assert not copies.keys() & tensors.keys()
        save_file(tensors | copies, file, metadata={"format": "pt"})
    return folder


FORMS = [in_several_files, under_names_of_its_class, with_copies_of_tied_weights]
FAMILIES = [
    *(
        "qwen2 tied",
        "gemma3",
        "qwen3_moe",
        "mixtral",
        "minimax",
        "minimax_m2",
        "gpt_oss",
        "deepseek_v3",
        "qwen3_5_moe",
        "qwen4_exp",
        "lfm2_moe",
    ),
    *("granitemoe", "kimi_linear", "bailing_hybrid", "olmo_hybrid", "llama4", "ernie4_5_moe", "lfm3", "mimo_v2_flash"),
    *("hy_v4", "deepseek_v4", "axk2", "dots3", "zamba2", "codegen", "xglm", "phimoe"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.quick_cases(3, family=["lfm2_moe"])
def test_each_form_gives_the_same_model(
    form: Callable[[PreTrainedModel, Path], Path], family: str, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    model, folder = saved(family)
    other = form(model, tmp_path / "other")
    assert torch.equal(our_logits(other, tmp_path, "torch"), our_logits(folder, tmp_path, "torch"))
