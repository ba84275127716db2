from __future__ import annotations

import pytest

from stoker.config import Layer
from stoker.config.source.secrets import hide_named, looks_secret
from stoker.config.source_text import SourceText

SECRET = "Pa55word"


def hidden(text: str) -> str:
    source = SourceText(Layer.FILE, "deploy.yaml", text.split("\n"))
    hide_named(source)
    return source.redacted()


@pytest.mark.parametrize("name", ["api_key", "api_kye", "apikey", "API-KEY", "token", "hf_tokn", "api_keys"])
def test_names_like_those_of_secrets_are_known(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name", ["port", "tokenizer", "apiVersion", "model", "kind", "tokenizer_mode", "api_server_count"]
)
def test_names_of_other_options_are_not(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize(
    "text",
    [
        "api_key: Pa55word",
        "server: {port: 1, api_key: [Pa55word, x",
        "server:\n\tapi_kye: Pa55word",
        "  'api_key':\n  # note\n    - Pa55word",
        "  api_key:\n  - x\n  - Pa55word",
        'api_key: "x\nPa55word"',
        "api_key: |\n\n  x\n  Pa55word",
        "api_key: [\nx,\nPa55word",
        '{"server": {"api_key":\n"Pa55word"}',
        "api_key: &a\n  Pa55word",
    ],
)
def test_a_secret_in_a_broken_file_is_known_by_its_key(text: str) -> None:
    assert SECRET not in hidden(text)
    assert "**********" in hidden(text)


def test_what_follows_is_shown() -> None:
    assert hidden("  api_key: x\n  other: 1\nport: 2").split("\n")[1:] == ["  other: 1", "port: 2"]
    assert hidden("api_key:\n- x\n- y\nport: 2").endswith("\nport: 2")


@pytest.mark.parametrize("value", ["{env: API_KEY}", "[{file: ./keys/a}]", "${API_KEY}", "\n  - {env: API_KEY}"])
def test_what_only_names_a_secret_is_shown(value: str) -> None:
    assert hidden(f"api_key: {value}\nother: [") == f"api_key: {value}\nother: ["
