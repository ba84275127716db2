"""`engine test tools`: the golden conversations of a deployment, rendered by its chat template and read back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ..config.diagnostics import show
from ..config.errors import ModelFilesError
from ..config.examine import report_on
from ..config.exit_codes import EXIT_FAILED, EXIT_INVALID_CONFIGURATION, EXIT_MODEL_FILES, EXIT_WRONG_COMMAND_LINE
from ..config.plan.model import read_model
from ..config.resolve.machine import read_machine_spec
from ..config.resolve.values import Values
from ..formats import golden
from ..formats.detect import REFUSED, Detection, round_trips
from ..formats.grammar import grammar_of
from ..formats.tool_choice import AUTO, REQUIRED, ToolSchema, named
from .answer_format import format_of_answers, render_of, templates_of
from .console import print_message, print_result

FORMAT_VERSION = 1
_CHOICES = (
    ("auto, strict tools", AUTO, True),
    ("required", REQUIRED, True),
    ("one named tool", named("take_note"), False),
)


def run(files: Sequence[str], overrides: Sequence[str], *, output: Literal["text", "json"] = "text") -> int:
    """Print a table of the tests. Returns 1 if one fails, or if nothing reads tool calls without being set so."""
    if not files and not overrides:
        print_message("error: nothing to test: give a file or --model\n  = more: engine test --help")
        return EXIT_WRONG_COMMAND_LINE
    report = report_on(files, overrides, read_machine_spec(), is_elsewhere=True)
    errors = [finding for finding in report.findings if finding.is_error and finding.code[0] != "M"]
    if errors or report.deployment is None or report.decisions is None:
        print_message(show(errors or report.findings) + "\n")
        return EXIT_INVALID_CONFIGURATION
    if report.model_missing:
        print_message(f"error[M301]: {report.model_missing}: not on this machine")
        return EXIT_MODEL_FILES
    values = Values(report.deployment, report.decisions)
    try:
        model = read_model(report.deployment)
        answers = format_of_answers(values, Path(model.tokenizer_path), model.spec.architecture)
    except ModelFilesError as error:
        print_message(f"error[{error.code}]: {error}")
        return error.exit_code
    except ValueError as error:
        print_message(f"error: {error}")
        return EXIT_INVALID_CONFIGURATION
    rows = _rows(values, Path(model.tokenizer_path), answers)
    is_wanted_off = values.decisions.get("server.tool_call_parser") == "none"
    failed = any(result == "failed" for _, result, _ in rows) or (answers.calls == "off") != is_wanted_off
    if output == "json":
        tests = [{"name": name, "result": result, "why": why} for name, result, why in rows]
        record = {
            "format_version": FORMAT_VERSION,
            "tool_calls": answers.calls,
            "tool_calls_why": answers.calls_why,
            "reasoning": answers.reasoning,
            "reasoning_why": answers.reasoning_why,
            "tests": tests,
            "passed": not failed,
        }
        print_result(json.dumps(record, indent=2, ensure_ascii=False))
    else:
        lines = [
            f"tool calls  {answers.calls}: {answers.calls_why}",
            f"reasoning   {answers.reasoning}: {answers.reasoning_why}",
        ]
        width = max((len(name) for name, _, _ in rows), default=0)
        lines += [f"  {name:<{width}}  {result:<7}  {why}".rstrip() for name, result, why in rows]
        print_result("\n".join([*lines, "failed" if failed else "passed"]))
    return EXIT_FAILED if failed else 0


def _rows(values: Values, folder: Path, answers: Detection) -> list[tuple[str, str, str]]:
    """Name, result and reason of each test."""
    rows = [(trial.format, "failed", trial.problem) for trial in answers.trials if trial.problem and not answers.format]
    if answers.format is None or answers.format.parser is not None:
        return rows
    render = render_of(values, folder, templates_of(values, folder))
    for trial in round_trips(answers.format, render):
        result = "ok" if not trial.problem else "skipped" if trial.problem.startswith(REFUSED) else "failed"
        rows.append((trial.format, result, trial.problem))
    if answers.format.calls is not None:
        tools = [ToolSchema(str(tool["name"]), tool["parameters"], strict=True) for tool in golden.TOOLS]
        for name, choice, parallel in _CHOICES:
            problem = _grammar_problem(grammar_of(answers.format, tools, choice=choice, parallel=parallel) or "")
            result = "skipped" if problem is None else "failed" if problem else "ok"
            rows.append((f"grammar: {name}", result, "llguidance is not installed" if problem is None else problem))
    return rows


def _grammar_problem(grammar: str) -> str | None:
    """What is wrong with a grammar; empty if nothing is, None if that cannot be found out here."""
    try:
        import llguidance
    except ImportError:
        return None
    is_error, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
    return "; ".join(messages)[:200] if is_error else ""
