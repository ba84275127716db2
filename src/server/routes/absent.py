"""Routes that other servers have and this one does not: each answers 404 and says why, and what to use instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...config.schema.refused.reasons import (
    NO_TRAINING,
    TEXT_ONLY,
)
from ...config.schema.server import ServerConfig
from ..endpoint import Call
from ..protocol.errors import ApiError
from .adapters import LOAD_ADAPTER, UNLOAD_ADAPTER


@dataclass(frozen=True, slots=True)
class Absent:
    """who: the servers that have the paths. needs: why they are absent, and what there is instead."""

    who: str
    needs: str
    paths: tuple[str, ...]


_STATE = "the server keeps no such objects; POST /v1/files takes files for batches (`server.files_dir`)"
_CHAT = "use POST /v1/chat/completions"
_EMBEDDINGS = "use POST /v1/embeddings"
_COMPLETION = "use POST /v1/completions; its prompt may be token ids, and `return_token_ids` returns those generated"

_FILES = ("/v1/files", "/v1/files/{rest:path}", "/v1/batches", "/v1/batches/{rest:path}")

TABLE: tuple[Absent, ...] = (
    Absent("OpenAI", "the server has no moderation", ("/v1/moderations",)),
    Absent("OpenAI", TEXT_ONLY, ("/v1/audio/{rest:path}", "/v1/images/{rest:path}", "/v1/videos", "/v1/realtime")),
    Absent(
        "OpenAI",
        _STATE,
        (
            *(
                "/v1/uploads",
                "/v1/vector_stores",
                "/v1/assistants",
                "/v1/threads",
                "/v1/conversations",
                "/v1/fine_tuning/{rest:path}",
            ),
        ),
    ),
    Absent("OpenAI", "the client decides what to send; shorten `input` yourself", ("/v1/responses/compact",)),
    Absent(
        "Anthropic",
        "upload the requests to /v1/files, and POST /v1/batches with the endpoint /v1/messages (`server.files_dir`)",
        ("/v1/messages/batches", "/v1/messages/batches/{rest:path}"),
    ),
    Absent("Cohere", _CHAT, ("/cohere/v2/chat", "/v2/chat")),
    Absent("vLLM", "use POST /v1/score", ("/generative_scoring",)),
    Absent("vLLM", NO_TRAINING, ("/init_weight_transfer_engine", "/update_weights", "/pause", "/resume", "/is_paused")),
    Absent("vLLM", TEXT_ONLY, ("/reset_mm_cache", "/reset_encoder_cache")),
    Absent(
        "vLLM",
        "the number of replicas is fixed while the server runs",
        ("/scale_elastic_ep", "/is_scaling_elastic_ep"),
    ),
    Absent("vLLM", "clients cannot run functions in the engine", ("/collective_rpc",)),
    Absent(
        "vLLM",
        "use the routes of this name below /v1/chat/completions and /v1/completions",
        ("/render", "/derender"),
    ),
    Absent("SGLang and TGI", _COMPLETION, ("/generate", "/generate_stream", "/chat_tokenize")),
    Absent("SGLang", _EMBEDDINGS, ("/encode",)),
    Absent("SGLang", "use POST /reset_prefix_cache (`server.enable_admin_routes`)", ("/flush_cache",)),
    Absent(
        "SGLang and TGI",
        "use GET /v1/models, GET /server_info or GET /config",
        ("/model_info", "/get_model_info", "/get_server_info"),
    ),
    Absent("SGLang", "use GET /health", ("/health_generate",)),
    Absent(
        "SGLang",
        "use POST /v1/load_lora_adapter and /v1/unload_lora_adapter (`server.enable_lora_routes`)",
        ("/load_lora_adapter", "/unload_lora_adapter"),
    ),
    Absent("SGLang", NO_TRAINING, ("/update_weights_from_disk", "/release_memory_occupation")),
    Absent("llama.cpp", _COMPLETION, ("/completion", "/completions", "/infill")),
    Absent("llama.cpp", _CHAT, ("/chat/completions",)),
    Absent("llama.cpp", _EMBEDDINGS, ("/embedding",)),
    Absent("llama.cpp", "use POST /v1/rerank", ("/reranking",)),
    Absent("llama.cpp", "use POST /tokenize with `messages`, which applies the chat template", ("/apply-template",)),
    Absent("llama.cpp", "use GET /server_info, or GET /metrics for what runs", ("/props", "/slots")),
    Absent(
        "llama.cpp",
        "name the adapter as the `model` of a request; GET /v1/models lists those that are loaded",
        ("/lora-adapters",),
    ),
    Absent("Ollama", _CHAT, ("/api/chat", "/api/generate")),
    Absent("Ollama", _EMBEDDINGS, ("/api/embed", "/api/embeddings")),
    Absent("TEI", "use POST /embed, /rerank or /predict", ("/vertex",)),
    Absent("Ollama", "use GET /v1/models", ("/api/tags", "/api/ps", "/api/show", "/api/version")),
    Absent("Ollama", "one deployment serves one model; start one for each", ("/api/pull", "/api/create")),
)


NO_ENGINE = Absent("", "this server has no engine (`server.engine: none`); send the request to one that has", ())


def disabled(settings: ServerConfig, *, has_profiler: bool = False, has_sleep: bool = False) -> Iterator[Absent]:
    """Routes of this server that an option would add. Arguments: as for routes_of."""
    if not has_profiler:
        needs = "`observability.profiler_config` adds it"
        yield Absent("", needs, ("/start_profile", "/stop_profile"))
    if not has_sleep:
        yield Absent("", "`model.enable_sleep_mode: true` adds it", ("/sleep", "/wake_up", "/is_sleeping"))
    for is_enabled, path, option in (
        (settings.enable_server_load_tracking, "/load", "enable_server_load_tracking: true"),
        (settings.enable_tokenizer_info_endpoint, "/tokenizer_info", "enable_tokenizer_info_endpoint: true"),
        (settings.enable_admin_routes, "/reset_prefix_cache", "enable_admin_routes: true"),
        *((settings.enable_lora_routes, path, "enable_lora_routes: true") for path in (LOAD_ADAPTER, UNLOAD_ADAPTER)),
        *((settings.files_dir is not None, path, "files_dir: FOLDER") for path in _FILES),
        *(
            (settings.responses_store is not None, f"/v1/responses/{{response_id}}{rest}", "responses_store: memory")
            for rest in ("", "/cancel", "/input_items")
        ),
        (not settings.disable_docs, "/docs", "disable_docs: false"),
        (not settings.disable_docs, "/openapi.json", "disable_docs: false"),
        (not settings.disable_web_page, "/", "disable_web_page: false"),
    ):
        if not is_enabled:
            yield Absent("", f"`server.{option}` adds it", (path,))


class NotHere:
    """The function of the absent routes of one row."""

    def __init__(self, absent: Absent) -> None:
        self._absent = absent

    async def __call__(self, call: Call) -> None:
        path, absent = call.scope["path"][:100], self._absent
        whose = f", a route of {absent.who}," if absent.who else ""
        raise ApiError(404, f"{path}{whose} does not exist here: {absent.needs}", code="not_found")
