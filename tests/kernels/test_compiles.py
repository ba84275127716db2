"""GPU kernels are compiled by Triton's compiler, which needs no GPU, at the widths of real models.

All kernels for compute capability 9.0, some for older and newer devices. In a separate process: this one runs kernels
in the interpreter, which accepts more than the compiler does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

pytest.importorskip("triton")

from tools.kernels.whole_step import OnlyCapturable

from stoker.engine.kernels.capture import NotCapturable

pytestmark = pytest.mark.slow  # compiling all takes minutes
ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "src/engine/kernels/gpu"
# Bytes of stack of a thread: two registers that live across a loop. Spills inside a loop take tens of bytes.
MOST_STACK_BYTES = 16
MORE_STACK_BYTES = {
    "prefill_attention._prefill": 64,  # heads of 256: the sums alone are half of the registers of a thread
    "grouped._grouped_linear": 32,  # codes of 6 bits, of 128 outputs at once: faster than tiles of 64 without spills
}

Compiled = dict[str, Any]


def run(*options: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-W", "ignore", "-m", "tools.kernels", "--json", *options]
    return json.loads(subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True).stdout)


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> dict[str, Any]:
    """Results for compute capability 9.0, of all cases. Several workers compile them once."""
    folder = tmp_path_factory.getbasetemp() if worker_id == "master" else tmp_path_factory.getbasetemp().parent
    results = folder / "hopper.json"
    with FileLock(f"{results}.lock"):
        if not results.exists():
            results.write_text(json.dumps(run("--architecture", "90")))
    return dict(json.loads(results.read_text()))


def of(results: dict[str, Any], kernel: str, case: str = "") -> list[Compiled]:
    found = [each for each in results["compiled"] if each["kernel"] == kernel and re.search(case, each["case"])]
    assert found, f"no case {case!r} compiled {kernel}"
    return found


def kernels() -> set[str]:
    """module.function of every kernel that is launched; functions that kernels call are compiled with them."""
    sources = {path.stem: path.read_text() for path in KERNELS.glob("*.py")}
    called = {name for text in sources.values() for name in re.findall(r"(?<!def )\b(\w+)\(", text)}
    jitted = re.compile(r"^@triton\.jit(?:\([^)]*\))?[^\n]*\ndef (\w+)", re.MULTILINE)
    found = ((module, name) for module, text in sources.items() for name in jitted.findall(text))
    return {f"{module}.{name}" for module, name in found if name not in called}


def test_kernels_compile(hopper: dict[str, Any]):
    """`slot` was a scalar in one branch of prepare_step and a vector in the other: the interpreter accepts that.

    A program that needs more shared memory than a GPU has fails here too.
    """
    assert not hopper["errors"], "\n".join(f"{case}: {error}" for case, error in hopper["errors"].items())
    assert len(hopper["compiled"]) > 8


def test_every_kernel_is_compiled(hopper: dict[str, Any]):
    assert {each["kernel"] for each in hopper["compiled"]} == kernels()


@pytest.mark.parametrize("architecture", [80, 100])
def test_kernels_compile_for_older_and_newer_devices(architecture: int):
    cases = (
        "(decode|prefill) bfloat16$|llama (qkv, 2 rows|rope.*kv bfloat16)|step, 512 rows|sample keyed"
        "|(convolution|gated_delta|kimi_delta|selective_scan|rg_lru|state_space|norm_parts|rms_norm_gated), 1024"
        "|deepseek_v4 rate"
    )
    results = run("--architecture", str(architecture), "--case", cases)
    assert not results["errors"], "\n".join(f"{case}: {error}" for case, error in results["errors"].items())
    assert len(results["compiled"]) > 8


def test_a_whole_step_can_be_captured(hopper: dict[str, Any]):
    """All kernels compile as the model calls them, and torch's operations between them are only launches."""
    assert not [case for case in hopper["errors"] if " step, " in case]
    for model in ("qwen", "deepseek_v4"):
        assert {each["case"] for each in hopper["compiled"] if re.search(f"^{model} step, ", each["case"])}


def test_operations_that_wait_for_the_device_or_read_host_memory_are_refused():
    values = torch.ones(3)
    for wait in (lambda: values[0].item(), values.nonzero, lambda: torch.tensor([1, 2]), lambda: values.to("meta")):
        with pytest.raises(NotCapturable), OnlyCapturable():
            wait()


def test_registers_are_enough(hopper: dict[str, Any]):
    spilled = {
        (each["case"], each["kernel"]): each["stack_bytes"]
        for each in hopper["compiled"]
        if each["stack_bytes"] > MORE_STACK_BYTES.get(each["kernel"], MOST_STACK_BYTES)
    }
    assert not spilled


def test_prefill_multiplies_with_warp_groups(hopper: dict[str, Any]):
    for each in of(hopper, "prefill_attention._prefill"):
        assert each["products"] == "wgmma", each


def test_products_of_few_queries_use_tensor_cores(hopper: dict[str, Any]):
    for each in of(hopper, "decode_attention._decode"):
        assert each["products"] in ("mma", "wgmma"), each


def test_keys_values_and_weights_are_loaded_16_bytes_at_a_time(hopper: dict[str, Any]):
    """Those of attention by copies that need no registers."""
    attention = [*of(hopper, "decode_attention._decode"), *of(hopper, "prefill_attention._prefill")]
    for each in (*attention, *of(hopper, "gemv._gemv")):
        assert each["load_bytes"][0] == 16, each
        assert each["is_asynchronous"] or each not in attention, each


def test_a_tile_is_loaded_while_another_is_multiplied(hopper: dict[str, Any]):
    """The compiler uses a stage for the page id: with three stages only one tile fitted."""
    tile = 2 * 64 * 128 * 2  # keys and values of a head of 128
    for each in of(hopper, "decode_attention._decode", "^qwen decode bfloat16$"):
        assert each["shared_bytes"] >= 2 * tile, each
    for each in of(hopper, "prefill_attention._prefill", "^qwen prefill bfloat16$"):
        assert each["shared_bytes"] >= 3 * tile + 128 * 128 * 2, each


@pytest.mark.parametrize(
    "kernel",
    [
        "add_rms_norm._add_rms_norm", "activation._activate", "scaling._add_scaled", "scaling._scale_and_cap",
        "embed._embed",
    ],
)  # fmt: skip
def test_rows_are_read_and_written_16_bytes_at_a_time(hopper: dict[str, Any], kernel: str):
    for each in of(hopper, kernel):
        assert each["load_bytes"][0] == each["store_bytes"][0] == 16, each


def test_early_starts_can_be_switched_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STOKER_EARLY_STARTS", "0")
    (compiled,) = run("--case", "^qwen embed bfloat16$")["compiled"]
    assert not compiled["may_start_early"]
    assert not compiled["waits"]


def test_a_kernel_that_may_start_early_reads_only_weights_before_it_waits(hopper: dict[str, Any]):
    early = [each for each in hopper["compiled"] if each["may_start_early"]]
    assert len(early) >= 8
    for each in early:
        assert each["waits"], each
        assert each["before_it_waits"] == (["ld.global"] if each["kernel"] == "gemv._gemv" else []), each
