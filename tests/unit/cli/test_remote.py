"""The terminal verbs against servers that behave, refuse, break off, or are not there."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stoker.cli import chat, complete
from stoker.cli.flags.serving import ChatFlags, CompleteFlags

SEEN: list[tuple[str, dict[str, str], dict[str, object]]] = []


class Handler(BaseHTTPRequestHandler):
    """Answers a message with its own words, a piece at a time; some words ask for trouble."""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer(200, json.dumps({"data": [{"id": "first"}, {"id": "second"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        SEEN.append((self.path, dict(self.headers), body))
        text = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        if text == "refuse":
            self.answer(401, json.dumps({"error": {"message": "wrong key"}}))
        elif text == "html":
            self.answer(502, "<html>")
        else:
            events = []
            for word in ("you", " said ", text):
                choice = {"delta": {"content": word}} if "messages" in body else {"text": word}
                events.append({"choices": [choice]})
            events.append({"choices": []})  # usage comes without choices
            frames = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
            if text == "fail":
                frames += 'data: {"error": {"message": "the engine stopped"}}\n\n'
            elif text != "break":
                frames += "data: [DONE]\n\n"
            self.answer(200, frames)

    def answer(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_quick_question_prints_the_answer_alone(url: str, capsys: pytest.CaptureFixture[str]):
    assert chat.run(ChatFlags(url, quick="hello", system_prompt="be kind", api_key="k")) == 0
    assert capsys.readouterr() == ("you said hello\n", "")
    path, headers, body = SEEN[-1]
    assert (path, headers["Authorization"], body["model"]) == ("/v1/chat/completions", "Bearer k", "first")
    assert [message["role"] for message in body["messages"]] == ["system", "user"]  # type: ignore[attr-defined]


@pytest.mark.holds("R195", "R196")
def test_a_key_of_the_command_line_and_a_named_model_are_used_instead_of_the_others(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "variable")
    for words, expected in (
        ({}, ("Bearer variable", "first")),
        ({"api_key": "flag", "model_name": "second"}, ("Bearer flag", "second")),
    ):
        for verb, flags in ((chat, ChatFlags), (complete, CompleteFlags)):
            assert verb.run(flags(url, quick="hello", **words)) == 0
            assert (SEEN[-1][1]["Authorization"], SEEN[-1][2]["model"]) == expected


def test_a_prompt_is_completed_by_the_model_that_was_named(url: str, capsys: pytest.CaptureFixture[str]):
    assert complete.run(CompleteFlags(url, quick="once", model_name="second")) == 0
    assert capsys.readouterr().out == "you said once\n"
    assert SEEN[-1][0] == "/v1/completions"
    assert SEEN[-1][2]["model"] == "second"


def test_a_conversation_from_a_pipe_keeps_its_turns(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\nrefuse\ntwo\n"))
    assert chat.run(ChatFlags(url)) == 1  # one of the questions failed
    assert capsys.readouterr() == ("you said one\nyou said two\n", "error: the server answered 401: wrong key\n")
    said = [message["content"] for message in SEEN[-1][2]["messages"]]  # type: ignore[attr-defined]
    assert said == ["one", "you said one", "two"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("refuse", "error: the server answered 401: wrong key"),
        ("html", "error: the server answered 502: Bad Gateway"),
        ("fail", "error: the engine stopped"),
        ("break", "error: the server closed the connection before the answer was complete"),
    ],
)
def test_trouble_is_one_line(url: str, capsys: pytest.CaptureFixture[str], text: str, words: str):
    assert chat.run(ChatFlags(url, quick=text)) == 1
    assert capsys.readouterr().err.splitlines() == [words]


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]):
    assert chat.run(ChatFlags("http://127.0.0.1:9/v1", quick="x")) == 1
    assert capsys.readouterr().err == "error: cannot reach http://127.0.0.1:9/v1: connection refused\n"
    assert complete.run(CompleteFlags("localhost:8000", quick="x")) == 1
    assert "expected a URL such as http://localhost:8000/v1" in capsys.readouterr().err


def test_the_key_comes_from_the_environment_unless_it_is_given(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    chat.run(ChatFlags(url, quick="x"))
    assert SEEN[-1][1]["Authorization"] == "Bearer from-environment"
    chat.run(ChatFlags(url, quick="x", api_key="given"))
    assert SEEN[-1][1]["Authorization"] == "Bearer given"
    capsys.readouterr()
