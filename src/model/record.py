"""Record: the base of all descriptions, which are frozen and go through JSON unchanged."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), defer_build=True)
