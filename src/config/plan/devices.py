"""Devices that a deployment can be planned for: this machine, device_profiles/*.yaml, or a user's file."""

from __future__ import annotations

import difflib
import os
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from ...input_file import read_file
from ...model.record import Record
from ..cpu_features import NoKernels, choose_level, this_cpu, wanted_level
from ..gpu_capability import FP8_CAPABILITY, LEAST_CAPABILITY
from ..memory.needs import DeviceRoom
from ..resolve.machine_spec import GpuSpec, MachineSpec
from ..schema.types import Size

THIS_MACHINE = "this-machine"
_MAX_BYTES = 64 << 10  # of a profile


class DeviceProfile(Record):
    """Properties of a device that a plan needs. A profile file has the same keys."""

    name: str
    title: str = ""
    kind: Literal["cpu", "cuda", "rocm"] = "cuda"
    memory: Size = Field(
        description="Memory that programs can use, without the driver's share; less than the advertised size."
    )
    free_memory: Size | None = Field(None, exclude=True, description="What other programs leave of it; unset: all.")
    bandwidth_gb_per_s: float = Field(gt=0, description="Memory bandwidth, 10**9 bytes per second.")
    bf16_tflops: float = Field(gt=0, description="Dense bfloat16 (float16 if it has none), 10**12 operations a second.")
    fp8_tflops: float | None = Field(None, gt=0, description="The same in FP8; unset: the device has none.")
    host_link_gb_per_s: float = Field(
        32.0, gt=0, description="Bus to the host's memory, one direction, 10**9 bytes per second; PCIe 4.0 x16."
    )
    link_gb_per_s: float | None = Field(
        None, gt=0, description="To the other devices of a node, one direction; unset: over the host's bus."
    )
    network_gb_per_s: float = Field(
        50.0, gt=0, description="Between nodes, for each device, one direction; 400 Gbit/s."
    )
    has_bfloat16: bool = True
    keeps_twelve_bits: bool = Field(False, description="Whether bfloat16 weights are held in 12 bits, exactly.")
    keeps_codes: bool = Field(False, description="Whether a CPU holds quantised checkpoints in their own codes.")
    uncertainty: float = Field(1.0, ge=1, description="Factor by which the two speeds may be too high or too low.")

    @property
    def is_gpu(self) -> bool:
        return self.kind != "cpu"

    @property
    def room(self) -> DeviceRoom:
        free = self.memory if self.free_memory is None else self.free_memory
        return DeviceRoom(is_gpu=self.is_gpu, total_bytes=self.memory, free_bytes=free)

    @property
    def is_in_build(self) -> bool:
        """Whether this build runs on it: CPUs, and NVIDIA GPUs that compute in bfloat16."""
        return self.kind == "cpu" or (self.kind == "cuda" and self.has_bfloat16)

    def shared_by(self, num_replicas: int) -> DeviceProfile:
        """What each of several replicas has: its part of a CPU, or its own GPU."""
        if self.is_gpu or num_replicas == 1:
            return self
        parts = ("bandwidth_gb_per_s", "bf16_tflops")
        share = {name: getattr(self, name) / num_replicas for name in parts}
        return self.model_copy(update={**share, "memory": self.memory // num_replicas})

    @property
    def to_neighbours_gb_per_s(self) -> float:
        return self.link_gb_per_s or self.host_link_gb_per_s

    @property
    def shown(self) -> str:
        return self.title or self.name


class DeviceProblem(Exception):
    """There is no such profile, or the profile file is invalid."""


@cache
def profiles() -> dict[str, DeviceProfile]:
    """The profiles of the package, smallest memory first."""
    found: list[DeviceProfile] = []
    for entry in sorted(files(f"{__package__}.device_profiles").iterdir(), key=lambda file: file.name):
        if entry.name.endswith(".yaml"):
            found += [DeviceProfile.model_validate(values) for values in yaml.safe_load(entry.read_text("utf-8"))]
    return {profile.name: profile for profile in sorted(found, key=lambda profile: profile.memory)}


def machine_of(device: DeviceProfile, machine: MachineSpec) -> MachineSpec:
    """This machine with the device of a profile instead of its own, for decisions and rules about the device.

    A device that this build does not run on gets the properties of one that it runs on.
    """
    if device.name == THIS_MACHINE:
        return machine
    if device.is_gpu:
        capability = LEAST_CAPABILITY if device.fp8_tflops is None else FP8_CAPABILITY
        gpu = GpuSpec(
            name=device.shown,
            total_memory_bytes=device.memory,
            available_memory_bytes=device.memory,
            compute_capability=capability,
        )
        return machine.model_copy(update={"gpu": gpu, "no_gpu": ""})
    own = {
        "total_memory_bytes": device.memory,
        "available_memory_bytes": device.memory,
        "cpu_name": device.shown,
        "cpu_flags": ("avx512_bf16",) if device.has_bfloat16 else (),
        "keeps_twelve_bits": device.keeps_twelve_bits,
        "keeps_codes": device.keeps_codes,
        "numa_nodes": (),
        "gpu": None,
        "no_gpu": f"{device.shown} is none",
    }
    return machine.model_copy(update=own)


def find_profile(name: str, machine: MachineSpec) -> DeviceProfile:
    """Find a profile by its name, `this-machine` (its CPU), or a YAML file. Raises DeviceProblem with the next step."""
    if name == THIS_MACHINE:
        return this_machine(machine)
    wanted = name.lower().replace("_", "-").replace(" ", "-")
    if wanted in profiles():
        return profiles()[wanted]
    path = Path(os.path.expanduser(name))
    if path.suffix in (".yaml", ".yml") or os.path.isfile(path):
        return _read_file(path)
    known = [THIS_MACHINE, *profiles()]
    parts = [each for each in profiles() if wanted in each or wanted.startswith(each)]
    close = parts or difflib.get_close_matches(wanted, known, 2, 0.6)
    hint = f"did you mean {' or '.join(close)}; " if close else ""
    raise DeviceProblem(f"no device profile `{name}`; {hint}there are: {', '.join(known)}, or a YAML file of your own")


def _read_file(path: Path) -> DeviceProfile:
    try:
        values: Any = yaml.safe_load(read_file(path, _MAX_BYTES))
    except OSError as error:
        raise DeviceProblem(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        raise DeviceProblem(f"{path}{f':{mark.line + 1}' if mark else ''}: invalid YAML") from None
    if not isinstance(values, dict):
        raise DeviceProblem(f"{path}: a device profile must be a mapping with {', '.join(_required())}")
    try:
        return DeviceProfile.model_validate({"name": path.stem, **values})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise DeviceProblem(f"{path}: `{key}`: {said}; a profile has {', '.join(_required())}") from None


def _required() -> list[str]:
    return [name for name, field in DeviceProfile.model_fields.items() if field.is_required() and name != "name"]


# Speed of one core by level of src/engine/kernels/cpu, measured with benchmarks/cpu_kernels.py on several servers.
_GFLOPS = {"amx": 700.0, "avx512_bf16": 250.0, "avx512": 150.0, "avx2": 45.0, "portable": 8.0}
_CORE_GB_PER_S, _MOST_GB_PER_S = 14.0, 250.0  # bandwidth grows with cores up to the limit of the socket's channels


def this_machine(machine: MachineSpec, device: str = "cpu") -> DeviceProfile:
    """This machine as a device: its CPU, or its GPU where the deployment runs on that (`device.device`).

    A CPU's speeds are estimated from its cores and instruction sets, hence the uncertainty.
    """
    gpu = machine.gpu
    is_interpreted = device == "cuda" and gpu is not None and gpu.is_interpreted
    if device == "cuda" and gpu is not None and not is_interpreted:
        return _this_gpu(gpu)
    try:
        level = choose_level(wanted_level(), this_cpu())[0].name
    except (NoKernels, ValueError):
        level = "avx2"
    return DeviceProfile(
        name=THIS_MACHINE,
        title=f"{machine.cpu_name or machine.architecture}, {machine.num_cores} cores"
        + ", Triton's interpreter" * is_interpreted,
        kind="cpu",
        memory=machine.available_memory_bytes,
        bandwidth_gb_per_s=min(_MOST_GB_PER_S, machine.num_cores * _CORE_GB_PER_S),
        bf16_tflops=machine.num_cores * _GFLOPS[level] / 1000,
        has_bfloat16=machine.has_bfloat16,
        keeps_twelve_bits=machine.keeps_twelve_bits and not is_interpreted,
        keeps_codes=machine.keeps_codes and not is_interpreted,
        uncertainty=2.0,
    )


def _this_gpu(gpu: GpuSpec) -> DeviceProfile:
    """Profile of a GPU, with the speeds of the matching profile; an unknown GPU gets the speeds of a mid-range one."""
    words = re.split(r"[^A-Za-z0-9]+", gpu.name)
    like = [profile for profile in profiles().values() if profile.kind == "cuda" and profile.title.split()[-2] in words]
    speeds: dict[str, Any] = {"bandwidth_gb_per_s": 1000.0, "bf16_tflops": 150.0, "uncertainty": 3.0}
    if gpu.compute_capability >= FP8_CAPABILITY:
        speeds["fp8_tflops"] = 300.0
    if like:  # the same GPU is sold with different amounts of memory
        nearest = min(like, key=lambda profile: abs(profile.memory - gpu.total_memory_bytes))
        speeds = nearest.model_dump(include={"bandwidth_gb_per_s", "bf16_tflops", "fp8_tflops", "host_link_gb_per_s"})
    return DeviceProfile(
        name=THIS_MACHINE,
        title=gpu.name,
        memory=gpu.total_memory_bytes,
        free_memory=gpu.available_memory_bytes,
        has_bfloat16=gpu.compute_capability >= LEAST_CAPABILITY,
        **speeds,
    )
