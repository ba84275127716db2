"""How long a text may be before it is encoded, by a lower bound of its tokens, and the error for a longer one."""

from __future__ import annotations

from typing import NamedTuple

from ..engine.api import InvalidRequest


class TextLimit(NamedTuple):
    """max_tokens: of the context. bytes_per_token: at most."""

    max_tokens: int
    bytes_per_token: int

    def check(self, text: str, *, param: str) -> None:
        """Raises InvalidRequest (context_length_exceeded) for a text with more bytes than these tokens can have."""
        if len(text) <= self.max_tokens:  # the usual case: no bytes are counted
            return
        at_least = -(-len(text.encode("utf-8", "surrogatepass")) // self.bytes_per_token)
        if at_least > self.max_tokens:
            raise too_long(at_least, self.max_tokens, param=param, at_least=True)


def too_long(num_tokens: int, max_tokens: int, *, param: str, at_least: bool = False) -> InvalidRequest:
    """The error for a prompt that exceeds the context, with both numbers. LangChain knows it by its first words."""
    count = f"at least {num_tokens}" if at_least else str(num_tokens)
    message = f"prompt is too long: it has {count} tokens, but {context_limit(max_tokens)}"
    return InvalidRequest(
        f"{message}, and at least one must remain for the output", param=param, code="context_length_exceeded"
    )


def context_limit(max_tokens: int) -> str:
    """A part of each message about the context: by these words LiteLLM recognises the error."""
    return f"this model's maximum context length is {max_tokens} tokens"
