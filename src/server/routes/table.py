"""All routes: the request body and function of each, and the option that adds or removes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...config.schema.server import ServerConfig
from ..capabilities import Ability
from ..protocol.adapters import LoadAdapterRequest, UnloadAdapterRequest
from ..protocol.batches import PAGE_PARAMETERS, CreateBatch
from ..protocol.chat import ChatRequest
from ..protocol.completions import CompletionRequest
from ..protocol.derender import DerenderChatRequest, DerenderCompletionRequest
from ..protocol.errors import ApiError, bad_request
from ..protocol.generate import AbortRequest, GenerateRequest
from ..protocol.messages import CountTokensRequest, MessagesRequest
from ..protocol.pooling import ClassifyRequest, EmbeddingRequest, PoolingRequest, RerankRequest, ScoreRequest
from ..protocol.pooling_dialects import (
    CohereEmbedRequest,
    TeiDecodeRequest,
    TeiEmbedRequest,
    TeiPredictRequest,
    TeiSimilarityRequest,
    TeiTokensRequest,
)
from ..protocol.responses import ResponsesRequest
from ..protocol.tokenize import DetokenizeRequest, TokenizeRequest
from . import messages, responses, stored_responses, tei
from .adapters import LOAD_ADAPTER, UNLOAD_ADAPTER, load_adapter, unload_adapter
from .admin import reload, reset_prefix_cache, server_info, start_profile, stop_profile
from .batches import cancel_batch, create_batch, list_batches, show_batch
from .chat import chat_completions
from .classify import classify
from .cohere_embed import cohere_embed
from .completions import completions
from .config import config
from .derender import derender_chat, derender_completion
from .docs import Docs
from .embeddings import embeddings, pooling
from .files import PURPOSE, delete_file, file_content, list_files, show_file, upload_file
from .generate import abort_requests, generate
from .health import livez, readyz
from .invocations import invocations
from .metrics import load, metrics, version
from .models import list_models, show_model
from .page import page
from .render import render_chat, render_completion, render_message, render_response
from .route_entry import RouteEntry
from .score import rerank, score
from .sleep import is_sleeping, sleep, wake_up
from .tokenize import detokenize, tokenize, tokenizer_info

_TEXT = frozenset[Ability]({"generate"})
_VECTORS = frozenset[Ability]({"embed", "token_embed"})
_PAIRS = frozenset[Ability]({"score"})
_LABELS = frozenset[Ability]({"classify"})
_ANY_TASK = frozenset[Ability]({"embed", "token_embed", "classify", "token_classify", "sparse"})
_GENERATING = (
    RouteEntry(
        "POST", "/v1/chat/completions", chat_completions, "Answer chat messages, complete or as a stream.", ChatRequest
    ),
    RouteEntry("POST", "/v1/completions", completions, "Continue prompts, complete or as a stream.", CompletionRequest),
    RouteEntry(
        "POST",
        "/v1/chat/completions/render",
        render_chat,
        "The prompt of a chat as token ids, for /inference/v1/generate.",
        ChatRequest,
    ),
    RouteEntry(
        "POST",
        "/v1/completions/render",
        render_completion,
        "Prompts as token ids, for /inference/v1/generate.",
        CompletionRequest,
    ),
    RouteEntry(
        "POST",
        "/v1/chat/completions/derender",
        derender_chat,
        "Token ids of /inference/v1/generate as the answer to a chat.",
        DerenderChatRequest,
    ),
    RouteEntry(
        "POST",
        "/v1/completions/derender",
        derender_completion,
        "Token ids of /inference/v1/generate as the answer to prompts.",
        DerenderCompletionRequest,
    ),
    RouteEntry(
        "POST", "/v1/responses/render", render_response, "The prompt of a response as token ids.", ResponsesRequest
    ),
    RouteEntry("POST", "/v1/messages/render", render_message, "The prompt of messages as token ids.", MessagesRequest),
    RouteEntry(
        "POST",
        "/inference/v1/generate",
        generate,
        "Token ids to generated token ids, complete or as a stream.",
        GenerateRequest,
    ),
    RouteEntry(
        "POST",
        "/inference/v1/abort_requests",
        abort_requests,
        "End requests to /inference/v1/generate by their ids.",
        AbortRequest,
    ),
    RouteEntry("POST", "/v1/responses", responses.create, "Answer as OpenAI's Responses API does.", ResponsesRequest),
    RouteEntry(
        "POST", "/v1/responses/input_tokens", responses.input_tokens, "The length of a prompt.", ResponsesRequest
    ),
    RouteEntry("POST", "/v1/messages", messages.create, "Answer as Anthropic's Messages API does.", MessagesRequest),
    RouteEntry(
        "POST", "/v1/messages/count_tokens", messages.count_tokens, "The length of a prompt.", CountTokensRequest
    ),
)
_ALWAYS = (
    RouteEntry("GET", "/v1/models", list_models, "The served model names.", scope="read"),
    RouteEntry(
        "GET", "/v1/models/{model:path}", show_model, "One model: its context and sampling defaults.", scope="read"
    ),
    RouteEntry("POST", "/tokenize", tokenize, "A prompt or messages to token ids.", TokenizeRequest),
    RouteEntry("POST", "/detokenize", detokenize, "Token ids to text.", DetokenizeRequest),
    RouteEntry("GET", "/metrics", metrics, "Metrics in Prometheus' text format.", answer="text/plain", scope="metrics"),
    RouteEntry("POST", "/invocations", invocations, "As the route whose body it gets, for SageMaker."),
    RouteEntry("GET", "/version", version, "The server's version.", scope="read"),
    RouteEntry("GET", "/server_info", server_info, "Version, engine and configuration, secrets hidden.", scope="read"),
    RouteEntry("GET", "/config", config, "The running configuration, secrets hidden.", scope="read"),
    RouteEntry("GET", "/health", readyz, "Whether the server accepts requests now.", scope="read"),
    RouteEntry("GET", "/livez", livez, "Whether the process and its engine make progress.", scope="read"),
    RouteEntry("GET", "/readyz", readyz, "As /health.", scope="read"),
    RouteEntry("GET", "/ping", readyz, "As /health, for SageMaker.", scope="read"),
)
_POOLING = (
    RouteEntry("POST", "/v1/embeddings", embeddings, "A vector for each text.", EmbeddingRequest, needs=_VECTORS),
    RouteEntry("POST", "/pooling", pooling, "What a task of the model makes of texts.", PoolingRequest,
               needs=_ANY_TASK),
    RouteEntry("POST", "/classify", classify, "The label of each text.", ClassifyRequest, needs=_LABELS),
    RouteEntry("POST", "/v1/score", score, "How well pairs of texts match.", ScoreRequest, needs=_PAIRS),
    RouteEntry("POST", "/v1/rerank", rerank, "Documents by how well they match a query.", RerankRequest, needs=_PAIRS),
    RouteEntry("POST", "/v2/embed", cohere_embed, "Vectors of texts, for clients of Cohere.", CohereEmbedRequest,
               needs=frozenset({"embed"})),
    RouteEntry("POST", "/embed", tei.embed, "Vectors of texts, for clients of TEI.", TeiEmbedRequest,
               needs=frozenset({"embed"})),
    RouteEntry("POST", "/embed_all", tei.embed_all, "A vector for each token, for clients of TEI.", TeiTokensRequest,
               needs=frozenset({"token_embed"})),
    RouteEntry("POST", "/embed_sparse", tei.embed_sparse, "Weights of tokens, for clients of TEI.", TeiTokensRequest,
               needs=frozenset({"sparse"})),
    RouteEntry("POST", "/predict", tei.predict, "Labels and their scores, for clients of TEI.", TeiPredictRequest,
               needs=_LABELS),
    RouteEntry("POST", "/similarity", tei.similarity, "Cosines of texts, for clients of TEI.", TeiSimilarityRequest,
               needs=frozenset({"embed"})),
    RouteEntry("POST", "/decode", tei.decode, "Token ids to texts, for clients of TEI.", TeiDecodeRequest),
    RouteEntry("GET", "/info", tei.info, "The model, for clients of TEI.", scope="read", needs=_ANY_TASK),
    RouteEntry("POST", "/", tei.root, "As /embed, /embed_sparse, /predict or /rerank, for clients of TEI.",
               needs=_VECTORS | _LABELS | frozenset[Ability]({"sparse"}), is_alias=True),
    RouteEntry("POST", "/embeddings", embeddings, "As /v1/embeddings.", EmbeddingRequest, needs=_VECTORS,
               is_alias=True),
    RouteEntry("POST", "/v1/classify", classify, "As /classify.", ClassifyRequest, needs=_LABELS, is_alias=True),
    RouteEntry("POST", "/score", score, "As /v1/score.", ScoreRequest, needs=_PAIRS, is_alias=True),
    RouteEntry("POST", "/rerank", rerank, "As /v1/rerank.", RerankRequest, needs=_PAIRS, is_alias=True),
    RouteEntry("POST", "/v2/rerank", rerank, "As /v1/rerank.", RerankRequest, needs=_PAIRS, is_alias=True),
)  # fmt: skip
UPLOADS = "/v1/files"
_FILES = (
    RouteEntry(
        "POST",
        UPLOADS,
        upload_file,
        "Upload a file of requests, as multipart/form-data.",
        form={"file": {"type": "string", "format": "binary"}, "purpose": {"const": PURPOSE}},
    ),
    RouteEntry("GET", "/v1/files", list_files, "The files of this key.", query=(*PAGE_PARAMETERS, "purpose")),
    RouteEntry("GET", "/v1/files/{file_id}", show_file, "One file: name, size and purpose."),
    RouteEntry(
        "GET", "/v1/files/{file_id}/content", file_content, "The content of a file.", answer="application/octet-stream"
    ),
    RouteEntry("DELETE", "/v1/files/{file_id}", delete_file, "Delete a file."),
    RouteEntry("POST", "/v1/batches", create_batch, "Run the requests of an uploaded file.", CreateBatch),
    RouteEntry("GET", "/v1/batches", list_batches, "The batches of this key.", query=PAGE_PARAMETERS),
    RouteEntry("GET", "/v1/batches/{batch_id}", show_batch, "One batch: its state, and its result files."),
    RouteEntry("POST", "/v1/batches/{batch_id}/cancel", cancel_batch, "End a batch; what has run is kept."),
)
_STORED = (
    RouteEntry(
        "GET",
        "/v1/responses/{response_id}",
        stored_responses.retrieve,
        "A stored response, or the stream of its events.",
        query=stored_responses.RETRIEVE_PARAMETERS,
    ),
    RouteEntry("DELETE", "/v1/responses/{response_id}", stored_responses.delete, "Remove a stored response."),
    RouteEntry(
        "POST",
        "/v1/responses/{response_id}/cancel",
        stored_responses.cancel,
        "End a response in the background.",
    ),
    RouteEntry(
        "GET",
        "/v1/responses/{response_id}/input_items",
        stored_responses.input_items,
        "Its input.",
        query=PAGE_PARAMETERS,
    ),
)
_LOAD = RouteEntry("GET", "/load", load, "Number of completions being generated.", scope="metrics")
_RESET_PREFIX_CACHE = RouteEntry(
    "POST",
    "/reset_prefix_cache",
    reset_prefix_cache,
    "Let later requests reuse nothing of earlier ones.",
    scope="admin",
)
_ADAPTERS = (
    RouteEntry(
        "POST",
        LOAD_ADAPTER,
        load_adapter,
        "Load an adapter (LoRA) from a folder, under a name that requests use as their `model`.",
        LoadAdapterRequest,
        answer="text/plain",
        scope="admin",
    ),
    RouteEntry(
        "POST",
        UNLOAD_ADAPTER,
        unload_adapter,
        "Forget an adapter, when no request uses it any more.",
        UnloadAdapterRequest,
        answer="text/plain",
        query=("wait",),
        scope="admin",
    ),
)
_PROFILES = (
    RouteEntry("POST", "/start_profile", start_profile, "Record a trace of the engine's steps.", scope="admin"),
    RouteEntry("POST", "/stop_profile", stop_profile, "End the recording and write the trace.", scope="admin"),
)
_SLEEP = (
    RouteEntry("POST", "/sleep", sleep, "Free the engine's memory.", query=("level", "mode"), scope="admin"),
    RouteEntry(
        "POST",
        "/wake_up",
        wake_up,
        "Take the memory back, and serve; in parts with `tags`.",
        query=("tags",),
        scope="admin",
    ),
    RouteEntry("GET", "/is_sleeping", is_sleeping, "Whether the engine's memory is free.", scope="metrics"),
)
_RELOAD = RouteEntry("POST", "/reload", reload, "Read the keys file again (`engine reload`).", scope="admin")
_TOKENIZER_INFO = RouteEntry(
    "GET", "/tokenizer_info", tokenizer_info, "The tokenizer's settings and chat template.", scope="read"
)


# Of the routes for any key, those that need a tokenizer and no engine.
_ENDS_WITHOUT_ENGINE = ("/render", "/derender", "/input_tokens", "/count_tokens", "/tokenize", "/detokenize")


def routes_of(settings: ServerConfig, *, has_profiler: bool = False, has_sleep: bool = False) -> list[RouteEntry]:
    """The routes of one deployment. has_profiler: whether `observability.profiler_config` is set. has_sleep:
    `model.enable_sleep_mode`."""
    routes = [*(replace(route, needs=_TEXT) for route in _GENERATING), *_ALWAYS, *_POOLING]
    if settings.files_dir is not None:
        routes += _FILES
    if settings.responses_store is not None:
        routes += _STORED
    if settings.enable_server_load_tracking:
        routes.append(_LOAD)
    if settings.enable_admin_routes and settings.has_engine:
        routes.append(_RESET_PREFIX_CACHE)
    if settings.enable_lora_routes and settings.has_engine:
        routes += _ADAPTERS
    if has_profiler and settings.has_engine:
        routes += _PROFILES
    if has_sleep and settings.has_engine:
        routes += _SLEEP
    if settings.api_keys_file is not None:
        routes.append(_RELOAD)
    if settings.enable_tokenizer_info_endpoint:
        routes.append(_TOKENIZER_INFO)
    if not settings.has_engine:
        routes = [
            route
            for route in routes
            if route.path.endswith(_ENDS_WITHOUT_ENGINE) or (route.scope != "inference" and not route.needs)
        ]
    if not settings.disable_docs:
        docs = Docs(routes)
        routes += [
            RouteEntry("GET", "/openapi.json", docs.openapi, "The API description (OpenAPI).", scope="read"),
            RouteEntry("GET", "/docs", page, "The API description as a web page.", answer="text/html", scope="read"),
        ]
    if not settings.disable_web_page and settings.has_engine:
        summary = "Chat, live values and configuration as a web page."
        routes.append(RouteEntry("GET", "/", page, summary, answer="text/html", scope="read"))
    return routes


def other_ability(needs: frozenset[Ability], routes: Sequence[RouteEntry], has: frozenset[Ability]) -> ApiError | None:
    """The error for a route whose abilities the model does not have; it names the routes that the model serves."""
    if not needs or needs & has:
        return None
    wanted = "generate text" if needs == _TEXT else f"have the task {' or '.join(sorted(needs))}"
    served = [route.path for route in routes if route.needs & has and not route.is_alias and route.method == "POST"]
    message = f"this model does not {wanted}; its routes are {', '.join(f'POST {path}' for path in served)}"
    return bad_request(message, code="unsupported_route")


def routes_of_engine(settings: ServerConfig) -> frozenset[str]:
    """Paths that this server lacks because it has no engine."""
    complete = routes_of(settings.model_copy(update={"engine": "own"}))
    return frozenset(route.path for route in complete) - {route.path for route in routes_of(settings)}
