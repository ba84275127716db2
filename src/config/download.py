"""One download from the hub: its progress, the check of what arrived, and what a failure means.

huggingface_hub transfers the files. What to fetch is decided in fetch.py.
"""

from __future__ import annotations

import errno
import hashlib
import io
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..installation import install_command
from .errors import ModelFilesError

OnProgress = Callable[[str], None]
_BAR_WIDTH = 20
_HTTP_LIBRARIES = ("httpx", "httpx2", "requests")  # of the releases of huggingface_hub
_SHA1_LENGTH, _SHA256_LENGTH = 40, 64  # hexadecimal digits

logger = logging.getLogger(__name__)


def download(
    name: str,
    revision: str | None,
    cache: str | None,
    allowed: Sequence[str],
    ignored: Sequence[str],
    token: str | bool | None,
    on_progress: OnProgress | None = None,
) -> None:
    """The files of a repository that match `allowed` and not `ignored`, into the hub's cache, with correct hashes.

    Files that are there already are not transferred again, and a file whose connection broke is continued. A file that
    differs from its hash is removed and fetched once more.

    Args:
        cache: directory; None is the hub's own.
        token: True is the token of the hub's login.
        on_progress: called with a line about the transfer; None shows the bars of huggingface_hub.

    Raises ModelFilesError (M308) with the reason.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelFilesError(
            f"{name}: not on this machine, and huggingface_hub is not installed; {install_command('engine')}",
            code="M308",
        ) from None
    shown = {} if on_progress is None else {"tqdm_class": _bar(on_progress)}

    def fetch() -> list[Path]:
        """The files that differ from their hashes, which are removed."""
        try:
            folder = snapshot_download(
                name,
                revision=revision,
                cache_dir=cache,
                allow_patterns=list(allowed),
                ignore_patterns=list(ignored),
                token=token,
                **shown,
            )
            return _remove_damaged(Path(folder), allowed, ignored, on_progress)
        except Exception as error:  # of the hub client, the HTTP library or the disk: they differ between releases
            raise ModelFilesError(
                f"{name}: cannot be downloaded: {_reason(error, revision, cache)}", code="M308"
            ) from error

    if damaged := fetch():
        logger.warning("%s: %s differs from its hash; fetching it again", name, ", ".join(map(str, damaged)))
        if damaged := fetch():
            raise ModelFilesError(
                f"{name}: cannot be downloaded: {damaged[0]} differs from its hash, twice; it was removed. A proxy or "
                "a mirror may change files",
                code="M308",
            )


def _remove_damaged(
    folder: Path, allowed: Sequence[str], ignored: Sequence[str], on_progress: OnProgress | None
) -> list[Path]:
    """Files relative to the snapshot's directory whose bytes differ from their hash, which is the name of their blob.

    This includes earlier downloads, one of which may have ended between the transfer and this check.
    """
    from huggingface_hub.utils import filter_repo_objects

    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    chosen = filter_repo_objects(
        files, allow_patterns=list(allowed), ignore_patterns=list(ignored), key=lambda file: file.as_posix()
    )
    damaged = []
    for file in chosen:
        blob = (folder / file).resolve()
        if blob.parent.name != "blobs":  # a file system without links: the copy does not name its hash
            continue
        if on_progress is not None:
            on_progress(f"checking {file}")
        if not _has_hash(blob, blob.name):
            (folder / file).unlink()
            blob.unlink()
            damaged.append(file)
    return damaged


def _has_hash(path: Path, expected: str) -> bool:
    """Whether the content has the hash that the hub gave. True for names that are not hashes of a known kind.

    64 digits are SHA-256, of large files; 40 digits are SHA-1, of Git's blob with its header or, on mirrors, of only
    the content.
    """
    if len(expected) not in (_SHA1_LENGTH, _SHA256_LENGTH) or set(expected) - set("0123456789abcdef"):
        return True
    with path.open("rb") as stream:
        if len(expected) == _SHA256_LENGTH:
            return hashlib.file_digest(stream, "sha256").hexdigest() == expected
        header = b"blob %d\0" % path.stat().st_size
        if hashlib.file_digest(stream, lambda: hashlib.sha1(header)).hexdigest() == expected:
            return True
        stream.seek(0)
        return hashlib.file_digest(stream, "sha1").hexdigest() == expected


def _bar(on_progress: OnProgress) -> type:
    """A class of bars for huggingface_hub: the one that counts written bytes calls `on_progress`."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            name = str(options.get("name"))
            self._counts_bytes = options.get("unit") == "B" and not name.endswith(".transfer")
            # Without a terminal it would switch itself off and stop counting; the newline at its end must go nowhere.
            super().__init__(*arguments, **{**options, "disable": False, "file": io.StringIO()})

        def display(self, *_: Any, **__: Any) -> None:
            if self._counts_bytes and self.total:
                on_progress(progress_text(int(self.n), int(self.total), self.format_dict["rate"]))

    return Bar


def progress_text(num_bytes: int, total_bytes: int, bytes_per_s: float | None) -> str:
    """`━━━━────  42 %, 1.30 of 3.10 GB, 45.0 MB/s, 0:40 left`; without a rate, neither it nor the time."""
    part = min(num_bytes / total_bytes, 1.0)
    filled = int(part * _BAR_WIDTH)
    text = (
        f"{'━' * filled}{'─' * (_BAR_WIDTH - filled)} {part:4.0%}, {num_bytes / 1e9:.2f} of {total_bytes / 1e9:.2f} GB"
    )
    if not bytes_per_s:
        return text
    minutes, seconds = divmod(round(max(total_bytes - num_bytes, 0) / bytes_per_s), 60)
    return f"{text}, {bytes_per_s / 1e6:.1f} MB/s, {minutes}:{seconds:02} left"


def _reason(error: Exception, revision: str | None, cache: str | None) -> str:
    """What failed, in words, and the next step."""
    from huggingface_hub import constants, errors

    # "Neither the hub nor the cache has it" hides why the hub did not answer.
    cause: BaseException = (error.__cause__ or error) if isinstance(error, errors.LocalEntryNotFoundError) else error
    lines = str(cause).strip().splitlines()
    first = lines[0] if lines else type(cause).__name__
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if isinstance(cause, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set, and not all files are on this machine"
    if isinstance(cause, errors.LocalTokenNotFoundError):
        return "`model.hf_token` is true, but there is no login; run `hf auth login`"
    if isinstance(cause, errors.GatedRepoError):
        return "the model is gated; accept its terms on its page of the hub, and give that user's `model.hf_token`"
    if isinstance(cause, errors.RevisionNotFoundError):
        return f"the repository has no revision {revision or 'main'}"
    if isinstance(cause, errors.RepositoryNotFoundError):
        return "the hub has no such repository, or it is private; check the name and `model.hf_token`"
    if status in (401, 403):
        return f"the hub refused access (HTTP {status}); check `model.hf_token` and what it may read"
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"no space left in {cache or constants.HF_HUB_CACHE}; `load.download_dir` may be on another disk. Complete "
            "files are kept"
        )
    if status is None and (
        isinstance(cause, ConnectionError) or type(cause).__module__.split(".")[0] in _HTTP_LIBRARIES
    ):
        return f"{constants.ENDPOINT} cannot be reached: {first}"
    return first
