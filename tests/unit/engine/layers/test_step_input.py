import torch

from stoker.engine.layers.step_input import StepInput


def test_tokens_of_a_step_become_rows_that_end_with_them():
    step = StepInput(  # a prompt of three after 4 tokens, and one token after 9
        token_ids=torch.tensor([5, 6, 7, 8]),
        positions=torch.tensor([4, 5, 6, 9]),
        slot_mapping=torch.tensor([12, 13, 14, 1]),
        query_start=torch.tensor([0, 3, 4], dtype=torch.int32),
        context_lens=torch.tensor([7, 10], dtype=torch.int32),
        block_tables=torch.tensor([[0, 1, 0], [2, 3, 0]], dtype=torch.int32),
        max_query_len=3,
        max_context_len=10,
    )
    part = step.of_tokens(torch.tensor([1, 3]))
    assert part.token_ids.tolist() == [6, 8]
    assert part.slot_mapping.tolist() == [13, 1]
    assert part.query_start.tolist() == [0, 1, 2]
    assert part.context_lens.tolist() == [6, 10]
    assert part.block_tables.tolist() == [[0, 1, 0], [2, 3, 0]]
    assert step.of_tokens(torch.tensor([], dtype=torch.int64)).query_start.tolist() == [0]
