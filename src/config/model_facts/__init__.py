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


class Facts(Record):
    version: str
    facts: tuple[Fact, ...]

    def of(self, model: str, model_type: str) -> Fact | None:
        """model: hub id or directory, as it is written."""
        name = PurePosixPath(model).name.lower()
        known = (fact for fact in self.facts if fact.model_type == model_type)
        return next((fact for fact in known if any(fnmatchcase(name, each) for each in fact.models)), None)


@cache
def model_facts() -> Facts:
    return Facts.model_validate(yaml.safe_load((FOLDER / "facts.yaml").read_text()))
