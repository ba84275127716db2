"""Values that ranks receive through shared memory, whatever the type of the numbers that it adds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from stoker.config.cpu_features import NoKernels, choose_level, this_cpu, wanted_level
from stoker.config.cpu_library import LibrarySpec
from stoker.engine.collectives.shared_memory import SharedMemoryRanks
from stoker.engine.host.shared_memory import SharedMemory
from stoker.engine.kernels.cpu.library import load_library
from stoker.engine.kernels.exchange import Exchange


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_of_one_rank(dtype: torch.dtype):
    try:
        library = load_library(LibrarySpec(choose_level(wanted_level(), this_cpu())[0]))
    except NoKernels as reason:
        pytest.skip(str(reason))
    memory = SharedMemory.new(3)
    ranks = [SharedMemoryRanks(Exchange(library, dtype), memory, rank, 3) for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for owner in range(3):
            own = [[-1, 2**31 - 1 - rank, rank, 0x7FC0_0001 + rank] for rank in range(3)]
            tokens = [torch.tensor(each, dtype=torch.int32) for each in own]
            list(pool.map(SharedMemoryRanks.from_rank, ranks, tokens, [owner] * 3))
            assert [each.tolist() for each in tokens] == [own[owner]] * 3
