"""What callers do with outputs of pooling heads: arithmetic against torch, and formats against their definitions."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import torch

from stoker import pooled
from stoker.engine.api import Vectors
from stoker.model.pooling import PoolHead, Pooling

SEED = 7


def values(rows: int = 5, width: int = 64, scale: float = 3.0) -> pooled.Floats:
    return (np.random.default_rng(SEED).normal(size=(rows, width)) * scale).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("softmax", lambda x: x.softmax(-1)),
        ("sigmoid", torch.sigmoid),
        ("relu", torch.relu),
        ("normalize", torch.nn.functional.normalize),
        ("none", lambda x: x),
    ],
)
def test_activations_are_those_of_torch(name, theirs):
    given = np.concatenate([values(), values() * 100])  # exp overflows in float32 without care
    np.testing.assert_allclose(
        pooled.activated(given, name), theirs(torch.from_numpy(given)).numpy(), rtol=2e-6, atol=1e-7
    )


def test_a_vector_of_zeros_stays_zero():
    assert not pooled.activated(np.zeros((1, 4), np.float32), "normalize").any()


def test_a_cut_vector_has_length_1_again():
    found = pooled.finished(values(), "normalize", 16)
    assert found.shape == (5, 16)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)


def test_scores_are_standardised_before_the_activation():
    assert pooled.standardised(np.array([[4.65]], np.float32), 2.65, 0.5)[0, 0] == pytest.approx(4.0)


def test_a_value_beyond_float16_becomes_its_largest():
    found = pooled.encoded(np.array([[1e6, -1e6, 2]], np.float32), "float16")
    assert np.frombuffer(found, "<f2").tolist() == [65504, -65504, 2]


@pytest.mark.parametrize(("task", "kept"), [("token_classify", [1, 3]), ("token_embed", [1, 2, 3])])
def test_results_of_step_tokens_are_those_of_scores_of_tokens(task, kept):
    head = PoolHead(task=task, width=1, modes=(), skips_first=1)
    rows = np.array([[1], [2], [3]], np.float32)
    found = pooled.of_steps(Pooling(heads=(head,), step_token=7), head, rows, [7, 7, 5, 7])
    assert found[:, 0].tolist() == kept


def test_vectors_follow_one_another():
    assert pooled.array_of(Vectors(2, struct.pack("<4f", 1, 2, 3, 4))).tolist() == [[1, 2], [3, 4]]


def test_similarities_by_hand():
    query, documents = np.array([3, 4], np.float32), np.array([[3, 4], [4, -3], [0, 0], [6, 8]], np.float32)
    assert pooled.similarities(query, documents, "cosine").tolist() == pytest.approx([1, 0, 0, 1])
    assert pooled.similarities(query, documents, "dot").tolist() == [25, 0, 0, 50]
    assert pooled.similarities(query, documents, "euclidean").tolist() == pytest.approx([0, -(50**0.5), -5, -5])
    assert pooled.similarities(query, documents, "manhattan").tolist() == [0, -8, -7, -7]


def test_max_sim_takes_the_best_document_token_of_each_query_token():
    query, document = np.array([[1, 0], [0, 1]], np.float32), np.array([[2, 0], [0.5, 3], [1, 1]], np.float32)
    assert pooled.max_sim(query, document) == 2 + 3
    assert pooled.max_sim(query, document[:0]) == 0


def test_sparse_weights_of_tokens_keep_the_largest_and_leave_out_special_ones():
    weights = np.array([[9], [0.5], [0.7], [0], [8]], np.float32)
    found = pooled.sparse_entries(weights, [0, 5, 5, 6, 2], leaves_out=[0, 2])
    assert found == [(5, pytest.approx(0.7))]


def test_sparse_weights_of_a_vocabulary_are_those_that_are_not_zero():
    assert pooled.sparse_entries(np.array([[0, 1.5, 0, 2]], np.float32), []) == [(1, 1.5), (3, 2.0)]


@pytest.mark.parametrize(
    ("element", "theirs"),
    [
        ("float32", torch.float32),
        ("float16", torch.float16),
        ("bfloat16", torch.bfloat16),
        ("fp8_e4m3", torch.float8_e4m3fn),
        ("fp8_e5m2", torch.float8_e5m2),
    ],
)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_elements_round_as_those_of_torch(element, theirs, scale):
    given = values(scale=scale)
    wanted = torch.from_numpy(given).to(theirs).view(torch.uint8).numpy().tobytes()
    assert pooled.encoded(given, element) == wanted


def test_half_way_cases_of_8_bit_floats_are_even():
    given = np.array([[17, 19, -17, 0.0009765625, 0, -0.0]], np.float32)  # half of the smallest, too
    wanted = torch.from_numpy(given).to(torch.float8_e4m3fn).view(torch.uint8).numpy().tobytes()
    assert pooled.encoded(given, "fp8_e4m3") == wanted


def test_a_value_that_is_too_large_becomes_the_largest():
    given = np.array([[1e9, -1e9]], np.float32)
    assert pooled.encoded(given, "fp8_e4m3") == bytes([0x7E, 0xFE])
    assert pooled.encoded(given, "fp8_e5m2") == bytes([0x7B, 0xFB])


def test_byte_order():
    given = np.array([[1.5]], np.float32)
    assert pooled.encoded(given, "float32", "big") == struct.pack(">f", 1.5)
    assert pooled.encoded(given, "bfloat16", "big") == struct.pack(">f", 1.5)[:2]
    assert pooled.encoded(given, "float16", "little") == struct.pack("<e", 1.5)
    assert pooled.encoded(given, "float32", "native") == struct.pack("=f", 1.5)


def test_bits_are_signs_from_the_highest_one():
    given = np.array([[1, -1, 1, -1, -1, -1, -1, 2]], np.float32)
    assert pooled.quantised(given, "ubinary").tolist() == [[0b10100001]]
    assert pooled.quantised(given, "binary").tolist() == [[0b10100001 - 128]]
    with pytest.raises(ValueError, match="whole number of bytes"):
        pooled.quantised(given[:, :7], "binary")


def test_small_integers_keep_cosines():
    given = values(2, 384, 0.05)
    small = pooled.quantised(given, "int8")
    assert (small.min(), np.abs(small.astype(int)).max()) >= (-127, 127)
    assert (pooled.quantised(given, "uint8").astype(int) - 128 == small).all()
    exact = pooled.similarities(given[0], given, "cosine")
    rounded = pooled.similarities(small[0].astype(np.float32), small.astype(np.float32), "cosine")
    np.testing.assert_allclose(exact, rounded, atol=3e-3)


def test_dimensions_that_a_model_can_have():
    plain = PoolHead(task="embed", width=8)
    listed = PoolHead(task="embed", width=8, dimensions=(2, 4, 8))
    free = PoolHead(task="embed", width=8, any_dimension=True)
    assert "Matryoshka" in (pooled.dimensions_problem(plain, 4) or "")
    assert pooled.dimensions_problem(listed, 4) is None
    assert "2, 4, 8 dimensions, not 3" in (pooled.dimensions_problem(listed, 3) or "")
    assert pooled.dimensions_problem(free, 3) is None
    assert "1 to 8 dimensions, not 9" in (pooled.dimensions_problem(free, 9) or "")


def test_json_keeps_all_digits():
    given = values()
    assert (np.array(json.loads(pooled.as_json(given)), np.float32) == given).all()
    assert pooled.as_json(pooled.quantised(given[:1, :8], "ubinary"))[:2] == b"[["
