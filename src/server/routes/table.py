"""All routes: what each takes, which function answers it, and which option has to be on for it to exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ...config.schema.server import ServerConfig
from ..endpoint import Call
from ..protocol.chat import ChatRequest
from ..protocol.completions import CompletionRequest
from ..protocol.fields import Wire
from ..protocol.tokenize import DetokenizeRequest, TokenizeRequest
from .chat import chat_completions
from .completions import completions
from .config import config
from .docs import Docs
from .health import livez, readyz
from .metrics import load, metrics, version
from .models import list_models, show_model
from .tokenize import detokenize, tokenize, tokenizer_info


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """summary: for the API's description. body: of a POST. answer: its type of content."""

    method: str
    path: str
    handle: Callable[[Call], Awaitable[None]]
    summary: str
    body: type[Wire] | None = None
    answer: str = "application/json"


_ALWAYS = (
    RouteEntry("POST", "/v1/chat/completions", chat_completions, "Answer a chat, whole or as a stream.", ChatRequest),
    RouteEntry("POST", "/v1/completions", completions, "Continue prompts, whole or as a stream.", CompletionRequest),
    RouteEntry("GET", "/v1/models", list_models, "The names served."),
    RouteEntry("GET", "/v1/models/{model:path}", show_model, "One of them: context and sampling defaults."),
    RouteEntry("POST", "/tokenize", tokenize, "A prompt, or messages, as token ids.", TokenizeRequest),
    RouteEntry("POST", "/detokenize", detokenize, "Token ids as text.", DetokenizeRequest),
    RouteEntry("GET", "/metrics", metrics, "Metrics in Prometheus' text format.", answer="text/plain"),
    RouteEntry("GET", "/version", version, "The server's version."),
    RouteEntry("GET", "/config", config, "The configuration that runs, secrets hidden."),
    RouteEntry("GET", "/health", readyz, "Whether the server can take requests now."),
    RouteEntry("GET", "/livez", livez, "Whether the process and its engine make progress."),
    RouteEntry("GET", "/readyz", readyz, "As /health."),
)
_LOAD = RouteEntry("GET", "/load", load, "How many completions are under way.")
_TOKENIZER_INFO = RouteEntry("GET", "/tokenizer_info", tokenizer_info, "The tokenizer's settings and chat template.")


def routes_of(settings: ServerConfig) -> list[RouteEntry]:
    """The routes of one deployment."""
    routes = [*_ALWAYS]
    if settings.enable_server_load_tracking:
        routes.append(_LOAD)
    if settings.enable_tokenizer_info_endpoint:
        routes.append(_TOKENIZER_INFO)
    if not settings.disable_fastapi_docs:
        docs = Docs(routes)
        routes += [
            RouteEntry("GET", "/openapi.json", docs.openapi, "This description."),
            RouteEntry("GET", "/docs", docs.page, "The same for people.", answer="text/html"),
        ]
    return routes
