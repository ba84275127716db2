"""The file of `server.api_keys_file`: named keys with scopes, limits and end dates, read again when it changes.

keys:
  team-a:
    scopes: [inference]
    requests_per_minute: 600
    tokens_per_minute: 200k
    concurrent_requests: 8
    secrets:
      - key: sk-new
      - sha256: 5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8
        expires: 2026-12-31T00:00:00Z
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError, model_validator

from ...config.schema.types import HumanInt
from ...input_file import read_file
from .auth import Key, KeyLimits, Scope, digest_of

OPTION = "server.api_keys_file"
MAX_NAMES = 1000  # each has its own time series in the metrics
WATCH_INTERVAL_S = 1.0
_MAX_BYTES = 4 << 20
logger = logging.getLogger(__name__)


class KeysProblem(Exception):
    """A keys file that cannot be used. Its text never contains a secret."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _moment(value: Any) -> Any:
    """A date is its first moment in UTC, and so is a time without a zone."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        raise ValueError("not a date such as 2026-12-31 or 2026-12-31T12:00:00Z")
    return value if value.tzinfo else value.replace(tzinfo=UTC)


class _Secret(_Record):
    key: SecretStr | None = Field(None, min_length=1)
    sha256: str | None = Field(None, pattern="^[0-9a-fA-F]{64}$")
    expires: Annotated[datetime, BeforeValidator(_moment)] | None = None

    @model_validator(mode="after")
    def _has_one(self) -> _Secret:
        if (self.key is None) == (self.sha256 is None):
            raise ValueError("write either `key` or `sha256`")
        return self

    @property
    def digest(self) -> bytes:
        return digest_of(self.key.get_secret_value()) if self.key is not None else bytes.fromhex(self.sha256 or "")


class _Entry(_Record):
    secrets: tuple[_Secret, ...] = Field(min_length=1, max_length=10)
    scopes: tuple[Scope, ...] = Field(("inference",), min_length=1)
    requests_per_minute: HumanInt | None = None
    tokens_per_minute: HumanInt | None = None
    concurrent_requests: HumanInt | None = None


_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class _File(_Record):
    keys: dict[_Name, _Entry] = Field(max_length=MAX_NAMES)


def read_keys(path: str | os.PathLike[str]) -> list[Key]:
    """Raises KeysProblem with the place of the first mistake."""
    try:
        content = yaml.safe_load(read_file(path, _MAX_BYTES))
    except OSError as error:
        raise KeysProblem(f"`{OPTION}`: {path}: {(error.strerror or str(error)).lower()}") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)  # the message itself could quote a secret
        place = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        raise KeysProblem(f"`{OPTION}`: {path}: invalid YAML{place}") from None
    try:
        file = _File.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(step) for step in first["loc"]) or "the file"
        raise KeysProblem(f"`{OPTION}`: {path}: {place}: {first['msg']}") from None
    keys: list[Key] = []
    for name, entry in file.keys.items():
        limits = KeyLimits(entry.requests_per_minute, entry.tokens_per_minute, entry.concurrent_requests)
        for secret in entry.secrets:
            until = None if secret.expires is None else secret.expires.timestamp()
            keys.append(Key(name, secret.digest, frozenset(entry.scopes), limits, until))
    owners: dict[bytes, str | None] = {}
    for key in keys:
        if key.digest in owners:
            raise KeysProblem(f"`{OPTION}`: {path}: {owners[key.digest]} and {key.name} have the same secret")
        owners[key.digest] = key.name
    return keys


class KeysFile:
    """A keys file in use. Raises KeysProblem at creation."""

    def __init__(self, path: str, use: Callable[[Sequence[Key]], None]) -> None:
        """use: called with the keys, at once and after each change."""
        self._path = path
        self._use = use
        self._seen: tuple[int, int, int] | None = None
        self.reread()

    def reread(self) -> int:
        """Use the keys that the file has now; returns how many. Raises KeysProblem; then the previous keys remain."""
        self._seen = self._state()  # before it is read: a change in between is seen
        keys = read_keys(self._path)
        self._use(keys)
        return len(keys)

    def reread_if_changed(self) -> None:
        """Reread the file if it was written or replaced; an invalid file is logged."""
        if self._state() == self._seen:
            return
        try:
            logger.info("the changed keys are in use: %d", self.reread())
        except KeysProblem as problem:
            logger.error("the changed keys are invalid, the previous ones remain in use: %s", problem)

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            self.reread_if_changed()

    def _state(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns
