from __future__ import annotations

import pytest

from stoker.config.importer.launch import launches_of
from stoker.config.importer.shell import UnreadableShell, commands_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a  b\tc", ["a", "b", "c"]),
        ("a 'b c' \"d e\" f\\ g", ["a", "b c", "d e", "f g"]),
        ("a \\\n  b \\\r\n c", ["a", "b", "c"]),
        ("a '' \"\"", ["a", "", ""]),
        ("a # b c", ["a"]),
        ("a b#c", ["a", "b#c"]),
        ("a > out 2>&1 b < in", ["a", "b"]),
        ("a '$x' \\$y \"\\$z\"", ["a", "$$x", "$$y", "$$z"]),
        ('a $x "${y}" ${z:-1}', ["a", "${x}", "${y}", "${z:-1}"]),
        ("a $(date) $1", ["a", "$$"]),
        ("""a '{"k": [1, "two"]}'""", ["a", '{"k": [1, "two"]}']),
        ("a \\", ["a"]),
    ],
)
def test_words_are_read_as_a_shell_reads_them(text: str, words: list[str]) -> None:
    assert commands_of(text)[0] == words


def test_commands_end_at_breaks() -> None:
    assert commands_of("a && b; c | d\ne &") == [["a"], ["b"], ["c"], ["d"], ["e"]]


def test_variables_that_the_script_sets_are_filled_in() -> None:
    text = "M=Qwen/Qwen3-8B\nEXTRA='--seed 7 --port 1'\nvllm serve $M $EXTRA \"$EXTRA\" $OTHER"
    assert commands_of(text) == [
        ["vllm", "serve", "Qwen/Qwen3-8B", "--seed", "7", "--port", "1", "--seed 7 --port 1", "${OTHER}"]
    ]


def test_an_open_quote_is_reported_with_its_line() -> None:
    with pytest.raises(UnreadableShell) as caught:
        commands_of("a\nb 'c\nd")
    assert caught.value.line == 2


@pytest.mark.parametrize(
    ("text", "engine", "words"),
    [
        ("vllm serve m -tp 2", "vllm", ["m", "-tp", "2"]),
        ("/opt/venv/bin/vllm serve m", "vllm", ["m"]),
        ("python3.11 -m vllm.entrypoints.openai.api_server --model m", "vllm", ["--model", "m"]),
        ("nohup uv run vllm serve m", "vllm", ["m"]),
        ("conda run -n x vllm serve m", "vllm", ["m"]),
        ("sglang serve --model-path m", "sglang", ["--model-path", "m"]),
        ("python -m sglang.launch_server --tp 2", "sglang", ["--tp", "2"]),
        ("/usr/local/bin/llama-server -m x", "llama.cpp", ["-m", "x"]),
        ("engine serve m", "stoker", ["m"]),
        ("python -m stoker serve m", "stoker", ["m"]),
        ("docker run -d -p 1:2 -v /vllm:/x --gpus all vllm/vllm-openai --model m", "vllm", ["--model", "m"]),
        ("docker run vllm/vllm-openai serve m", "vllm", ["m"]),
        ("docker container run --rm lmsysorg/sglang sglang serve --tp 1", "sglang", ["--tp", "1"]),
        ("sh -c 'cd /x && exec vllm serve m'", "vllm", ["m"]),
    ],
)
def test_a_server_is_found_within_a_wrapper(text: str, engine: str, words: list[str]) -> None:
    (launch,) = launches_of(text)
    assert (launch.engine, launch.words) == (engine, words)


def test_the_environment_in_front_belongs_to_the_launch() -> None:
    (launch,) = launches_of("export A=1\nB=2 env C=3 docker run -e D=4 --env=E vllm/vllm-openai --model m")
    assert launch.env == {"A": "1", "B": "2", "C": "3", "D": "4", "E": "${E}"}
