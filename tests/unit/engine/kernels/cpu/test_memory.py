import torch

from stoker.engine.kernels.cpu.memory import ResultMemory

WIDTH = 2**20  # numbers of two bytes: 2 MiB a row


def test_large_results_take_turns_at_the_same_memory():
    memory = ResultMemory()
    first = memory.empty(3, WIDTH, dtype=torch.bfloat16)
    place = first.data_ptr()
    del first
    again = memory.empty(2 * WIDTH + 1, dtype=torch.bfloat16)
    assert again.data_ptr() == place
    assert memory.empty(3, WIDTH, dtype=torch.bfloat16).data_ptr() != place


def test_memory_is_not_lent_again_while_a_view_of_it_is_alive():
    memory = ResultMemory()
    first = memory.empty(4, WIDTH, dtype=torch.float32).fill_(7)
    view = first.view(2, -1)[1, 5:100]
    del first
    memory.empty(4, WIDTH, dtype=torch.float32).fill_(8)
    assert view.eq(7).all()


def test_results_of_any_size_have_their_shape_and_type():
    memory = ResultMemory()
    for shape in ((0, 5), (1,), (7, 100), (1, WIDTH + 1), (2**19,), (3, 5, 100_001)):
        for dtype in (torch.float32, torch.bfloat16):
            tensor = memory.empty(*shape, dtype=dtype)
            assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == (shape, dtype, True)
            assert tensor.data_ptr() % 64 == 0 or not tensor.numel()
            tensor.fill_(1)
