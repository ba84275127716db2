from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedModel
from transformers.utils import logging

from .checkpoints import build, save

logging.set_verbosity_error()
logging.disable_progress_bar()

Saved = tuple[PreTrainedModel, Path]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Saved]:
    """family -> its model in transformers and the directory it was saved to, made once."""
    made: dict[str, Saved] = {}

    def of(family: str) -> Saved:
        if family not in made:
            model = build(family)
            made[family] = model, save(model, tmp_path_factory.mktemp(family.replace(" ", "-")))
        return made[family]

    return of
