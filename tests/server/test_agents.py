"""Prompts of coding agents: what changes with every request is removed, and what still changes is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from stoker.config.schema.server import ServerConfig
from stoker.engine.api import InvalidRequest
from stoker.server.agents.normalise import RULES, normalised
from stoker.server.agents.sessions import Prefix, Sessions, packed

from ..tiny_tokenizer import write_tokenizer
from .deployment import MODEL, Served

BILLING = "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={};"
ONE_SYSTEM = (
    "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('a system message must be the first') }}{% endif %}"
    "[{{ message.role }}]{{ message.content }}{% endfor %}"
)


def system(*parts: Any) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": "text", "text": part} for part in parts]}


@pytest.mark.parametrize(
    ("rule", "message", "expected"),
    [
        ("anthropic-billing", system(BILLING.format("ab1"), "You are"), system("You are")),
        (
            "anthropic-billing",
            {"role": "system", "content": BILLING.format(1) + "\nYou are"},
            {"role": "system", "content": "You are"},
        ),
        (
            "total-tokens",
            {"role": "system", "content": "You are\n<total_tokens>193 tokens left</total_tokens>"},
            {"role": "system", "content": "You are"},
        ),
        ("cache-control", {**system("a"), "cache_control": {"type": "ephemeral"}}, system("a")),
        (
            "cache-control",
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]},
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
        ),
    ],
)
def test_a_rule_removes_what_changes_with_every_request(rule: str, message: Any, expected: Any):
    found = normalised([message], None, [rule])
    assert found.messages == [expected]
    assert found.removed == {rule: 1}
    others = [name for name in RULES if name != rule]
    assert normalised([message], None, others) == ([message], None, {})


def test_what_users_and_the_model_say_is_not_changed():
    said = [{"role": role, "content": BILLING + "<total_tokens>1</total_tokens>"} for role in ("user", "assistant")]
    assert normalised(said, None, RULES) == (said, None, {})


def test_markers_of_tools_are_removed():
    tool = {"type": "function", "function": {"name": "f"}}
    found = normalised([], [tool, {**tool, "cache_control": {"type": "ephemeral"}}], RULES)
    assert (found.tools, found.removed) == ([tool, tool], {"cache-control": 1})


def test_system_messages_become_one():
    user = {"role": "user", "content": "b"}
    messages = [{"role": "system", "content": "a"}, user, {"role": "developer", "content": "c"}, user]
    merged = [{"role": "system", "content": "a\n\nc"}, user, user]
    assert normalised(messages, None, ["second-system:first"]).messages == merged
    assert normalised([user, messages[0]], None, ["second-system:first"]).messages == [messages[0], user]
    with pytest.raises(InvalidRequest, match=r"`messages\[2\]` is a system message"):
        normalised(messages, None, ["second-system:error"])
    alone = [messages[0], user]
    assert normalised(alone, None, ["second-system:error"]).messages == alone


def test_the_option_has_every_rule():
    field = ServerConfig.model_fields["agents_normalise"]
    assert set(get_args(get_args(field.annotation)[0])) == set(RULES)


@pytest.mark.effect("server.agents_normalise")
@pytest.mark.parametrize("padding", ["", "a" * 70_000], ids=["short", "long"])
def test_prompts_with_another_nonce_are_the_same_prompt(folder: Path, padding: str):
    """padding: in a field that is not rendered; the body is then read in another process."""

    def prompts(served: Served) -> list[list[int]]:
        for nonce in ("a1", "b2"):
            messages = [system(BILLING.format(nonce), "You are"), {"role": "user", "content": "Hello"}]
            body = {"model": MODEL, "messages": messages, "max_tokens": 1, "user": padding}
            assert served.post("/v1/chat/completions", body).status_code == 200
        return [request.inputs.prompt_token_ids for request in served.engine.requests]

    served = Served(folder)
    first, second = prompts(served)
    assert first == second
    assert served.metric('stoker_normalised_messages_total{rule="anthropic-billing"}') == 2
    first, second = prompts(Served(folder, agents_normalise=()))
    assert first != second


@pytest.mark.effect("server.second_system_message")
def test_a_second_system_message_is_merged_where_the_template_refuses_it(folder: Path):
    messages = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
        {"role": "system", "content": "d"},
        {"role": "user", "content": "e"},
    ]

    def status(template: str | None, **options: Any) -> int:
        served = Served(folder, chat_template=template, **options)
        return served.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1}).status_code

    assert status(ONE_SYSTEM) == 200
    assert status(ONE_SYSTEM, second_system_message="keep") == 400
    assert status(None) == 200
    assert status(None, second_system_message="error") == 400


def test_the_place_where_a_prompt_diverges_is_found():
    sessions = Sessions()

    def follow(*token_ids: int, name: str = "a") -> Prefix | None:
        return sessions.next("", name, packed(token_ids))

    assert follow(1, 2, 3) is None
    assert follow(1, 2, 3, 4, 5) == Prefix(3, 3)
    assert follow(1, 2, 9, 4, 5, 6) == Prefix(2, 5)
    assert follow(name="b") is None
    assert follow(7, name="b") == Prefix(0, 0)
    assert sessions.next("another key", "a", packed([1])) is None


def test_sessions_are_kept_within_a_limit():
    sessions = Sessions(max_bytes=4 * 10, max_sessions=3)
    for index in range(100):
        sessions.next("", str(index), packed([1]))
    assert len(sessions) == 3
    assert sessions.next("", "99", packed([1] * 11)) == Prefix(1, 1)
    assert len(sessions) == 0  # longer than what is kept of all sessions
    assert sessions.next("", "99", packed([1])) is None


def test_a_divergence_is_in_the_metrics_and_in_a_header_if_asked(served: Served):
    def headers(text: str, **more: str) -> Any:
        answer = served.post(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": text}], "max_tokens": 1, "metadata": {"user_id": "s"}},
            headers={"x-prefix-diagnostic": "true", **more},
        )
        return answer.headers.get("x-prefix-kept")

    assert headers("Hello") is None
    kept, _, before = headers("Hullo").partition(" of ")
    assert 0 < int(kept) < int(before)
    assert headers("Hullo", **{"x-session-id": "other"}) is None
    assert served.metric(f'stoker_session_prefix_divergences_total{{model_name="{MODEL}"}}') == 1
    lost = served.metric(f'stoker_session_prefix_diverged_tokens_total{{model_name="{MODEL}"}}')
    assert lost == int(before) - int(kept)


def test_a_second_system_message_is_not_lost_in_a_template_that_reads_only_the_first(tmp_path: Path):
    """Before, it was missing in the prompt, without an error."""
    template = (
        "{% if messages[0].role == 'system' %}<{{ messages[0].content }}>{% endif %}"
        "{% for m in messages %}{% if m.role != 'system' %}[{{ m.content }}]{% endif %}{% endfor %}"
    )
    served = Served(write_tokenizer(tmp_path, template=template))
    user = {"role": "user", "content": "u"}
    messages = [{"role": "system", "content": "a"}, user, {"role": "developer", "content": "b"}, user]
    assert served.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1}).status_code == 200
    (request,) = served.engine.requests
    prompt = served.service.need_tokenizer().decode(request.inputs.prompt_token_ids, skip_special_tokens=False)
    assert prompt == "<a\n\nb>[u][u]"
