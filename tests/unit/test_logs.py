from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.config.resolve.resolved import ResolvedServer
from stoker.logs import (
    ACCESS_LOGGER,
    HTTP_LOGGER,
    TRACE,
    LoggingProblem,
    RareLogger,
    configure_logging,
    log_fields,
    name_process,
    set_up_logging,
)


@pytest.fixture(autouse=True)
def restore_loggers() -> Iterator[None]:
    names = ("", "stoker", "stoker.server.http", "stoker.server.http.access")
    kept = [(logger, list(logger.handlers), logger.level) for logger in map(logging.getLogger, names)]
    propagates = logging.getLogger("stoker").propagate
    yield
    for logger, handlers, level in kept:
        for handler in set(logger.handlers).difference(handlers):
            handler.close()
        logger.handlers = handlers  # a list of its own: dictConfig empties the list that was there
        logger.setLevel(level)
    logging.getLogger("stoker").propagate = propagates


def written(level: str, form: str = "human") -> str:
    stream = io.StringIO()
    set_up_logging(level, form, stream)
    log_fields(logging.getLogger("stoker.server"), logging.INFO, "answered", {"status": 200})
    logging.getLogger("some.library").debug("a detail")
    logging.getLogger("some.library").warning("a warning")
    return stream.getvalue()


def test_each_level_omits_lower_levels():
    logged = {level: written(level) for level in ("debug", "info", "warning", "error")}
    assert "a detail" in logged["debug"]
    assert "answered" in logged["info"]
    assert "a detail" not in logged["info"]
    assert "answered" not in logged["warning"]
    assert "a warning" in logged["error"]


def test_json_lines_have_the_log_fields():
    line = json.loads(written("info", "json").splitlines()[0])
    assert (line["message"], line["status"], line["area"]) == ("answered", 200, "server")


def test_text_from_clients_cannot_start_a_line_or_send_terminal_codes():
    stream = io.StringIO()
    set_up_logging("info", "human", stream)
    log_fields(
        logging.getLogger("stoker.server"), logging.INFO, "a\x1b[2Jb\rc", {"prompt": "x\x1b]0;y\x07\n\u2028z\x9b"}
    )
    assert stream.getvalue().split(" server: ")[1] == r"a\x1b[2Jb\rc prompt=x\x1b]0;y\x07\n\u2028z\x9b" + "\n"


def test_a_json_line_is_one_line_for_every_reader():
    stream = io.StringIO()
    set_up_logging("info", "json", stream)
    log_fields(logging.getLogger("stoker.server"), logging.INFO, "m", {"prompt": "a\u2028b\x85c\x9bd\x7f"})
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    assert json.loads(line)["prompt"] == "a\u2028b\x85c\x9bd\x7f"


SETTINGS = {
    "log_format": "human",
    "http_log_level": "info",
    "max_incomplete_header_bytes": 1,
    "max_connections": 1,
    "max_connections_per_client": 1,
    "max_total_request_bytes": 1,
}


def logged(capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    """Standard error with these server options, after one record for each logger and level."""
    configure_logging(ResolvedServer(**{**SETTINGS, **options}))
    for name in ("stoker.engine", HTTP_LOGGER, ACCESS_LOGGER):
        for level in (TRACE, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
            logging.getLogger(name).log(level, f"<{name.rpartition('.')[2]} {logging.getLevelName(level).lower()}>")
    return capsys.readouterr().err


@pytest.mark.effect("server.log_level")
@pytest.mark.parametrize(("level", "least"), [("debug", "debug"), ("info", "info"), ("error", "error")])
def test_the_log_level_of_a_deployment_is_the_lowest_level_logged(
    capsys: pytest.CaptureFixture[str], level: str, least: str
):
    levels = ["trace", "debug", "info", "warning", "error", "critical"]
    text = logged(capsys, log_level=level)
    assert [word for word in levels if f"<engine {word}>" in text] == levels[levels.index(least) :]


@pytest.mark.effect("server.log_format")
def test_the_log_format_of_a_deployment_is_that_of_its_lines(capsys: pytest.CaptureFixture[str]):
    assert " info engine: <engine info>" in logged(capsys, log_format="human")
    assert {json.loads(line)["level"] for line in logged(capsys, log_format="json").splitlines()} >= {"info", "error"}


@pytest.mark.effect("server.http_log_level")
@pytest.mark.parametrize("level", ["trace", "debug", "info", "warning", "error", "critical"])
def test_http_has_a_separate_log_level(capsys: pytest.CaptureFixture[str], level: str):
    levels = ["trace", "debug", "info", "warning", "error", "critical"]
    text = logged(capsys, log_level="warning", http_log_level=level)
    for logger in ("http", "access"):
        assert [word for word in levels if f"<{logger} {word}>" in text] == levels[levels.index(level) :]
    assert "<engine info>" not in text
    assert "<engine warning>" in text


LOGGING = {
    "version": 1,
    "formatters": {"ours": {"()": "stoker.logs.JsonFormatter"}},
    "handlers": {"file": {"class": "logging.FileHandler", "formatter": "ours", "delay": True}},
    "loggers": {
        "stoker": {"level": "WARNING", "handlers": ["file"], "propagate": False},
        "stoker.server.http": {"level": "DEBUG"},
    },
}


def logging_file(folder: Path, log: Path) -> str:
    content = json.loads(json.dumps(LOGGING))
    content["handlers"]["file"]["filename"] = str(log)
    path = folder / "logging.json"
    path.write_text(json.dumps(content))
    return str(path)


@pytest.mark.effect("server.log_config_file")
def test_a_logging_file_replaces_the_built_in_set_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    log = tmp_path / "all.log"
    assert logged(capsys, log_config_file=logging_file(tmp_path, log), log_level="error") == ""
    written = [json.loads(line)["message"] for line in log.read_text().splitlines()]
    assert "<engine warning>" in written
    assert "<engine info>" not in written
    assert "<http debug>" in written
    assert "<access debug>" in written  # the logger existed before and is not in the file


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{}", "version"),
        ('{"version": 1, "handlers": {"x": {"class": "no.such.Handler"}}}', "no.such"),
        ('{"version": 1, "loggers": {"stoker": {"level": "LOUD"}}}', "LOUD"),
        ("[]", "mapping"),
        ("{", "line 1 column 2"),
    ],
)
def test_a_logging_file_that_cannot_be_used_is_reported_with_the_reason(tmp_path: Path, content: str, reason: str):
    path = tmp_path / "logging.json"
    path.write_text(content)
    with pytest.raises(LoggingProblem) as caught:
        configure_logging(ResolvedServer(**SETTINGS, log_config_file=str(path)))
    assert str(caught.value).startswith(f"`server.log_config_file`: {path}: ")
    assert reason in str(caught.value)


def test_lines_of_one_of_several_processes_have_its_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stoker.logs._of_the_process", {})
    name_process(1)
    assert "answered status=200 process=1" in written("info")
    assert json.loads(written("info", "json").splitlines()[0])["process"] == 1


def test_lines_that_others_can_cause_are_rare_and_counted(caplog: pytest.LogCaptureFixture):
    """20,000 wrong requests wrote 20,000 lines."""
    now = 0.0
    rare = RareLogger(logging.getLogger("rare"), 60.0, lambda: now)
    for at in (0.0, 1.0, 59.9, 60.0, 60.1, 200.0, 300.0):
        now = at
        rare.log(logging.WARNING, "a wrong request from %s", "x")
    wrong = "a wrong request from x"
    assert [record.getMessage() for record in caplog.records] == [
        wrong,
        f"{wrong} (2 similar lines before this one were omitted)",
        f"{wrong} (1 similar lines before this one were omitted)",
        wrong,
    ]
    assert rare.count == 7
