"""Section `server`: the HTTP API in front of the engine. Its options are declared by subject."""

from __future__ import annotations

from typing import ClassVar

from ..refused import with_refused
from ..section import Reload
from .access import OPEN_ROUTES, AccessOptions
from .answers import AnswerOptions
from .connections import ConnectionOptions
from .logs import LogOptions
from .process import ProcessOptions
from .routes import RouteOptions

__all__ = ["OPEN_ROUTES", "ServerConfig"]


# pydantic lists the options of the last base first
@with_refused("server")
class ServerConfig(LogOptions, RouteOptions, AnswerOptions, ProcessOptions, AccessOptions, ConnectionOptions):
    """The OpenAI-compatible API in front of the engine."""

    reload: ClassVar[Reload] = "process"
