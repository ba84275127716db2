import gc

import torch

from stoker.engine.kernels.cpu.arena import Arena


def empty(lease, *shape, dtype=torch.float32):
    return lease.empty(torch.Size(shape), dtype)


def test_a_place_is_used_again_when_its_tensor_is_gone():
    lease = Arena(1 << 16).lease()
    first, second = empty(lease, 16), empty(lease, 16)
    place = first.data_ptr()
    assert second.data_ptr() == place + 64
    del first
    assert empty(lease, 3, 5).data_ptr() == place


def test_a_view_keeps_the_place():
    lease = Arena(1 << 16).lease()
    tensor = empty(lease, 4, 8)
    place, row = tensor.data_ptr(), tensor[1:2]
    del tensor
    assert empty(lease, 1).data_ptr() != place
    del row
    gc.collect()
    assert empty(lease, 4, 8).data_ptr() == place


def test_neighbours_that_are_free_become_one_place():
    lease = Arena(256).lease()
    tensors = [empty(lease, 16) for _ in range(4)]
    assert empty(lease, 1) is None
    place = tensors[1].data_ptr()
    del tensors[1:3]
    assert empty(lease, 32).data_ptr() == place


def test_every_lease_has_the_whole_arena():
    arena = Arena(1 << 16)
    first = empty(arena.lease(), 100)
    second = empty(arena.lease(), 100)
    assert first.data_ptr() == second.data_ptr()


def test_what_is_too_large_or_nothing_at_all():
    lease = Arena(1 << 16).lease()
    assert empty(lease, 1 << 15) is None
    assert empty(lease, 0, 7).shape == (0, 7)
    assert empty(lease, 7, dtype=torch.bfloat16).dtype == torch.bfloat16
