from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.text import template
from stoker.text.tokenizer import Tokenizer

from ..fakes import FakeEngine
from ..tiny_tokenizer import write_tokenizer
from .deployment import Served


@pytest.fixture(autouse=True)
def _short_messages_are_rendered_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is: a virtual clock does not wait for the processes that would do it otherwise."""
    monkeypatch.setattr(template, "LOCAL_S", 60.0)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a tokenizer and a chat template."""
    return write_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest.fixture
def served(folder: Path) -> Served:
    return Served(folder)


@pytest.fixture
def saying(folder: Path, tokenizer: Tokenizer) -> Callable[..., Served]:
    """A server whose model generates a given text and then ends."""

    def make(text: str, *, tokens_per_output: int = 1, **options: object) -> Served:
        token_ids = tokenizer.encode(text)
        engine = FakeEngine(script=lambda _: token_ids, tokens_per_output=tokens_per_output)
        return Served(folder, engine, **options)

    return make
