from __future__ import annotations

import torch

from stoker.engine.kernels.ngram_rows import NGramHashes, ngram_rows_reference

END = 2
HASHES = NGramHashes(torch.tensor([7, 5, 3]), torch.tensor([11, 13, 17, 19]), torch.tensor([0, 11, 24, 41]), END)


def rows_by_hand(ids: list[int]) -> list[int]:
    """ids: of a token, then of those before it."""
    pair = ids[0] * 7 ^ ids[1] * 5
    triple = pair ^ ids[2] * 3
    return [pair % 11, 11 + pair % 13, 24 + triple % 17, 41 + triple % 19]


def test_a_row_of_each_table():
    ids, earlier = torch.tensor([4, 9]), torch.tensor([[8, 4], [6, 8]])
    assert ngram_rows_reference(ids, earlier, HASHES).tolist() == [rows_by_hand([4, 8, 6]), rows_by_hand([9, 4, 8])]


def test_ids_before_the_beginning_count_as_the_end_of_a_text():
    ids, earlier = torch.tensor([4, 9]), torch.tensor([[-1, 4], [-1, -1]])
    expected = [rows_by_hand([4, END, END]), rows_by_hand([9, 4, END])]
    assert ngram_rows_reference(ids, earlier, HASHES).tolist() == expected


def test_no_ngram_reaches_over_the_end_of_a_text():
    ids, earlier = torch.tensor([4, 4, END]), torch.tensor([[END, 7, 7], [9, END, 9]])
    expected = [rows_by_hand([4, END, END]), rows_by_hand([4, 7, END]), rows_by_hand([END, 7, 9])]
    assert ngram_rows_reference(ids, earlier, HASHES).tolist() == expected


def test_products_of_more_than_63_bits_have_rows_too():
    hashes = NGramHashes(torch.tensor([(1 << 62) + 1, (1 << 62) + 3]), torch.tensor([10]), torch.tensor([0]), END)
    found = ngram_rows_reference(torch.tensor([3]), torch.tensor([[6]]), hashes)
    signed = (3 * ((1 << 62) + 1) ^ 6 * ((1 << 62) + 3)) & ((1 << 64) - 1)
    signed -= (1 << 64) * (signed >> 63)
    assert found.tolist() == [[signed % 10]]
