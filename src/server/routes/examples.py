"""A body for each route that has one: what the API description shows, and what its web page sends.

Every example is answered 200 by a server of any model with a chat template.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_QUESTION = [{"role": "user", "content": "What does max_num_seqs do?"}]
_CHAT = {"messages": _QUESTION, "max_completion_tokens": 128}
_COMPLETION = {"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0}

_GENERATED = {"choices": [{"token_ids": [10, 11, 12]}]}

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {**_CHAT, "stream": False},
    "/v1/completions": _COMPLETION,
    "/v1/chat/completions/render": _CHAT,
    "/v1/completions/render": _COMPLETION,
    "/inference/v1/generate": {"token_ids": [10, 11, 12], "max_tokens": 8},
    "/inference/v1/abort_requests": {"request_ids": ["generate-tokens-1"]},
    "/v1/chat/completions/derender": {"chat_request": _CHAT, "generate_response": _GENERATED},
    "/v1/completions/derender": {"completion_request": _COMPLETION, "generate_responses": [_GENERATED]},
    "/v1/responses": {"input": "What does max_num_seqs do?", "max_output_tokens": 128},
    "/v1/responses/input_tokens": {"input": "What does max_num_seqs do?"},
    "/v1/responses/render": {"input": "What does max_num_seqs do?"},
    "/v1/messages/render": {"messages": _QUESTION, "max_tokens": 128},
    "/v1/messages": {"messages": _QUESTION, "max_tokens": 128},
    "/v1/messages/count_tokens": {"messages": _QUESTION},
    "/invocations": _CHAT,
    "/tokenize": {"messages": _QUESTION, "return_token_strs": True},
    "/detokenize": {"tokens": [10, 11, 12]},
}
