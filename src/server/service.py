"""Service: what all routes share: the deployment, its engine client, tokenizer, chat template, metrics and limits."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from ..config import Resolved
from ..config.resolve.gpu import GpuMonitor, GpuUsage, NoGpu
from ..engine.api import EngineInfo
from ..engine.client.engine_client import EngineClient, EngineState
from ..engine.client.replicated import replicas_of
from ..formats.detect import Detection
from ..formats.format import Format
from ..isolated.isolation import LOW_PRIORITY, MEMORY_BYTES, TIME_LIMIT_S, IsolatedProcesses, JobEnded
from ..logs import log_fields
from ..model.pooling import Pooling
from ..text.length import TextLimit
from ..text.pool_prompts import PromptMaker
from ..text.renderer import Renderer
from ..text.tokenizer import Tokenizer
from . import engine_errors
from .access.auth import Keys, open_paths
from .access.key_usage import KeyUsage
from .access.keys_file import KeysFile
from .access.shared_state import SharedState
from .adapters import Adapter, Adapters, Listed
from .agents.normalise import rules_of
from .agents.sessions import Sessions
from .capabilities import Ability, Capabilities, abilities_of, capabilities_of
from .constraints import Constraints
from .http.limits import BodyMemory, Limits
from .http.live import LiveRequests
from .http.turns import Turns
from .logprobs import TokenNames
from .observe.engine_metrics import EngineSnapshot
from .observe.metrics import Metrics
from .observe.process_usage import usage_of
from .observe.tracing import Tracing
from .page.files import page_paths
from .prefill_servers import PrefillServers
from .protocol.errors import ApiError, bad_request, own, unsupported
from .request_jobs import REQUEST_JOBS
from .sampling import ModelLimits
from .stored.background import Background
from .stored.store import Limits as StoreLimits
from .stored.store import Store, open_store
from .tool_server.servers import ToolServers

_ORDINARY_BODY_BYTES = 32 << 20  # for which an isolated process has its usual limits
T = TypeVar("T")
logger = logging.getLogger(__name__)


class Service:
    """One deployment as the routes see it.

    tokenizer, renderer: None if the deployment was started without a tokenizer.
    answers: the format in which the model writes reasoning and calls, and why.
    is_draining: whether the server is shutting down.
    shared: with the other API processes of the deployment; None if there is one.
    """

    def __init__(
        self,
        resolved: Resolved,
        client: EngineClient,
        tokenizer: Tokenizer | None,
        renderer: Renderer | None,
        *,
        answers: Detection | None = None,
        is_draining: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        shared: SharedState | None = None,
    ) -> None:
        server = resolved.server
        self.resolved = resolved
        self.settings = server
        self.client = client
        self.engines: Mapping[int, EngineClient] = replicas_of(client, resolved.topology.replicas[0])
        self.tokenizer = tokenizer
        self.renderer = renderer
        self.answers = answers
        self.answer_format = answers.format if answers is not None else None
        self.is_draining = is_draining
        self.clock = clock
        self.wall_clock = wall_clock
        self.model_names = resolved.served_model_names
        self.model_name = self.model_names[0]
        self._aliases = dict(server.model_aliases)
        self.sampling_defaults = dict(resolved.sampling_defaults)
        self.max_model_len = resolved.model.max_model_len
        self.started_at = int(time.time())
        self.normalise_rules = rules_of(server.agents_normalise, self._second_system)
        self.sessions = Sessions()
        self.adapters = Adapters(resolved, client)
        self.wake_tags: set[str] = set()  # what /wake_up was asked for since the engine sleeps
        self.tool_servers = ToolServers(server.tool_server) if server.tool_server else None
        self.turns = Turns()
        self.writer = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self.keys = Keys(
            [key.get_secret_value() for key in server.api_key],
            open_paths=open_paths(server),
            open_pages=frozenset(page_paths(server)),
        )
        self.keys_file = None if server.api_keys_file is None else KeysFile(server.api_keys_file, self.keys.replace)
        self.background = Background(server.max_stored_bytes)
        self.responses: Store | None = None
        if server.responses_store is not None:
            self.responses = open_store(server.responses_store, StoreLimits.of(server))
        self.shared = shared or SharedState()
        self.live = LiveRequests(self.turns, self.shared.set_live)
        self.key_usage = KeyUsage(clock, self.shared)
        self.limits = Limits(
            max_request_bytes=server.max_request_bytes,
            max_header_bytes=server.max_header_bytes,
            max_headers=server.max_header_count,
            body_idle_timeout=server.body_idle_timeout,
            body_timeout=server.body_timeout,
        )
        self.bodies = BodyMemory(self.share_of(server.max_total_request_bytes))
        scale = max(1.0, server.max_request_bytes / _ORDINARY_BODY_BYTES)
        # One process: long bodies are read one after the other.
        self.long_bodies = IsolatedProcesses(
            REQUEST_JOBS,
            1,
            time_limit_s=TIME_LIMIT_S * scale,
            memory_bytes=int(MEMORY_BYTES * scale),
            niceness=LOW_PRIORITY,
        )
        self.constraints = Constraints(resolved, tokenizer)
        observability = resolved.observability
        traces = observability.otlp_traces_endpoint is not None
        self.tracing = Tracing(observability, self.model_name) if traces else None
        self.metrics = Metrics(
            self.model_name,
            lambda: {
                rank: EngineSnapshot(each.stats, each.state, usage_of(getattr(each, "pid", None)), each.sleep_level)
                for rank, each in self.engines.items()
            },
            block_size=resolved.cache.block_size,
            max_model_len=self.max_model_len,
            settings=observability,
            gpus=_gpus(resolved),
            max_loras=resolved.lora.max_loras if resolved.lora.enable_lora else 0,
        )
        self.prefill_servers = None
        if resolved.kv_transfer.prefill_servers:
            self.prefill_servers = PrefillServers(resolved.kv_transfer, self.metrics)
        self.max_queued_requests = resolved.scheduler.max_queued_requests * len(self.engines)
        self._max_logprobs = resolved.model.max_logprobs
        self._logits_processor_pattern = resolved.model.logits_processor_pattern
        self._has_priorities = resolved.scheduler.scheduling_policy == "priority"
        self._warned_fields: set[str] = set()

    @property
    def process_index(self) -> int:
        """Index of this API process. What must run once per deployment runs where it is 0."""
        return self.shared.process

    def share_of(self, limit: int) -> int:
        """This process's part of a limit of the deployment."""
        return -(-limit // self.shared.num_processes)

    @property
    def engine_info(self) -> EngineInfo:
        """Raises ApiError 503 until the engine has started."""
        try:
            return self.client.info
        except RuntimeError:
            raise self.not_ready() or engine_errors.not_ready(EngineState.STARTING) from None

    @property
    def pooling(self) -> Pooling | None:
        """What the model makes of whole texts; None if it only generates."""
        return self.resolved.model_files.spec.pooling

    @property
    def abilities(self) -> frozenset[Ability]:
        """What the model can do."""
        spec = self.resolved.model_files.spec
        return abilities_of(spec.pooling, generates=spec.generates)

    def need_pooling(self) -> Pooling:
        """What the model makes of whole texts, for the routes of a model that makes something of them."""
        assert self.pooling is not None, "routes are refused whose task the model does not have"
        return self.pooling

    @functools.cached_property
    def prompt_maker(self) -> PromptMaker:
        """What makes prompts of texts that are pooled. Raises ApiError without a tokenizer."""
        return PromptMaker(self.need_tokenizer(), self.need_pooling())

    @property
    def _second_system(self) -> str:
        chosen = self.settings.second_system_message
        if chosen != "auto":
            return chosen
        return "first" if self.renderer is not None and self.renderer.loses_second_system() else "keep"

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities, as far as they are known from the files of the model and the configuration."""
        if "generate" not in self.abilities:
            return Capabilities()
        if self.renderer is None or not self.renderer.has_template:
            return Capabilities(structured=self.tokenizer is not None)
        variables = self.renderer.template(with_tools=True).variables
        return capabilities_of(self.answer_format, variables)

    @property
    def cache_epoch(self) -> int:
        """Requests share prefixes only with requests of the same epoch."""
        return self.shared.epoch

    def new_cache_epoch(self) -> None:
        """Requests find nothing that was computed before; its blocks are replaced when they are needed."""
        self.shared.next_epoch()

    @property
    def model_limits(self) -> ModelLimits:
        """Raises ApiError 503 until the engine has started."""
        info = self.engine_info
        return ModelLimits(
            context=info.max_cached_len,
            vocab_size=info.vocab_size,
            max_logprobs=self._max_logprobs,
            has_priorities=self._has_priorities,
            logits_processor_pattern=self._logits_processor_pattern,
        )

    def not_ready(self) -> ApiError | None:
        """Why new requests are refused; None if they are accepted."""
        if self.is_draining():
            return engine_errors.shutting_down()
        return None if self.client.is_available else engine_errors.not_ready(self.client.state)

    def check_ready(self) -> None:
        error = self.not_ready()
        if error is not None and not self.is_draining():  # requests that arrived before the drain are served
            raise error

    async def ask_about_body(self, job: Mapping[str, Any], content: bytes | bytearray) -> Any:
        """The result of a job with a long body. Raises ApiError."""
        try:
            return await self.long_bodies.answer(job, content)
        except JobEnded as ended:
            raise bad_request(f"reading the body exceeded a limit: {ended}", code="json_too_large") from None

    def text_limit(self) -> TextLimit | None:
        """Limit of the prompts of a request; None if it is not known yet, or if there is no tokenizer."""
        if self.tokenizer is None or not self.client.is_available:
            return None
        return self.tokenizer.text_limit(self.model_limits.context)

    def report_unknown(self, names: list[str], route: str, num: int | None = None) -> None:
        """Unknown request fields: refused with `server.strict_requests`, else counted, with one warning per name.

        num: how many there are, if `names` are only some of them.
        """
        if self.settings.strict_requests:
            name = names[0][:100]
            raise own(bad_request(f"unknown field `{name}`", code="unknown_parameter", param=name))
        self.metrics.unknown_fields(route, num or len(names))
        for name in names:
            shown = name[:100]  # limited in length and number, because clients choose the names
            if shown not in self._warned_fields and len(self._warned_fields) < 256:
                self._warned_fields.add(shown)
                fields = {"field": shown, "route": route}
                log_fields(logger, logging.WARNING, "unknown request field, ignored", fields)

    def named_model(self, name: str | None) -> str:
        """The served name that a request means: its own, its alias's, or without one the first.

        Raises ApiError 404.
        """
        if not name:
            return self.model_name
        if name in self.model_names:
            return name
        alias = self._aliases.get(name)
        if alias is None:
            patterns = (served for pattern, served in self._aliases.items() if fnmatchcase(name, pattern))
            alias = next(patterns, None)
        if alias is None:
            raise model_not_found(name)
        return alias

    async def named_adapter(self, name: str | None) -> Adapter | None:
        """The adapter that a request means by its name, or by `MODEL:ADAPTER`; None if it means the model.

        Raises ApiError for an adapter of `lora.resolver_folder` that cannot be used.
        """
        return await self._adapter_by(self.adapters.find, name)

    async def listed_adapter(self, name: str | None) -> Listed | None:
        """The same adapter, for a request that does not use it: it is not loaded."""
        return await self._adapter_by(self.adapters.look_up, name)

    async def _adapter_by(self, find: Callable[[str], Awaitable[T | None]], name: str | None) -> T | None:
        if not name or name in self.model_names or name in self._aliases:
            return None
        if (found := await find(name)) is not None:
            return found
        model, _, adapter = name.rpartition(":")
        if not adapter or not self._is_served(model):
            return None
        return await find(adapter)

    def _is_served(self, name: str) -> bool:
        with contextlib.suppress(ApiError):
            return bool(name and self.named_model(name))
        return False

    def need_tokenizer(self, param: str = "prompt") -> Tokenizer:
        """param: the field that has a text. Raises ApiError without a tokenizer."""
        if self.tokenizer is None:
            raise unsupported(param, " as text: this deployment has no tokenizer (`model.skip_tokenizer_init`)")
        return self.tokenizer

    def need_renderer(self) -> Renderer:
        if self.renderer is None:
            raise unsupported("messages", ": this deployment has no tokenizer (`model.skip_tokenizer_init`)")
        return self.renderer

    def special_ids(self, format: Format | None) -> frozenset[int]:
        """Special tokens that belong to the text, because the format has them."""
        if format is None or self.tokenizer is None:
            return frozenset()
        found = map(self.tokenizer.backend.token_to_id, format.special_tokens)
        return frozenset(each for each in found if each is not None) & self.tokenizer.special_ids

    def token_names(self, as_ids: bool | None) -> TokenNames:
        """as_ids: as the request asks; None for `server.return_tokens_as_token_ids`."""
        return TokenNames(self.tokenizer, self.settings.return_tokens_as_token_ids if as_ids is None else as_ids)


def _gpus(resolved: Resolved) -> Callable[[], Iterable[GpuUsage]]:
    """Reads the usage of the GPUs of this machine that the engines use."""
    if resolved.uses_gpus:
        try:
            return GpuMonitor(resolved.topology.num_ranks * resolved.topology.num_replicas).read
        except NoGpu as error:
            logger.warning("the metrics have no usage of GPUs: %s", error)
    return tuple


def model_not_found(name: str) -> ApiError:
    return ApiError(404, f"the model {name[:200]!r} is not served here", code="model_not_found", param="model")


def new_ids(prefix: str, given: str | None, unique: str) -> tuple[str, str]:
    """The ids of an answer, and of its request in the engine, which is unique also if clients repeat theirs."""
    return (prefix + unique,) * 2 if given is None else (prefix + given, f"{prefix}{given}-{unique[:8]}")
