from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiny_tokenizer import write_tokenizer

from stoker.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a tokenizer and a chat template."""
    return write_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)
