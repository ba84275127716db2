"""benchmarks/gpu_suite.py without a GPU: it runs, and no result is lost."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import gpu_suite
from benchmarks.gpu import table
from benchmarks.gpu.correctness import worst_error
from benchmarks.gpu.part import Context
from benchmarks.gpu.record import Record, RecordFile, read_records
from benchmarks.gpu.requests import mixed_lengths
from benchmarks.gpu.runner import Part, SuiteRunner
from benchmarks.gpu.shapes import LLAMA, QWEN, SMALL, decode_cost, workload_cost
from benchmarks.gpu.speed import Model, Served, model_named, record_steady

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


def run_part(folder: Path, monkeypatch: pytest.MonkeyPatch, cases: str, seconds: float, **part: Any) -> list[Record]:
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


def test_a_part_can_have_an_import_path_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cases = """
import sys
from benchmarks.gpu.part import Case

def cases(context):
    return [Case("path", lambda context: context.record(",".join(sys.path[:3]), ""))]
"""
    found = run_part(tmp_path, monkeypatch, cases, 60.0, python_path=str(tmp_path))
    assert found[0].name.split(",")[1] == str(tmp_path)
    assert "site-packages" not in found[0].name


def test_output_of_libraries_is_kept_out_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A library in C, or a process that one starts, writes to file descriptor 1."""
    cases = """
import os
from benchmarks.gpu.part import Case

def writes(context):
    os.write(1, b'{"record": {"part": "no", "name": "no", "shape": ""}}\\n')
    context.record("own", "")

def cases(context):
    return [Case("writes", writes)]
"""
    assert [each.name for each in run_part(tmp_path, monkeypatch, cases, 60.0)] == ["own"]


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


class Fake(Served):
    """Generates a token for each running request in every step, and returns the tokens of the step before."""

    def __init__(self, context: Context, model: Model, lost: int = 0) -> None:
        super().__init__(context, model)
        self.left: dict[str, int] = {}
        self.earlier: list[str] = []
        self.lost = lost  # steps without tokens

    def request(self, name: str, prompt_ids: list[int], answer: int) -> tuple[str, int]:
        return name, answer

    def add(self, request: tuple[str, int]) -> None:
        self.left[request[0]] = request[1]

    def step(self) -> list[str]:
        found, self.earlier = self.earlier, list(self.left)
        self.left = {name: left - 1 for name, left in self.left.items() if left > 1}
        if self.lost:
            self.lost -= 1
            return []
        return found

    def count(self, outputs: list[str]) -> int:
        return len(outputs)

    def names_in(self, outputs: list[str]) -> list[str]:
        return outputs

    def abort(self, names: list[str]) -> None:
        self.left.clear()

    @property
    def has_work(self) -> bool:
        return bool(self.left or self.earlier)


def context_of(sent: list[Any], **config: Any) -> Context:
    whole = replace(gpu_suite.common_config(True, "cpu"), part="vllm qwen3-0.6b", untimed=None, **config)
    return Context(whole, lambda _, content: sent.append(content))


def test_an_engine_that_plans_ahead_is_measured_with_all_its_tokens():
    context = context_of([])
    engine = Fake(context, model_named("qwen3-0.6b", context))
    assert engine.serve([(5, 3), (1, 1), (7, 100)]) > 0
    found = engine.steady(3, 10, steps=2)
    assert found.tokens_in_cache == 3 * (10 - 1 - 1) + 3 * 2 + 3  # prompts, two steps before, half of the measured ones
    assert not engine.has_work


def test_an_engine_that_loses_tokens_is_not_measured():
    context = context_of([])
    with pytest.raises(AssertionError, match="generated 6 tokens instead of 7"):
        Fake(context, model_named("qwen3-0.6b", context), lost=2).serve([(5, 7)])


def test_the_cache_of_a_small_gpu_is_smaller_and_batches_that_do_not_fit_are_skipped():
    sent: list[Any] = []
    context = context_of(sent, memory_bytes=80 * 2**30, is_reduced=False)
    assert model_named("qwen3-0.6b", context).kv_tokens == 256 * 2560
    llama = model_named("llama-3.1-8b", context)
    assert 256 * 1024 < llama.kv_tokens < 256 * 2048
    assert (
        model_named("llama-3.1-8b", context_of([], memory_bytes=140 * 2**30, is_reduced=False)).kv_tokens == 256 * 2560
    )
    record_steady(context, Fake(context, llama), "decode", 256, 2048)
    assert [each["error"] for each in sent] == [f"skipped: the KV cache has memory for {llama.kv_tokens} tokens"]


@pytest.mark.parametrize("name", ["qwen3-0.6b", "llama-3.1-8b"])
def test_without_vllm_its_parts_are_skipped(tmp_path: Path, name: str):
    part = next(each for each in gpu_suite.PARTS if each.name == f"vllm {name}")
    records = RecordFile(tmp_path / "out.json")
    runner = SuiteRunner(records, gpu_suite.common_config(True, "cpu"), 60.0, lambda record: None)
    runner.run(part, 1.0)
    assert records.records == [Record(part.name, part.name, "", error="skipped: vllm is not installed")]


def test_the_table_compares_what_both_engines_measured():
    of = f"{SMALL.name}, 1 x 512"
    own = Record("qwen3-0.6b", "decode", of, 1.5, "ms/step")
    peer = Record("vllm qwen3-0.6b", "decode", of, 2.0, "ms/step")
    alone = Record("vllm qwen3-0.6b", "prefill", of, 2.0, "ms")
    failed = Record("vllm qwen3-0.6b", "workload of 256", of, error="RuntimeError: no")
    lines = table.comparison([own, peer, alone, failed])
    assert lines[2:] == [f"| decode | {of} | 1.5 ms/step | 2 ms/step | 0.75 |", ""]
    assert table.comparison([own]) == []
