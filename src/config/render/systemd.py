"""A deployment as a systemd unit: its own user, a drain before it stops, and no rights that it does not need."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from ..load_limit import LOAD_LIMIT_S
from ..schema.options import options
from ..yaml_writer import heading
from .bundle import Bundle, BundledFile, refused_folder
from .wanted import Wanted

PROGRAM = "/opt/stoker/bin/engine"


def home(name: str) -> str:
    return f"/etc/stoker/{name}"


def systemd(bundle: Bundle, wanted: Wanted, program: str = PROGRAM) -> str:
    """The unit. Raises ConfigError for a folder with a relative path, since the manifest is moved."""
    runtime = f"/run/stoker/{wanted.name}"
    for folder in bundle.folders:
        if folder.option == "server.uds":
            if folder.source.parent != Path(runtime):
                raise refused_folder(folder, "the unit is not allowed to write there", f"write {runtime}/NAME.sock")
        elif folder.target != str(folder.source):
            raise refused_folder(folder, "the unit reads the file from another folder", "write its absolute path")
    server = options()["server.drain_timeout"]
    drain = server.show(bundle.deployment.server.drain_timeout)
    unit: list[tuple[str, str]] = [
        ("Description", f"Stoker deployment {wanted.name}"),
        ("After", "network-online.target"),
        ("Wants", "network-online.target"),
    ]
    service: list[tuple[str, str]] = [
        ("#", "Ready once requests are answered; an hour to fetch and load the model."),
        ("Type", "notify"),
        ("TimeoutStartSec", f"{LOAD_LIMIT_S // 3600}h"),
        ("ExecStart", f"{_word(program)} up {_word(bundle.manifest.target)}"),
        (
            "#",
            f"server.drain_timeout {drain} and a margin. The server gets the signal, and ends its engine itself.",
        ),
        ("TimeoutStopSec", f"{bundle.grace_s}s"),
        ("KillMode", "mixed"),
        ("#", "Wrong options, refused model files and a wrong configuration fail again."),
        ("Restart", "on-failure"),
        ("RestartSec", "5s"),
        ("RestartPreventExitStatus", "2 3 78"),
        ("DynamicUser", "yes"),
        ("CacheDirectory", f"stoker/{wanted.name}"),
        ("RuntimeDirectory", f"stoker/{wanted.name}"),
        ("Environment", f"HOME=%C/stoker/{wanted.name} XDG_CACHE_HOME=%C/stoker/{wanted.name}"),
        *(("Environment", _quoted(f"{name}={value}")) for name, value in bundle.variables.items()),
        *_secrets(bundle, wanted),
        *_limits(bundle),
        *(entry for entry in _HARDENED if not (bundle.has_gpu and entry[0] in _HIDE_GPUS)),
    ]
    parts = [("Unit", unit), ("Service", service), ("Install", [("WantedBy", "multi-user.target")])]
    return _head(bundle, wanted) + "\n".join(
        f"[{name}]\n" + "".join(f"# {value}\n" if key == "#" else f"{key}={value}\n" for key, value in entries)
        for name, entries in parts
    )


# No MemoryDenyWriteExecute: kernels that are compiled at start are mapped as code.
_HARDENED = (
    ("NoNewPrivileges", "yes"),
    ("ProtectSystem", "strict"),
    ("ProtectHome", "yes"),
    ("PrivateTmp", "yes"),
    ("PrivateDevices", "yes"),
    ("ProtectKernelTunables", "yes"),
    ("ProtectKernelModules", "yes"),
    ("ProtectControlGroups", "yes"),
    ("ProtectClock", "yes"),
    ("ProtectHostname", "yes"),
    ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6"),
    ("RestrictNamespaces", "yes"),
    ("RestrictSUIDSGID", "yes"),
    ("LockPersonality", "yes"),
    ("CapabilityBoundingSet", ""),
    ("SystemCallFilter", "@system-service"),
    ("SystemCallErrorNumber", "EPERM"),
    ("UMask", "0077"),
)

_HIDE_GPUS = ("PrivateDevices", "ProtectClock")  # the second allows only the device of the clock


def _head(bundle: Bundle, wanted: Wanted) -> str:
    unit = f"/etc/systemd/system/stoker-{wanted.name}.service"
    lines = [f"Rendered from {bundle.manifest.source.name}; render again instead of editing. Install it with:"]
    lines += [f"  install -D -m 0644 {_copied(entry, bundle)}" for entry in bundle.files]
    lines += [f"  install -D -m 0600 {_copied(entry, bundle)}" for entry in bundle.secret_files]
    if bundle.secret_variables:
        names = ", ".join(f"{name}=..." for name in bundle.secret_variables)
        lines += [f"  install -m 0600 /dev/stdin {home(wanted.name)}/secrets.env    # {names}, a line each"]
    lines += [f"  install -m 0644 THIS {unit}", f"  systemctl enable --now stoker-{wanted.name}"]
    return heading(*lines)


def _secrets(bundle: Bundle, wanted: Wanted) -> list[tuple[str, str]]:
    """Files are read by systemd as root and passed to the service; the options that name them get the new paths."""
    found: list[tuple[str, str]] = []
    if bundle.secret_variables:
        found.append(("EnvironmentFile", f"{home(wanted.name)}/secrets.env"))
    found += [("LoadCredential", f"{entry.key}:{entry.target}") for entry in bundle.secret_files]
    for path in dict.fromkeys(entry.option for entry in bundle.secret_files):
        here = [entry for entry in bundle.secret_files if entry.option == path]
        found.append(("Environment", _quoted(f"{options()[path].variable}={_value(path, here, bundle)}", keep="%d")))
    return found


def _value(path: str, files: list[BundledFile], bundle: Bundle) -> str:
    """The value of the option's variable in place of the file's: the same secrets, at the paths of systemd."""
    if not options()[path].is_secret:
        return f"%d/{files[0].key}"
    sources: list[Any] = [{"file": f"%d/{entry.key}"} for entry in files]
    sources += [{"env": name} for name in bundle.variables_of.get(path, ())]
    return json.dumps(sources if options()[path].kind == "texts" else sources[0])


def _limits(bundle: Bundle) -> list[tuple[str, str]]:
    limits = []
    if bundle.memory_bytes is not None:
        limits.append(("#", "Weights, KV cache at cache.gpu_memory_utilization, and 1 GiB for the rest."))
        limits.append(("MemoryMax", f"{bundle.memory_bytes >> 20}M"))
    return limits


def _copied(entry: BundledFile, bundle: Bundle) -> str:
    return f"{shlex.quote(bundle.beside(entry.source))} {shlex.quote(entry.target)}"


def _word(text: str) -> str:
    """One word of ExecStart=, which systemd parts at blanks and expands: `%` and `$` are doubled."""
    text = text.replace("$", "$$")
    return _quoted(text) if any(char in text for char in " \t\"'\\;") else text.replace("%", "%%")


def _quoted(text: str, keep: str = "") -> str:
    """One assignment for Environment=: quoted, `%` doubled but for the specifier that is meant."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + (escaped.replace(keep.replace("%", "%%"), keep) if keep else escaped) + '"'
