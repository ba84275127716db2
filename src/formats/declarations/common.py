"""What several declarations share."""

from __future__ import annotations

from ..format import ReasoningMarkers

THINK = ReasoningMarkers("<think>", "</think>")

# Where published chat templates and descriptions of formats are read.
LLAMA_CPP = "https://github.com/ggml-org/llama.cpp/blob/master/models/templates"
VLLM_EXAMPLES = "https://github.com/vllm-project/vllm/blob/main/examples"
VLLM_PARSERS = "https://github.com/vllm-project/vllm/blob/main/vllm/tool_parsers"
VLLM_ENGINE_PARSERS = "https://github.com/vllm-project/vllm/blob/main/vllm/parser"
