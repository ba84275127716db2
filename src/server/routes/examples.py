"""A body for each route that has one: what the API description shows, and what its web page sends.

Every example is answered 200 by a server of a model with a chat template, if the model does what the route is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_QUESTION = [{"role": "user", "content": "What does max_num_seqs do?"}]
_CHAT = {"messages": _QUESTION, "max_completion_tokens": 128}
_COMPLETION = {"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0}

_TEXTS = {"input": ["The cat sits outside.", "A man plays the guitar."]}
_PAIRS = {"queries": "Who makes music?", "documents": _TEXTS["input"]}
_RANKED = {"query": "Who makes music?", "documents": _TEXTS["input"], "top_n": 1}
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
    "/v1/embeddings": _TEXTS,
    "/embeddings": _TEXTS,
    "/pooling": _TEXTS,
    "/classify": _TEXTS,
    "/v1/classify": _TEXTS,
    "/v1/score": _PAIRS,
    "/score": _PAIRS,
    "/v1/rerank": _RANKED,
    "/rerank": _RANKED,
    "/v2/rerank": _RANKED,
    "/v2/embed": {"texts": _TEXTS["input"], "input_type": "search_document", "embedding_types": ["float"]},
    "/embed": {"inputs": _TEXTS["input"]},
    "/embed_all": {"inputs": _TEXTS["input"]},
    "/embed_sparse": {"inputs": _TEXTS["input"]},
    "/predict": {"inputs": "The service was quick."},
    "/similarity": {"inputs": {"source_sentence": "a cat", "sentences": _TEXTS["input"]}},
    "/decode": {"ids": [10, 11, 12]},
}
