"""Refused options of the server, its logs and its metrics."""

from __future__ import annotations

from typing import Any, Literal

from ..types import Flag, Texts, Whole
from .reasons import (
    COMPILED_BEFORE,
    EFFORT_IN_TEMPLATE,
    GENERATION_ONLY,
    HEALTH_WATCHES,
    HTTP_ONLY,
    LOGGING_OPTIONS,
    NO_ADAPTERS,
    NO_COHERE,
    NO_DRAFTS,
    NO_FINGERPRINT,
    ONE_LOG_LINE,
    STRICT_TOOLS,
    TEXT_ONLY,
    THINKING_IS_SWITCHED,
    TIMES_IN_LOG,
    TOKEN_ROUTES,
    VARIABLES_CHECKED,
    WHOLE_ANSWERS,
)
from .row import Refused

ROWS: tuple[Refused, ...] = (
    # observability
    Refused(
        "observability.per_request_spec_decode_metrics",
        Literal["none", "summary", "detailed"],
        "none",
        NO_DRAFTS,
        "Return the share of accepted draft tokens.",
    ),
    Refused("observability.aggregate_engine_logging", Flag, False, ONE_LOG_LINE, "Log one line for all replicas."),
    Refused(
        "observability.jit_monitor_mode",
        Literal["warn", "error"],
        "warn",
        COMPILED_BEFORE,
        "What happens when a kernel is compiled while serving.",
    ),
    Refused("observability.jit_monitor_verbose", Flag, False, COMPILED_BEFORE, "Log every compilation."),
    Refused(
        "observability.watchdog_config", dict[str, Any], {}, HEALTH_WATCHES, "Log stack traces of an engine that hangs."
    ),
    Refused("observability.logging_config", dict[str, Any], {}, LOGGING_OPTIONS, "Settings of logs."),
    # server
    Refused("server.lora_modules", Texts, (), NO_ADAPTERS, "Adapters to load at start, each as name=path."),
    Refused(
        "server.tool_strict_level",
        Literal["auto", "function", "parameter"],
        "auto",
        STRICT_TOOLS,
        "How strictly tool calls are constrained.",
    ),
    Refused(
        "server.reasoning_effort_map", dict[str, Any], {}, EFFORT_IN_TEMPLATE, "Other words for a reasoning effort."
    ),
    Refused(
        "server.anthropic_disabled_thinking_effort",
        str,
        "auto",
        THINKING_IS_SWITCHED,
        "Reasoning effort of requests that disable thinking.",
    ),
    Refused("server.cohere_format", str, "cmd4", NO_COHERE, "Format of prompts for Command models."),
    Refused("server.cohere_is_reasoning_model", Flag, True, NO_COHERE, "Whether a Command model thinks."),
    Refused("server.enable_flash_late_interaction", Flag, True, GENERATION_ONLY, "Score late interaction on the GPU."),
    Refused("server.trust_request_mm_kwargs", Flag, False, TEXT_ONLY, "Let requests set options of the preprocessor."),
    Refused(
        "server.enable_per_request_metrics", Flag, False, TIMES_IN_LOG, "Return the times of a request with its answer."
    ),
    Refused(
        "server.fingerprint_mode",
        Literal["full", "hash", "custom", "none"],
        "none",
        NO_FINGERPRINT,
        "What `system_fingerprint` contains.",
    ),
    Refused("server.fingerprint_value", str | None, None, NO_FINGERPRINT, "Text of `system_fingerprint`."),
    Refused("server.enable_log_deltas", Flag, False, WHOLE_ANSWERS, "Log every piece of a streamed answer."),
    Refused("server.tokens_only", Flag, False, TOKEN_ROUTES, "Serve only token ids in and out."),
    Refused("server.enable_scale_out", Flag, False, TOKEN_ROUTES, "Serve rendering and generation as separate routes."),
    Refused("server.grpc", Flag, False, HTTP_ONLY, "Serve gRPC instead of HTTP."),
    Refused("server.grpc_port", Whole | None, None, HTTP_ONLY, "Port for gRPC."),
    Refused(
        "server.fail_on_environ_validation",
        Flag,
        True,
        VARIABLES_CHECKED,
        "End the start at an unknown environment variable.",
    ),
)
