"""Questions from a terminal or a pipe, one after another; answers are printed while they are generated.

On a terminal a line that begins with / is a command, and three quotation marks begin and end a text of several lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from .console import print_message
from .remote import RemoteError

_QUOTES = '"""'


@dataclass(frozen=True, slots=True)
class Command:
    """usage: its argument, as help shows it. run: gets the argument, and returns what is printed."""

    usage: str
    help: str
    run: Callable[[str], str]


def talk(
    answer: Callable[[str], Iterator[str]],
    quick: str | None,
    greeting: str,
    commands: Mapping[str, Command] | None = None,
) -> int:
    """Returns the exit code.

    answer: yields the parts of the answer to one text. quick: ask only this.
    Questions are read from standard input; prompts, greeting and commands are for a terminal only.
    """
    if quick is not None:
        return _show(answer(quick))
    if not sys.stdin.isatty():
        return _answer_lines(answer)
    print_message(f"{greeting}; /help lists the commands, Ctrl-D ends")
    while True:
        try:
            text = _read()
            if text.startswith("/"):
                if text == "/exit":
                    return 0
                print_message(_obey(text, commands or {}))
            elif text.strip():
                _show(answer(text))
        except EOFError:
            print_message("")
            return 0
        except KeyboardInterrupt:  # the line that was begun is left out
            print_message("")


def _answer_lines(answer: Callable[[str], Iterator[str]]) -> int:
    code = 0
    for line in sys.stdin:
        text = line.rstrip("\n")
        if text.strip():
            failed = _show(answer(text))
            code = code or failed
    return code


def _read() -> str:
    """A line, or the lines between three quotation marks."""
    text = input("> ")
    if not text.startswith(_QUOTES):
        return text
    lines = [text.removeprefix(_QUOTES)]
    while not lines[-1].endswith(_QUOTES):
        lines.append(input(". "))
    return "\n".join(lines).removesuffix(_QUOTES)


def _obey(line: str, commands: Mapping[str, Command]) -> str:
    name, _, argument = line[1:].partition(" ")
    if name == "help":
        rows = [(f"/{name} {command.usage}".rstrip(), command.help) for name, command in commands.items()]
        rows += [
            ("/exit", "End, as Ctrl-D does."),
            (_QUOTES, "Begins and ends a text of several lines."),
            ("Ctrl-C", "Stops the answer, or leaves out the line."),
        ]
        width = max(len(head) for head, _ in rows)
        return "\n".join(f"  {head:<{width}}  {text}" for head, text in rows)
    if name not in commands:
        return f"error: no such command `/{name}`; /help lists them, and a space before it sends the line as a message"
    return commands[name].run(argument.strip())


def _show(pieces: Iterator[str]) -> int:
    """Ctrl-C ends this answer only: closing the connection makes the server stop generating."""
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
        print(flush=True)
    except KeyboardInterrupt:
        print(flush=True)
        return 130
    except RemoteError as error:
        print_message(f"error: {error}")
        return 1
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
    return 0
