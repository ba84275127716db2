import pytest
import torch

from stoker.config.cpu_kernels import STAGES
from stoker.engine.kernels import KernelSet, select_kernels

from .levels import LEVEL_NAMES, kernels_of

CPP = pytest.mark.skipif(len(LEVEL_NAMES) == 1, reason="no C++ kernels on this machine")


def test_torch_can_be_selected():
    kernels = select_kernels("cpu", torch.bfloat16, 64, features="torch")
    assert kernels == KernelSet(table=dict.fromkeys(STAGES, "torch: STOKER_CPU_FEATURES=torch"))


def test_the_environment_variable_is_the_default(monkeypatch):
    monkeypatch.setenv("STOKER_CPU_FEATURES", "torch")
    assert select_kernels("cpu", torch.bfloat16, 64).table["linear"] == "torch: STOKER_CPU_FEATURES=torch"
    monkeypatch.setenv("STOKER_CPU_FEATURES", "fast")
    with pytest.raises(ValueError, match="STOKER_CPU_FEATURES is 'fast'; allowed: auto, "):
        select_kernels("cpu", torch.bfloat16, 64)


def test_without_a_compiler_torch_is_used_and_the_table_says_so(monkeypatch, tmp_path):
    from stoker.config import cpu_library
    from stoker.engine.kernels.cpu import library

    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu_library, "PREBUILT", tmp_path)
    monkeypatch.setattr(library, "_loaded", {})
    kernels = select_kernels("cpu", torch.float32, 64)
    assert set(kernels.table) == set(STAGES)
    assert all(choice.startswith("torch: no") for choice in kernels.table.values())
    normed, _ = kernels.add_rms_norm(torch.ones(1, 4), None, torch.ones(4), 0.0)
    assert torch.equal(normed, torch.ones(1, 4))


@CPP
@pytest.mark.slow  # compiles this level
def test_the_table_names_level_and_reason():
    table = select_kernels("cpu", torch.bfloat16, 64, features="portable").table
    assert set(table) == set(STAGES)
    assert table.pop("decode_step") == "replayed: captured at the first step of each batch size"
    assert all(choice.startswith("c++ portable: STOKER_CPU_FEATURES=portable") for choice in table.values())


@CPP
@pytest.mark.slow  # as above
def test_float32_products_and_odd_head_sizes_are_computed_by_torch():
    table = select_kernels("cpu", torch.float32, 20, features="portable").table
    assert table["linear"] == "torch: its product of float32 matrices"
    for stage in ("rope_and_store", "paged_attention"):
        assert table[stage] == "torch: head size 20; the C++ kernels support multiples of 16 up to 512"
    assert table["add_rms_norm"].startswith("c++ portable")
    assert table["decode_step"] == "op by op: linear, rope_and_store, paged_attention in torch"


@CPP
def test_types_without_kernels_are_computed_by_torch():
    table = select_kernels("cpu", torch.float16, 64, features="portable").table
    assert set(table.values()) == {"torch: no C++ kernels for float16"}


def test_other_devices_have_their_own_reason():
    assert select_kernels("meta", torch.bfloat16, 64).table["linear"] == "torch: the only kernels for meta"


@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_results_do_not_depend_on_the_number_of_threads(level):
    """Rows and panels are divided among threads; no sum spans several threads."""
    x, gate_up = torch.randn(70, 512).bfloat16(), torch.randn(70, 1024).bfloat16()
    weight, norm = torch.randn(200, 512).bfloat16(), torch.randn(512)
    results = []
    for threads in (1, 3):
        kernels = kernels_of(level, torch.bfloat16, threads=threads)
        packed = kernels.pack_linear(weight, None)
        ids = torch.arange(199, -1, -1)
        results.append(
            (*kernels.add_rms_norm(x, x, norm, 1e-6), kernels.activate_and_mul(gate_up), kernels.linear(x, packed),
             kernels.linear(x[:1], packed), kernels.embed(ids, packed))
        )  # fmt: skip
    kernels_of(level, torch.bfloat16, threads=1)
    if level == "torch":  # its product may divide sums differently
        return
    for one, three in zip(*results, strict=True):
        assert torch.equal(one, three)
