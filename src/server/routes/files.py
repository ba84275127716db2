"""/v1/files: upload, list, show, read and delete files (`server.files_dir`)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...input_file import open_file
from ..endpoint import Call
from ..files.batches import Batches
from ..files.store import MAX_FILES, Files
from ..files.upload import Upload
from ..protocol.batches import Page
from ..protocol.errors import ApiError, bad_request, closing, unsupported

_PIECE_BYTES = 256 << 10
FORM_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
_MIN_EXPIRY_S = 3600
PURPOSE = "batch"


def files_of(call: Call) -> Files:
    return Files(root_of(call), call.owner)


def batches_of(call: Call) -> Batches:
    return Batches(root_of(call), call.owner)


def root_of(call: Call) -> Path:
    folder = call.service.settings.files_dir
    assert folder is not None  # else the routes are absent
    return Path(folder)


async def upload_file(call: Call) -> None:
    service, files, batches = call.service, files_of(call), batches_of(call)
    quota = service.settings.files_quota
    used, count = await asyncio.to_thread(lambda: (batches.num_bytes(), len(files.ids())))
    if used >= quota or count >= MAX_FILES:
        what = f"{count} files" if count >= MAX_FILES else f"{used} of {quota} bytes"
        raise quota_exceeded(what)
    with _disk(), files.writing() as writing:

        async def check() -> None:
            # other uploads of this key write at the same time; each of them counts what is on disk before it is added
            if (stored := await asyncio.to_thread(batches.num_bytes)) > quota:
                raise closing(quota_exceeded(f"{stored} of {quota} bytes, with uploads that are running,"))

        upload = Upload(writing, quota - used, check)
        await upload.read(call.scope, call.receive, idle_timeout_s=service.limits.body_idle_timeout)
        if upload.file_name is None:
            raise bad_request("the form has no `file`", code="missing_required_parameter", param="file")
        expires_after = _expiry(upload.fields, service.settings.files_ttl)
        now = int(service.wall_clock())
        add = functools.partial(files.add, writing, upload.file_name, PURPOSE, expires_at=now + int(expires_after))
        record = await asyncio.to_thread(add)
    await call.answer(record)


def quota_exceeded(what: str, param: str = "file") -> ApiError:
    message = f"this key has {what} (`server.files_quota`): delete some"
    return ApiError(413, message, code="quota_exceeded", param=param)


@contextlib.contextmanager
def _disk() -> Iterator[None]:
    """Raises ApiError 507 for a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        message = "the disk of the server is full"
        raise closing(ApiError(507, message, code="disk_full", kind="server_error")) from None


def _expiry(fields: dict[str, str], ttl: float) -> float:
    """Seconds until the file expires. Raises ApiError for a form that asks for something else than is done."""
    for name in fields:
        if name not in FORM_FIELDS:
            raise bad_request(f"unknown field `{name[:100]}`", code="unknown_parameter", param=name[:100])
    purpose = fields.get("purpose")
    if purpose is None:
        raise bad_request("the form has no `purpose`", code="missing_required_parameter", param="purpose")
    if purpose != PURPOSE:
        raise unsupported("purpose", f" as {purpose[:40]!r}: files are the input of batches, `{PURPOSE}`")
    if fields.get("expires_after[anchor]", "created_at") != "created_at":
        raise bad_request("must be created_at", param="expires_after[anchor]")
    seconds = fields.get("expires_after[seconds]")
    if seconds is None:
        return ttl
    if not seconds.isascii() or not seconds.isdigit() or len(seconds) > 12 or int(seconds) < _MIN_EXPIRY_S:
        raise bad_request(f"must be a number from {_MIN_EXPIRY_S}", param="expires_after[seconds]")
    return min(ttl, int(seconds))


async def list_files(call: Call) -> None:
    page, files = Page(call.scope["query_string"], known=("purpose",)), files_of(call)
    purpose = page.values.get("purpose")

    def read() -> tuple[list[dict[str, Any]], bool]:
        found: list[dict[str, Any]] = []
        for file_id in page.ids(files.ids()):
            try:
                record = files.get(file_id)
            except ApiError:  # deleted meanwhile, or expired
                continue
            if purpose is None or record["purpose"] == purpose:
                found.append(record)
            if len(found) > page.limit:
                return found[:-1], True
        return found, False

    objects, has_more = await asyncio.to_thread(read)
    await call.answer(page.answer(objects, has_more=has_more))


async def show_file(call: Call) -> None:
    await call.answer(files_of(call).get(call.scope["path_params"]["file_id"]))


async def file_content(call: Call) -> None:
    path = files_of(call).path(call.scope["path_params"]["file_id"])
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size

        def read() -> bytes:
            return file.read(_PIECE_BYTES) or b""

        await call.answer_pieces(read, size, content_type="application/octet-stream")


async def delete_file(call: Call) -> None:
    file_id = call.scope["path_params"]["file_id"]
    files, batches = files_of(call), batches_of(call)
    files.get(file_id)
    for batch in await asyncio.to_thread(batches.unfinished):
        if batch["input_file_id"] == file_id:
            message = f"the batch {batch['id']} reads this file: cancel it first"
            raise ApiError(409, message, code="file_in_use", param="file_id")
    await asyncio.to_thread(files.delete, file_id)
    await call.answer({"id": file_id, "object": "file", "deleted": True})
