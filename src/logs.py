"""Log lines of server and engine process, on standard error: for people, or one JSON object per line for a collector.

A record may have `fields` (a flat dict of plain values); both formats show them. Records contain prompts and answers
only if `server.enable_log_requests` and `enable_log_outputs` are set.
"""

from __future__ import annotations

import json
import logging
import logging.config
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, TextIO

from .input_file import read_file

ROOT = __package__  # the parent of all our loggers
HTTP_LOGGER = f"{ROOT}.server.http"  # connections and TLS
ACCESS_LOGGER = f"{HTTP_LOGGER}.access"  # one record for each finished request
TRACE = 5
REQUEST: ContextVar[str | None] = ContextVar("request", default=None)  # id of the HTTP request that is being served
_of_the_process: dict[str, Any] = {}
_MAX_CONFIG_BYTES = 1 << 20
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
logging.addLevelName(TRACE, "TRACE")


class LogSettings(Protocol):
    """The options of a deployment that configure logging."""

    @property
    def log_level(self) -> str: ...
    @property
    def log_format(self) -> str: ...
    @property
    def http_log_level(self) -> str: ...
    @property
    def log_config_file(self) -> str | None: ...


class LoggingProblem(Exception):
    """A logging file that cannot be used."""


def configure_logging(settings: LogSettings) -> None:
    """Configure logging for a deployment. Raises LoggingProblem."""
    if settings.log_config_file is not None:
        set_up_from_file(settings.log_config_file)
    else:
        set_up_logging(settings.log_level, settings.log_format, http_level=settings.http_log_level)


def set_up_from_file(path: str) -> None:
    """Apply a JSON file for `logging.config.dictConfig`. Raises LoggingProblem."""
    try:
        content = json.loads(read_file(path, _MAX_CONFIG_BYTES))
        # The default True would disable every existing logger that is not in the file.
        logging.config.dictConfig({"disable_existing_loggers": False, **content})
    except Exception as error:  # handlers and formatters may be foreign code
        cause = f": {error.__cause__}" if error.__cause__ else ""
        raise LoggingProblem(f"`server.log_config_file`: {path}: {error}{cause}") from None


def set_up_logging(
    level: str = "info", form: str = "human", stream: TextIO | None = None, *, http_level: str | None = None
) -> None:
    """Send the records of this package, and of libraries (warnings; at `debug` all) to `stream` (standard error).

    level: debug, info, warning or error. form: human or json. http_level: of HTTP_LOGGER; `level` if None.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else HumanFormatter())
    for name, least in ((ROOT, level.upper()), ("", "DEBUG" if level == "debug" else "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(least)
    logging.getLogger(ROOT).propagate = False
    logging.getLogger(HTTP_LOGGER).setLevel((http_level or level).upper())


def name_process(number: int) -> None:
    """Write a number in every line of this process: several write to the same standard error."""
    _of_the_process["process"] = number


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Fields of the record and of the process, with the id of the request during which the record was made."""
    fields: dict[str, Any] = {**getattr(record, "fields", {}), **_of_the_process}
    request = REQUEST.get()
    return fields if request is None or "id" in fields else {"id": request, **fields}


def log_fields(logger: logging.Logger, level: int, message: str, fields: Mapping[str, Any]) -> None:
    logger.log(level, message, extra={"fields": dict(fields)})


class RareLogger:
    """Log lines that another program can cause: one in each interval, with the number of lines that were left out.

    Any thread may log. `count` is the number of lines so far, with those that were left out.
    """

    def __init__(
        self, logger: logging.Logger, interval_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger, self._interval_s, self._clock = logger, interval_s, clock
        self._next_at = -math.inf
        self._num_omitted = 0
        self._lock = threading.Lock()
        self.count = 0

    def log(self, level: int, message: str, *args: object) -> None:
        with self._lock:
            self.count += 1
            now = self._clock()
            if now < self._next_at:
                self._num_omitted += 1
                return
            self._next_at = now + self._interval_s
            num_omitted, self._num_omitted = self._num_omitted, 0
        if num_omitted:
            message, args = f"{message} (%d similar lines before this one were omitted)", (*args, num_omitted)
        self._logger.log(level, message, *args)


class HumanFormatter(logging.Formatter):
    """`12:03:04 info server: message key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock} {record.levelname.lower()} {_area(record.name)}: {_one_line(record.getMessage())}"
        line += "".join(f" {key}={_show(value)}" for key, value in fields_of(record).items())
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
            **fields_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        text = json.dumps(line, ensure_ascii=False, default=str)
        return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)  # JSON does not escape these


def _area(name: str) -> str:
    """stoker.server.routes.chat -> server; other libraries by their name."""
    parts = name.split(".")
    return parts[1] if parts[0] == ROOT and len(parts) > 1 else parts[0]


def _one_line(text: str) -> str:
    """Escapes control characters: a client cannot start a new log line or control the reader's terminal."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def _show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = _one_line(str(value))
    return json.dumps(text, ensure_ascii=False) if " " in text or text == "" else text
