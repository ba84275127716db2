"""What a running server says of itself, and what it finds out before it runs."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from pathlib import Path

import httpx
import pytest

from stoker.logs import HumanFormatter, JsonFormatter, log_facts
from stoker.server import run
from stoker.server.run import load_text
from stoker.server.text.renderer import TemplateProblem

from ..fakes import FakeEngine
from .deployment import MODEL, on_a_socket, resolved
from .tiny_tokenizer import write_tokenizer


def test_a_template_that_cannot_greet_is_warned_about_at_start(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    load_text(resolved(write_tokenizer(tmp_path, template="{{ raise_exception('never') }}")))
    assert "no chat request will succeed: the chat template refused the messages: never" in caplog.text


@pytest.mark.effect("server.chat_template")
def test_a_template_of_the_deployment_goes_before_the_models(folder: Path, tmp_path: Path):
    """Written into the manifest, or read from a file that it names."""
    file = tmp_path / "mine.jinja"
    file.write_text("{{ 'mine' }}")
    for settings in (resolved(folder, chat_template="{{ 'mine' }}"), resolved(folder, server_template=str(file))):
        _, renderer = load_text(settings)
        assert renderer is not None
        assert renderer.render([{"role": "user", "content": "x"}]) == "mine"


def test_a_template_with_a_mistake_stops_the_start(tmp_path: Path):
    with pytest.raises(TemplateProblem):
        load_text(resolved(write_tokenizer(tmp_path, template="{% if %}")))


@pytest.mark.effect("server.disable_log_stats")
@pytest.mark.parametrize("disabled", [False, True])
def test_the_engines_numbers_are_logged_while_it_works(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, disabled: bool
):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(run, "STATS_INTERVAL_S", 0.02)

    async def serve() -> int:
        async with (
            on_a_socket(folder, FakeEngine(), disable_log_stats=disabled) as (port, _),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
        ):
            await client.post("/v1/completions", json={"model": MODEL, "prompt": "x", "ignore_eos": True})
            while_it_worked = len(engine_lines(caplog))
            await asyncio.sleep(0.1)
            return while_it_worked

    while_it_worked = asyncio.run(serve())
    lines = engine_lines(caplog)
    assert bool(lines) != disabled
    if lines:
        assert sum(line["generated_tokens_per_s"] for line in lines) > 0
        assert len(lines) <= while_it_worked + 1  # idle intervals are silent


def test_tokens_counted_after_the_last_step_are_logged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The engine is idle again, and took no further step, when the tokens of its last steps are counted."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(run, "STATS_INTERVAL_S", 0.02)

    async def serve() -> None:
        async def until_a_line() -> None:
            while not engine_lines(caplog):
                await asyncio.sleep(0)

        async with (
            on_a_socket(folder, FakeEngine(pace=until_a_line)) as (port, _),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
        ):
            await client.post("/v1/completions", json={"model": MODEL, "prompt": "x", "ignore_eos": True})
            await asyncio.sleep(0.1)

    asyncio.run(serve())
    first, *rest = engine_lines(caplog)
    assert first["generated_tokens_per_s"] == 0
    assert sum(line["generated_tokens_per_s"] for line in rest) > 0


def engine_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, float]]:
    return [record.facts for record in caplog.records if record.getMessage() == "engine"]


@pytest.mark.parametrize("formatter", [HumanFormatter(), JsonFormatter()])
def test_a_log_record_is_one_line_whatever_is_in_it(formatter: logging.Formatter):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.Logger("stoker.server.app")
    logger.addHandler(handler)
    log_facts(logger, logging.INFO, "a\nb", {"path": "x\r\ny z", "total_s": 0.25})
    assert stream.getvalue().count("\n") == 1
    if isinstance(formatter, JsonFormatter):
        line = json.loads(stream.getvalue())
        assert (line["area"], line["level"], line["path"], line["total_s"]) == ("server", "info", "x\r\ny z", 0.25)
    else:
        assert 'info server: a\\nb path="x\\\\r\\\\ny z" total_s=0.250\n' in stream.getvalue()
