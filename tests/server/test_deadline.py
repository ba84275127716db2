"""The time limit of a request, by a virtual clock."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from .. import virtual_time
from ..fakes import FakeEngine
from ..virtual_time import now
from .deployment import MODEL, Served

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 100, "ignore_eos": True}


def ask(
    folder: Path, body: dict[str, Any], headers: dict[str, str], **options: Any
) -> tuple[int, str, float, FakeEngine]:
    """(status, body, time of the end, engine) of a request whose every token takes a second."""
    engine = FakeEngine(pace=lambda: asyncio.sleep(1))

    async def run() -> tuple[int, str, float]:
        served = Served(folder, engine, **options)
        served.service.clock = now
        async with served.client() as client:
            response = await client.post("/v1/chat/completions", json={**BODY, **body}, headers=headers)
            return response.status_code, response.text, now()

    return (*virtual_time.run(run()), engine)


@pytest.mark.effect("server.request_timeout")
@pytest.mark.parametrize(
    ("option", "headers", "body", "limit_s"),
    [
        ("10s", {}, {}, 10),
        ("10s", {"x-request-timeout": "20.5"}, {}, 20.5),
        ("10s", {}, {"timeout": 30}, 30),
        (0, {"x-request-timeout": "20"}, {"timeout": 7}, 7),
    ],
)
def test_a_request_over_its_time_is_aborted_and_answered_504(
    folder: Path, option: Any, headers: dict[str, str], body: dict[str, Any], limit_s: float
):
    status, text, ended_at, engine = ask(folder, body, headers, request_timeout=option)
    assert (status, ended_at) == (504, limit_s)
    assert '"code":"deadline_exceeded"' in text
    assert f"{limit_s:g} s" in text
    assert len(engine.aborted) == 1
    assert engine.open_requests == []


def test_a_stream_over_its_time_ends_with_an_error_event(folder: Path):
    status, text, ended_at, engine = ask(folder, {"stream": True, "timeout": 10.5}, {})
    assert (status, ended_at) == (200, 10.5)
    assert '"code":"deadline_exceeded"' in text.split("\n\n")[-2]
    assert "[DONE]" not in text
    assert len(engine.aborted) == 1


def test_a_request_within_its_time_is_not_affected(folder: Path):
    status, text, ended_at, _ = ask(folder, {"max_tokens": 9}, {"x-request-timeout": "10"})
    assert (status, ended_at) == (200, 9)
    assert '"finish_reason":"length"' in text


@pytest.mark.parametrize("value", ["", "soon", "0", "-1", "nan", "inf", "1e9"])
def test_a_header_that_is_not_a_time_is_refused(folder: Path, value: str):
    status, text, _, engine = ask(folder, {}, {"x-request-timeout": value})
    assert (status, engine.requests) == (400, [])
    assert "X-Request-Timeout" in text
