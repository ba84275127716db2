"""Checks before the server runs, and the statistics it logs."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.engine.client.engine_client import EngineState
from stoker.logs import HumanFormatter, JsonFormatter, log_fields
from stoker.server import run as server_run
from stoker.server.http import serve as http
from stoker.server.run import STATS_INTERVAL_S, load_text, log_stats
from stoker.text.renderer import TemplateProblem
from stoker.text.tokenizer import Tokenizer

from .. import virtual_time
from ..fakes import FakeEngine
from ..tiny_tokenizer import write_tokenizer
from ..virtual_time import now
from .deployment import MODEL, PROCESSES, Served, on_a_socket, resolved


def test_a_template_that_cannot_render_a_simple_message_is_a_warning_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    load_text(resolved(write_tokenizer(tmp_path, template="{{ raise_exception('never') }}")), PROCESSES)
    file = tmp_path / "tokenizer_config.json"
    assert f"no chat request will succeed: {file}: the chat template refused the messages: never" in caplog.text


@pytest.mark.effect("model.tokenizer_mode", "model.tokenizer")
@pytest.mark.slow
def test_the_mode_selects_the_files_that_are_read(tmp_path: Path):
    """vocab.json has another vocabulary than tokenizer.json; only transformers applies add_prefix_space."""
    end = "<|endoftext|>"
    folder = write_tokenizer(tmp_path, tokenizer_class="GPT2Tokenizer", bos_token=end, unk_token=end,
                             add_prefix_space=True)  # fmt: skip
    (folder / "vocab.json").write_text(json.dumps({end: 0, "\u0120": 1, "x": 2, "y": 3}))
    (folder / "merges.txt").write_text("")

    def encoded(mode: str) -> list[int]:
        tokenizer = load_text(resolved(folder, model={"tokenizer_mode": mode}), PROCESSES).tokenizer
        assert tokenizer is not None
        return tokenizer.encode("xy", add_special_tokens=False)

    plain = Tokenizer.load(folder).encode("xy", add_special_tokens=False)
    assert encoded("auto") == plain
    assert encoded("hf") == Tokenizer.load(folder).encode(" xy", add_special_tokens=False) != plain
    assert encoded("slow") == [1, 2, 3]
    (folder / "tokenizer.json").unlink()
    assert encoded("auto") == [1, 2, 3]


@pytest.mark.effect("server.chat_template")
@pytest.mark.parametrize("text", ["{{ 'mine' }}", "mine", "tests", ""])
def test_a_template_of_the_deployment_overrides_that_of_the_model(folder: Path, text: str):
    """One without variables was taken for a file name, and an empty one for none."""
    renderer = load_text(resolved(folder, chat_template=text), PROCESSES).renderer
    assert renderer is not None
    assert renderer.render([{"role": "user", "content": "x"}]) == ("mine" if "mine" in text else text)


@pytest.mark.effect("server.default_chat_template_kwargs")
def test_the_deployment_sets_variables_of_the_template_and_a_request_replaces_them(folder: Path):
    served = Served(folder, default_chat_template_kwargs={"enable_thinking": False})

    def prompt(**fields: object) -> str:
        served.chat(max_tokens=1, **fields)
        return served.service.need_tokenizer().decode(served.engine.requests[-1].inputs.prompt_token_ids)

    assert "<think></think>" in prompt()
    assert "<think></think>" not in prompt(chat_template_kwargs={"enable_thinking": True})
    assert "<think></think>" in prompt(chat_template_kwargs={})


def test_a_variable_that_no_template_uses_is_a_warning_at_the_start(folder: Path, caplog: pytest.LogCaptureFixture):
    load_text(
        resolved(folder, default_chat_template_kwargs={"enable_thinking": False, "enable_thinkin": True}), PROCESSES
    )
    assert "the chat template does not use `enable_thinkin`" in caplog.text
    caplog.clear()
    load_text(resolved(folder, default_chat_template_kwargs={"enable_thinking": False}), PROCESSES)
    assert caplog.text == ""


def test_a_variable_that_the_server_sets_ends_the_start(folder: Path):
    with pytest.raises(TemplateProblem, match="cannot set `messages`"):
        load_text(resolved(folder, default_chat_template_kwargs={"messages": []}), PROCESSES)


def test_a_template_with_a_syntax_error_ends_the_start(tmp_path: Path):
    with pytest.raises(TemplateProblem):
        load_text(resolved(write_tokenizer(tmp_path, template="{% if %}")), PROCESSES)


@pytest.mark.effect("server.disable_log_stats")
@pytest.mark.parametrize("disabled", [False, True])
def test_statistics_are_logged_unless_disabled(folder: Path, disabled: bool):
    async def serve() -> bool:
        async with on_a_socket(folder, FakeEngine(), disable_log_stats=disabled):
            return any(task.get_coro().__qualname__ == "log_stats" for task in asyncio.all_tasks())

    assert asyncio.run(serve()) is not disabled


def test_statistics_are_one_line_for_each_interval_with_work(folder: Path, caplog: pytest.LogCaptureFixture):
    """Also if the last tokens are counted when the engine is idle again and has taken no further step."""
    caplog.set_level(logging.INFO)
    body = {"model": MODEL, "prompt": "x", "max_tokens": 20, "ignore_eos": True}

    async def one_token_each_second() -> None:
        await asyncio.sleep(1)  # virtual

    async def main() -> None:
        served = Served(folder, FakeEngine(pace=one_token_each_second))
        logging_task = asyncio.ensure_future(log_stats(served.service))
        await asyncio.sleep(0)  # its first interval begins now
        async with served.client() as client:
            await asyncio.sleep(5)
            assert (await client.post("/v1/completions", json=body)).status_code == 200
            assert now() == 25
            await asyncio.sleep(5 * STATS_INTERVAL_S)
        logging_task.cancel()

    virtual_time.run(main())
    lines = engine_lines(caplog)
    # 20 tokens at 6 s, 7 s, ... 25 s; lines at 10 s, 20 s and 30 s, then none. The token at 10 s or 20 s may be
    # counted before or after the line of that time.
    assert len(lines) == 3
    assert sum(line["generated_tokens_per_s"] for line in lines) == pytest.approx(20 / STATS_INTERVAL_S)
    assert [line["running"] for line in lines] == [1, 1, 0]


def engine_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, float]]:
    return [record.fields for record in caplog.records if record.getMessage() == "engine"]


@pytest.mark.parametrize("formatter", [HumanFormatter(), JsonFormatter()])
def test_a_log_record_is_one_line_whatever_its_fields_contain(formatter: logging.Formatter):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.Logger("stoker.server.app")
    logger.addHandler(handler)
    log_fields(logger, logging.INFO, "a\nb", {"path": "x\r\ny z", "total_s": 0.25})
    assert stream.getvalue().count("\n") == 1
    if isinstance(formatter, JsonFormatter):
        line = json.loads(stream.getvalue())
        assert (line["area"], line["level"], line["path"], line["total_s"]) == ("server", "info", "x\r\ny z", 0.25)
    else:
        assert 'info server: a\\nb path="x\\\\r\\\\ny z" total_s=0.250\n' in stream.getvalue()


@pytest.mark.parametrize("dies", [False, True])
def test_an_engine_that_is_closed_after_the_service_has_not_died(
    folder: Path, dies: bool, monkeypatch: pytest.MonkeyPatch
):
    """A process that was forced to exit while it closed the engine had the exit code of one whose engine has died."""
    codes: list[Callable[[], int]] = []

    async def serve(*args: Any, exit_code: Callable[[], int], **more: Any) -> None:
        codes.append(exit_code)
        await http.serve(*args, exit_code=exit_code, **more)

    async def run() -> None:
        async with on_a_socket(folder, engine):
            if dies:
                engine.state = EngineState.DEAD
        engine.state = EngineState.DEAD

    engine = FakeEngine()
    monkeypatch.setattr(server_run, "serve", serve)
    asyncio.run(run())
    assert [code() for code in codes] == [int(dies)]
