"""What the supervisor of several servers answers: /livez, /readyz and /health for all of them, and its own metrics.

/readyz is of all servers: who reads it sends requests to each of their ports. /health is 200 while one of them serves.
/livez is 200 as long as the supervisor runs: it starts servers again itself.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .http.serve import serve
from .http.shutdown import Shutdown
from .protocol.errors import ApiError
from .replica_health import ReplicaHealth, readiness, state_of_all


class SupervisorMetrics:
    """The servers as metrics, with the rank of the replica as `engine`, as in the servers' own metrics."""

    def __init__(self, replicas: Mapping[int, ReplicaHealth]) -> None:
        self._replicas = replicas

    def collect(self) -> Iterator[Metric]:
        for_ready = "Of a supervisor: 1 while the server of a replica is ready."
        for_restarts = "Of a supervisor: new starts of a server, which has ended or failed its probes."
        ready = GaugeMetricFamily("stoker_server_ready", for_ready, labels=("engine",))
        restarts = CounterMetricFamily("stoker_server_restarts", for_restarts, labels=("engine",))
        for rank, each in self._replicas.items():
            ready.add_metric((str(rank),), float(each.is_ready))
            restarts.add_metric((str(rank),), each.num_restarts)
        yield from (ready, restarts)


async def serve_health(
    sockets: list[socket.socket],
    shutdown: Shutdown,
    replicas: Mapping[int, ReplicaHealth],
    on_listening: Callable[[], None] = lambda: None,
) -> None:
    """Until the shutdown is requested. sockets: from `take_address`."""

    async def alive(request: Request) -> Response:
        return JSONResponse(state_of_all(replicas))

    async def ready(request: Request) -> Response:
        return answer(readiness(replicas, is_draining=shutdown.requested.is_set()))

    async def health(request: Request) -> Response:
        return answer(readiness(replicas, is_draining=shutdown.requested.is_set(), is_one_enough=True))

    def answer(error: ApiError | None) -> Response:
        body = state_of_all(replicas, error)
        if error is None:
            return JSONResponse(body)
        return JSONResponse(body, status_code=error.status, headers=error.headers)

    async def metrics(request: Request) -> Response:
        return Response(
            generate_latest(SupervisorMetrics(replicas)), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4}
        )

    async def nothing_to_end() -> None:
        pass

    routes = [("/livez", alive), ("/readyz", ready), ("/health", health), ("/metrics", metrics)]
    app = Starlette(routes=[Route(path, endpoint) for path, endpoint in routes])
    await serve(
        app,
        sockets,
        shutdown,
        end_streams=nothing_to_end,
        drain_timeout=0,
        on_listening=on_listening,
        exit_hard=False,  # the servers drain after it
    )
