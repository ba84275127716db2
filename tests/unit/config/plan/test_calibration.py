from __future__ import annotations

from pathlib import Path

import pytest

from stoker.config import Measured, Resolved, read_model_files, resolve_deployment
from stoker.config.plan import calibration
from stoker.config.plan.calibration import Calibration, append, entries, error_in_per_cent, record

from ..deployments import MACHINE, WITH_GPU, load

MEASURED = Measured(
    weights_bytes=9_444_096,
    kv_cache_bytes=1 << 20,
    num_kv_blocks=1,
    resident_bytes=500 << 20,
    peak_bytes=600 << 20,
    phases={},
    kernels={},
)


@pytest.fixture
def resolved(tmp_path: Path) -> Resolved:
    deployment = load(tmp_path, "model: {model: builtin:tiny}")
    return resolve_deployment(deployment, read_model_files(deployment), MACHINE)


@pytest.fixture
def entry(resolved: Resolved) -> Calibration:
    return record(resolved, MEASURED, "1.2.3")


def test_a_start_is_a_line_that_reads_back(tmp_path: Path, entry: Calibration) -> None:
    file = tmp_path / "below" / "calibration.jsonl"
    append(entry, file)
    append(entry, file)
    assert entries(file) == [entry, entry]
    assert len(file.read_bytes().splitlines()) == 2
    assert file.stat().st_mode & 0o077 == 0


def test_plan_and_measurement_stand_side_by_side(resolved: Resolved, entry: Calibration) -> None:
    assert (entry.planned_weights, entry.weights) == (resolved.memory.weights_bytes, 9_444_096)
    assert (entry.planned_kv_cache, entry.kv_cache) == (resolved.memory.kv_cache_bytes, 1 << 20)
    assert entry.planned_resident.likely < entry.planned_peak.likely
    assert (entry.resident, entry.peak) == (500 << 20, 600 << 20)


def test_the_host_process_does_not_hold_what_is_on_a_gpu(tmp_path: Path) -> None:
    deployment = load(tmp_path, "model: {model: builtin:tiny}")
    resolved = resolve_deployment(deployment, read_model_files(deployment), WITH_GPU)
    assert resolved.memory.kv_cache_bytes > 1 << 36
    entry = record(resolved, MEASURED, "1.2.3")
    assert entry.planned_peak.high < 1 << 30


def test_the_same_shape_has_the_same_hash_whatever_it_is_called(tmp_path: Path, entry: Calibration) -> None:
    deployment = load(tmp_path, "model: {model: builtin:tiny, served_model_name: other}")
    again = record(resolve_deployment(deployment, read_model_files(deployment), MACHINE), MEASURED, "1.2.4")
    assert again.shape == entry.shape


def test_the_file_does_not_grow_without_end(
    tmp_path: Path, entry: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "MAX_BYTES", 10_000)
    file = tmp_path / "calibration.jsonl"
    for _ in range(40):
        append(entry, file)
    assert file.stat().st_size <= 10_000
    assert entries(file)[-1] == entry
    assert [path.name for path in tmp_path.glob("calibration*")] == ["calibration.jsonl"]


def test_lines_that_cannot_be_read_are_left_out(tmp_path: Path, entry: Calibration) -> None:
    file = tmp_path / "calibration.jsonl"
    file.write_text("no json\n{}\n")
    append(entry, file)
    assert entries(file) == [entry]


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, entry: Calibration) -> None:
    (tmp_path / "file").write_text("")
    append(entry, tmp_path / "file" / "calibration.jsonl")
    assert entries(tmp_path / "file" / "calibration.jsonl") == []


def test_the_variable_moves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: Calibration) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path))
    append(entry)
    assert (tmp_path / "calibration.jsonl").is_file()


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, entry: Calibration) -> None:
    for name in ("STOKER_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    append(entry)
    assert entries() == []


def test_errors_are_reported_with_their_sign() -> None:
    assert error_in_per_cent(110, 100) == pytest.approx(10)
    assert error_in_per_cent(90, 100) == pytest.approx(-10)
    assert error_in_per_cent(90, None) is None
