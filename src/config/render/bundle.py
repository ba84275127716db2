"""What a deployment needs on another machine: files, names of secrets, variables, memory."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..deployment import Deployment
from ..diagnostics import Diagnostic, Label
from ..errors import ConfigError
from ..examine import Report
from ..schema.topology import Topology
from ..source_text import Span

OVERHEAD_BYTES = 1 << 30  # interpreters, libraries, requests under way: 0.4 GiB measured when idle
MARGIN_S = 10  # after the drain: connections are cut and the process ends within 2 seconds
_ROUNDED_TO = 256 << 20


@dataclass(frozen=True, slots=True)
class BundledFile:
    """One file that is copied. `target` is its path on the other machine."""

    option: str  # empty for manifests
    source: Path
    target: str
    key: str  # its name in a ConfigMap or Secret
    text: str  # empty for secrets, which are never read


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory that an option names, such as a model's."""

    option: str
    written: str
    source: Path
    target: str
    span: Span


@dataclass(frozen=True)
class Bundle:
    report: Report
    deployment: Deployment
    manifest: BundledFile
    files: tuple[BundledFile, ...]  # the manifest first
    secret_files: tuple[BundledFile, ...]
    folders: tuple[Folder, ...]
    variables_of: Mapping[str, tuple[str, ...]]  # variables that secrets come from, by option
    variables: Mapping[str, str]  # others, with their values in this process
    settings: Mapping[str, str]  # options that variables set on the other machine, stronger than the files

    @property
    def secret_variables(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for names in self.variables_of.values() for name in names))

    def beside(self, source: Path) -> str:
        """The path of a file, relative to the folder of the manifest."""
        relative = os.path.relpath(source, self.manifest.source.parent)
        return relative if relative.startswith("../") else f"./{relative}"

    @property
    def port(self) -> int:
        return self.deployment.server.port

    @property
    def grace_s(self) -> int:
        """Seconds that a supervisor has to wait after its signal: the drain and a margin."""
        return math.ceil(self.deployment.server.drain_timeout) + MARGIN_S

    @property
    def memory_bytes(self) -> int | None:
        """Memory that the deployment needs; None on a GPU, and if the model's files are not on this machine."""
        plan = self.report.decisions.memory if self.report.decisions else None
        if plan is None or self.has_gpu:
            return None
        share = self.deployment.cache.gpu_memory_utilization
        needed = self.num_processes * (int(plan.total_bytes / share) + OVERHEAD_BYTES)
        return -(-needed // _ROUNDED_TO) * _ROUNDED_TO

    @property
    def has_gpu(self) -> bool:
        """Whether `device: cuda` is written: what `auto` chooses on the other machine is not known."""
        return self.deployment.device.device == "cuda"

    @property
    def is_model_here(self) -> bool:
        return self.report.decisions is not None and self.report.decisions.memory is not None

    @property
    def num_threads(self) -> int | None:
        """The number of threads of all processes, if it is written; None if the machine decides."""
        threads = self.deployment.device.num_threads
        return self.num_processes * threads if isinstance(threads, int) else None

    @property
    def is_bound(self) -> bool:
        """Whether its processes set a memory policy, for which a container needs the capability SYS_NICE."""
        device = self.deployment.device
        return bool(device.numa_bind or device.numa_bind_nodes or device.numa_bind_cpus)

    @property
    def topology(self) -> Topology:
        return self.deployment.config.parallel.topology

    @property
    def num_replicas(self) -> int:
        """Engines in one server."""
        return self.topology.num_replicas

    @property
    def num_processes(self) -> int:
        """Engine processes on one machine, which the plan's memory and threads are of."""
        return self.topology.num_processes

    @property
    def num_nodes(self) -> int:
        """Machines that compute a replica together."""
        return self.topology.num_nodes

    @property
    def has_tls(self) -> bool:
        return self.deployment.server.ssl_certfile is not None

    @property
    def wants_client_certificate(self) -> bool:
        """Whether a probe without a certificate is refused."""
        return self.has_tls and self.deployment.server.ssl_cert_reqs == 2


def model_name(bundle: Bundle) -> str:
    """Name under which the API serves the model, and by which routers know it."""
    model = bundle.deployment.model
    return model.served_model_name[0] if model.served_model_name else model.model


def refused_folder(folder: Folder, why: str, fix: str) -> ConfigError:
    message = f"`{folder.option}` cannot be bundled: {why}"
    return ConfigError(
        [Diagnostic(code="C131", message=message, path=folder.option, labels=(Label(folder.span),), fixes=(fix,))]
    )


def refused_form(path: str, deployment: Deployment, message: str, fix: str) -> ConfigError:
    """Return the error for a deployment that runs elsewhere, but cannot be rendered in the form that was asked for."""
    span = deployment.spans.get(path)
    labels = (Label(span),) if span is not None else ()
    return ConfigError([Diagnostic(code="C133", message=message, path=path, labels=labels, fixes=(fix,))])
