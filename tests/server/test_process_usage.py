"""CPU time and memory of the engine's processes in /metrics, read from a /proc of the test and from the real one."""

from __future__ import annotations

import os
from pathlib import Path

from stoker.config.resolve.gpu import GpuUsage
from stoker.engine.api import EngineStats
from stoker.engine.client.engine_client import EngineState
from stoker.server.observe.engine_metrics import EngineSnapshot
from stoker.server.observe.metrics import Metrics
from stoker.server.observe.process_usage import ProcessUsage, usage_of


def write_process(proc: Path, pid: int, *, name: str, times: tuple[int, ...], pages: int, children: str = "") -> None:
    """times: user, system, and those of children that have ended."""
    (proc / f"{pid}/task/{pid}").mkdir(parents=True)
    (proc / f"{pid}/task/{pid}/children").write_text(children)
    fields = ["S", *["0"] * 10, *map(str, times), *["0"] * 6, str(pages), "0"]
    (proc / f"{pid}/stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")


def test_the_usage_of_a_process_is_that_of_all_that_it_started(tmp_path: Path):
    second = os.sysconf("SC_CLK_TCK")
    write_process(tmp_path, 7, name="a ) b", times=(3 * second, second, second, 0), pages=100, children="8 9 ")
    write_process(tmp_path, 8, name="rank", times=(second, 0, 0, 0), pages=11, children="")
    # process 9 has ended meanwhile
    write_process(tmp_path, 10, name="another", times=(99, 99, 99, 99), pages=1)
    assert usage_of(7, tmp_path) == ProcessUsage(6.0, 111 * os.sysconf("SC_PAGE_SIZE"))


def test_an_engine_that_is_not_on_this_machine_has_no_usage(tmp_path: Path):
    assert usage_of(None) is None
    assert usage_of(7, tmp_path) is None
    text = Metrics("m", lambda: {0: EngineSnapshot(EngineStats(), EngineState.READY)}).render().decode()
    assert "stoker_engine_process" not in text


def test_the_usage_of_the_engine_and_of_the_server_are_metrics():
    usage = usage_of(os.getpid())
    assert usage is not None
    assert usage.resident_bytes > 1 << 20
    snapshot = EngineSnapshot(EngineStats(), EngineState.READY, ProcessUsage(2.5, 4096))
    lines = Metrics("m", lambda: {0: snapshot}).render().decode().splitlines()
    assert 'stoker_engine_process_cpu_seconds_total{engine="0",model_name="m"} 2.5' in lines
    assert 'stoker_engine_process_resident_memory_bytes{engine="0",model_name="m"} 4096.0' in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


def test_the_usage_of_gpus_is_a_metric_for_each():
    gpus = [GpuUsage("0", 0.25, 10, 96), GpuUsage("1", None, 20, 96)]
    snapshot = EngineSnapshot(EngineStats(), EngineState.READY)
    text = Metrics("m", lambda: {0: snapshot}, gpus=lambda: gpus).render().decode()
    assert [line for line in text.splitlines() if line.startswith("stoker_gpu")] == [
        'stoker_gpu_utilization_ratio{gpu="0",model_name="m"} 0.25',
        'stoker_gpu_memory_used_bytes{gpu="0",model_name="m"} 10.0',
        'stoker_gpu_memory_used_bytes{gpu="1",model_name="m"} 20.0',
        'stoker_gpu_memory_total_bytes{gpu="0",model_name="m"} 96.0',
        'stoker_gpu_memory_total_bytes{gpu="1",model_name="m"} 96.0',
    ]
