"""Histograms of requests: their times, and their sizes."""

from __future__ import annotations

from .declared import Declared

# Buckets: ours, and those of vLLM, with which its dashboards and autoscalers compute. A histogram has both; its copy
# under vLLM's name has vLLM's alone.
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)
_WHOLE = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0)
_PART = (0.001, 0.01, *_WHOLE)
_VLLM_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
_VLLM_BETWEEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_VLLM_WHOLE = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
_PARAMS_N = (1, 2, 5, 10, 20)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)


class RequestTimes:
    """Times of requests and of their sequences."""

    def __init__(self, declared: Declared) -> None:
        self.time_to_first_token = declared.histogram(
            "time_to_first_token",
            "time_to_first_token_seconds",
            "Time from the arrival of a request to its first generated token.",
            _FIRST_TOKEN,
            _VLLM_FIRST_TOKEN,
            vllm=("time_to_first_token_seconds",),
        )
        self.inter_token_latency = declared.histogram(
            "inter_token_latency",
            "inter_token_latency_seconds",
            "Time between two generated tokens of a sequence.",
            _BETWEEN,
            _VLLM_BETWEEN,
            vllm=("inter_token_latency_seconds", "time_per_output_token_seconds"),
        )
        self.time_per_output_token = declared.histogram(
            "inter_token_latency",
            "request_time_per_output_token_seconds",
            "Mean time between two generated tokens, per sequence.",
            _BETWEEN,
            _VLLM_BETWEEN,
            vllm=("request_time_per_output_token_seconds",),
        )
        self.latency = declared.histogram(
            "request_latency",
            "e2e_request_latency_seconds",
            "Time from the arrival of a request to its last generated token.",
            _WHOLE,
            _VLLM_WHOLE,
            vllm=("e2e_request_latency_seconds",),
        )
        self.queue_time = declared.histogram(
            "request_latency",
            "request_queue_time_seconds",
            "Time of a sequence in the queue of the engine, until a step first computes it.",
            _PART,
            _VLLM_WHOLE,
            vllm=("request_queue_time_seconds",),
            hidden=("time_in_queue_requests",),
        )
        self.prefill_time = declared.histogram(
            "request_latency",
            "request_prefill_time_seconds",
            "Time of a sequence from the end of the queue to its first generated token.",
            _PART,
            _VLLM_WHOLE,
            vllm=("request_prefill_time_seconds",),
        )
        self.decode_time = declared.histogram(
            "request_latency",
            "request_decode_time_seconds",
            "Time of a sequence from its first to its last generated token.",
            _PART,
            _VLLM_WHOLE,
            vllm=("request_decode_time_seconds",),
        )
        self.inference_time = declared.histogram(
            "request_latency",
            "request_inference_time_seconds",
            "Time of a sequence from the end of the queue to its last generated token: prefill and decode.",
            _PART,
            _VLLM_WHOLE,
            vllm=("request_inference_time_seconds",),
        )


class RequestSizes:
    """Tokens of requests, and what they ask for."""

    def __init__(self, declared: Declared, max_model_len: int) -> None:
        tokens = one_two_five(max_model_len)
        self.prompt_tokens = declared.histogram(
            "request_tokens",
            "request_prompt_tokens",
            "Prompt tokens per request.",
            _TOKENS,
            tokens,
            vllm=("request_prompt_tokens",),
        )
        self.generation_tokens = declared.histogram(
            "request_tokens",
            "request_generation_tokens",
            "Tokens generated per sequence.",
            _TOKENS,
            tokens,
            vllm=("request_generation_tokens",),
        )
        self.max_generation_tokens = declared.histogram(
            "request_tokens",
            "request_max_generation_tokens",
            "Tokens of the longest of the `n` sequences generated for a prompt.",
            _TOKENS,
            tokens,
            vllm=("request_max_num_generation_tokens",),
        )
        self.params_max_tokens = declared.histogram(
            "request_tokens",
            "request_params_max_tokens",
            "Maximum number of tokens to generate per prompt, as requested or limited by the context.",
            _TOKENS,
            tokens,
            vllm=("request_params_max_tokens",),
        )
        self.params_n = declared.histogram(
            "request_params_n",
            "request_params_n",
            "Sequences to generate per prompt, the parameter `n`.",
            _PARAMS_N,
            _PARAMS_N,
            vllm=("request_params_n",),
        )


def one_two_five(highest: int) -> list[int]:
    """1, 2, 5, 10, 20, ... up to `highest`: vLLM's buckets for numbers of tokens."""
    found: list[int] = []
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power > highest:
                return found
            found.append(factor * power)
        power *= 10
