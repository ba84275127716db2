import platform
import re
import sys

import pytest

from stoker.config import cpu_features as features
from stoker.config.cpu_features import LEVELS, Cpu, NoKernels, choose_level, this_cpu

AVX2 = {"avx2", "fma"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
BF16 = AVX512 | {"avx512_bf16", "avx512vbmi", "avx512_vnni"}


def cpu(vendor, flags, machine="x86_64"):
    return Cpu(machine, vendor, frozenset(flags | {"fpu"}))


@pytest.mark.parametrize(
    ("vendor", "flags", "level"),
    [
        ("GenuineIntel", BF16 | {"amx_tile", "amx_bf16", "amx_int8"}, "amx"),
        ("GenuineIntel", (BF16 | {"amx_tile", "amx_bf16"}) - {"avx512vbmi"}, "avx512"),
        ("AuthenticAMD", BF16, "avx512_bf16"),
        ("AuthenticAMD", BF16 - {"avx512_vnni"}, "avx512"),
        ("GenuineIntel", AVX512, "avx512"),
        ("AuthenticAMD", AVX2, "avx2"),
        ("GenuineIntel", {"avx2"}, "portable"),
        ("GenuineIntel", {"sse2"}, "portable"),
    ],
)
def test_auto_takes_the_best_level_the_cpu_has(vendor, flags, level):
    assert choose_level("auto", cpu(vendor, flags)) == (LEVELS[level], "the best that this CPU runs")


def test_intels_pair_products_are_passed_over():
    level, reason = choose_level("auto", cpu("GenuineIntel", BF16))
    assert (level.name, reason) == ("avx512", "the best that this CPU runs; its avx512_bf16 is slower")


def test_a_level_can_be_asked_for():
    assert choose_level("avx2", cpu("GenuineIntel", AVX512)) == (LEVELS["avx2"], "STOKER_CPU_FEATURES=avx2")
    with pytest.raises(NoKernels, match=r"^STOKER_CPU_FEATURES=torch$"):
        choose_level("torch", cpu("GenuineIntel", AVX512))


def test_a_level_that_the_cpu_lacks_is_refused_with_what_is_missing():
    """Running it would end in an illegal instruction."""
    message = "STOKER_CPU_FEATURES is 'avx512', but this CPU lacks avx512f, avx512bw, avx512vl, avx512dq"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        choose_level("avx512", cpu("AuthenticAMD", AVX2))


def test_a_word_that_is_not_a_level_is_refused():
    message = "STOKER_CPU_FEATURES is 'sse'; allowed: auto, amx, avx512_bf16, avx512, avx2, portable, torch"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        choose_level("sse", cpu("GenuineIntel", AVX2))


@pytest.mark.parametrize(
    ("machine", "flags", "reason"),
    [("aarch64", {"asimd"}, "there are no kernels for aarch64 processors"), ("x86_64", None, "flags cannot be read")],
)
def test_an_unknown_cpu_is_left_to_torch(machine, flags, reason):
    known = Cpu(machine, "", frozenset(flags or ()))
    with pytest.raises(NoKernels, match=reason):
        choose_level("auto", known)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_amx_that_the_system_withholds_is_not_counted(tmp_path, monkeypatch):
    """The first tile instruction would kill the process."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor : 0\nvendor_id\t: GenuineIntel\nflags\t\t: fma avx2 amx_tile amx_bf16\n\nprocessor : 1\n"
    )
    monkeypatch.setattr(features, "_CPUINFO", cpuinfo)
    monkeypatch.setattr(features, "_may_use_tiles", lambda: False)
    assert this_cpu() == Cpu(platform.machine(), "GenuineIntel", frozenset({"fma", "avx2"}))
    monkeypatch.setattr(features, "_may_use_tiles", lambda: True)
    assert "amx_tile" in this_cpu().flags
