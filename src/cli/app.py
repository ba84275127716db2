"""The `engine` command: its verbs, their arguments, and where their work is done.

Nothing of Stoker is imported up here, so that `engine --help` answers at once; each verb imports what it needs.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Annotated, Any

import typer

EXIT_WRONG_COMMAND_LINE = 2
EXIT_ENVIRONMENT = 4
_TAKES_OVERRIDES = {"up", "serve", "validate", "config", "plan", "diff", "run-batch", "bench"}
# Typer carries its own copy of Click in newer releases, so its base error is found from a public class.
_ClickException: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

OVERRIDES_HELP = """
Every option can be given as a flag: --max-num-seqs 64, --scheduler.max-num-seqs 64, --no-enable-prefix-caching,
--hf-overrides.rope_theta 1e6. `engine explain` lists them. --config FILE reads a flat file of such names. Stronger
layers win: default < preset < files in order < --config < environment ENGINE__SECTION__OPTION < command line.
"""

app = typer.Typer(
    name="engine",
    help="Declare an LLM deployment in one YAML file; check it, and serve it behind an OpenAI-compatible API.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[str | None, typer.Argument(metavar="FILE", help="The deployment; - reads standard input.")]
Overlays = Annotated[
    list[str] | None,
    typer.Option("--file", "-f", metavar="FILE", help="A file on top of FILE; may be repeated, later ones win."),
]
Url = Annotated[str, typer.Option("--url", help="Base URL of the server.")]
ModelName = Annotated[str | None, typer.Option("--model-name", help="Model to ask; else the first the server lists.")]
Key = Annotated[str | None, typer.Option("--api-key", help="Key for the server; else OPENAI_API_KEY.")]


@app.command(epilog=OVERRIDES_HELP)
def up(context: typer.Context, file: File = None, overlays: Overlays = None) -> None:
    """Check a deployment, load its model and serve it."""
    from .up import run

    _exit(run(_files(file, overlays), context.obj or []))


@app.command(epilog=OVERRIDES_HELP)
def serve(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(help="Hub id, directory or builtin:tiny.")] = None,
    overlays: Overlays = None,
) -> None:
    """Serve a model without a file: `engine serve MODEL [flags]`."""
    from .up import run

    named = ["--model", model] if model is not None else []
    _exit(run(_files(None, overlays), [*named, *(context.obj or [])]))


@app.command(epilog=OVERRIDES_HELP)
def validate(
    context: typer.Context,
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE...", help="Deployments, each on its own.")] = None,
    overlays: Overlays = None,
    output: Annotated[str, typer.Option("--output", "-o", help="text, json, github or sarif.")] = "text",
    deny_warnings: Annotated[bool, typer.Option("--deny-warnings", help="Warnings count as errors.")] = False,
) -> None:
    """Find every mistake in deployments, without a model, a network or a GPU."""
    from .validate import run

    _exit(run(files or [], overlays or [], context.obj or [], output=output, deny_warnings=deny_warnings))


@app.command(epilog=OVERRIDES_HELP)
def config(
    context: typer.Context,
    file: File = None,
    path: Annotated[str | None, typer.Argument(metavar="PATH", help="One section or option.")] = None,
    overlays: Overlays = None,
    show_origin: Annotated[bool, typer.Option("--show-origin", help="Say where each value comes from.")] = False,
    output: Annotated[str, typer.Option("--output", "-o", help="yaml or json.")] = "yaml",
    minimal: Annotated[bool, typer.Option("--minimal", help="Only what somebody wrote.")] = False,
    hash_only: Annotated[bool, typer.Option("--hash", help="Only a hash of the written configuration.")] = False,
    sources: Annotated[bool, typer.Option("--sources", help="Every file and preset read, weakest first.")] = False,
) -> None:
    """Show the effective configuration of a deployment."""
    from .config import run

    _exit(
        run(
            _files(file, overlays),
            context.obj or [],
            path=path,
            show_origin=show_origin,
            output=output,
            minimal=minimal,
            hash_only=hash_only,
            sources=sources,
        )
    )


@app.command(epilog=OVERRIDES_HELP)
def plan(
    file: File = None,
    overlays: Overlays = None,
    device_profile: Annotated[
        str, typer.Option("--device-profile", metavar="NAME|FILE", help="Plan for another device, such as h100-80gb.")
    ] = "this-machine",
    output: Annotated[str, typer.Option("--output", "-o", help="text or json.")] = "text",
    strict_fit: Annotated[bool, typer.Option("--strict-fit", help="An estimate that says no counts too.")] = False,
    calibration: Annotated[
        bool, typer.Option("--calibration", help="What starts on this machine measured, beside what was planned.")
    ] = False,
    *,
    context: typer.Context,
) -> None:
    """Say whether a deployment fits, on which device, and what would make it fit."""
    from .plan import run

    _exit(
        run(
            _files(file, overlays),
            context.obj or [],
            device_profile=device_profile,
            output=output,
            strict_fit=strict_fit,
            calibration=calibration,
        )
    )


@app.command()
def explain(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHAT", help="A flag, option, section, variable, rule, error code, preset, metric or any word."
        ),
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="text, json or md.")] = "text",
    recursive: Annotated[bool, typer.Option("--recursive", help="Every option of a section in full.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Every option, one record each.")] = False,
    status: Annotated[bool, typer.Option("--status", help="What is effective, deprecated and refused.")] = False,
) -> None:
    """Say what an option, rule or error code means."""
    from .explain import run, run_all, run_status

    if every:
        _exit(run_all(output))
    if status:
        _exit(run_status(output))
    _exit(run(" ".join(what or []), output=output, recursive=recursive))


@app.command()
def schema(
    check: Annotated[bool, typer.Option("--check", help="Fail if the files in schemas/ are stale.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write the files in schemas/.")] = False,
    draft_07: Annotated[bool, typer.Option("--draft-07", help="Print the twin for editors of draft-07.")] = False,
) -> None:
    """Print the JSON Schema of deployment files."""
    from .schema import run

    _exit(run(check=check, write=write, draft_07=draft_07))


@app.command(epilog=OVERRIDES_HELP)
def diff(
    context: typer.Context,
    old: Annotated[str, typer.Argument(metavar="FILE", help="A deployment, or the URL of a running server.")],
    new: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="What to compare it with; left out: FILE with the options given here."),
    ] = None,
    server_key: Annotated[
        str | None, typer.Option("--server-key", help="Key for the server; else OPENAI_API_KEY.")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="text or json.")] = "text",
) -> None:
    """Show what differs between two deployments, or between a deployment and a running server.

    A running server is always the old side, options given here lie on the new one. Ends with 0 if both say the same,
    1 if they differ, 2 if one of them cannot be read.
    """
    from .diff import run

    _exit(run(old, new, context.obj or [], api_key=server_key, output=output))


@app.command()
def init(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What to write; - prints it.")] = "deploy.yaml",
    minimal: Annotated[bool, typer.Option("--minimal", help="A dozen lines; this is the default.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Every option with what it does, at its default.")] = False,
    model: Annotated[str, typer.Option("--model", help="Hub id, directory or builtin:tiny.")] = "builtin:tiny",
    preset: Annotated[str | None, typer.Option("--preset", help="A preset to build on.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a first deployment file."""
    from .init import run

    _exit(run(file, model=model, preset=preset, is_full=full, is_minimal=minimal, force=force))


@app.command("import")
def import_(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="WHAT", help="A command line in quotes or behind --, a script, or a flat YAML file."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--from", help="Whose options they are: vllm, sglang, llama.cpp or stoker.")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="yaml or json.")] = "yaml",
    strict: Annotated[bool, typer.Option("--strict", help="End with 1 if anything has no counterpart.")] = False,
) -> None:
    """Write the manifest that says what a launch of vLLM, SGLang or llama.cpp says."""
    from .import_ import run

    _exit(run(what or [], engine=engine, output=output, strict=strict))


@app.command()
def migrate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The deployment.")],
    write: Annotated[bool, typer.Option("--write", help="Change the file; else only show what would change.")] = False,
) -> None:
    """Rewrite deprecated names in a deployment file."""
    from .migrate import run

    _exit(run(file, write=write))


@app.command()
def render(
    form: Annotated[str, typer.Argument(metavar="k8s|compose|systemd", help="Who runs the deployment.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="The deployment.")],
    image: Annotated[str | None, typer.Option("--image", help="Container image; else stoker:VERSION.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of everything; else that of FILE.")] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", help="Kubernetes namespace.")] = None,
    replicas: Annotated[int, typer.Option("--replicas", help="Copies, each with the whole model.")] = 1,
    program: Annotated[str | None, typer.Option("--program", help="Path of `engine`, for systemd.")] = None,
) -> None:
    """Write Kubernetes objects, a compose file or a systemd unit from one deployment."""
    from .render import run

    _exit(run(form, file, image=image, name=name, namespace=namespace, replicas=replicas, program=program))


@app.command()
def completion(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="The shell to complete in.")],
) -> None:
    """Print a script that makes a shell complete `engine`: verbs, options, values, topics."""
    from .completion import run

    _exit(run(shell))


@app.command()
def chat(
    url: Url = "http://localhost:8000/v1",
    model_name: ModelName = None,
    api_key: Key = None,
    system_prompt: Annotated[str | None, typer.Option("--system-prompt", help="System message to start with.")] = None,
    quick: Annotated[str | None, typer.Option("--quick", "-q", help="Send this one message, print, and end.")] = None,
) -> None:
    """Talk to a running server."""
    from .chat import run

    _exit(run(url, model_name=model_name, api_key=api_key, system_prompt=system_prompt, quick=quick))


@app.command()
def complete(
    url: Url = "http://localhost:8000/v1",
    model_name: ModelName = None,
    api_key: Key = None,
    quick: Annotated[str | None, typer.Option("--quick", "-q", help="Send this one prompt, print, and end.")] = None,
) -> None:
    """Complete prompts with a running server."""
    from .complete import run

    _exit(run(url, model_name=model_name, api_key=api_key, quick=quick))


@app.command("run-batch", epilog=OVERRIDES_HELP)
def run_batch(
    context: typer.Context,
    input_file: Annotated[
        str,
        typer.Option("--input-file", "-i", metavar="FILE", help="Requests, a JSON object per line: a file, URL or -."),
    ],
    output_file: Annotated[
        str,
        typer.Option("--output-file", "-o", metavar="FILE", help="Results, a line each: a file, or a URL for a PUT."),
    ],
    file: File = None,
    overlays: Overlays = None,
    output_tmp_dir: Annotated[
        str | None,
        typer.Option(
            "--output-tmp-dir", metavar="DIR", help="Where results wait before they go to a URL; else TMPDIR."
        ),
    ] = None,
    response_role: Annotated[
        str | None, typer.Option("--response-role", help="Role on generated messages; else assistant.")
    ] = None,
    enable_metrics: Annotated[bool, typer.Option("--enable-metrics", help="Serve /metrics while it runs.")] = False,
    url: Annotated[str | None, typer.Option("--url", help="Address of the metrics; else 0.0.0.0.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Port of the metrics; else 8000.")
    ] = None,
    enable_prompt_tokens_details: Annotated[
        bool, typer.Option("--enable-prompt-tokens-details", help="Say how much of a prompt was in the cache.")
    ] = False,
    max_log_len: Annotated[
        int | None, typer.Option("--max-log-len", min=0, help="Longest part of a prompt that is logged.")
    ] = None,
    disable_log_requests: Annotated[
        bool, typer.Option("--disable-log-requests", help="No log record for each request.")
    ] = False,
    disable_log_stats: Annotated[
        bool, typer.Option("--disable-log-stats", help="No record of the engine's load every ten seconds.")
    ] = False,
    use_v2_block_manager: Annotated[
        bool | None, typer.Option("--use-v2-block-manager", help="Deprecated: there is one block pool.")
    ] = None,
) -> None:
    """Answer a file of requests, in OpenAI's batch format, and end.

    Results come in the order in which they are ready. A run that is cut short keeps what it has, and the same command
    goes on from there. Ends with 0 if every line was answered, with 1 if one was refused or is no request.
    """
    from .run_batch import BatchFlags, run

    flags = BatchFlags(
        input_file=input_file,
        output_file=output_file,
        output_tmp_dir=output_tmp_dir,
        response_role=response_role,
        enable_metrics=enable_metrics,
        url=url,
        port=port,
        enable_prompt_tokens_details=enable_prompt_tokens_details,
        max_log_len=max_log_len,
        disable_log_requests=disable_log_requests,
        disable_log_stats=disable_log_stats,
        use_v2_block_manager=use_v2_block_manager,
    )
    _exit(run(_files(file, overlays), context.obj or [], flags))


@app.command(epilog=OVERRIDES_HELP)
def bench(
    context: typer.Context,
    bench_type: Annotated[
        str, typer.Argument(metavar="latency|throughput|serve|startup", help="What is measured; see above.")
    ],
    file: File = None,
    overlays: Overlays = None,
    input_len: Annotated[int | None, typer.Option("--input-len", min=1, help="Tokens of a prompt; else 128.")] = None,
    output_len: Annotated[
        int | None, typer.Option("--output-len", min=1, help="Tokens of an answer; else 128.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="latency: prompts at once; else 8.")
    ] = None,
    num_iters: Annotated[int | None, typer.Option("--num-iters", min=1, help="latency: batches; else 10.")] = None,
    num_prompts: Annotated[
        int | None, typer.Option("--num-prompts", min=1, help="throughput, serve: requests in all; else 100.")
    ] = None,
    length_spread: Annotated[
        float | None,
        typer.Option(
            "--length-spread", min=0, max=1, help="throughput, serve: lengths vary by this share, up and down; else 0."
        ),
    ] = None,
    prefix_len: Annotated[
        int | None,
        typer.Option("--prefix-len", min=0, help="throughput, serve: tokens that all prompts begin with; else 0."),
    ] = None,
    num_warmup: Annotated[
        int | None, typer.Option("--num-warmup", min=0, help="Batches or requests before the clock runs; else 1.")
    ] = None,
    num_runs: Annotated[int | None, typer.Option("--num-runs", min=1, help="startup: how many; else 3.")] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="serve: base URL of the server; else http://localhost:8000/v1.")
    ] = None,
    model_name: Annotated[
        str | None, typer.Option("--model-name", help="serve: model to ask; else the first the server lists.")
    ] = None,
    api_key: Annotated[str | None, typer.Option("--api-key", help="serve: its key; else OPENAI_API_KEY.")] = None,
    endpoint: Annotated[str | None, typer.Option("--endpoint", help="serve: chat or completions; else chat.")] = None,
    request_rate: Annotated[
        float | None,
        typer.Option(
            "--request-rate", min=0.001, help="serve: requests per second, at random times; else all at once."
        ),
    ] = None,
    max_concurrency: Annotated[
        int | None, typer.Option("--max-concurrency", min=1, max=1024, help="serve: requests under way; else 32.")
    ] = None,
    ignore_eos: Annotated[
        bool | None, typer.Option("--ignore-eos", help="serve: ask for answers of full length; not every server can.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of prompts, lengths and arrivals; else 0.")] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="text or json.")] = "text",
) -> None:
    """Measure speed: times to the first token, between tokens and to the end, tokens per second.

    latency: one batch of prompts after the other. throughput: all prompts at once. Both run the engine in this process.
    serve: requests to a running server, also one of another make. startup: the phases of a start.
    """
    from .bench.run import run

    given = {
        "input_len": input_len,
        "output_len": output_len,
        "batch_size": batch_size,
        "num_iters": num_iters,
        "num_prompts": num_prompts,
        "length_spread": length_spread,
        "prefix_len": prefix_len,
        "num_warmup": num_warmup,
        "num_runs": num_runs,
        "url": url,
        "model_name": model_name,
        "api_key": api_key,
        "endpoint": endpoint,
        "request_rate": request_rate,
        "max_concurrency": max_concurrency,
        "ignore_eos": ignore_eos,
        "seed": seed,
    }
    given = {name: value for name, value in given.items() if value is not None}
    _exit(run(bench_type, _files(file, overlays), context.obj or [], given, output=output))


@app.command("collect-env")
def collect_env(
    output: Annotated[str, typer.Option("--output", "-o", help="text or json.")] = "text",
) -> None:
    """Print what a bug report needs to say of this machine and this installation; no secrets."""
    from .collect_env import run

    _exit(run(output))


def _version(value: bool) -> None:
    if value:
        from .. import __version__

        print(f"stoker {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    pass


@cache
def _command(verb: str = "") -> Any:
    """The command line as Typer reads it; with a verb, only that one, since all take longer than most verbs' work."""
    if not verb:
        return typer.main.get_command(app)
    part = copy(app)
    part.registered_commands = [command for command in app.registered_commands if _name(command) == verb]
    return typer.main.get_command(part)


def _name(command: Any) -> str:
    return command.name or typer.main.get_command_name(command.callback.__name__)


def verbs() -> dict[str, Any]:
    """Every verb by name, as Typer reads it."""
    commands: dict[str, Any] = _command().commands
    return commands


def overriding_verbs() -> set[str]:
    """Verbs that take every option as a flag."""
    return _TAKES_OVERRIDES


def _files(file: str | None, overlays: Sequence[str] | None) -> list[str]:
    return [*([file] if file is not None else []), *(overlays or [])]


def _exit(code: int) -> None:
    raise typer.Exit(code)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    words = list(sys.argv[1:] if words is None else words)
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _run(words: list[str]) -> int:
    if words[:1] == ["__complete"]:  # of completion.py; no Typer, which would take longer than a TAB may
        from .completion import answer

        return answer(words[1:])
    verb = words[0] if words else ""
    known = [_name(command) for command in app.registered_commands]
    if verb and not verb.startswith("-") and verb not in known:
        return _fail(f"no such command `{verb}`", difflib.get_close_matches(verb, known, 3, 0.6))
    command = _command(verb if verb in known else "")
    overrides: list[str] = []
    if verb in _TAKES_OVERRIDES or verb in ("explain", "import"):
        from .overrides import behind_dashes, own_flags, take_overrides

        own = own_flags(command.commands[verb])
        if verb in ("explain", "import"):
            words = [verb, *behind_dashes(words[1:], own)]
        else:
            from ..config.errors import ConfigError

            try:
                mine, overrides = take_overrides(words[1:], own)
            except ConfigError as error:
                from .console import tell

                tell(str(error))
                return error.exit_code
            words = [verb, *mine]
    try:
        code = command.main(args=words, prog_name="engine", standalone_mode=False, obj=overrides)
    except _ClickException as error:
        return _fail(error.format_message(), [], verb)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == __name__.partition(".")[0]:
            raise
        print(f"error: `engine {verb}` needs {error.name}, which is not installed", file=sys.stderr)
        print("  = fix: pip install 'stoker[engine]'", file=sys.stderr)
        return EXIT_ENVIRONMENT
    return code if isinstance(code, int) else 0


def _fail(message: str, suggestions: Sequence[str], verb: str = "") -> int:
    """Our own words for a wrong command line: Typer's keep their boxes when nobody sees them."""
    hint = f"; did you mean {' or '.join(f'`{name}`' for name in suggestions)}?" if suggestions else ""
    print(f"error: {message.rstrip('.')}{hint}", file=sys.stderr)
    print(f"  = more: {' '.join(['engine', *([verb] if verb else []), '--help'])}", file=sys.stderr)
    return EXIT_WRONG_COMMAND_LINE
