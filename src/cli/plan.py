"""`engine plan`: does a deployment fit on a device, and what would make it fit. No torch, and no weights are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config.diagnostics import show
from ..config.effective import effective_values
from ..config.errors import EXIT_ENVIRONMENT, EXIT_MODEL_FILES, EXIT_WRONG_COMMAND_LINE, ModelFilesError
from ..config.examine import Report, report_on
from ..config.origin import Layer
from ..config.plan.calibration import calibration_file, entries
from ..config.plan.devices import THIS_MACHINE, DeviceProblem, find_profile, this_machine
from ..config.plan.model import read_model
from ..config.plan.plan import FORMAT_VERSION, Plan, make_plan
from ..config.plan.text import TextForms, text_forms
from ..config.resolve.machine import read_machine_facts
from .console import say, tell
from .plan_view import calibration_text, plan_text

GPU_RULES = ("R227", "R228", "R229")  # about the GPU of this machine
MEMORY_RULES = ("R203", "R204", "R206")  # what the rules already refuse on this machine


def run(
    files: Sequence[str],
    overrides: Sequence[str],
    *,
    device_profile: str = THIS_MACHINE,
    output: str = "text",
    strict_fit: bool = False,
    calibration: bool = False,
) -> int:
    """The plan on stdout, the talk on stderr. Returns the exit code: 4 if it does not fit.

    An estimate alone never makes it 4, except with `strict_fit`.
    """
    if output not in ("text", "json"):
        tell(f"error: no such output `{output}`; there are text and json")
        return EXIT_WRONG_COMMAND_LINE
    if calibration:
        return _calibration(output)
    if not files and not overrides:
        tell("error: nothing to plan: name a file, or give --model\n  = more: engine plan --help")
        return EXIT_WRONG_COMMAND_LINE
    machine = read_machine_facts()
    try:
        device = find_profile(device_profile, machine)
    except DeviceProblem as problem:
        tell(f"error: {problem}")
        return EXIT_WRONG_COMMAND_LINE
    is_here = device.name == THIS_MACHINE
    report = report_on(files, overrides, machine, is_elsewhere=not is_here)
    if (code := _told(report, is_here)) is not None:
        return code
    assert report.deployment is not None
    assert report.decisions is not None
    try:
        model = read_model(report.deployment)
    except ModelFilesError as error:
        tell(f"error[{error.code}]: {error}")
        return error.exit_code
    if is_here:
        device = this_machine(machine, report.decisions.get("device.device"))
    broken = [finding for finding in report.findings if finding.code in MEMORY_RULES] if is_here else []
    plan = make_plan(model, device, report.decisions, [finding.message for finding in broken])
    forms = text_forms(Path(model.folder), _template(report))
    decided = _decided(report) if is_here else []
    if output == "json":
        say(json.dumps({"format_version": FORMAT_VERSION, **plan.as_dict(), **_more(forms, decided)}, indent=2))
    else:
        say(plan_text(plan, forms, decided, " + ".join(files)))
    return EXIT_ENVIRONMENT if _is_refused(plan, strict_fit) else 0


def _is_refused(plan: Plan, strict_fit: bool) -> bool:
    return plan.estimate.is_blocked or (strict_fit and plan.estimate.status == "may not fit")


def _told(report: Report, is_here: bool) -> int | None:
    """Says what is wrong besides memory; the exit code if there is nothing to plan then."""
    # what the model's files lack is part of the plan: "this build cannot run it, but this is what it needs"
    is_short = any(finding.code in MEMORY_RULES for finding in report.findings)  # then what follows from it is no news
    said = [
        finding
        for finding in report.findings
        if finding.code not in (MEMORY_RULES if is_here else MEMORY_RULES + GPU_RULES)
        and finding.code[0] != "M"
        and (finding.labels or not is_short)
    ]
    if said:
        tell(show(said) + "\n")
    errors = [finding for finding in said if finding.is_error]
    if errors or report.deployment is None:
        return Report(tuple(errors) or report.findings).exit_code
    if report.model_missing:
        tell(
            f"error[M301]: {report.model_missing}: not on this machine\n"
            f"  = fix: `hf download {report.model_missing} config.json` is enough for a plan; "
            "with its weight files the plan is exact"
        )
        return EXIT_MODEL_FILES
    return None


def _template(report: Report) -> str | None:
    assert report.deployment is not None
    value = report.deployment.server.chat_template
    if value is None or "{{" in value or "{%" in value:
        return value
    try:
        return Path(report.deployment.located("server.chat_template")).read_text("utf-8", errors="replace")
    except OSError:
        return None


def _decided(report: Report) -> list[tuple[str, str, str]]:
    """Path, value and reason of everything that nobody wrote and that was worked out."""
    assert report.deployment is not None
    assert report.decisions is not None
    return [
        (entry.option.path, str(entry.value), entry.said)
        for entry in effective_values(report.deployment, report.decisions)
        if entry.origin.layer in (Layer.RULE, Layer.MODEL) and not entry.is_waiting
    ]


def _more(forms: TextForms, decided: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    return {
        "chat_template": forms.model_dump(mode="json"),
        "decided": [{"path": path, "value": value, "why": why} for path, value, why in decided],
    }


def _calibration(output: str) -> int:
    found = entries()
    if output == "json":
        content = [entry.model_dump(mode="json") for entry in found]
        say(json.dumps({"format_version": FORMAT_VERSION, "starts": content}, indent=2))
    elif not found:
        say(
            f"nothing measured yet: `engine up` adds a line to {calibration_file() or 'the cache folder'} at each start"
        )
    else:
        say(calibration_text(found))
    return 0
