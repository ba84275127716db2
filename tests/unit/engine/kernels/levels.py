"""Every kernel set that this machine can run, for tests that hold all of them to one promise."""

import torch

from stoker.config.cpu_features import LEVELS, Level, NoKernels, this_cpu
from stoker.engine.kernels.cpu.library import load_library
from stoker.engine.kernels.kernel_set import ONE_ROW, KernelSet, cpu_kernels

# The AMX kernels with tiles made of plain C++: their code is tested on CPUs that have no AMX.
_BELOW = LEVELS["avx512"]
EMULATED_AMX = Level("emulated_amx", _BELOW.needs, (*_BELOW.compiler_flags, "-DSTOKER_EMULATED_TILES"))


def runnable_levels() -> list[Level]:
    cpu = this_cpu()
    try:
        load_library(LEVELS["portable"])
    except NoKernels:
        return []  # no compiler: the reference is all there is
    return [level for level in (*LEVELS.values(), EMULATED_AMX) if cpu.has(level)]


LEVEL_NAMES = ["torch", *(level.name for level in runnable_levels())]
_BY_NAME = {level.name: level for level in runnable_levels()}


def kernels_of(
    name: str, dtype: torch.dtype, head_dim: int = 64, threads: int = 1, *, batch_invariant: bool = False
) -> KernelSet:
    if name == "torch":
        kernels = ONE_ROW if batch_invariant else KernelSet()
    else:
        level = _BY_NAME[name].batch_invariant() if batch_invariant else _BY_NAME[name]
        kernels = cpu_kernels(load_library(level), dtype, head_dim, dtype, name, batch_invariant=batch_invariant)
    kernels.set_num_threads(threads)
    return kernels


def assert_close(actual: torch.Tensor, expected: torch.Tensor, absolute: float = 0.0) -> None:
    """expected: float64. Allows what rounding to the type of `actual` costs, and `absolute` on top."""
    relative = {torch.float32: 2e-6, torch.bfloat16: 2**-8 * 1.01}[actual.dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=relative, atol=absolute + relative * 1e-2)
