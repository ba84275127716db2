"""The ends of a model: its input, and its heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from stoker.engine.kernels import KernelSet
from stoker.engine.layers.linear import Linear, Mix
from stoker.engine.layers.loading import Loadable
from stoker.engine.layers.norm import Norm
from stoker.engine.layers.rotary import Rotation
from stoker.engine.layers.step_input import GivenRows
from stoker.model.spec import LayerSpec, ModelSpec

from .conftest import Saved
from .stepped import CPU, Row, SteppedModel, step_of

ROWS: list[Row] = [(0, [5, 6, 7, 8, 9]), (0, [10, 11, 12, 13]), (0, [5, 6, 7])]
LAST = torch.tensor([4, 8, 11])


class Labels:
    """A classifier of two labels."""

    def __init__(self, norm: Norm, hidden_size: int, kernels: KernelSet) -> None:
        self.score = Linear({"score": 2}, hidden_size, False, kernels, torch.float32, CPU)
        self._norm = norm

    def loadables(self) -> Iterator[Loadable]:
        yield self.score

    def __call__(self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix | None = None) -> torch.Tensor:
        scores, _ = self.score.of_normed(self._norm, hidden, residual, mix)
        return scores


class OneTensor:
    """A checkpoint of a single tensor."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values

    def view(self, name: str, dtype: torch.dtype) -> None:
        return None

    def read(self, name: str, place: torch.Tensor) -> None:
        assert name == "score.weight"
        place.copy_(self._values)

    def grouped(self, name: str, dtype: torch.dtype) -> None:
        return None

    def integers(self, name: str) -> None:
        return None


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_second_head_reads_the_hidden_states_of_the_same_step(
    family: str, saved: Callable[[str], Saved], tmp_path: Path
):
    theirs, folder = saved(family)
    model = SteppedModel(folder, tmp_path)
    expected_logits = model.logits(ROWS, LAST)
    head = Labels(model.model.norm, model.spec.hidden_size, model.kernels)
    model.model.heads["labels"] = head
    assert "score.weight" in dict(model.model.wanted())
    weight = torch.randn(2, model.spec.hidden_size, generator=torch.Generator().manual_seed(0))
    head.score.load(OneTensor(weight))
    hidden = model.forward(ROWS, LAST)
    with torch.inference_mode():
        assert torch.equal(model.model.logits(*hidden), expected_logits)
        found = head(*hidden)
        for row, (_, tokens) in enumerate(ROWS):
            states = theirs.model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0, -1]
            torch.testing.assert_close(found[row], weight @ states, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "bloom", "qwen3"])
@pytest.mark.parametrize("implementation", ["auto", "transformers"])
def test_given_rows_are_computed_as_the_tokens_whose_embedding_they_are(
    family: str, implementation: str, saved: Callable[[str], Saved], tmp_path: Path
):
    theirs, folder = saved(family)
    if implementation == "transformers" and family == "bloom":
        pytest.skip("its attention has slopes")
    model = SteppedModel(folder, tmp_path, model={"model_impl": implementation})
    expected = model.logits(ROWS)
    places = torch.tensor([3, 1, 6])
    ids = torch.tensor([token for _, tokens in ROWS for token in tokens])
    with torch.inference_mode():
        rows = theirs.get_input_embeddings()(ids[places])
    others = ids.index_fill(0, places, 0)
    assert torch.equal(model.logits(ROWS, token_ids=others, given=GivenRows(places, rows)), expected)
    assert not torch.equal(model.logits(ROWS, token_ids=others), expected)


def with_pair_kinds(spec: ModelSpec) -> ModelSpec:
    """The pairs follow the kinds 0, 1, 1 of positions, and so on."""

    def with_kinds(layer: LayerSpec) -> LayerSpec:
        rope = layer.mixer.rope
        pairs = int(layer.mixer.head_dim * rope.partial_rotary_factor) // 2
        kinds = tuple((0, 1, 1)[pair % 3] for pair in range(pairs))
        mixer = layer.mixer.model_copy(update={"rope": rope.model_copy(update={"pair_kinds": kinds})})
        return layer.model_copy(update={"mixer": mixer})

    return spec.model_copy(update={"layers": tuple(map(with_kinds, spec.layers))})


@pytest.mark.parametrize("family", ["llama", "gemma2", "glm", "phi3"])
def test_two_equal_kinds_of_positions_are_one(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    _, folder = saved(family)
    plain = SteppedModel(folder, tmp_path)
    model = SteppedModel(folder, tmp_path, with_spec=with_pair_kinds)
    later: list[Row] = [(len(tokens), [7]) for _, tokens in ROWS]
    for rows in (ROWS, later):
        expected = plain.logits(rows)
        assert torch.equal(model.logits(rows), expected)
        positions = step_of(rows).positions
        assert torch.equal(model.logits(rows, rope_positions=torch.stack((positions, positions))), expected)


def test_pairs_are_turned_by_the_positions_of_their_kind():
    table = torch.rand(50, 6)
    step = step_of([(0, [5, 6, 7])], rope_positions=torch.tensor([[3, 4, 5], [40, 41, 42]]))
    turned, rows = Rotation(table, (0, 1, 1)).of(step)
    for token, (first, second) in enumerate([(3, 40), (4, 41), (5, 42)]):
        expected = [
            table[first, 0],
            table[second, 1],
            table[second, 2],
            table[first, 3],
            table[second, 4],
            table[second, 5],
        ]
        assert turned[rows[token]].tolist() == [float(each) for each in expected]
    one_kind, positions = Rotation(table).of(step)
    assert one_kind is table
    assert positions is step.positions
