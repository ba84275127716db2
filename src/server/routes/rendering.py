"""Chat messages of a request to a prompt: which template, with which variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...text.renderer import Renderer
from ...text.switches import THINKING_SWITCHES
from ...text.template import LOCAL_BYTES
from ...text.tokenizer import Truncation
from ..agents.normalise import normalised
from ..endpoint import Call
from ..protocol.chat import Conversation, with_earlier
from ..protocol.errors import unsupported
from ..service import Service


class Prompt(NamedTuple):
    text: str
    token_ids: list[int]


async def rendered(
    call: Call,
    body: Conversation,
    *,
    max_tokens: int,
    add_special_tokens: bool,
    cut: Truncation | None = None,
    earlier: Sequence[dict[str, Any]] = (),
    has_output: bool = True,
) -> Prompt:
    """The messages as a prompt. has_output: whether tokens are generated after it.

    cut: a longer prompt than `max_tokens` is cut, not refused. earlier: messages of earlier requests.
    Raises ApiError or InvalidRequest: no template, a template that is not trusted or that does not read a field of the
    request, or messages it cannot render.
    """
    service = call.service
    renderer = await _renderer(service, body.chat_template)
    with_tools = bool(body.tools)
    kwargs = _template_kwargs(call, renderer, body.chat_template_kwargs, with_tools=with_tools)
    kwargs = {**_reasoning(call, renderer, body), **kwargs}
    if body.documents and not renderer.reads("documents", with_tools=with_tools):
        raise unsupported("documents", ": this model's chat template does not use them")
    messages, tools, removed = normalised(
        [] if call.long_body else with_earlier(earlier, body.plain_messages()),
        body.plain_tools(),
        service.normalise_rules,
    )
    template, rendering = renderer.rendering(
        list(earlier) if call.long_body else messages,
        tools=tools,
        documents=body.documents,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        template_kwargs=kwargs,
        limit=None if cut is not None else renderer.tokenizer.text_limit(max_tokens, has_output=has_output),
        model=call.body_model,
        long_body=call.long_body,
        rules=service.normalise_rules,
    )
    # a template of the request has its own processes, also for long bodies
    is_long = call.long_body and body.chat_template is None
    text = await template.render_async(
        rendering, service.long_bodies if is_long else None, is_short=call.num_body_bytes <= LOCAL_BYTES
    )
    call.forget_body()
    service.metrics.normalised({**removed, **rendering.removed})
    token_ids = await renderer.tokenizer.encode_async(
        text,
        max_tokens,
        param="messages",
        breaks=rendering.breaks,
        add_special_tokens=add_special_tokens,
        cut=cut,
        has_output=has_output,
    )
    return Prompt(text, token_ids)


def _reasoning(call: Call, renderer: Renderer, body: Conversation) -> dict[str, Any]:
    """Whether and how much to think, under the names that the template reads: the effort as it is, and as switches,
    which `none` sets to false.

    Raises ApiError if the template reads none of them; in other dialects than ours the field is only reported.
    """
    effort, thinks = body.reasoning_effort, body.wants_thinking
    used = renderer.template_variables(with_tools=bool(body.tools))
    found: dict[str, Any] = {}
    for param, value in (("reasoning_effort", effort), ("enable_thinking", thinks)):
        if value is None:
            continue
        given: dict[str, Any] = {name: value not in ("none", False) for name in THINKING_SWITCHES if name in used}
        if param == "reasoning_effort" and param in used:
            given[param] = value
        if given:
            found |= given
        elif call.thinking_param is not None:
            if call.thinking_param:
                call.note_ignored(call.thinking_param)
        else:
            shown = "thinking" if param == "enable_thinking" and body.enable_thinking is None else param
            raise unsupported(shown, ": this model's chat template does not use it")
    return found


async def _renderer(service: Service, chat_template: str | None) -> Renderer:
    """The deployment's renderer, or one with the template of the request. Raises ApiError, InvalidRequest."""
    renderer = service.need_renderer()
    if chat_template is None:
        return renderer
    if not service.settings.trust_request_chat_template:
        raise unsupported("chat_template", ": this deployment accepts none (`server.trust_request_chat_template`)")
    return await renderer.with_template(chat_template)


def _template_kwargs(
    call: Call, renderer: Renderer, given: dict[str, Any] | None, *, with_tools: bool
) -> dict[str, Any]:
    """Values of chat_template_kwargs that the template uses. Raises ApiError for names that the server sets."""
    given = given or {}
    for name in given:
        if name in renderer.reserved:
            param = "chat_template" if name == "chat_template" else f"chat_template_kwargs.{name[:100]}"
            raise unsupported(param)
    used = renderer.template_variables(with_tools=with_tools)
    if unknown := sorted(given.keys() - used):
        names = [f"chat_template_kwargs.{name}" for name in unknown]
        call.service.report_unknown(names, call.route)
        for name in names:
            call.note_ignored(name)
    return {name: value for name, value in given.items() if name in used}
