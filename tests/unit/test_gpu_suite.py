"""benchmarks/gpu_suite.py without a GPU: it runs, and no result is lost."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks import gpu_suite
from benchmarks.gpu import table
from benchmarks.gpu.correctness import worst_error
from benchmarks.gpu.record import Record, RecordFile, read_records
from benchmarks.gpu.requests import mixed_lengths
from benchmarks.gpu.runner import Part, SuiteRunner
from benchmarks.gpu.shapes import LLAMA, QWEN, decode_cost, workload_cost

LOG = Path(__file__).parents[2] / "benchmarks" / "LOG.md"
CASES = """
import os, threading
from benchmarks.gpu.part import Case

def records(context):
    context.record("recorded", "", 3.0, "us", 2.0, is_time=False)

def raises(context):
    raise ValueError("seven\\nlines")

def crashes(context):
    os._exit(7)

def hangs(context):
    threading.Event().wait()

def cases(context):
    found = {"records": records, "raises": raises, "crashes": crashes, "records again": records}
    return [Case(name, run) for name, run in found.items()] + [Case("long", records, 1e6), Case("hangs", hangs)]
"""


def run_part(folder: Path, monkeypatch: pytest.MonkeyPatch, cases: str, seconds: float, **part: bool) -> list[Record]:
    (folder / "its_cases.py").write_text(cases)
    monkeypatch.syspath_prepend(folder)
    records = RecordFile(folder / "out.json")
    config = replace(gpu_suite.common_config(True, "cpu"), untimed=None)
    runner = SuiteRunner(records, config, seconds, lambda record: None)
    runner.run(Part("its", "its_cases", seconds, **part), 1.0)
    assert read_records(folder / "out.json")[1] == records.records
    return records.records


@pytest.mark.slow
def test_without_a_gpu_everything_runs_and_no_time_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    out = tmp_path / "gpu.json"
    gpu_suite.main(["--out", str(out), "--reduced", "--engine-device", "cpu", "--only", "kernels,qwen3-0.6b"])
    machine, records = read_records(out)
    assert machine["torch"] == torch.__version__
    assert {each.part for each in records} == {"machine", "kernels", "qwen3-0.6b"}
    for each in records:
        assert each.error is not None, each
        assert each.error.startswith("not measured: "), each
        assert each.value is each.floor is each.ratio is each.spread is None
    names = {each.name for each in records}
    assert names >= {"memory read", "matrix product", "decode attention", "prefill attention", "decode", "prefill"}
    shown = capfd.readouterr().out
    assert "\n| | target | floor on an H200 | measured | spread |\n" in shown
    gpu_suite.main(["--table", str(out)])
    assert capfd.readouterr().out.strip() in shown


@pytest.mark.slow
def test_a_failure_loses_only_its_own_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = [(each.name, each.value, each.ratio, each.error) for each in run_part(tmp_path, monkeypatch, CASES, 2.0)]
    assert found[0] == ("recorded", 3.0, 1.5, None)
    assert found[1] == ("raises", None, None, "ValueError: seven")
    assert found[2][0] == "crashes"
    assert str(found[2][3]).startswith("the process exited with code 7")
    assert found[3] == ("recorded", 3.0, 1.5, None)
    assert str(found[4][3]).startswith("skipped: ")
    assert found[5] == ("hangs", None, None, "stopped: the part exceeded its time")
    assert len(found) == 6


def test_each_case_can_have_a_separate_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cases = """
import os
from benchmarks.gpu.part import Case

def records(context):
    context.record(str(os.getpid()), "")

def cases(context):
    return [Case(name, records) for name in "abc"]
"""
    found = run_part(tmp_path, monkeypatch, cases, 60.0, each_alone=True)
    assert len({each.name for each in found}) == len(found) == 3


def test_a_part_that_cannot_start_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = run_part(tmp_path, monkeypatch, "import missing_module", 60.0)
    assert [each.name for each in found] == ["its"]
    assert "No module named 'missing_module'" in str(found[0].error)


def test_parts_without_time_left_are_recorded(tmp_path: Path):
    records = RecordFile(tmp_path / "out.json")
    runner = SuiteRunner(records, gpu_suite.common_config(True, "cpu"), 0.0, lambda record: None)
    runner.run(Part("late", "its_cases", 60.0), 1.0)
    assert records.records == [Record("late", "late", "", error="skipped: no time left")]


def test_a_file_of_another_version_is_rejected(tmp_path: Path):
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"version": 0, "machine": {}, "records": []}))
    with pytest.raises(ValueError, match="version 0"):
        read_records(path)


def test_a_wrong_value_exceeds_the_limit_and_nan_is_an_infinite_error():
    right = torch.tensor([1.0, -3.0])
    assert worst_error(iter([(right, right)]), 0.01) == 0
    assert worst_error(iter([(right + 0.1, right)]), 0.01) == pytest.approx(5)
    assert worst_error(iter([(torch.tensor([1.0, math.nan]), right)]), 0.01) == math.inf
    with pytest.raises(ValueError, match="found"):
        worst_error(iter([(right[:1], right)]), 0.01)


def test_floors_match_values_computed_by_hand():
    """With 4.8 TB/s and 790 TFLOP/s."""

    def ms(cost: tuple[float, float]) -> float:
        return max(cost[0] / 4.8e12, cost[1] / 790e12) * 1e3

    assert ms(decode_cost(QWEN, 1, 512)) == pytest.approx(0.26, abs=0.005)
    assert ms(decode_cost(QWEN, 256, 256 * 2048)) == pytest.approx(12.8, abs=0.1)
    assert ms(decode_cost(LLAMA, 1, 512)) == pytest.approx(3.14, abs=0.01)
    assert ms(decode_cost(LLAMA, 256, 256 * 512)) == pytest.approx(6.7, abs=0.1)
    lengths = mixed_lengths()
    assert (len(lengths), sum(answer for _, answer in lengths)) == (256, 133_966)
    assert sum(map(ms, workload_cost(QWEN, lengths))) == pytest.approx(3350, rel=0.03)


def test_every_target_is_in_the_log():
    for line in table.target_table([])[2:]:
        row = line.split(" | not measured")[0]
        assert row in LOG.read_text(), line


def test_targets_show_their_measurements():
    decode = Record("kernels", "decode attention", f"{LLAMA.name}, 64 x 2048", 140.0, "us", 112.0, 1.25, 0.02)
    prefill = Record("kernels", "prefill attention", f"{LLAMA.name}, 8192", 1000.0, "us", 700.0, 1.43)
    lines = table.target_table([decode, prefill])
    assert lines[-1].endswith("| 430 TFLOP/s |  | 550 TFLOP/s |  |")
    assert next(line for line in lines if "64 x 2048 | 85 %" in line).endswith("| 80% | 2.0% |")
