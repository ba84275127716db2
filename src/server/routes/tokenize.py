"""POST /tokenize and /detokenize: text, or messages, to token ids and back."""

from __future__ import annotations

from typing import Any

from ..endpoint import Call
from ..protocol.errors import bad_request
from ..protocol.tokenize import DetokenizeRequest, TokenizeRequest


async def tokenize(call: Call) -> None:
    service = call.service
    body = await call.body(TokenizeRequest)
    service.check_model(body.model)
    tokenizer = service.need_tokenizer()
    limits = service.model_limits
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("give either `prompt` or `messages`", code="missing_required_parameter", param="prompt")
    if body.prompt is not None:
        tokenizer.check_length(body.prompt, limits.context, param="prompt")
        add_special_tokens = body.add_special_tokens is not False
        token_ids = await tokenizer.encode_async(body.prompt, add_special_tokens=add_special_tokens)
    else:
        kwargs = service.template_kwargs(body.chat_template_kwargs, call.route, with_tools=bool(body.tools))
        token_ids = await service.need_renderer().tokens(
            [message.model_dump(exclude_none=True) for message in body.messages or ()],
            max_tokens=limits.context,
            add_special_tokens=bool(body.add_special_tokens),
            tools=[tool.model_dump(exclude_none=True) for tool in body.tools] if body.tools else None,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            template_kwargs=kwargs,
        )
    answer: dict[str, Any] = {"count": len(token_ids), "max_model_len": service.max_model_len, "tokens": token_ids}
    if body.return_token_strs:
        answer["token_strs"] = await tokenizer.run(lambda: [tokenizer.token_text(each) for each in token_ids])
    await call.answer(answer)


async def detokenize(call: Call) -> None:
    service = call.service
    body = await call.body(DetokenizeRequest)
    service.check_model(body.model)
    tokenizer = service.need_tokenizer()
    vocab_size = service.model_limits.vocab_size
    worst = max(body.tokens, default=0)
    if worst >= vocab_size:
        message = f"token id {worst} is outside the vocabulary of {vocab_size} tokens"
        raise bad_request(message, code="invalid_token_id", param="tokens")
    text = await tokenizer.run(lambda: tokenizer.decode(body.tokens, skip_special_tokens=body.skip_special_tokens))
    await call.answer({"prompt": text})
