"""Log lines of server and engine process, on standard error: for a reader, or one JSON object per line for a collector.

A record may carry `facts` (a flat dict of plain values); both forms show them. Prompts and answers are never logged.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

ROOT = __package__  # the parent of all our loggers


def set_up_logging(level: str = "info", form: str = "human", stream: TextIO | None = None) -> None:
    """Send this package's records, and warnings of libraries - at `debug` all they say - to `stream` (standard error).

    level: debug, info, warning or error. form: human or json.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else HumanFormatter())
    for name, least in ((ROOT, level.upper()), ("", "DEBUG" if level == "debug" else "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(least)
    logging.getLogger(ROOT).propagate = False


def log_facts(logger: logging.Logger, level: int, message: str, facts: Mapping[str, Any]) -> None:
    logger.log(level, message, extra={"facts": dict(facts)})


class HumanFormatter(logging.Formatter):
    """`12:03:04 info server: message key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock} {record.levelname.lower()} {_area(record.name)}: {_one_line(record.getMessage())}"
        facts = getattr(record, "facts", {})
        line += "".join(f" {key}={_show(value)}" for key, value in facts.items())
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "area": _area(record.name),
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _area(name: str) -> str:
    """stoker.server.routes.chat -> server; other libraries by their own name."""
    parts = name.split(".")
    return parts[1] if parts[0] == ROOT and len(parts) > 1 else parts[0]


def _one_line(text: str) -> str:
    """Nothing a client sends may start a line of its own in the log."""
    return text.replace("\r", "\\r").replace("\n", "\\n")


def _show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = _one_line(str(value))
    return json.dumps(text, ensure_ascii=False) if " " in text or text == "" else text
