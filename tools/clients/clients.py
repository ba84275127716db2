"""The clients, the pinned packages of each one's environment, and the class of its errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Client:
    """adapter: file of tools/clients/adapters.
    packages: with versions; the first is the client. All are the newest that can be installed together.
    errors: the class that the client documents for each kind of error, by the `expects` of a case."""

    name: str
    adapter: str
    packages: tuple[str, ...]
    errors: dict[str, str]
    runtime: Literal["python", "node"] = "python"
    variables: dict[str, str] = field(default_factory=dict)


_OPENAI = {
    "key": "openai.AuthenticationError",
    "model": "openai.NotFoundError",
    "context": "openai.BadRequestError",
    "queue": "openai.RateLimitError",
    "timeout": "openai.APITimeoutError",
}

CLIENTS = {
    each.name: each
    for each in (
        Client("openai", "openai_python", ("openai==3.54.0",), _OPENAI),
        Client(
            "anthropic",
            "anthropic",
            ("anthropic==2.12.0",),
            {
                "key": "anthropic.AuthenticationError",
                "model": "anthropic.NotFoundError",
                "context": "anthropic.BadRequestError",
                "queue": "anthropic.RateLimitError",
                "timeout": "anthropic.APITimeoutError",
            },
        ),
        Client(
            "litellm",
            "litellm",
            ("litellm==1.106.2", "mcp==2.3.0"),  # it imports mcp when a request has tools, and does not require it
            {
                "key": "litellm.AuthenticationError",
                "model": "litellm.NotFoundError",
                "context": "litellm.ContextWindowExceededError",
                "queue": "litellm.RateLimitError",
                "timeout": "litellm.Timeout",
            },
            variables={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},  # else it downloads a list of prices
        ),
        Client(
            "langchain-openai",
            "langchain",
            ("langchain-openai==1.7.3", "openai==3.54.0"),
            {
                "key": "langchain_openai.OpenAIAuthenticationError",
                "model": "langchain_openai.OpenAIModelNotFoundError",
                "context": "langchain_openai.OpenAIContextOverflowError",
                "queue": "langchain_openai.OpenAIRateLimitError",
                "timeout": "langchain_openai.OpenAITimeoutError",
            },
        ),
        Client(
            "llama-index",
            "llama_index",
            ("llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai-like==0.4.0", "openai==2.54.0"),
            _OPENAI,
        ),
        Client("instructor", "instructor", ("instructor==1.17.0", "openai==3.3.0"), _OPENAI),
        Client(
            "pydantic-ai",
            "pydantic_ai",
            ("pydantic-ai-slim[openai]==2.68.0", "openai==3.54.0"),
            {
                "key": "pydantic_ai.ModelAuthenticationError",
                "model": "pydantic_ai.ModelNotFoundError",
                "context": "pydantic_ai.ModelContextWindowExceededError",
                "queue": "pydantic_ai.ModelRateLimitError",
                "timeout": "pydantic_ai.ModelTimeoutError",
            },
        ),
        Client(
            "openai-node",
            "openai_node",
            ("openai@6.49.0",),
            {
                "key": "AuthenticationError",
                "model": "NotFoundError",
                "context": "BadRequestError",
                "queue": "RateLimitError",
                "timeout": "APIConnectionTimeoutError",
            },
            "node",
        ),
        Client(
            "ai-sdk",
            "ai_sdk",
            ("@ai-sdk/openai-compatible@2.0.91", "ai@6.0.326"),
            {
                "key": "APICallError",
                "model": "APICallError",
                "context": "APICallError",
                "queue": "APICallError",
                "timeout": "TimeoutError",
            },
            "node",
        ),
    )
}
