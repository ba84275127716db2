"""`engine diff`: what differs between two deployments, or between a running server and a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from ..config.diagnostics import FORMAT_VERSION, show
from ..config.diff import Difference, Side, compare, highest_cost, incomparable_secrets, running_side, written_side
from ..config.examine import report_on
from ..config.resolve.machine import read_machine_spec
from .console import print_message, print_result
from .remote import Remote, RemoteError

EXIT_DIFFERENT = 1
EXIT_FAILED = 2
_TAGS = {"hot": "next start", "model": "model", "process": "process"}
_MEANS = {"hot": "used from the next start", "model": "the model is loaded again", "process": "the server restarts"}


class _Failed(Exception):
    """One side cannot be read. The message is complete, with its `error:`."""


def run(
    old: str,
    new: str | None,
    overrides: Sequence[str],
    *,
    api_key: str | None = None,
    output: Literal["text", "json"] = "text",
) -> int:
    """Compare. A running server is the old side, in either position; `overrides` apply to the new side.

    Returns 0 if both are the same, 1 if they differ, 2 if one of them cannot be read.
    """
    if new is None and not overrides:
        print_message(
            "error: nothing to compare with: give a second file, a server, or options\n  = more: engine diff --help"
        )
        return EXIT_FAILED
    new = old if new is None else new
    if _is_url(new) and not _is_url(old):
        old, new = new, old
    if _is_url(new) and overrides:
        print_message("error: options cannot be applied to a running server: compare it with a file")
        return EXIT_FAILED
    try:
        before = _side(old, (), api_key)
        after = _side(new, overrides, api_key)
    except _Failed as error:
        print_message(str(error))
        return EXIT_FAILED
    differences = compare(before, after)
    if output == "json":
        print_result(_json(before, after, differences))
    elif differences:
        print_result(_text(differences))
    if output == "text":
        for path in incomparable_secrets(before, after):
            print_message(f"{path}: set on both sides; a server does not show secrets, so they are not compared")
        print_message(_verdict(before, after, differences))
    return EXIT_DIFFERENT if differences else 0


def _is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def _side(name: str, overrides: Sequence[str], api_key: str | None) -> Side:
    if _is_url(name):
        base = name.rstrip("/").removesuffix("/v1")
        try:
            return running_side(name, Remote(base, api_key).read("/config").get("values") or [{}])
        except RemoteError as error:
            raise _Failed(f"error: {error}") from None
        except ValueError as error:
            raise _Failed(f"error: {name}: {error}") from None
    report = report_on([name], overrides, read_machine_spec(), is_elsewhere=True)
    if report.deployment is None or report.decisions is None or report.errors:
        raise _Failed(show(report.errors))
    shown = f"{name} with the options given" if overrides else name  # options may be secrets
    return written_side(shown, report.deployment, report.decisions)


def _text(differences: Sequence[Difference]) -> str:
    lines = [str(difference) for difference in differences]
    width = min(80, max(map(len, lines)))
    return "\n".join(
        f"{line:<{width}}  [{_TAGS[difference.change]}]" for line, difference in zip(lines, differences, strict=True)
    )


def _verdict(old: Side, new: Side, differences: Sequence[Difference]) -> str:
    if not differences:
        return f"{old.name} and {new.name} are the same"
    count = f"{len(differences)} difference{'s' * (len(differences) > 1)}"
    return f"{count} from {old.name} to {new.name}: {_MEANS[highest_cost(differences)]}"


def _json(old: Side, new: Side, differences: Sequence[Difference]) -> str:
    return json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "old": old.name,
            "new": new.name,
            "same": not differences,
            "reload": highest_cost(differences) if differences else None,
            "differences": [difference.as_dict() for difference in differences],
        },
        indent=2,
    )
