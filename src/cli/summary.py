"""The summary of a started deployment: its address, model and capacity, and an example request."""

from __future__ import annotations

import json
import shlex

from ..config import Measured, Resolved
from ..config.plan.calibration import planned_memory
from ..config.schema.types import format_about as about
from ..engine.api import EngineInfo
from ..formats.detect import Detection
from ..server.capabilities import abilities_of
from ..server.run import Text
from ..text.renderer import Renderer
from .numa_view import place_rows
from .server_url import base_url

_INDENT = 12


def summary(
    resolved: Resolved,
    info: EngineInfo,
    measured: Measured,
    text: Text,
    port: int,
    seconds: float,
) -> str:
    """Lines for standard output; the last one is a command to paste.

    port: 0 with a Unix socket.
    seconds: from the start of the command to now.
    """
    server = resolved.server
    url = base_url("localhost" if server.uds else server.host, port, is_tls=server.ssl_certfile is not None)
    per_sequence = -(-info.max_model_len // info.block_size)
    blocks = f"{info.num_kv_tokens} KV tokens in {info.num_blocks} blocks of {info.block_size}"
    memory = resolved.memory
    topology, num_ranks = resolved.topology, resolved.topology.num_ranks
    on_ray = topology.are_replicas_on_ray
    num_remote = len(topology.remote_replicas) if not on_ray else 0
    num_replicas = topology.num_on_ray if on_ray else topology.num_replicas
    where = ", actors of Ray" if on_ray else ", which share the experts" * resolved.shares_experts
    rows = [
        *([("socket", server.uds)] if server.uds else []),
        ("url", f"{url}/v1"),
        *([] if server.uds or server.disable_web_page or not server.has_engine else [("page", f"{url}/")]),
        *([("replicas", f"{num_replicas}{where}; what follows is of each")] if num_replicas > 1 else []),
        *([("elsewhere", f"{num_remote} replicas on other machines")] if num_remote else []),
        *([("processes", f"{num_ranks} compute a model; what follows is of the first")] if num_ranks > 1 else []),
        *place_rows(resolved),
    ]
    names, context = ", ".join(resolved.served_model_names), ("context", f"{info.max_model_len} tokens")
    if server.has_engine:
        rows += [
            ("model", f"{names}, {info.dtype} on {info.device}"),
            context,
            ("capacity", f"{info.num_blocks // per_sequence} sequences at full context ({blocks})"),
            ("batch", f"{info.max_num_seqs} sequences, {info.max_num_batched_tokens} tokens per step"),
            ("weights", f"{about(measured.weights_bytes)}, planned {about(memory.weights_bytes)}"),
            ("KV cache", f"{about(measured.kv_cache_bytes)}, planned {about(memory.kv_cache_bytes)}"),
        ]
    else:
        rows += [("model", names), ("engine", "none: prompts are rendered, and answers made of given tokens"), context]
    rows += [("not used", note) for note in resolved.model_files.notes]
    if measured.resident_bytes is not None:
        planned = planned_memory(resolved)[0].likely
        rows.append(
            (
                "resident",
                f"{about(measured.resident_bytes)} of engine process, planned about {about(planned)}",
            )
        )
    rows += answer_rows(text.answers)
    rows += [
        ("kernels" if not index else "", f"{stage}: {why}") for index, (stage, why) in enumerate(info.kernels.items())
    ]
    lines = [f"  {name:<{_INDENT - 2}}{value}" for name, value in rows]
    return "\n".join([*lines, f"ready in {seconds:.1f} s; try:", f"  {_curl(url, resolved, text.renderer)}"])


def answer_rows(found: Detection | None) -> list[tuple[str, str]]:
    """The format of answers, and why."""
    if found is None:
        return []
    return [
        ("calls", f"{found.calls}: {found.calls_why}"),
        ("reasoning", f"{found.reasoning}: {found.reasoning_why}"),
    ]


def _pooling_example(resolved: Resolved, model: str, *, has_tokenizer: bool) -> tuple[str, dict[str, object]]:
    """A route that a model without generation serves, and a body for it."""
    abilities = abilities_of(resolved.model_files.spec.pooling, generates=False)
    body: dict[str, object] = {"model": model, "input": "Once upon a time" if has_tokenizer else [1, 2, 3]}
    if "embed" in abilities or "token_embed" in abilities:
        return "/v1/embeddings", body
    if "score" in abilities and has_tokenizer:
        return "/v1/score", {"model": model, "queries": "Once upon a time", "documents": ["there was a king"]}
    return "/classify" if "classify" in abilities else "/pooling", body


def _curl(url: str, resolved: Resolved, renderer: Renderer | None) -> str:
    model = resolved.served_model_names[0]
    path = "/v1/completions"
    body: dict[str, object] = {"model": model, "prompt": "Once upon a time", "max_tokens": 32}
    if not resolved.model_files.spec.generates:
        path, body = _pooling_example(resolved, model, has_tokenizer=renderer is not None)
    elif renderer is None:
        body["prompt"] = [1, 2, 3]
    elif renderer.has_template:
        path, body = "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    server = resolved.server
    path += "" if server.has_engine else "/render"
    transport = f" --unix-socket {shlex.quote(server.uds)}" if server.uds else ""
    if server.ssl_certfile:
        transport += f" --cacert {shlex.quote(server.ssl_certfile)}"
        transport += " --cert <client certificate> --key <its key>" * (server.ssl_cert_reqs == 2)
    key = " -H 'Authorization: Bearer <api key>'" if resolved.server.api_key else ""
    quoted = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")
    return f"curl{transport} {url}{path}{key} -H 'Content-Type: application/json' -d '{quoted}'"
