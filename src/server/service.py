"""Service: all that the routes share - the deployment, its engine, its text layer, its counters."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..config import Resolved
from ..engine.client import EngineClient, EngineState
from ..logs import log_facts
from .auth import Keys
from .limits import Limits
from .live import LiveRequests, shutting_down
from .logprobs import TokenNames
from .metrics import Metrics
from .protocol.errors import ApiError, bad_request, unavailable, unsupported
from .sampling import ModelLimits
from .text.renderer import Renderer
from .text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_NOT_READY = {
    EngineState.STARTING: ("the engine is starting", "engine_starting"),
    EngineState.RESTARTING: ("the engine stopped and is being started again", "engine_restarting"),
    EngineState.STALLED: ("the engine makes no progress", "engine_stalled"),
    EngineState.DEAD: ("the engine has stopped and will not come back", "engine_dead"),
}


class Service:
    """One deployment as the routes see it.

    tokenizer, renderer: None where the deployment was started without a tokenizer.
    is_draining: whether the server was told to stop.
    """

    def __init__(
        self,
        resolved: Resolved,
        client: EngineClient,
        tokenizer: Tokenizer | None,
        renderer: Renderer | None,
        *,
        is_draining: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        server = resolved.server
        self.resolved = resolved
        self.settings = server
        self.client = client
        self.tokenizer = tokenizer
        self.renderer = renderer
        self.is_draining = is_draining
        self.clock = clock
        self.model_names = resolved.served_model_names
        self.model_name = self.model_names[0]
        self.sampling_defaults = dict(resolved.sampling_defaults)
        self.max_model_len = resolved.model.max_model_len
        self.started_at = int(time.time())
        self.live = LiveRequests()
        self.parser = ThreadPoolExecutor(1, thread_name_prefix="json")
        self.keys = Keys([key.get_secret_value() for key in server.api_key])
        self.limits = Limits(
            max_request_bytes=server.max_request_bytes,
            max_header_bytes=server.max_header_bytes,
            max_headers=server.h11_max_header_count,
            body_idle_timeout=server.body_idle_timeout,
            body_timeout=server.body_timeout,
        )
        self.metrics = Metrics(self.model_name, lambda: client.stats, lambda: client.state)
        self.max_queued_requests = resolved.scheduler.max_queued_requests
        self._max_logprobs = resolved.model.max_logprobs
        self._logits_processor_pattern = resolved.model.logits_processor_pattern
        self._has_priorities = resolved.scheduler.scheduling_policy == "priority"
        self._warned_fields: set[str] = set()

    @property
    def model_limits(self) -> ModelLimits:
        """Raises ApiError 503 before the engine has been measured."""
        try:
            info = self.client.info
        except RuntimeError:
            raise self.not_ready() or unavailable("the engine is starting", code="engine_starting") from None
        return ModelLimits(
            context=min(info.max_model_len, info.num_kv_tokens),
            vocab_size=info.vocab_size,
            max_logprobs=self._max_logprobs,
            has_tokenizer=self.tokenizer is not None,
            has_priorities=self._has_priorities,
            logits_processor_pattern=self._logits_processor_pattern,
        )

    def not_ready(self) -> ApiError | None:
        """Why no request can be taken now, if so."""
        if self.is_draining():
            return shutting_down()
        state = self.client.state
        if state is EngineState.READY:
            return None
        message, code = _NOT_READY[state]
        return unavailable(message, code=code)

    def check_ready(self) -> None:
        error = self.not_ready()
        if error is not None and not self.is_draining():  # what came in before the drain is still served
            raise error

    def note_unknown(self, names: list[str], route: str) -> None:
        """Fields that nobody here knows: refused, or counted and warned about once per name."""
        if self.settings.strict_requests:
            name = names[0][:100]
            raise bad_request(f"unknown field `{name}`", code="unknown_parameter", param=name)
        self.metrics.unknown_fields(route, len(names))
        for name in names:
            # a bound, because the names are the clients' to choose
            if name not in self._warned_fields and len(self._warned_fields) < 256:
                self._warned_fields.add(name)
                facts = {"field": name[:100], "route": route}
                log_facts(logger, logging.WARNING, "unknown request field, without effect", facts)

    def check_model(self, name: str | None) -> None:
        if name is not None and name not in self.model_names:
            raise model_not_found(name)

    def need_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise unsupported("prompt", " as text: this deployment has no tokenizer (`model.skip_tokenizer_init`)")
        return self.tokenizer

    def need_renderer(self) -> Renderer:
        if self.renderer is None:
            raise unsupported("messages", ": this deployment has no tokenizer (`model.skip_tokenizer_init`)")
        return self.renderer

    async def renderer_for(self, chat_template: str | None) -> Renderer:
        """The renderer of a request that may bring a template. Raises ApiError, InvalidRequest."""
        renderer = self.need_renderer()
        if chat_template is None:
            return renderer
        if not self.settings.trust_request_chat_template:
            raise unsupported("chat_template", ": this deployment takes none (`server.trust_request_chat_template`)")
        return await renderer.tokenizer.run(lambda: renderer.with_template(chat_template))

    def token_names(self, as_ids: bool | None) -> TokenNames:
        """as_ids: what the request says; None for the deployment's way."""
        return TokenNames(self.tokenizer, self.settings.return_tokens_as_token_ids if as_ids is None else as_ids)

    def template_kwargs(
        self, renderer: Renderer, given: dict[str, Any] | None, route: str, *, with_tools: bool
    ) -> dict[str, Any]:
        """chat_template_kwargs: those that the template reads. Raises ApiError for names the server itself sets."""
        given = given or {}
        for name in given:
            if name in renderer.reserved:
                param = "chat_template" if name == "chat_template" else f"chat_template_kwargs.{name[:100]}"
                raise unsupported(param)
        read = renderer.template_variables(with_tools=with_tools)
        if unknown := sorted(given.keys() - read):
            self.note_unknown([f"chat_template_kwargs.{name}" for name in unknown], route)
        return {name: value for name, value in given.items() if name in read}


def model_not_found(name: str) -> ApiError:
    return ApiError(404, f"the model {name[:200]!r} is not served here", code="model_not_found", param="model")


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"
