"""PrefillServers: other servers compute the prompts of this one's requests, which reads their KV blocks.

A prompt is sent as token ids, whatever route it came from. If no server answers, this one computes it: no request is
lost with a prefill server. While one computes, it is asked each second whether it lives, so that a process that is
stopped, or a cut connection, costs a few seconds once. A server whose blocks are of no use here is asked rarely.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
from pydantic import ValidationError

from ..config.schema.kv_transfer import KVTransferConfig
from ..engine.api import CacheScope, EngineRequest, StoredBlocks
from ..logs import RareLogger
from .observe.metrics import Metrics
from .protocol.fields import MAX_SALT_CHARS
from .protocol.transfer import KVTransferParams
from .protocol.wire import Wire

PROBE_INTERVAL_S = 1.0
PROBE_TIMEOUT_S = 1.0
_CONNECT_S = 1.0
_LOST_AFTER = 2  # probes in a row without an answer
_UNUSED_LIMIT = 3  # prompts in a row that were computed again here
_REST_S = 60.0  # before such a server is asked again
_MAX_ANSWER_BYTES = 1 << 16  # and what the names of the prompt's blocks need
_BYTES_PER_TOKEN = 16  # of these: a name of 64 characters for a few tokens
_SAME_START = 256  # tokens: prompts that begin alike go to the same server
logger = logging.getLogger(__name__)


class _Server:
    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.num_open = 0  # requests
        self.lost = asyncio.Event()  # set while it does not answer
        self.watch: asyncio.Task[None] | None = None
        self.num_unused = 0  # prompts in a row that were computed again here
        self.rests_until = 0.0
        self.failures = RareLogger(logger)

    @property
    def name(self) -> str:
        return self.url.partition("://")[2]


class _Answer(Wire):
    kv_transfer_params: KVTransferParams


class _Unusable(Exception):
    """The server gave no blocks; the message says why."""


_NO_ANSWER = (httpx.HTTPError, httpx.InvalidURL)


class PrefillServers:
    """Servers that prefill prompts for this one. Call its methods on one event loop."""

    def __init__(self, config: KVTransferConfig, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._servers = [_Server(url) for url in config.prefill_servers]
        self._min_tokens = config.prefill_min_tokens
        self._timeout_s = config.prefill_timeout
        secret = config.prefill_api_key
        self._headers = {} if secret is None else {"Authorization": f"Bearer {secret.get_secret_value()}"}
        self._http: httpx.AsyncClient | None = None
        self._metrics, self._clock = metrics, clock

    async def prefill(self, request: EngineRequest) -> Callable[[int], None] | None:
        """Let another server compute the prompt, if that can be of use, and note in the request where its blocks are.

        Returns what is to be called when the request begins, with its number of cached tokens, if blocks were named.
        """
        inputs = request.inputs
        if inputs.adapter is not None:  # another server may have other adapters by these names
            return None
        root = inputs.scope.root_text
        if len(root) > MAX_SALT_CHARS:  # a server would refuse it
            return None
        if CacheScope(root, is_root=True).root_text != root:  # a server would compute blocks with other hashes
            return None
        is_scored = inputs.sampling.prompt_logprobs is not None  # of positions that must be computed here
        if request.source or request.is_for_others or is_scored or len(inputs.prompt_token_ids) < self._min_tokens:
            return None
        server = self._choose(request)
        if server is None:
            return None
        server.num_open += 1
        if server.watch is None:
            server.watch = asyncio.ensure_future(self._watch(server))
        try:
            request.source = await self._or_lost(server, request)
            self._metrics.prefilled(is_computed=True)
        except (_Unusable, *_NO_ANSWER, ValueError) as error:
            self._metrics.prefilled(is_computed=False)
            if isinstance(error, httpx.ConnectError):
                server.lost.set()
            cause = str(error) or type(error).__name__
            server.failures.log(
                logging.WARNING, "prefill server %s: %s; the prompt is computed here", server.name, cause
            )
        finally:
            server.num_open -= 1
        # of a single block, whose last token is computed in any case, none may be read
        is_judged = request.source is not None and len(request.source.hashes) > 1
        return partial(self._begun, server) if is_judged else None

    def _begun(self, server: _Server, num_cached_tokens: int) -> None:
        """Note whether the server's blocks were read: without cached tokens none was, and both computed the prompt."""
        server.num_unused = 0 if num_cached_tokens else server.num_unused + 1
        if server.num_unused:
            self._metrics.prefill_unused()
        now = self._clock()
        if server.num_unused >= _UNUSED_LIMIT and now >= server.rests_until:  # not for prompts sent before its rest
            server.rests_until = now + _REST_S
            logger.warning(
                "prefill server %s: the blocks of its last %d prompts were not read; it is asked again in %g s",
                server.name,
                server.num_unused,
                _REST_S,
            )

    def _choose(self, request: EngineRequest) -> _Server | None:
        start = hash(tuple(request.inputs.prompt_token_ids[:_SAME_START]))
        now = self._clock()
        alive = [server for server in self._servers if not server.lost.is_set() and now >= server.rests_until]
        return min(alive, key=lambda server: (server.num_open, hash((server.url, start))), default=None)

    async def _or_lost(self, server: _Server, request: EngineRequest) -> StoredBlocks | None:
        """Raises _Unusable when the server stops answering meanwhile."""
        answer = asyncio.ensure_future(self._ask(server, request))
        lost = asyncio.ensure_future(server.lost.wait())
        try:
            await asyncio.wait((answer, lost), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise _Unusable("does not answer any more")
            return answer.result()
        finally:
            answer.cancel()
            lost.cancel()

    async def _ask(self, server: _Server, request: EngineRequest) -> StoredBlocks | None:
        body: dict[str, Any] = {
            "token_ids": request.inputs.prompt_token_ids,
            "sampling_params": {"max_tokens": 1, "temperature": 0.0},
            "cache_salt": request.inputs.scope.root_text or None,
            "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
        }
        # Not compressed: a small answer could be a large one.
        headers = {**self._headers, "X-Request-Id": request.request_id[:128], "Accept-Encoding": "identity"}
        url, limit = f"{server.url}/inference/v1/generate", _MAX_ANSWER_BYTES
        limit += _BYTES_PER_TOKEN * len(request.inputs.prompt_token_ids)
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._client.stream("POST", url, json=body, headers=headers) as response,
            ):
                content = await _content(response, limit)
        except TimeoutError:
            raise _Unusable(f"has not answered within {self._timeout_s:g} s (`kv_transfer.prefill_timeout`)") from None
        if response.is_error:
            raise _Unusable(f"answers {response.status_code}: {content[:200].decode(errors='replace')}")
        try:
            return _Answer.model_validate_json(content).kv_transfer_params.source
        except ValidationError:
            raise _Unusable("its answer has no `kv_transfer_params`") from None

    async def _watch(self, server: _Server) -> None:
        """Probe a server until it has no request, and is not lost."""
        num_silent = 0
        try:
            while server.num_open or server.lost.is_set():
                await asyncio.sleep(PROBE_INTERVAL_S)
                if await self._lives(server):
                    num_silent = 0
                    server.lost.clear()
                else:
                    num_silent += 1
                    if num_silent == _LOST_AFTER:
                        server.lost.set()
        finally:
            server.watch = None

    async def _lives(self, server: _Server) -> bool:
        try:
            async with (
                asyncio.timeout(PROBE_TIMEOUT_S),
                self._client.stream("GET", f"{server.url}/health", headers=self._headers) as response,
            ):
                return response.is_success  # whatever it says
        except (TimeoutError, *_NO_ANSWER):
            return False

    @property
    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            timeout = httpx.Timeout(None, connect=_CONNECT_S)
            self._http = httpx.AsyncClient(timeout=timeout, limits=httpx.Limits(max_connections=None), trust_env=False)
        return self._http

    async def close(self) -> None:
        for server in self._servers:
            if server.watch is not None:
                server.watch.cancel()
        if self._http is not None:
            await self._http.aclose()


async def _content(response: httpx.Response, max_bytes: int) -> bytes:
    """The body as it was sent. Raises _Unusable for a longer one, which is not received."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise _Unusable("its answer is compressed, which was not asked for")
    content = bytearray()
    async for piece in response.aiter_raw():
        content += piece
        if len(content) > max_bytes:
            raise _Unusable(f"its answer has more than {max_bytes} bytes")
    return bytes(content)
