"""Sessions of coding agents: every request is answered, in order, and prompts keep their prefix."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tools.clients.events import message_answer
from tools.clients.server import Server
from tools.clients.task import KEY

import stoker.builtin
from stoker.formats.registry import find
from stoker.text.tokenizer import Tokenizer

from ...fakes import FakeEngine
from ..deployment import Served
from .session import Agent, ClaudeCode, Codex, Turn, Workplace, events_of, run_session

TINY = Path(stoker.builtin.__file__).parent / "tiny"
QUESTIONS = (
    "What is the weather in Lisbon?",
    "What is max_num_seqs?",
    "What is the weather in Oslo?",
    "What is 2 + 3?",
    "What does block_size do?",
    "What is the weather in Kyoto?",
)
BLOCK = 16
# The end of a prompt that is not in the next one: the beginning of the answer, which the chat template writes, and the
# marker of thinking, which it leaves out of earlier answers.
TAIL = 16
SHORT = {"max_output_tokens": 48}  # so that the questions fit into the context of builtin:tiny


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def kept(before: list[int], after: list[int]) -> int:
    """Number of tokens at the beginning that both prompts have."""
    pairs = zip(before, after, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(before), len(after)))


@pytest.mark.parametrize(("agent", "shell"), [(Codex(), "shell_command"), (ClaudeCode(), "Bash")])
@pytest.mark.quick_cases(1)
def test_a_session_is_answered_and_each_prompt_begins_with_the_one_before(agent: Agent, shell: str):
    script = [call(shell, command="ls"), "There is a README.md.", call(shell, command="cat x") * 2, "Done.", "Yes."]
    tokenizer = Tokenizer.load(TINY)
    answers = [tokenizer.encode(text) for text in script]
    engine = FakeEngine(vocab_size=4096, max_model_len=4096, num_blocks=1024, script=lambda _: answers.pop(0))
    names = {"model": "builtin:tiny", "served_model_name": ("builtin:tiny",), "max_model_len": 4096}
    served = Served(TINY, engine, answer_format=find("hermes"), model=names, scheduler={"max_queued_tokens": 65536})
    workplace = Workplace()

    def post(path: str, body: dict[str, Any], headers: Any) -> tuple[int, str]:
        response = served.post(path, body, headers=headers)
        return response.status_code, response.text

    turns = run_session(agent, post, QUESTIONS[:3], workplace)
    assert [turn.calls for turn in turns] == [(shell,), (), (shell, shell), (), ()]
    assert [called.name for called in workplace.ran] == [shell] * 3
    prompts = [request.inputs.prompt_token_ids for request in engine.requests]
    for before, after in itertools.pairwise(prompts):
        assert kept(before, after) >= len(before) - TAIL


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Of a server with builtin:tiny."""
    server = Server("open", tmp_path_factory.mktemp("server") / "server.log")
    client = Client(server.url.removesuffix("/v1"))
    yield client
    client.http.close()
    server.close()


class Client:
    def __init__(self, url: str) -> None:
        headers = {"authorization": f"Bearer {KEY}"}
        self.http = httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False)

    def post(self, path: str, body: dict[str, Any], headers: Any = None) -> tuple[int, str]:
        response = self.http.post(path, json=body, headers=headers)
        return response.status_code, response.text


def check_cached(turns: list[Turn], name: str) -> None:
    """From the second turn on, the prefix cache has the whole blocks of the prompt before."""
    for before, after in itertools.pairwise(turns):
        assert after.cached >= (before.prompt - TAIL) // BLOCK * BLOCK, turns
    share = sum(turn.cached for turn in turns) / sum(turn.prompt for turn in turns)
    print(f"{name}: {len(turns)} requests, {share:.0%} of the tokens of their prompts were cached")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "agent", "questions"),
    [
        ("Codex", Codex(**SHORT), QUESTIONS[:4]),
        ("Codex that thinks", Codex(**SHORT, reasoning={"effort": "medium", "summary": "auto"}), QUESTIONS[:4]),
        ("Claude Code", ClaudeCode(), QUESTIONS),
        ("Claude Code that thinks", ClaudeCode(thinking={"type": "adaptive"}, model="claude-test"), QUESTIONS),
    ],
)
def test_a_session_with_a_model_finds_its_prompts_in_the_prefix_cache(
    client: Client, name: str, agent: Agent, questions: tuple[str, ...]
):
    workplace = Workplace()
    turns = run_session(agent, client.post, questions, workplace)
    check_cached(turns, name)
    assert workplace.ran  # a call within which the model ends is not carried out


@pytest.mark.slow
def test_a_patch_of_codex_obeys_its_grammar_and_is_answered(client: Client):
    """The loop asks for the patch, which a model of this size does not write by itself, and may not end."""
    workplace = Workplace()
    agent = Codex(tool_choice={"type": "custom", "name": "apply_patch"}, max_output_tokens=200)
    (turn,) = run_session(agent, client.post, ["Write a file."], workplace, max_steps=1)
    assert turn.calls == ("apply_patch",)
    assert re.match(r"\*\*\* Begin Patch\n\*\*\* (Add|Delete|Update) File: .", workplace.ran[0].input)


@pytest.mark.slow
def test_the_first_requests_of_the_agents_are_answered(client: Client):
    codex, claude = Codex(), ClaudeCode()
    probe = {**codex.request(), "input": [], "max_output_tokens": 1}
    status, body = client.post(codex.path, probe, codex.headers)
    assert status == 200, body
    status, body = client.post("/v1/messages?beta=true", claude.recorded["quota"], claude.headers)
    assert (status, json.loads(body)["type"]) == (200, "message")
    status, body = client.post("/v1/messages?beta=true", claude.recorded["title"], claude.headers)
    assert status == 200, body
    (text,) = message_answer(events_of(body))["content"]
    assert json.loads(text["text"]).keys() == {"title"}


@pytest.mark.slow
def test_tokens_are_counted_as_they_are_used(client: Client):
    claude = ClaudeCode()
    claude.ask(QUESTIONS[0])
    status, body = client.post("/v1/messages/count_tokens?beta=true", claude.counted(), claude.headers)
    assert status == 200, body
    status, answer = client.post(claude.path, claude.request(), claude.headers)
    _, turn = claude.take(events_of(answer))
    assert json.loads(body)["input_tokens"] == turn.prompt


def test_the_recorded_requests_hold_what_the_agents_are_known_to_send():
    here = Path(__file__).parent
    codex = json.loads((here / "codex.json").read_text())["body"]
    assert {tool["type"] for tool in codex["tools"]} >= {"function", "custom", "namespace", "web_search"}
    first, second = ClaudeCode(), ClaudeCode()
    for agent in (first, second):
        agent.ask("Hello")
    second.request()
    one, other = first.request(), second.request()
    assert one["system"] != other["system"]  # the nonce and the counter
    assert one["messages"] == other["messages"]
