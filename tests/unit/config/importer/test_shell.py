from __future__ import annotations

import pytest

from stoker.config.importer.launch import launches_of
from stoker.config.importer.shell import commands_of
from stoker.config.importer.shell_words import UnreadableShell


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
        ("a x$(date '+%F )') $1 b", ["a", "x\0$(date '+%F )')\0", "\0$1\0", "b"]),
        ('a $((1 + (2))) `b c` "`d`"', ["a", "\0$((1 + (2)))\0", "\0`b c`\0", "\0`d`\0"]),
        ('a "${x:-${y:-"m n"}}" ${x:=1} ${x-}', ["a", "${x:-${y:-m n}}", "${x:-1}", "${x:-}"]),
        (
            "a ${x%%-*} ${#x} ${x/a/b} ${1:-m}",
            ["a", *(f"\0{raw}\0" for raw in ("${x%%-*}", "${#x}", "${x/a/b}", "${1:-m}"))],
        ),
        ("a $'b\\n' <(c d) e", ["a", "b\n", "\0<(c d)\0", "e"]),
        ("a <<END b\nnot a word 'of it\nEND\nc", ["a", "b"]),
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "M=org/name-7b; a ${M##*/} ${M%-*} ${M#o} ${M%%/*} ${M%x}",
            ["name-7b", "org/name", "rg/name-7b", "org", "org/name-7b"],
        ),
        ("A=(b 'c d'); A+=(e); a \"${A[@]}\"", ["b", "c d", "e"]),
        ("A=b; A+=c; a $A ${A:+--d} ${B:+--e}", ["bc", "--d", "\0${B:+--e}\0"]),
        ("if x; then M=a; else M=a; fi; a $M", ["a"]),
        ("if x; then M=a; else M=b; fi; a $M", ["\0$M\0"]),
        ("M=c; case x in y) M=a;; esac; a $M", ["\0$M\0"]),
        ('A=(b); if x; then A+=(--c d); fi; a "${A[@]}"', ["b", "\0--c d\0"]),
        ('A=b; [ -n x ] && A="$A --c"; a $A', ["b", "\0--c\0"]),
        ("cd x && M=b && a $M", ["b"]),
        ("[ -z x ] || M=b; a $M", ["\0$M\0"]),
        ("M=$(b c); a $M d", ["\0$(b c)\0", "d"]),
        ("export M=b; a $M", ["b"]),
    ],
)
def test_what_a_script_makes_of_its_variables_is_followed(text: str, words: list[str]) -> None:
    """What depends on a branch, or on a command, is kept as it is written."""
    assert next(command for command in commands_of(text) if command[0] == "a")[1:] == words


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
    assert launch.env == {"B": "2", "C": "3", "D": "4", "E": "${E}"}
    assert "Variables that the script sets, and the container does not find: `A`." in launch.notes
