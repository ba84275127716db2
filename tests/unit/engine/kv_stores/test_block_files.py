"""BlockFiles in a folder that several engines use, each with a role. The rest: tests/models/test_block_files.py."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.flushing import flush

from stoker.engine.api import StoredBlocks
from stoker.engine.kv_stores.block_files import BlockFiles
from stoker.engine.kv_stores.checksum import checksum

SIZE = 64
FILE_SIZE = SIZE + 4  # with its sum
NAMES = [bytes([number]) * 32 for number in range(4)]
SOURCE = StoredBlocks(tuple(NAMES))
Make = Callable[..., BlockFiles]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with contextlib.ExitStack() as stack:

        def build(num_blocks: int = 9, **roles: bool) -> BlockFiles:
            files = BlockFiles(tmp_path, "alike", SIZE, num_blocks * FILE_SIZE, **roles)
            stack.callback(files.close)
            return files

        yield build


def content(name: bytes) -> bytes:
    return name * (SIZE // len(name))


def save(files: BlockFiles, names: Sequence[bytes]) -> None:
    for name in names:
        files.save(name, memoryview(content(name)), is_for_others=False)
    flush(files)


def read(files: BlockFiles, names: Sequence[bytes], source: StoredBlocks | None = None) -> list[bytes]:
    fetch = files.fetch(names, source)
    fetch._reading.result(60)
    return [bytes(block) for block in fetch.contents]


def test_a_producer_writes_and_does_not_read(make: Make, tmp_path: Path):
    files = make(reads=False)
    save(files, NAMES[:2])
    assert len(list(tmp_path.glob("alike/*.kv"))) == 2
    assert not files.has(NAMES[0])
    assert not files.wants(NAMES[0], is_for_others=True)  # it is written
    assert files.wants(NAMES[2], is_for_others=False)
    assert files.stored(NAMES) == StoredBlocks(tuple(NAMES[:2]))


def test_a_consumer_reads_and_does_not_write(make: Make, tmp_path: Path):
    save(make(), NAMES[:1])
    files = make(writes=False)
    assert not files.wants(NAMES[1], is_for_others=True)
    save(files, NAMES)
    assert len(list(tmp_path.glob("alike/*"))) == 1
    assert files.has(NAMES[0])
    assert read(files, NAMES) == [content(NAMES[0])]


def test_a_file_that_another_engine_wrote_is_found_where_a_request_names_it(make: Make):
    ours, theirs = make(), make()
    save(theirs, NAMES[:3])
    assert not ours.has(NAMES[0])  # as far as it knows
    assert read(ours, NAMES, SOURCE) == list(map(content, NAMES[:3]))
    assert all(map(ours.has, NAMES[:3]))
    assert not ours.wants(NAMES[0], is_for_others=False)


def test_a_file_that_another_engine_wrote_is_counted_once(make: Make, tmp_path: Path):
    ours, theirs = make(num_blocks=3), make()
    save(theirs, NAMES[:2])
    for _ in range(2):
        read(ours, NAMES[:2], SOURCE)
    save(ours, NAMES[2:3])
    assert len(list(tmp_path.glob("alike/*.kv"))) == 3
    save(ours, NAMES[3:])
    assert sorted(path.stem for path in tmp_path.glob("alike/*.kv")) == [name.hex() for name in NAMES[1:]]


def test_a_file_that_two_engines_wrote_is_counted_once(make: Make, tmp_path: Path):
    """Ours waits to be written while theirs is read."""
    ours, theirs = make(num_blocks=3), make()
    is_read = threading.Event()
    ours._writer.submit(is_read.wait, 60)
    ours.save(NAMES[0], memoryview(content(NAMES[0])), is_for_others=False)
    assert ours.is_saving(NAMES[0])
    save(theirs, NAMES[:1])
    assert read(ours, NAMES[:1], SOURCE) == [content(NAMES[0])]
    is_read.set()
    save(ours, NAMES[1:3])
    assert not ours.is_saving(NAMES[0])
    assert len(list(tmp_path.glob("alike/*.kv"))) == 3


def test_a_file_that_another_engine_removed_ends_what_is_read(make: Make, tmp_path: Path):
    files = make()
    save(files, NAMES)
    (tmp_path / f"alike/{NAMES[1].hex()}.kv").unlink()
    assert files.has(NAMES[1])
    assert read(files, NAMES, SOURCE) == [content(NAMES[0])]
    assert not files.has(NAMES[1])
    assert files.stored(NAMES).hashes == (NAMES[0],)


def test_a_file_of_another_size_is_no_block_of_this_model(make: Make, tmp_path: Path):
    files = make()
    (tmp_path / f"alike/{NAMES[0].hex()}.kv").write_bytes(b"")
    assert read(files, NAMES, SOURCE) == []
    assert list(tmp_path.glob("alike/*")) == []  # it is removed


def test_files_that_may_only_be_read_are_read(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """As on a disk that is mounted read-only: neither times nor names of files can be changed."""
    save(make(), NAMES[:2])
    (tmp_path / f"alike/{NAMES[1].hex()}.kv").write_bytes(bytes(FILE_SIZE))
    files = make(writes=False)

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert read(files, NAMES) == [content(NAMES[0])]  # the next one is damaged
    assert "is damaged" in caplog.text
    assert "cannot be read" not in caplog.text
    assert not files.has(NAMES[1])


def test_a_block_is_being_saved_until_its_file_is_there(make: Make, tmp_path: Path):
    files, may_write = make(), threading.Event()
    files._writer.submit(may_write.wait, 60)
    files.save(NAMES[0], memoryview(content(NAMES[0])), is_for_others=True)
    assert files.is_saving(NAMES[0])
    assert not files.is_saving(NAMES[1])
    may_write.set()
    flush(files)
    assert not files.is_saving(NAMES[0])
    assert (tmp_path / f"alike/{NAMES[0].hex()}.kv").stat().st_size == FILE_SIZE


def test_a_block_that_cannot_be_written_is_not_stored(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    files = make()
    os.rename(tmp_path / "alike", tmp_path / "gone")
    save(files, NAMES[:1])
    assert "could not be stored" in caplog.text
    assert not files.is_saving(NAMES[0])
    assert files.stored(NAMES).hashes == ()
    assert files.wants(NAMES[0], is_for_others=False)


def test_a_block_that_is_wanted_again_was_used(make: Make):
    """A producer reads nothing: what all prompts begin with would be its oldest block."""
    files = make(3, reads=False)
    names = [bytes([number]) * 32 for number in range(6)]
    for last in names[2:]:
        for name in (names[0], names[1], last):
            if files.wants(name, is_for_others=True):
                save(files, [name])
        assert len(files.stored([names[0], names[1], last]).hashes) == 3


@pytest.mark.parametrize("kind", ["pipe", "sparse", "empty", "short", "long", "link", "folder", "socket"])
def test_what_is_no_file_of_a_block_is_not_read_and_removed(make: Make, tmp_path: Path, kind: str):
    """A pipe was waited for without end, and a file of 8 GiB was read into memory."""
    save(make(), NAMES[:2])
    path = tmp_path / f"alike/{NAMES[0].hex()}.kv"
    files = make()
    path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "sparse":
            path.touch()
            os.truncate(path, 1 << 40)
        case "link":
            path.symlink_to(tmp_path / f"alike/{NAMES[1].hex()}.kv")
        case "folder":
            path.mkdir()
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
        case _:
            right = content(NAMES[0])[: {"empty": 0, "short": SIZE - 1, "long": SIZE}[kind]] + b"x" * (kind == "long")
            path.write_bytes(right + checksum(NAMES[0], memoryview(right)))
    assert read(files, NAMES, SOURCE) == []
    assert files.num_failures == 1
    assert not os.path.lexists(path)
    assert not files.has(NAMES[0])
    save(files, NAMES[:1])
    assert read(files, NAMES[:2], SOURCE) == [content(NAMES[0]), content(NAMES[1])]


def test_a_folder_that_does_not_answer_is_not_waited_for(make: Make, monkeypatch: pytest.MonkeyPatch):
    files, now, may_read, is_reading = make(), 0.0, threading.Event(), threading.Event()
    save(files, NAMES[:2])
    files._clock = lambda: now
    right = files._read

    def hang(name: bytes) -> memoryview | None:
        is_reading.set()
        may_read.wait(60)
        return right(name)

    monkeypatch.setattr(files, "_read", hang)
    fetch, other = files.fetch(NAMES[:1], None), files.fetch(NAMES[1:2], None)
    assert is_reading.wait(60)
    now = 10.0
    assert not fetch.is_done
    assert files.has(NAMES[0])
    now = 10.1
    assert fetch.is_done
    assert other.is_done
    assert fetch.contents == other.contents == []
    assert not files.has(NAMES[0])  # further requests are computed at once
    assert files.num_failures == 1
    may_read.set()
    other._reading.result(60)
    assert fetch.contents == []  # they are being computed
    assert files.has(NAMES[0])
    assert read(files, NAMES[:2]) == [content(NAMES[0]), content(NAMES[1])]


def test_a_part_that_another_program_has_put_there_is_not_written_to(make: Make, tmp_path: Path):
    files = make()
    os.mkfifo(tmp_path / f"alike/{NAMES[0].hex()}.{os.getpid()}.part")
    save(files, NAMES[:1])
    assert read(files, NAMES[:1]) == [content(NAMES[0])]


def test_a_dropped_block_is_stored_again(make: Make, tmp_path: Path):
    files = make()
    save(files, NAMES[:2])
    files.drop(NAMES[0])
    flush(files)
    assert [path.stem for path in tmp_path.glob("alike/*")] == [NAMES[1].hex()]
    assert files.wants(NAMES[0], is_for_others=False)
