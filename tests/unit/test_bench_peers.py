from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks import workload
from benchmarks.peers.contestants import CONTESTANTS, OFFLINE, WORKLOADS, Contestant
from benchmarks.peers.environments import exit_reason
from benchmarks.peers.plot import svg
from benchmarks.peers.process import Failed, Process, private_bytes
from benchmarks.peers.record import SLOW_S, Record, run_round
from benchmarks.peers.run import listed
from benchmarks.peers.table import tables

STOKER, VLLM, INT8 = CONTESTANTS["stoker"], CONTESTANTS["vllm"], CONTESTANTS["stoker-int8"]


def record_of(folder: Path, *cells: tuple[str, str, int, float]) -> Record:
    """cells: contestant, workload, round, rate."""
    record = Record(folder / "peers.json")
    for contestant, name, number, rate in cells:
        record.add_cell(contestant=contestant, workload=name, round=number, seconds=1.0, rate=rate)
    return record


class FakeContest:
    """Measures 10 tokens/s; fails at `fails_at`."""

    def __init__(self, fails_at: str = "") -> None:
        self.fails_at = fails_at
        self.ran: list[tuple[str, int]] = []
        self.is_closed = False
        self.peak_private_bytes = 3 * 1024**3

    def start(self) -> dict[str, Any]:
        self._fail("start")
        return {"ready_s": 2.5, "info": {}}

    def warm_up(self, seed: int) -> None:
        self._fail("warm-up")

    def run(self, name: str, seed: int) -> dict[str, Any]:
        self._fail(name)
        self.ran.append((name, seed))
        return {"seconds": 1.0, "rate": 10.0}

    def close(self) -> None:
        self.is_closed = True

    def _fail(self, place: str) -> None:
        if place == self.fails_at:
            raise Failed(f"broke at {place}")


def run(record: Record, contest: FakeContest, workloads: list[str], number: int = 0) -> None:
    run_round(record, number, VLLM, workloads, lambda _: contest, lambda: 0.5, Failed)


def test_every_contestant_runs_in_every_round_and_the_order_rotates(tmp_path: Path) -> None:
    plan = Record(tmp_path / "peers.json").plan([STOKER, VLLM, INT8], ["decode-1", "mixed-32"], rounds=2)
    assert [(number, each.name, names) for number, each, names in plan] == [
        (0, "stoker", ["decode-1", "mixed-32"]),
        (0, "vllm", ["decode-1", "mixed-32"]),
        (0, "stoker-int8", ["decode-1"]),
        (1, "vllm", ["decode-1", "mixed-32"]),
        (1, "stoker-int8", ["decode-1"]),
        (1, "stoker", ["decode-1", "mixed-32"]),
    ]


def test_an_interrupted_comparison_continues(tmp_path: Path) -> None:
    record_of(tmp_path, ("stoker", "decode-1", 0, 10.0), ("stoker", "mixed-32", 0, 10.0), ("vllm", "decode-1", 0, 9.0))
    again = Record(tmp_path / "peers.json")
    plan = again.plan([STOKER, VLLM], ["decode-1", "mixed-32"], rounds=1)
    assert [(each.name, names) for _, each, names in plan] == [("vllm", ["mixed-32"])]


def test_a_slow_cell_is_not_repeated(tmp_path: Path) -> None:
    record = record_of(tmp_path, ("stoker", "decode-1", 0, 10.0))
    record.add_cell(contestant="stoker", workload="mixed-32", round=0, seconds=SLOW_S + 1, rate=1.0)
    plan = record.plan([STOKER], ["decode-1", "mixed-32"], rounds=2)
    assert [(number, names) for number, _, names in plan] == [(1, ["decode-1"])]
    assert "| mixed-32 | 1.0 ¹ |" in tables(record)


def test_a_round_measures_every_workload_with_its_prompts(tmp_path: Path) -> None:
    record, contest = Record(tmp_path / "peers.json"), FakeContest()
    run(record, contest, ["decode-1", "mixed-32"], number=2)
    assert contest.ran == [("decode-1", 2), ("mixed-32", 2)]
    assert contest.is_closed
    written = json.loads((tmp_path / "peers.json").read_text())
    assert [(cell["workload"], cell["round"], cell["rate"], cell["load"]) for cell in written["cells"]] == [
        ("decode-1", 2, 10.0, 0.5),
        ("mixed-32", 2, 10.0, 0.5),
    ]
    assert written["starts"][0]["ready_s"] == 2.5


@pytest.mark.parametrize("place", ["start", "warm-up"])
def test_a_peer_that_does_not_start_is_reported_with_the_reason(tmp_path: Path, place: str) -> None:
    record, contest = Record(tmp_path / "peers.json"), FakeContest(fails_at=place)
    run(record, contest, ["decode-1"])
    assert contest.is_closed
    assert f"- vllm is left out: broke at {place}" in tables(record)
    assert list(record.plan([VLLM], ["decode-1"], rounds=3)) == []


def test_a_failed_workload_is_reported_and_ends_only_that_round_of_the_contestant(tmp_path: Path) -> None:
    record = Record(tmp_path / "peers.json")
    run(record, FakeContest(fails_at="mixed-32"), ["decode-1", "mixed-32", "prefix-16"])
    shown = tables(record)
    assert "| decode-1 | 10.0 |" in shown
    assert "| mixed-32 | failed |" in shown
    assert "- vllm failed at mixed-32 in round 1: broke at mixed-32" in shown
    todo = record.plan([VLLM], ["decode-1", "mixed-32", "prefix-16"], rounds=2)
    assert [(number, names) for number, _, names in todo] == [(0, ["prefix-16"]), (1, ["decode-1", "prefix-16"])]


def test_a_new_run_retries_failures(tmp_path: Path) -> None:
    record = Record(tmp_path / "peers.json")
    run(record, FakeContest(fails_at="decode-1"), ["decode-1"])
    record.leave_out("stoker", "no compiler")
    record.clear_failures()
    assert [each.name for _, each, _ in record.plan([STOKER, VLLM], ["decode-1"], rounds=1)] == ["stoker", "vllm"]


def test_the_table_shows_medians_and_ratios_within_rounds(tmp_path: Path) -> None:
    """Medians are 20 and 10; the ratios of the rounds are 1, 2 and 5, because the machine was slow in the third."""
    rates = [("stoker", 10.0), ("stoker", 20.0), ("stoker", 25.0), ("vllm", 10.0), ("vllm", 10.0), ("vllm", 5.0)]
    record = record_of(tmp_path, *((name, "decode-1", index % 3, rate) for index, (name, rate) in enumerate(rates)))
    record.add_start(contestant="stoker", round=0, ready_s=2.0, peak_private_bytes=2 * 1024**3)
    record.add_start(contestant="vllm", round=0, ready_s=8.0, peak_private_bytes=8 * 1024**3)
    assert tables(record).splitlines() == [
        "| bfloat16, tokens/s | stoker | vllm | stoker / vllm |",
        "|---|---|---|---|",
        "| decode-1 | 20.0 | 10.0 | 2.00x |",
        "| ready, s | 2.0 | 8.0 | 0.25x |",
        "| peak private memory, GiB | 2.0 | 8.0 | 0.25x |",
    ]


def test_workloads_that_a_contestant_does_not_run_are_reported_with_the_reason(tmp_path: Path) -> None:
    record = record_of(tmp_path, ("stoker-int8", "decode-1", 0, 10.0))
    record.content["environment"] = {"workloads": ["decode-1", "mixed-32"]}
    assert "- stoker-int8 does not run mixed-32: quantised weights are compared at batch 1" in tables(record)


def test_the_plot_is_well_formed_and_has_a_bar_per_measurement(tmp_path: Path) -> None:
    record = record_of(tmp_path, ("stoker", "decode-1", 0, 20.0), ("vllm", "decode-1", 0, 10.0))
    record.leave_out("openvino", "a < b & c")
    picture = ElementTree.fromstring(svg(record))
    bars = [each for each in picture if each.tag.endswith("rect") and each.get("x")]
    assert [float(bar.get("width", "0")) for bar in bars] == [420.0, 210.0]


def test_a_file_of_another_format_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text('{"runs": {}}')
    with pytest.raises(ValueError, match="does not have the format of a record"):
        Record(tmp_path / "peers.json")


def test_an_unknown_engine_is_rejected_with_a_list_of_known_engines() -> None:
    with pytest.raises(SystemExit, match="unknown engine `vlm`; known: stoker, vllm"):
        listed("stoker,vlm", ["stoker", "vllm"], "engine")


@pytest.mark.parametrize("name", OFFLINE)
def test_prompts_differ_in_every_round_and_have_the_same_lengths(name: str) -> None:
    first, second = (workload.read(name, 151_936, seed).requests for seed in (0, 1))
    assert [(len(each.prompt), each.output) for each in first] == [(len(each.prompt), each.output) for each in second]
    assert all(a.prompt[:16] != b.prompt[:16] for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", [name for name in OFFLINE if not name.startswith("concurrent")])
def test_all_requests_of_a_workload_fit_into_the_kv_cache_together(name: str) -> None:
    """In blocks of 128 tokens, the largest of all engines. The concurrent workloads exceed the cache intentionally."""
    blocks = sum(-(-(len(each.prompt) + each.output) // 128) for each in workload.read(name, 151_936, 0).requests)
    assert blocks * 128 * 114_688 <= 4 * 1024**3


def test_workloads_of_contestants_exist_and_missing_ones_have_a_reason() -> None:
    for each in CONTESTANTS.values():
        assert set(each.workloads) <= set(WORKLOADS)
        assert each.adapter == "" or each.workloads == OFFLINE or each.absent, each.name


ECHO = """
import json, sys
held = bytearray(64 << 20)
held[::4096] = b"x" * len(held[::4096])
print(json.dumps({"info": {}}), flush=True)
for line in sys.stdin:
    if json.loads(line) == "die":
        sys.exit("out of memory")
    print(line, end="", flush=True)
"""


def process_of(folder: Path, program: str = ECHO) -> Process:
    return Process([sys.executable, "-c", program], dict(os.environ), folder / "worker.log")


def test_a_worker_answers_line_by_line_and_its_private_memory_is_measured(tmp_path: Path) -> None:
    process = process_of(tmp_path)
    try:
        assert process.answer(60) == {"info": {}}
        assert process.ask({"tokens": [1, 2]}, 60) == {"tokens": [1, 2]}
        assert 64 << 20 < process.peak_private_bytes < 256 << 20
        assert process.members() == [process.process.pid]
    finally:
        process.close()
    assert process.members() == []


def test_a_worker_that_ends_is_reported_with_the_exit_reason(tmp_path: Path) -> None:
    process = process_of(tmp_path)
    try:
        process.answer(60)
        with pytest.raises(Failed, match="ended with code 1: out of memory"):
            process.ask("die", 60)
    finally:
        process.close()


def test_the_exit_reason_is_the_last_line_with_an_error(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("loading\nValueError: no such option\n  = more: the manual\n\n")
    assert exit_reason(log) == "ValueError: no such option"
    log.write_text("loading\nKilled\n")
    assert exit_reason(log) == "Killed"
    log.write_text("")
    assert exit_reason(log) == "no output"


@pytest.mark.parametrize("has_own_session", [False, True])
def test_a_worker_that_does_not_answer_in_time_is_ended_with_its_children(
    tmp_path: Path, has_own_session: bool
) -> None:
    child = f"subprocess.Popen(['sleep', '600'], start_new_session={has_own_session})"
    process = process_of(tmp_path, f"import subprocess, sys\n{child}\nprint(flush=True)\nsys.stdin.read()")
    try:
        assert process.process.stdout is not None
        process.process.stdout.readline()
        members = process.members()
        assert len(members) == 2
        with pytest.raises(Failed, match="took more than 0 s"):
            process.answer(0.0)
    finally:
        process.close()
    assert not any(private_bytes([pid]) for pid in members)


def test_every_adapter_is_used_and_exists() -> None:
    folder = Path(sys.modules[Contestant.__module__].__file__ or "").parent / "engines"
    assert {each.adapter for each in CONTESTANTS.values() if each.adapter} == {
        path.stem for path in folder.glob("*.py") if path.stem != "__init__"
    }
