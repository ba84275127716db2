"""Refused options of the server, its logs and its metrics."""

from __future__ import annotations

from typing import Any, Literal

from ..types import Flag, Whole
from .reasons import (
    COMPILED_BEFORE,
    EFFORT_IN_TEMPLATE,
    GENERATION_ONLY,
    HEALTH_WATCHES,
    HTTP_ONLY,
    LOGGING_OPTIONS,
    NO_COHERE,
    NO_FINGERPRINT,
    ONE_LOG_LINE,
    STRICT_TOOLS,
    TEXT_ONLY,
    THINKING_IS_SWITCHED,
    TIMES_IN_LOG,
    VARIABLES_CHECKED,
    WHOLE_ANSWERS,
)
from .row import Refused

OBSERVABILITY: tuple[Refused, ...] = (
    Refused("aggregate_engine_logging", Flag, False, "Log one line for all replicas.", reason=ONE_LOG_LINE),
    Refused(
        "jit_monitor_mode",
        Literal["warn", "error"],
        "warn",
        "What happens when a kernel is compiled while serving.",
        reason=COMPILED_BEFORE,
    ),
    Refused("jit_monitor_verbose", Flag, False, "Log every compilation.", reason=COMPILED_BEFORE),
    Refused("watchdog_config", dict[str, Any], {}, "Log stack traces of an engine that hangs.", reason=HEALTH_WATCHES),
    Refused("logging_config", dict[str, Any], {}, "Settings of logs.", reason=LOGGING_OPTIONS),
)
SERVER: tuple[Refused, ...] = (
    Refused(
        "tool_strict_level",
        Literal["auto", "function", "parameter"],
        "auto",
        "How strictly tool calls are constrained.",
        reason=STRICT_TOOLS,
    ),
    Refused(
        "reasoning_effort_map", dict[str, Any], {}, "Other words for a reasoning effort.", reason=EFFORT_IN_TEMPLATE
    ),
    Refused(
        "anthropic_disabled_thinking_effort",
        str,
        "auto",
        "Reasoning effort of requests that disable thinking.",
        reason=THINKING_IS_SWITCHED,
    ),
    Refused("cohere_format", str, "cmd4", "Format of prompts for Command models.", reason=NO_COHERE),
    Refused("cohere_is_reasoning_model", Flag, True, "Whether a Command model thinks.", reason=NO_COHERE),
    Refused("enable_flash_late_interaction", Flag, True, "Score late interaction on the GPU.", reason=GENERATION_ONLY),
    Refused("trust_request_mm_kwargs", Flag, False, "Let requests set options of the preprocessor.", reason=TEXT_ONLY),
    Refused(
        "enable_per_request_metrics", Flag, False, "Return the times of a request with its answer.", reason=TIMES_IN_LOG
    ),
    Refused(
        "fingerprint_mode",
        Literal["full", "hash", "custom", "none"],
        "none",
        "What `system_fingerprint` contains.",
        reason=NO_FINGERPRINT,
    ),
    Refused("fingerprint_value", str | None, None, "Text of `system_fingerprint`.", reason=NO_FINGERPRINT),
    Refused("enable_log_deltas", Flag, False, "Log every piece of a streamed answer.", reason=WHOLE_ANSWERS),
    Refused("grpc", Flag, False, "Serve gRPC instead of HTTP.", reason=HTTP_ONLY),
    Refused("grpc_port", Whole | None, None, "Port for gRPC.", reason=HTTP_ONLY),
    Refused(
        "fail_on_environ_validation",
        Flag,
        True,
        "End the start at an unknown environment variable.",
        reason=VARIABLES_CHECKED,
    ),
)
