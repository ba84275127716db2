"""Every kernel set that this machine can run, for tests that apply to all of them."""

import torch
from filelock import FileLock

from stoker.config.cpu_features import LEVELS, Level, NoKernels, choose_level, find_compiler, this_cpu
from stoker.config.cpu_library import LibrarySpec, default_cache_dir
from stoker.engine.kernels.cpu.build import compile_libraries
from stoker.engine.kernels.cpu.library import CpuLibrary, is_loadable, load_library
from stoker.engine.kernels.cpu_set import cpu_kernels
from stoker.engine.kernels.kernel_set import KernelSet
from stoker.engine.kernels.select_kernels import torch_kernels

# The AMX kernels with tile products emulated in C++ (tiles.h), so that CPUs without AMX test them too. They convert to
# bfloat16 without AVX512-BF16, whose instruction differs for subnormal values only: it makes them zero.
_BELOW = LEVELS["avx512"]
EMULATED_AMX = Level("emulated_amx", _BELOW.needs, (*_BELOW.compiler_flags, "-DSTOKER_EMULATED_TILES"))


def runnable_levels() -> list[Level]:
    cpu = this_cpu()
    try:
        find_compiler()
    except NoKernels:
        return []  # no compiler: only the reference can run
    return [level for level in (*LEVELS.values(), EMULATED_AMX) if cpu.has(level)]


LEVEL_NAMES = ["torch", *(level.name for level in runnable_levels())]  # slow ones: see conftest.py
BEST = choose_level("auto", this_cpu())[0].name if len(LEVEL_NAMES) > 1 else "torch"
_BY_NAME = {level.name: level for level in runnable_levels()}


def library_of(name: str, is_batch_invariant: bool, has_quantised: bool = False) -> CpuLibrary:
    """Both libraries of a level are compiled at once: most of their files are the same."""
    spec, folder = LibrarySpec(_BY_NAME[name], is_batch_invariant, has_quantised), default_cache_dir()
    if folder is not None and not is_loadable(spec):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        both = [LibrarySpec(spec.level, each, has_quantised=True) for each in (False, True)]
        with FileLock(folder / f"{both[0].file_name}.lock"):  # as those have who compile it
            if not is_loadable(spec):
                compile_libraries(both, folder, lambda _: None)
    return load_library(spec)


def kernels_of(
    name: str,
    dtype: torch.dtype,
    head_dim: int | tuple[int, ...] = 64,
    threads: int = 1,
    *,
    batch_invariant: bool = False,
    has_quantised: bool | None = None,
    rounds_rows: bool = False,
    kv_dtype: torch.dtype | None = None,
) -> KernelSet:
    """has_quantised: with the kernels of int8 and int4; None: those of a library that is not batch-invariant.
    rounds_rows: as with `model.activation_quantization`."""
    activations = "int8" if rounds_rows else None
    if name == "torch":
        kernels = torch_kernels("", batch_invariant=batch_invariant, activations=activations)
    else:
        has_quantised = not batch_invariant if has_quantised is None else has_quantised
        library = library_of(name, batch_invariant, has_quantised)
        kernels = cpu_kernels(
            library, dtype, head_dim, kv_dtype or dtype, name, activations=activations, batch_invariant=batch_invariant
        )
    kernels.set_num_threads(threads)
    return kernels


def sums_of_rounding_errors(rows: int, width: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, depth] and weight [width, depth] in float32 whose exact product is 0 (nearly, for an odd depth).

    The second half of a row of x is the negated first half; the second half of a row of the weight equals its first
    half. So every result consists of rounding errors, and another order of additions gives other bits. With random
    values, rounding to bfloat16 hides the last bits of a sum, and comparing bits misses most changes of the order.
    """
    x, weight = torch.randn(rows, depth).bfloat16().float(), torch.randn(width, depth).bfloat16().float()
    half = depth // 2
    x[:, half : 2 * half] = -x[:, :half]
    weight[:, half : 2 * half] = weight[:, :half]
    return x, weight


def assert_close(actual: torch.Tensor, expected: torch.Tensor, absolute: float = 0.0) -> None:
    """expected: float64. Allows the error of rounding to the type of `actual`, plus `absolute`."""
    relative = {torch.float32: 2e-6, torch.bfloat16: 2**-8 * 1.01}[actual.dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=relative, atol=absolute + relative * 1e-2)
