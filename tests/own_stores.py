"""Connectors of a user's own, by import path in tests: one that works, and others that fail in one way each."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar


class DictStore:
    """Blocks in a dictionary of the process, by the name of a shelf: what a network store is to engines."""

    shelves: ClassVar[dict[str, dict[str, bytes]]] = {}
    settings_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"shelf": {"type": "string", "minLength": 1}},
        "required": ["shelf"],
        "additionalProperties": False,
    }

    def __init__(self, shelf: str) -> None:
        self.blocks = self.shelves.setdefault(shelf, {})
        self.asked: list[int] = []  # number of keys of each load
        self.is_closed = False

    def load(self, keys: Sequence[str]) -> Iterator[bytes | bytearray | None]:
        self.asked.append(len(keys))
        for key in keys:
            yield self.blocks.get(key)

    def save(self, key: str, content: bytes) -> None:
        self.blocks[key] = content

    def close(self) -> None:
        self.is_closed = True


class RaisesInLoad(DictStore):
    def load(self, keys: Sequence[str]) -> Iterator[bytes | bytearray | None]:
        raise ConnectionError("the network is down")


class RaisesAfterTwo(DictStore):
    def load(self, keys: Sequence[str]) -> Iterator[bytes | bytearray | None]:
        yield from super().load(keys[:2])
        raise SystemExit("enough")


class RaisesInSave(DictStore):
    def save(self, key: str, content: bytes) -> None:
        raise OSError("no space left")


class ReturnsOthers(DictStore):
    """Each block in place of the next one."""

    def load(self, keys: Sequence[str]) -> Iterator[bytes | bytearray | None]:
        return super().load([keys[-1], *keys[:-1]])


class ReturnsHalves(DictStore):
    def load(self, keys: Sequence[str]) -> Iterator[bytes | bytearray | None]:
        return (content and content[::2] for content in super().load(keys))


class ReturnsTexts(DictStore):
    def load(self, keys: Sequence[str]) -> Any:
        return [content and content.hex() for content in super().load(keys)]


class ReturnsNothing(DictStore):
    def load(self, keys: Sequence[str]) -> Any:
        return None


class UsesOneBuffer(DictStore):
    """Which is no failure: the contents of a block are used before the next one is asked for."""

    def load(self, keys: Sequence[str]) -> Iterator[bytes | bytearray | None]:
        buffer = bytearray()
        for content in super().load(keys):
            if content is None:
                return
            buffer[:] = content
            yield buffer


class Hangs(DictStore):
    """Until `go_on` is set: `load` after the first block, `save` before it."""

    def __init__(self, shelf: str) -> None:
        super().__init__(shelf)
        self.go_on, self.hangs = threading.Event(), threading.Event()

    def _hang(self) -> None:
        self.hangs.set()
        self.go_on.wait()

    def load(self, keys: Sequence[str]) -> Iterator[bytes | bytearray | None]:
        for content in super().load(keys):
            yield content
            self._hang()

    def save(self, key: str, content: bytes) -> None:
        self._hang()
        super().save(key, content)


class HasNoSave:
    def load(self, keys: Sequence[str]) -> list[bytes]:
        return []

    def close(self) -> None: ...
