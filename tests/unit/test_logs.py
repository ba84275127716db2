from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from stoker.logs import log_facts, set_up_logging


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    kept = [(logger, logger.handlers, logger.level) for logger in map(logging.getLogger, ("", "stoker"))]
    propagates = logging.getLogger("stoker").propagate
    yield
    for logger, handlers, level in kept:
        logger.handlers = handlers
        logger.setLevel(level)
    logging.getLogger("stoker").propagate = propagates


def written(level: str, form: str = "human") -> str:
    stream = io.StringIO()
    set_up_logging(level, form, stream)
    log_facts(logging.getLogger("stoker.server"), logging.INFO, "answered", {"status": 200})
    logging.getLogger("some.library").debug("a detail")
    logging.getLogger("some.library").warning("a warning")
    return stream.getvalue()


def test_each_level_leaves_out_what_is_below_it():
    said = {level: written(level) for level in ("debug", "info", "warning", "error")}
    assert "a detail" in said["debug"]
    assert "answered" in said["info"]
    assert "a detail" not in said["info"]
    assert "answered" not in said["warning"]
    assert "a warning" in said["error"]


def test_json_lines_carry_the_facts_as_fields():
    line = json.loads(written("info", "json").splitlines()[0])
    assert (line["message"], line["status"], line["area"]) == ("answered", 200, "server")
