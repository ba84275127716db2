"""Traces, as a collector receives them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from stoker.server.observe.tracing import with_path

from .. import virtual_time
from ..fakes import FakeEngine
from .deployment import MODEL, Served

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Secret words"}], "max_tokens": 3, "ignore_eos": True}


class Collector(ThreadingHTTPServer):
    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            server: Collector

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["content-length"]))
                if self.headers["content-encoding"] == "gzip":
                    import gzip

                    content = gzip.decompress(content)
                self.server.paths.append(self.path)
                self.server.requests.append(ExportTraceServiceRequest.FromString(content))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def spans(self) -> dict[str, Span]:
        scopes = [scope for request in self.requests for each in request.resource_spans for scope in each.scope_spans]
        return {span.name: span for scope in scopes for span in scope.spans}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
        thread.start()
        yield server
        server.shutdown()


def traced(folder: Path, url: str, body: dict[str, Any], headers: dict[str, str], details: list[str]) -> int:
    """The status of one request, whose every token takes 2 seconds of virtual time."""
    engine = FakeEngine(pace=lambda: asyncio.sleep(2))

    async def run() -> int:
        observability = {"otlp_traces_endpoint": url, "collect_detailed_traces": details}
        served = Served(folder, engine, observability=observability)
        served.service.clock = virtual_time.now
        async with served.client() as client:
            response = await client.post("/v1/chat/completions", json=body, headers=headers)
            await client.get("/v1/models")  # is not traced
        assert served.service.tracing is not None
        served.service.tracing.close()
        return response.status_code

    return virtual_time.run(run())


def attributes_of(span: Span) -> dict[str, Any]:
    found = {}
    for entry in span.attributes:
        kind = entry.value.WhichOneof("value")
        value = getattr(entry.value, kind)
        found[entry.key] = [each.string_value for each in value.values] if kind == "array_value" else value
    return found


def seconds(span: Span) -> float:
    return round((span.end_time_unix_nano - span.start_time_unix_nano) / 1e9, 3)


@pytest.mark.effect("observability.otlp_traces_endpoint")
def test_a_request_is_one_span_that_continues_the_trace_of_its_client(folder: Path, collector: Collector):
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "abc"}
    assert traced(folder, collector.url, BODY, headers, []) == 200
    (span,) = collector.spans.values()
    assert collector.paths == ["/v1/traces"]
    assert (span.name, span.kind) == ("llm_request", Span.SPAN_KIND_SERVER)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert seconds(span) == 6
    found = attributes_of(span)
    assert found.pop("gen_ai.request.id").startswith("chatcmpl-abc")
    assert found["gen_ai.usage.input_tokens"] == found["gen_ai.usage.prompt_tokens"] > 0
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.max_tokens": 3,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.completion_tokens": 3,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.latency.time_to_first_token": 2.0,
        "gen_ai.latency.time_in_queue": 0.25,
        "gen_ai.latency.e2e": 6.0,
        "http.response.status_code": 200,
    }
    assert {name: found[name] for name in expected} == expected
    assert "gen_ai.latency.time_in_model_prefill" not in found
    assert "Secret" not in str(collector.requests)


@pytest.mark.effect("observability.collect_detailed_traces")
@pytest.mark.parametrize(
    ("details", "spans", "has_times"),
    [(["model"], 1, True), (["worker"], 4, False), (["all"], 4, True), (["model", "worker"], 4, True)],
)
def test_details_add_the_phases_of_a_request(
    folder: Path, collector: Collector, details: list[str], spans: int, has_times: bool
):
    traced(folder, collector.url, BODY, {}, details)
    found = collector.spans
    assert len(found) == spans
    assert ("gen_ai.latency.time_in_model_prefill" in attributes_of(found["llm_request"])) == has_times
    if spans == 4:
        phases = [found[name] for name in ("queue", "prefill", "decode")]
        assert [seconds(phase) for phase in phases] == [0.25, 1.75, 4.0]
        assert {phase.parent_span_id for phase in phases} == {found["llm_request"].span_id}
        assert phases[0].end_time_unix_nano == phases[1].start_time_unix_nano


def test_a_refused_request_is_a_span_with_its_error(folder: Path, collector: Collector):
    assert traced(folder, collector.url, {**BODY, "temperature": 9}, {}, ["all"]) == 400
    (span,) = collector.spans.values()
    found = attributes_of(span)
    assert (found["http.response.status_code"], found["error.type"]) == (400, "decimal_above_max_value")


def test_a_trace_that_its_client_does_not_sample_is_not_sent(folder: Path, collector: Collector):
    traced(folder, collector.url, BODY, {"traceparent": f"00-{TRACE}-{PARENT}-00"}, ["all"])
    assert collector.spans == {}


def test_an_address_without_a_path_has_the_usual_one():
    assert (
        with_path("http://collector:4318") == with_path("http://collector:4318/") == "http://collector:4318/v1/traces"
    )
    assert with_path("https://x/otlp/v1/traces") == "https://x/otlp/v1/traces"
