"""The `engine` command: its verbs, and how a command line is run.

Verbs are declared in verbs/, by group. Nothing else is imported here, so that `engine --help` starts quickly; Typer is
imported when a command line is parsed, which completion does without.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

EXIT_WRONG_COMMAND_LINE = 2
EXIT_ENVIRONMENT = 4
OVERRIDES_HELP = """
Every option can be given as a flag: --max-num-seqs 64, --scheduler.max-num-seqs 64, --no-enable-prefix-caching,
--hf-overrides.rope_theta 1e6. `engine explain` lists them. --config FILE reads a flat file of option names. Later
layers override earlier ones: default, preset, files in order, --config, environment ENGINE__SECTION__OPTION, command
line.
"""


@dataclass(frozen=True)
class Verb:
    """Declaration of a verb: a function of its name in verbs/<group>.py."""

    group: str
    takes_options: bool = False  # every option of the deployment is a flag of it
    takes_words: bool = False  # words that begin with a dash are arguments of it

    def function(self, name: str) -> Any:
        function = {"import": "import_", "test": "run_tests"}.get(name, name.replace("-", "_"))
        return getattr(import_module(f".verbs.{self.group}", __package__), function)


VERBS = {  # in the order of `engine --help`
    "up": Verb("serving", takes_options=True),
    "serve": Verb("serving", takes_options=True),
    "validate": Verb("checking", takes_options=True),
    "config": Verb("checking", takes_options=True),
    "plan": Verb("checking", takes_options=True),
    "test": Verb("checking", takes_options=True),
    "explain": Verb("checking", takes_words=True),
    "schema": Verb("checking"),
    "diff": Verb("checking", takes_options=True),
    "init": Verb("writing"),
    "import": Verb("writing", takes_words=True),
    "migrate": Verb("writing"),
    "render": Verb("writing"),
    "connect": Verb("writing", takes_options=True),
    "quantize": Verb("writing"),
    "save-sharded": Verb("writing", takes_options=True),
    "completion": Verb("writing"),
    "chat": Verb("serving"),
    "complete": Verb("serving"),
    "reload": Verb("serving"),
    "run-batch": Verb("serving", takes_options=True),
    "bench": Verb("measuring", takes_options=True),
    "collect-env": Verb("measuring"),
}


@cache
def command_line(*names: str) -> Any:
    """The command line as Typer reads it, with only these verbs: reading all takes longer than most verbs' work."""
    import typer

    app = typer.Typer(
        name="engine",
        help="Declare an LLM deployment in one YAML file; check it, and serve it behind an OpenAI-compatible API.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def print_version(value: bool) -> None:
        if value:
            from .. import __version__

            print(f"stoker {__version__}")
            raise typer.Exit

    version = typer.Option(
        False, "--version", callback=print_version, is_eager=True, help="Print the version and exit."
    )

    def root(version: bool = version) -> None:
        pass

    app.callback()(root)
    for name in names:
        verb = VERBS[name]
        app.command(name, epilog=OVERRIDES_HELP if verb.takes_options else None)(verb.function(name))
    return typer.main.get_command(app)


def commands() -> Mapping[str, Any]:
    """Every verb by name, as Typer reads it."""
    found: dict[str, Any] = command_line(*VERBS).commands
    return found


def verbs_with_options() -> Iterable[str]:
    """Verbs that take every option of the deployment as a flag."""
    return [name for name, verb in VERBS.items() if verb.takes_options]


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    words = list(sys.argv[1:] if words is None else words)
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _run(words: list[str]) -> int:
    if words[:1] == ["__complete"]:  # called by the scripts of completion.py
        from .completion import answer

        return answer(words[1:], commands, verbs_with_options)
    words = words or ["--help"]
    name = words[0]
    verb = VERBS.get(name)
    if verb is None and not name.startswith("-"):
        return _fail(f"no such command `{name}`", difflib.get_close_matches(name, VERBS, 3, 0.6))
    command = command_line(name) if verb else command_line(*VERBS)
    overrides: list[str] = []
    if verb is not None and (verb.takes_options or verb.takes_words):
        from .overrides import behind_dashes, own_flags, take_overrides

        own = own_flags(command.commands[name])
        if verb.takes_words:
            words = [name, *behind_dashes(words[1:], own)]
        else:
            from ..config.errors import ConfigError

            try:
                mine, overrides = take_overrides(words[1:], own)
            except ConfigError as error:
                from .console import print_message

                print_message(str(error))
                return error.exit_code
            words = [name, *mine]
    return _invoke(command, words, name, overrides)


def _invoke(command: Any, words: list[str], name: str, overrides: list[str]) -> int:
    import typer

    from .verbs.arguments import Invocation

    # Typer contains its own copy of Click in newer releases, so its base error is found from a public class.
    wrong: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
    try:
        invocation = Invocation(overrides, commands)
        code = command.main(args=words, prog_name="engine", standalone_mode=False, obj=invocation)
    except wrong as error:
        return _fail(error.format_message().replace("Value error, ", ""), [], name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == __name__.partition(".")[0]:
            raise
        from ..installation import install_command

        print(f"error: `engine {name}` needs {error.name}, which is not installed", file=sys.stderr)
        print(f"  = fix: {install_command('engine')}", file=sys.stderr)
        return EXIT_ENVIRONMENT
    return code if isinstance(code, int) else 0


def _fail(message: str, suggestions: Sequence[str], name: str = "") -> int:
    """A wrong command line in the format of all other errors, without Typer's boxes."""
    hint = f"; did you mean {' or '.join(f'`{name}`' for name in suggestions)}?" if suggestions else ""
    print(f"error: {message.rstrip('.')}{hint}", file=sys.stderr)
    print(f"  = more: {' '.join(['engine', *([name] if name else []), '--help'])}", file=sys.stderr)
    return EXIT_WRONG_COMMAND_LINE
