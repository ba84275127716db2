from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from stoker.config.resolve import machine
from stoker.config.resolve.gpu import GpuMonitor, GpuUsage, NoGpu, read_gpu, visible_gpus
from stoker.config.resolve.machine import read_machine_spec

MIB = 1 << 20
TORCH = "2.11.0+cu128"


@dataclass
class Driver:
    """NVML with two GPUs, as far as it is asked; `broken` names functions and what they answer."""

    broken: dict[str, int] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ("GPU-11aa", "GPU-22bb")
    is_open: bool = False

    def open(self, name: str) -> Any:
        assert name == "libnvidia-ml.so.1"
        return self

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            if name in object.__getattribute__(self, "lacks"):
                raise AttributeError(f"undefined symbol: {name}")
            if name in (broken := object.__getattribute__(self, "broken")):
                return lambda *arguments: broken[name]
        return object.__getattribute__(self, name)

    def nvmlInit_v2(self) -> int:
        self.is_open = True
        return 0

    def nvmlShutdown(self) -> int:
        self.is_open = False
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.uuids)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: Any, handle: Any) -> int:
        handle._obj.value = number.value + 100
        return 0 if number.value < len(self.uuids) else 2

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:
        handle._obj.value = 101
        return 0 if uuid.value == b"MIG-33cc" else 6

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: Any) -> int:
        buffer.value = self.uuids[handle.value - 100].encode()
        return 0

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, size: Any) -> int:
        buffer.value = f"NVIDIA H200 {handle.value - 100}".encode()
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 9, 0
        return 0

    def nvmlDeviceGetMemoryInfo_v2(self, handle: Any, memory: Any) -> int:
        memory._obj.total, memory._obj.reserved, memory._obj.free = 1000 * MIB, 40 * MIB, 950 * MIB
        return 0 if memory._obj.version == 0x2000028 else 1

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        rates._obj.gpu = 25
        return 0 if handle.value == 100 else 3

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.total, memory._obj.free = 1000 * MIB, 950 * MIB
        return 0


def name(driver: Driver, env: Mapping[str, str]) -> str:
    return read_gpu(env, driver.open, TORCH).name


@pytest.mark.parametrize(
    ("visible", "number"),
    [(None, 0), ("0", 0), ("1", 1), ("1,0", 1), (" 1 , 0", 1), ("GPU-22bb", 1), ("GPU-2", 1), ("MIG-33cc", 1)],
)
def test_the_first_gpu_that_cuda_would_show_is_asked(visible: str | None, number: int) -> None:
    driver = Driver()
    assert name(driver, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == f"NVIDIA H200 {number}"
    assert not driver.is_open


def test_a_gpu_has_the_memory_that_programs_can_have() -> None:
    gpu = read_gpu({}, Driver().open, TORCH)
    assert (gpu.total_memory_bytes, gpu.available_memory_bytes) == (960 * MIB, 950 * MIB)
    assert gpu.compute_capability == (9, 0)
    older = read_gpu({}, Driver(lacks=("nvmlDeviceGetMemoryInfo_v2",)).open, TORCH)
    assert (older.total_memory_bytes, older.available_memory_bytes) == (1000 * MIB, 950 * MIB)


@pytest.mark.parametrize(
    ("env", "driver", "said"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, Driver(), "CUDA_VISIBLE_DEVICES is ``, which hides every GPU"),
        ({"CUDA_VISIBLE_DEVICES": "-1,0"}, Driver(), "which hides every GPU"),
        ({"CUDA_VISIBLE_DEVICES": "2"}, Driver(), "looking for GPU 2 with error 2 (no such GPU)"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-x"}, Driver(), "of 2 GPUs none is the GPU-x"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-x"}, Driver(), "looking for MIG-x with error 6 (not found)"),
        ({}, Driver(uuids=()), "looking for GPU 0 with error 2"),
        ({}, Driver(broken={"nvmlInit_v2": 9}), "starting it with error 9 (the driver is not loaded)"),
        ({}, Driver(broken={"nvmlDeviceGetMemoryInfo_v2": 3, "nvmlDeviceGetMemoryInfo": 3}), "asking for its memory"),
        ({}, Driver(broken={"nvmlDeviceGetName": 999}), "asking for its name with error 999"),
        ({}, Driver(lacks=("nvmlInit_v2",)), "libnvidia-ml.so.1 is too old"),
    ],
)
def test_what_keeps_a_gpu_away_is_said(env: dict[str, str], driver: Driver, said: str) -> None:
    with pytest.raises(NoGpu) as caught:
        read_gpu(env, driver.open, TORCH)
    assert said in str(caught.value)
    assert not driver.is_open


def test_without_a_driver_or_with_a_torch_for_cpus_there_is_none() -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    with pytest.raises(NoGpu, match=r"NVIDIA's driver library libnvidia-ml\.so\.1 is not there"):
        read_gpu({}, missing, TORCH)
    with pytest.raises(NoGpu, match=r"the installed torch \(2\.11\.0\+cpu\) is a build for CPUs"):
        read_gpu({}, Driver().open, "2.11.0+cpu")


def test_an_interpreter_is_used_where_the_environment_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise NoGpu("none was found")

    monkeypatch.setattr(machine, "read_gpu", none)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    model_spec = read_machine_spec()
    assert model_spec.gpu is not None
    assert model_spec.gpu.is_interpreted
    assert model_spec.gpu.total_memory_bytes == model_spec.total_memory_bytes
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert (read_machine_spec().gpu, read_machine_spec().no_gpu) == (None, "none was found")


@pytest.mark.parametrize(
    ("visible", "entries"),
    [(None, None), ("0", ["0"]), ("1, 0", ["1", "0"]), ("GPU-2,-1,0", ["GPU-2"]), ("0,,1", ["0"]), ("", [""])],
)
def test_entries_after_one_that_is_no_gpu_are_hidden(visible: str | None, entries: list[str] | None) -> None:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_gpus(env) == entries


def test_the_gpus_that_this_process_may_use_are_counted() -> None:
    for visible, number in ((None, 2), ("1", 1), ("1,0", 2), ("GPU-22bb,GPU-11aa", 2)):
        env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        assert read_gpu(env, Driver().open, TORCH).num_visible == number


def test_the_usage_of_the_gpus_that_cuda_would_show_is_read_again_and_again() -> None:
    driver = Driver()
    monitor = GpuMonitor(2, {}, driver.open)
    assert driver.is_open
    usage = [GpuUsage("0", 0.25, 10 * MIB, 960 * MIB), GpuUsage("1", None, 10 * MIB, 960 * MIB)]
    assert monitor.read() == monitor.read() == usage
    assert GpuMonitor(1, {"CUDA_VISIBLE_DEVICES": "GPU-22bb,0"}, driver.open).read()[0].gpu == "GPU-22bb"
    assert GpuMonitor(1, {"CUDA_VISIBLE_DEVICES": ""}, driver.open).read() == []
    driver.broken.update(nvmlDeviceGetMemoryInfo_v2=15, nvmlDeviceGetMemoryInfo=15)
    assert monitor.read() == []


@pytest.mark.parametrize(
    "driver", [Driver(broken={"nvmlInit_v2": 9}), Driver(lacks=("nvmlInit_v2",)), Driver(uuids=())]
)
def test_without_a_driver_there_is_nothing_to_monitor(driver: Driver) -> None:
    with pytest.raises(NoGpu):
        GpuMonitor(1, {"CUDA_VISIBLE_DEVICES": "0"}, driver.open)
