"""What a launch means without a word: defaults of the other engine, and an address that is open to anyone."""

from __future__ import annotations

import re

from ..loopback import is_loopback
from ..source.node import Node
from .draft import Draft, Left
from .engine_tables import NOTES
from .launch import Launch

_KEY_OF_API = re.compile(r"api[-_]?keys?|(?<![a-z])(auth|bearer|keys?)(?![a-z])", re.IGNORECASE)
_MAY_HOLD = re.compile(r"\s[\"']?[$`{]")  # words after an unknown option: a variable may hold further options


def _may_hold_key(draft: Draft, launch: Launch) -> list[str]:
    """Parts of the launch that may be a key of the API, which the manifest does not have."""
    left = [one for one in draft.left if one.kind != "needless" and one.written not in launch.others]
    named = [one.written for one in left if _KEY_OF_API.search(one.written)]
    files = [f"--config {draft.values['config'].text}"] if "config" in draft.values else []
    files += [one.written for one in left if one.written.startswith("--config")]
    held = [one.written for one in left if one.kind == "unknown" and _MAY_HOLD.search(one.written)]
    return named or files or held or [one.written for one in left if one.kind == "undecided" and not one.path]


def tell_defaults(draft: Draft, launch: Launch) -> None:
    """What the other engine does without an option, where it matters; an open address is written down as such."""
    host = draft.values.get("server.host")
    is_set = {"server.host", "server.port"} & set(draft.values)
    if "server.uds" not in draft.values:
        draft.notes += [said for path, said in NOTES[draft.engine].items() if path not in is_set]
    has_auth = (
        bool({"server.api_key", "server.api_keys_file"} & {*draft.secrets, *draft.values})
        or "server.auth" in draft.values
    )
    is_open = host is not None and "$" not in (host.text or "") and not is_loopback(host.text or "")
    if is_open and not has_auth:
        for doubt in launch.doubts:
            draft.leave(Left(doubt, "undecided", "a key of the API may come from it"))
    if host is not None and is_open and not has_auth and (held := _may_hold_key(draft, launch)):
        draft.notes.append(
            f"`{held[0]}` may hold a key of the API, so `auth: none` is not written: a start at this address is "
            "refused until `server.api_key` or `server.auth` says who may call it."
        )
    elif host is not None and is_open and not has_auth and draft.engine != "stoker":
        draft.values["server.auth"] = Node("none", host.span, text="none")
        said = "no key was given, so anyone can call the address; to require one, write `api_key: {env: API_KEY}`"
        draft.remark("server.auth", f"{said} instead")
    if draft.engine == "tgi" and (count := draft.values.get("speculative.num_speculative_tokens")) is not None:
        draft.values["speculative.method"] = Node("auto", count.span, text="auto")
        draft.remark("speculative.method", "TGI drafts from the text of a request if the model has no heads for it")
    method = draft.values.get("speculative.method")
    is_eagle = draft.engine == "sglang" and method is not None and method.text == "eagle"
    if method is not None and is_eagle and "speculative.model" not in draft.values:
        draft.values["speculative.method"] = Node("mtp", method.span, text="mtp")
        draft.remark("speculative.method", "without a draft model EAGLE is the layer of the model's own checkpoint")
    if "model.model" not in draft.values and "config" not in draft.values:
        draft.notes.append("No model was named: add `model.model`.")
