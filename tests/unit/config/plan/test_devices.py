from __future__ import annotations

from pathlib import Path

import pytest

from stoker.config.plan.devices import DeviceProblem, find_profile, profiles

from ..deployments import GIB, MACHINE


def test_the_profiles_of_the_package_are_sound() -> None:
    assert {"h200", "h100-80gb", "a100-40gb", "a100-80gb", "l40s", "l4", "a10g", "t4", "b200", "mi300x"} <= set(
        profiles()
    )
    for profile in profiles().values():
        assert 10 * GIB < profile.memory < 300 * GIB
        assert 100 < profile.bandwidth_gb_per_s < 10_000
        assert 10 < profile.bf16_tflops < 5000


def test_names_may_be_written_loosely() -> None:
    assert find_profile("H100_80GB", MACHINE) is profiles()["h100-80gb"]


def test_this_machine_is_what_is_free_on_it() -> None:
    here = find_profile("this-machine", MACHINE)
    assert (here.kind, here.memory) == ("cpu", 8 * GIB)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "rtx-6000.yaml"
    file.write_text("{memory: 48GiB, bandwidth_gb_per_s: 960, bf16_tflops: 180}")
    profile = find_profile(str(file), MACHINE)
    assert (profile.name, profile.memory, profile.is_gpu) == ("rtx-6000", 48 * GIB, True)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("h100", None, "no device profile `h100`; did you mean h100-80gb"),
        ("zzz", None, "no device profile `zzz`; there are: this-machine, t4, "),
        ("none.yaml", None, "cannot be read: No such file or directory"),
        ("list.yaml", "[1, 2]", "a device profile must be a mapping with memory, bandwidth_gb_per_s, bf16_tflops"),
        ("torn.yaml", "{memory: ", "invalid YAML"),
        ("slow.yaml", "{memory: 1GiB, bandwidth_gb_per_s: 0, bf16_tflops: 1}", "`bandwidth_gb_per_s`: Input should be"),
        ("more.yaml", "{memory: 1GiB, bandwidth_gb_per_s: 1, bf16_tflops: 1, x: 1}", "`x`: Extra inputs"),
    ],
)
def test_what_is_no_profile_is_refused_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str | None, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_text(content)
    with pytest.raises(DeviceProblem) as caught:
        find_profile(name, MACHINE)
    assert said in str(caught.value)
