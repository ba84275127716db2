"""How long a text may be before it is encoded, by a lower bound of its tokens, and the error for a longer one."""

from __future__ import annotations

from typing import NamedTuple

from ..engine.api import InvalidRequest


class TextLimit(NamedTuple):
    """max_tokens: of the context. bytes_per_token: at most. has_output: whether tokens are generated after the text."""

    max_tokens: int
    bytes_per_token: int
    has_output: bool = True

    def check(self, text: str, *, param: str) -> None:
        """Raises InvalidRequest (context_length_exceeded) for a text with more bytes than these tokens can have."""
        if len(text) <= self.max_tokens:  # the usual case: no bytes are counted
            return
        at_least = -(-len(text.encode("utf-8", "surrogatepass")) // self.bytes_per_token)
        if at_least > self.max_tokens:
            raise too_long(at_least, self.max_tokens, param=param, at_least=True, has_output=self.has_output)


def too_long(
    num_tokens: int, max_tokens: int, *, param: str, at_least: bool = False, has_output: bool = True
) -> InvalidRequest:
    """The error for a prompt that exceeds the context, with both numbers. LangChain knows it by its first words.

    has_output: whether tokens are generated, which then need a place in the context, too.
    """
    count = f"at least {num_tokens}" if at_least else str(num_tokens)
    message = f"prompt is too long: it has {count} tokens, but {context_limit(max_tokens)}"
    if has_output:
        message += ", and at least one must remain for the output"
    return InvalidRequest(message, param=param, code="context_length_exceeded")


def context_limit(max_tokens: int) -> str:
    """A part of each message about the context: by these words LiteLLM recognises the error."""
    return f"this model's maximum context length is {max_tokens} tokens"
