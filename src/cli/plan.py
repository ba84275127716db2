"""`engine plan`: whether a deployment fits on a device, and what would make it fit. Needs no weights and no torch."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config.auto_values import MAX_NUM_SEQS
from ..config.diagnostics import show
from ..config.effective import effective_values
from ..config.errors import ModelFilesError
from ..config.examine import Report, report_on
from ..config.exit_codes import EXIT_ENVIRONMENT, EXIT_INVALID_CONFIGURATION, EXIT_MODEL_FILES, EXIT_WRONG_COMMAND_LINE
from ..config.origin import Layer
from ..config.plan.calibration import calibration_file, entries
from ..config.plan.devices import THIS_MACHINE, DeviceProblem, DeviceProfile, find_profile, machine_of, this_machine
from ..config.plan.model import read_model
from ..config.plan.plan import FORMAT_VERSION, Plan, make_plan
from ..config.plan.text import TextForms
from ..config.resolve.decisions import Decisions
from ..config.resolve.machine import read_machine_spec
from ..config.resolve.values import Values
from ..config.yaml_writer import inline
from .answer_format import format_of_answers, templates_of
from .console import print_message, print_result
from .flags.checking import PlanFlags
from .plan_view.calibration import calibration_text
from .plan_view.model import form_rows
from .plan_view.text import plan_text

# About cores, NUMA nodes, memory and number of GPUs of the host, which a device profile does not describe.
HOST_RULES = frozenset(("R210", "R295", "R357", "R374", "R375", "R386", "R431", "R434", "R437", "R439", "R457", "R458"))
MEMORY_RULES = ("R203", "R204", "R206")  # rules about the memory of this machine


def run(files: Sequence[str], overrides: Sequence[str], flags: PlanFlags) -> int:
    """Print the plan on stdout and findings on stderr. Returns the exit code: 4 if it does not fit.

    If only an estimate says that it does not fit, the exit code is 4 with `strict_fit` and 0 otherwise.
    """
    output, devices, devices_per_node = flags.output, flags.devices, flags.devices_per_node
    if flags.calibration:
        return _calibration(output)
    if not files and not overrides:
        print_message("error: nothing to plan: give a file or --model\n  = more: engine plan --help")
        return EXIT_WRONG_COMMAND_LINE
    machine = read_machine_spec()
    try:
        device = find_profile(flags.device_profile, machine)
    except DeviceProblem as problem:
        print_message(f"error: {problem}")
        return EXIT_WRONG_COMMAND_LINE
    is_here = device.name == THIS_MACHINE
    if devices is not None and (problem_of_devices := _problem(device, devices, devices_per_node)):
        print_message(f"error: {problem_of_devices}")
        return EXIT_WRONG_COMMAND_LINE
    report = report_on(files, overrides, machine_of(device, machine), is_elsewhere=not is_here, is_planned=True)
    if (code := _reported(report, is_here)) is not None:
        return code
    assert report.deployment is not None
    assert report.decisions is not None
    if not report.deployment.server.has_engine:
        return _without_engine(report, output)
    try:
        model = read_model(report.deployment)
    except ModelFilesError as error:
        print_message(f"error[{error.code}]: {error}")
        return error.exit_code
    if is_here:
        device = this_machine(report.decisions.machine, report.decisions.get("device.device"))
    else:
        device = device.shared_by(report.decisions.topology.num_replicas)
    broken = [finding for finding in report.findings if finding.code in MEMORY_RULES] if is_here else []
    several = None if devices is None else (devices, devices_per_node)
    if devices is not None and devices < report.decisions.topology.num_replicas:
        print_message(f"error: {report.decisions.topology.num_replicas} replicas need more than {devices} devices")
        return EXIT_WRONG_COMMAND_LINE
    plan = make_plan(model, device, report.decisions, [finding.message for finding in broken], several)
    values = Values(report.deployment, report.decisions)
    templates = templates_of(values, Path(model.tokenizer_path))
    try:
        answers = format_of_answers(values, Path(model.tokenizer_path), model.spec.architecture)
    except ValueError as error:
        print_message(f"error: {error}")
        return EXIT_INVALID_CONFIGURATION
    forms = TextForms.of(templates, answers)
    is_one = devices is None and model.files is not None
    decided = _decided(report) if is_one else _assumed(plan, report.decisions)
    if output == "json":
        print_result(
            json.dumps({"format_version": FORMAT_VERSION, **plan.as_dict(), **_more(forms, decided)}, indent=2)
        )
    else:
        screen = shutil.get_terminal_size() if sys.stdout.isatty() else None
        print_result(plan_text(plan, forms, decided, " + ".join(files), screen))
    return EXIT_ENVIRONMENT if _is_refused(plan, flags.strict_fit) else 0


def _without_engine(report: Report, output: str) -> int:
    """A server that computes nothing fits everywhere; what it has is a tokenizer and a chat template."""
    assert report.deployment is not None
    assert report.decisions is not None
    files = report.decisions.model_files
    if files is None or files.tokenizer_path is None:
        found = [finding for finding in report.findings if finding.code[0] == "M"]
        print_message(show(found) + "\n")
        return Report(tuple(found)).exit_code
    values = Values(report.deployment, report.decisions)
    try:
        answers = format_of_answers(values, Path(files.tokenizer_path), files.spec.architecture)
    except ValueError as error:
        print_message(f"error: {error}")
        return EXIT_INVALID_CONFIGURATION
    forms = TextForms.of(templates_of(values, Path(files.tokenizer_path)), answers)
    why = "`server.engine` is none: no weights are read, and nothing is computed"
    if output == "json":
        content = {"format_version": FORMAT_VERSION, "engine": "none", "status": "fits", "why": why}
        print_result(json.dumps({**content, **_more(forms, _decided(report))}, indent=2))
    else:
        context = ("context", f"{report.decisions.get('model.max_model_len')} tokens")
        rows = [f"  {name:<14}{said}" for name, said in (context, *form_rows(forms))]
        print_result("\n".join([f"fits: {why}", *rows]))
    return 0


def _problem(device: DeviceProfile, devices: int, devices_per_node: int) -> str | None:
    """What is wrong with a number of devices."""
    if not device.is_gpu:
        return "--devices plans for several GPUs: name one with --device-profile, such as h200"
    if devices > devices_per_node and devices % devices_per_node:
        return f"{devices} devices are no number of whole nodes of {devices_per_node}; see --devices-per-node"
    return None


def _is_refused(plan: Plan, strict_fit: bool) -> bool:
    return plan.estimate.is_blocked or (strict_fit and plan.estimate.status == "may not fit")


def _reported(report: Report, is_here: bool) -> int | None:
    """Report what is wrong besides memory; the exit code if nothing can be planned then."""
    # findings about model files are part of the plan: a model that this build cannot run can be planned
    is_short = any(finding.code in MEMORY_RULES for finding in report.findings)  # then its consequences are left out
    shown = [
        finding
        for finding in report.findings
        if finding.code not in MEMORY_RULES
        and (is_here or finding.code not in HOST_RULES)
        and finding.code[0] != "M"
        and (finding.labels or not is_short)
    ]
    if shown:
        print_message(show(shown) + "\n")
    errors = [finding for finding in shown if finding.is_error]
    if errors or report.deployment is None:
        return Report(tuple(errors) or report.findings).exit_code
    if report.model_missing:
        print_message(
            f"error[M301]: {report.model_missing}: not on this machine\n"
            f"  = fix: `hf download {report.model_missing} config.json` is enough for a plan; "
            "with its weight files the plan is exact"
        )
        return EXIT_MODEL_FILES
    return None


def _decided(report: Report) -> list[tuple[str, str, str]]:
    """Path, value and reason of every value that was decided, not written."""
    assert report.deployment is not None
    assert report.decisions is not None
    return [
        (entry.option.path, inline(entry.value), entry.said)
        for entry in effective_values(report.deployment, report.decisions)
        if entry.origin.layer in (Layer.RULE, Layer.MODEL) and not entry.is_waiting
    ]


def _assumed(plan: Plan, decisions: Decisions) -> list[tuple[str, str, str]]:
    """The same for several devices, and for a model that this build cannot run: the values that memory depends on."""
    ask, kind = plan.ask, "a GPU" if plan.device.is_gpu else "a CPU"
    of_states = "recurrent states take at most a part of what the weights leave"
    has_few = ask.has_auto_num_seqs and ask.max_num_seqs < MAX_NUM_SEQS["cuda" if plan.device.is_gpu else "cpu"]
    values: tuple[tuple[str, object, str], ...] = (
        ("model.dtype", ask.dtype, f"the checkpoint's, as far as {plan.device.shown} computes in it"),
        ("cache.block_size", ask.block_size, f"the block size for {kind}"),
        ("scheduler.max_num_seqs", ask.max_num_seqs, of_states if has_few else f"the usual number on {kind}"),
        ("scheduler.max_num_batched_tokens", ask.max_num_batched_tokens, f"the usual number on {kind}"),
        ("model.max_model_len", plan.estimate.max_model_len, f"what fits, of {plan.model.limit} tokens of the model"),
    )
    return [
        (path, inline(value), why)
        for path, value, why in values
        if not decisions.is_written(path) or decisions.get(path) == "auto"
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
        print_result(json.dumps({"format_version": FORMAT_VERSION, "starts": content}, indent=2))
    elif not found:
        print_result(
            f"nothing measured yet: `engine up` adds a line to {calibration_file() or 'the cache folder'} at each start"
        )
    else:
        print_result(calibration_text(found))
    return 0
