"""Adapters that PEFT itself writes for the tiny checkpoints, with matrices that are not zero."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel


def write_adapter(
    folder: Path, model: PreTrainedModel, *, seed: int = 0, is_merged: bool = False, **settings: Any
) -> PreTrainedModel | None:
    """Write an adapter of a model, which stays as it is.

    Args:
        settings: of PEFT's LoraConfig; rank 4 and alpha 8 unless they say otherwise.

    Returns the model with the adapter in its weights, merged by PEFT, if is_merged.
    """
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT's advice on training
        adapted = get_peft_model(copy.deepcopy(model), LoraConfig(**{"r": 4, "lora_alpha": 8, **settings}))
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        adapted.save_pretrained(folder)
        return adapted.merge_and_unload() if is_merged else None
