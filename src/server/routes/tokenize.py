"""POST /tokenize and /detokenize: text or messages to token ids, and back. GET /tokenizer_info: the settings."""

from __future__ import annotations

import json
from typing import Any

from ..endpoint import Call
from ..protocol.errors import ApiError, bad_request
from ..protocol.tokenize import DetokenizeRequest, TokenizeRequest
from .rendering import rendered


async def tokenize(call: Call) -> None:
    service = call.service
    body = await call.body(TokenizeRequest)
    await call.checked_model(body.model)
    tokenizer = service.need_tokenizer()
    limits = service.model_limits
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("send either `prompt` or `messages`", code="missing_required_parameter", param="prompt")
    if body.prompt is not None:
        token_ids = await tokenizer.encode_async(
            body.prompt, limits.context, param="prompt", add_special_tokens=body.add_special_tokens is not False
        )
    else:
        _, token_ids = await rendered(
            call, body, max_tokens=limits.context, add_special_tokens=bool(body.add_special_tokens)
        )
    answer: dict[str, Any] = {"count": len(token_ids), "max_model_len": service.max_model_len, "tokens": token_ids}

    def with_texts() -> dict[str, Any]:
        texts = [tokenizer.token_text(each) for each in token_ids] if body.return_token_strs else None
        return answer if texts is None else {**answer, "token_strs": texts}

    await call.answer_sized(len(token_ids), with_texts)


async def detokenize(call: Call) -> None:
    service = call.service
    body = await call.body(DetokenizeRequest)
    await call.checked_model(body.model)
    tokenizer = service.need_tokenizer()
    vocab_size = service.model_limits.vocab_size

    def decoded() -> dict[str, Any]:
        worst = max(body.tokens, default=0)
        if worst >= vocab_size:
            message = f"token id {worst} is outside the vocabulary of {vocab_size} tokens"
            raise bad_request(message, code="invalid_token_id", param="tokens")
        return {"prompt": tokenizer.decode(body.tokens, skip_special_tokens=body.skip_special_tokens)}

    await call.answer_sized(len(body.tokens), decoded)


async def tokenizer_info(call: Call) -> None:
    """tokenizer_config.json as it was read, with the chat template in use."""
    tokenizer, renderer = call.service.tokenizer, call.service.renderer
    if tokenizer is None or renderer is None:
        raise ApiError(404, "this deployment has no tokenizer (`model.skip_tokenizer_init`)", code="no_tokenizer")
    templates: Any = [{"name": name, "template": source.text} for name, source in renderer.sources.items()]
    if renderer.sources.keys() <= {"default"}:
        templates = next((source.text for source in renderer.sources.values()), None)
    # the file may contain NaN, which is not JSON
    config = json.loads(json.dumps(tokenizer.config), parse_constant=lambda _: None)
    await call.answer(
        {"tokenizer_class": None, **config, "vocab_size": tokenizer.vocab_size, "chat_template": templates}
    )
