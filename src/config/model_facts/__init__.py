"""Model facts: what models need that their files do not say, by the model's name and type."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePosixPath

import yaml

from ...model.record import Record

FOLDER = Path(__file__).parent


class Fact(Record):
    models: tuple[str, ...]  # names without the owner, as glob patterns in lower case
    model_type: str
    chat_template: str  # file of this folder, for a model that has no template
    source: str

    @property
    def template_path(self) -> str:
        return str(FOLDER / self.chat_template)


class RerankerFact(Record):
    models: tuple[str, ...]  # as of Fact
    model_type: str
    wanted: str  # the token whose logit is the score
    subtracted: str  # the token whose logit is subtracted from it
    pair: str  # file of this folder with the prompt of two texts
    instruction: str
    source: str

    @property
    def prompt(self) -> str:
        return (FOLDER / self.pair).read_text()


class Facts(Record):
    version: str
    facts: tuple[Fact, ...]
    rerankers: tuple[RerankerFact, ...] = ()

    def of(self, model: str, model_type: str) -> Fact | None:
        """model: hub id or directory, as it is written."""
        return next((fact for fact in self.facts if _is_of(fact, model, model_type)), None)

    def reranker(self, model: str, model_type: str) -> RerankerFact | None:
        return next((fact for fact in self.rerankers if _is_of(fact, model, model_type)), None)


def _is_of(fact: Fact | RerankerFact, model: str, model_type: str) -> bool:
    name = PurePosixPath(model).name.lower()
    return fact.model_type == model_type and any(fnmatchcase(name, each) for each in fact.models)


@cache
def model_facts() -> Facts:
    return Facts.model_validate(yaml.safe_load((FOLDER / "facts.yaml").read_text()))
