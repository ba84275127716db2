"""/v1/batches: create, list, show and cancel batches of requests (`server.files_dir`). files/runner.py runs them."""

from __future__ import annotations

import asyncio
from typing import Any

from ..endpoint import Call
from ..files.batches import MAX_UNFINISHED
from ..protocol.batches import CreateBatch, Page
from ..protocol.errors import ApiError, bad_request
from .files import PURPOSE, batches_of, quota_exceeded


async def create_batch(call: Call) -> None:
    body = await call.body(CreateBatch)
    batches, quota = batches_of(call), call.service.settings.files_quota

    def create() -> dict[str, Any]:
        if batches.files.get(body.input_file_id)["purpose"] != PURPOSE:
            raise bad_request(f"the file's purpose is not `{PURPOSE}`", param="input_file_id")
        if len(batches.unfinished()) >= MAX_UNFINISHED:
            message = f"this key has {MAX_UNFINISHED} batches that have not ended"
            raise ApiError(429, message, code="too_many_batches", kind="rate_limit_error")
        if (used := batches.num_bytes()) >= quota:
            raise quota_exceeded(f"{used} of {quota} bytes", param="input_file_id")
        return batches.create(body)

    await call.answer(await asyncio.to_thread(create))


async def list_batches(call: Call) -> None:
    page, batches = Page(call.scope["query_string"]), batches_of(call)

    def read() -> tuple[list[dict[str, Any]], bool]:
        ids = page.ids(batches.ids())
        return [batches.get(batch_id) for batch_id in ids[: page.limit]], len(ids) > page.limit

    objects, has_more = await asyncio.to_thread(read)
    await call.answer(page.answer(objects, has_more=has_more))


async def show_batch(call: Call) -> None:
    await call.answer(batches_of(call).get(call.scope["path_params"]["batch_id"]))


async def cancel_batch(call: Call) -> None:
    await call.answer(batches_of(call).cancel(call.scope["path_params"]["batch_id"]))
