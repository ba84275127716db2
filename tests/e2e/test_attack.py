"""One small attack of each family. Their limits of time are not judged: this machine may be slow."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.attack import __main__ as program
from benchmarks.attack import signals, verdict
from benchmarks.attack.catalogue import choose
from benchmarks.attack.runner import Runner

pytestmark = pytest.mark.slow


def test_attacks_on_a_running_server_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names = ["sockets/pipelining", "sockets/smuggling-two-lengths", "bodies/lone-surrogate-in-stop"]
    monkeypatch.setattr(verdict, "HEALTH_P99_MS", 1e6)
    monkeypatch.setattr(verdict, "HEALTH_MAX_MS", 1e6)
    with Runner(1, tmp_path, limits=lambda _: 250) as runner:
        found = [runner.run(attack) for attack in choose(program.catalogue(), names)]
        problem = runner.close()
    assert {each.id: each.reasons for each in found} == {name: [] for name in names}
    assert all(each.observed and each.observed.health.num and each.observed.control.num for each in found)
    assert problem == ""


def test_attacks_by_files_templates_and_signals_hold(tmp_path: Path):
    names = ["files/config-json-fifo", "templates/at-start-config-number"]
    attacks = [*choose(program.catalogue(), names), signals.attack_round(4)]
    with Runner(1, tmp_path, slowness=10.0, limits=lambda _: 250) as runner:
        found = [runner.run(attack) for attack in attacks]
    assert {each.id: each.reasons for each in found} == {attack.id: [] for attack in attacks}
    assert found[0].note.startswith("code 3")
