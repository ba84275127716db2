"""Input and output of a batch: files, standard input, URLs, and the results of an interrupted run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from ..config import Deployment
from ..input_file import check_regular, open_file
from ..server.batch.part_file import PartFile
from .console import print_message
from .transfer import TransferError, download, is_url, upload


@dataclass(frozen=True, slots=True)
class BatchInput:
    """file: at its start. num_requests: number of non-blank lines. digest: of the content."""

    file: BinaryIO
    num_requests: int
    digest: str


@contextlib.contextmanager
def open_input(name: str) -> Iterator[BatchInput]:
    """A regular file, a URL, or `-` for standard input. Raises OSError, TransferError."""
    with contextlib.ExitStack() as stack:
        file: BinaryIO
        if name == "-" or is_url(name):
            file = stack.enter_context(tempfile.TemporaryFile())
            if name == "-":
                shutil.copyfileobj(sys.stdin.buffer, file)
            else:
                download(name, file)
            file.seek(0)
        else:
            file = stack.enter_context(_opened(name))
        digest, count, is_start = hashlib.sha256(), 0, True
        while piece := file.readline(1 << 20):  # of a line
            digest.update(piece)
            if is_start and piece.strip():
                count += 1
            is_start = piece.endswith(b"\n")
        file.seek(0)
        yield BatchInput(file, count, digest.hexdigest())


def _opened(name: str) -> BufferedReader:
    """Open a file that can be read twice: a pipe would be empty the second time."""
    try:
        return BufferedReader(open_file(name))
    except OSError as error:
        allowed = "give a file, an http(s) URL, or - for standard input"
        raise TransferError(f"cannot read {name}: {_cause(error)}; {allowed}") from None


def _check_target(file: Path) -> None:
    """What the results will replace is a regular file, or nothing."""
    try:
        check_regular(file)
    except FileNotFoundError:
        return
    except OSError as error:
        raise TransferError(f"cannot write {file}: {_cause(error)}; give a file for the results") from None


def _cause(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def run_id(source: BatchInput, deployment: Deployment) -> str:
    """The same for the same requests to the same model: then a run continues where an earlier one ended."""
    model = json.dumps(deployment.model.model_dump(mode="json"), sort_keys=True)
    role = deployment.server.response_role
    return hashlib.sha256(f"{source.digest} {role} {model}".encode()).hexdigest()[:12]


class BatchOutput:
    """Results of a run: next to the output file or, for a URL, in a temporary folder.

    As a context manager it reports which results are kept if the run ends early.
    """

    def __init__(self, name: str, folder: str | None, run: str) -> None:
        """
        folder: for a URL; the system's own for temporary files if None.
        Raises OSError, TransferError, PartFileInUse.
        """
        self.name = name
        self._is_finished = False
        if is_url(name):
            target = Path(folder or tempfile.gettempdir()) / (Path(urlsplit(name).path).name or "batch")
        else:
            target = Path(name)
            _check_target(target)
        self._target = target
        self.part = PartFile(target.with_name(f"{target.name}.{run}.part"), mode=0o600 if is_url(name) else 0o666)
        if self.part.done:
            print_message(f"continuing {self.part.path} with {len(self.part.done)} results; delete it to start again")

    def __enter__(self) -> BatchOutput:
        return self

    def __exit__(self, *_: object) -> None:
        self.part.close()
        if self.part.counts.total and not self._is_finished:
            print_message(
                f"{self.part.counts.total} results are kept in {self.part.path}; the same command continues from there"
            )

    def finish(self) -> None:
        """Rename the results to the output file, or upload them. Raises TransferError."""
        if is_url(self.name):
            self.part.close()
            upload(self.part.path, self.name)
            self.part.path.unlink()
        else:
            self.part.close(target=self._target)
        self._is_finished = True


def same_file(one: str, other: str) -> bool:
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)
