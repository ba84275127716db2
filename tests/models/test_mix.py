"""Tokens of a step add to the products of linear layers: what adapters do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from stoker.engine.kernels import KernelSet
from stoker.engine.layers.linear import Linear

from .checkpoints import build, families, save
from .conftest import Saved
from .stepped import Row, SteppedModel

ROWS: list[Row] = [(0, [*range(5, 25)]), (0, [10, 11, 12, 13]), (0, [5, 6, 7])]
LAST = torch.tensor([19, 23, 26])
OF_ROW = torch.tensor([0] * 20 + [1] * 4 + [2] * 3)
PARTS = (
    "model.layers.0.self_attn.k_proj",  # fused with the queries and the values
    "model.layers.1.self_attn.q_proj",
    "model.layers.0.self_attn.o_proj",
    "model.layers.1.mlp.up_proj",  # fused with the gates
    "model.layers.0.mlp.down_proj",
    "lm_head",
)


@dataclass
class Deltas:
    """Adds x @ delta.T to the product of a part, for some tokens."""

    chosen: torch.Tensor  # [T] bool
    by_part: dict[str, torch.Tensor] = field(default_factory=dict)
    seen: list[Linear] = field(default_factory=list)

    def added(self, layer: Linear, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        assert len(x) == len(out) == len(self.chosen), "the mix is of other tokens than the layer's input"
        self.seen.append(layer)
        parts = out.split(list(layer.parts.values()), dim=1)
        for name, part in zip(layer.parts, parts, strict=True):
            if name in self.by_part:
                part += x @ self.by_part[name].T * self.chosen[:, None]
        return out

    def of_experts(self, layer: object) -> None:
        return None

    def adapt_rows(self, token_ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def of_tokens(self, tokens: torch.Tensor) -> Deltas:
        return replace(self, chosen=self.chosen[tokens])


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_rows_with_a_delta_are_computed_as_by_weights_with_it(family: str, tmp_path: Path):
    theirs = build(family)
    (tmp_path / "plain").mkdir()
    plain = SteppedModel(save(theirs, tmp_path / "plain"), tmp_path)
    parts = [name for name in PARTS if name != "lm_head" or family == "llama"]  # gemma2's is its embedding
    weights = {name: theirs.get_parameter(f"{name}.weight") for name in parts}
    random = torch.Generator().manual_seed(0)
    deltas = {name: torch.randn(weight.shape, generator=random) / 8 for name, weight in weights.items()}
    with torch.no_grad():
        for name, weight in weights.items():
            weight += deltas[name]
    (tmp_path / "changed").mkdir()
    changed = SteppedModel(save(theirs, tmp_path / "changed"), tmp_path)
    expected = torch.where((OF_ROW == 1)[:, None], changed.logits(ROWS), plain.logits(ROWS))
    assert (changed.logits(ROWS) - plain.logits(ROWS))[OF_ROW == 1].abs().max() > 0.01
    for needed in (None, LAST):
        found = plain.logits(ROWS, needed, mix=Deltas(OF_ROW == 1, deltas))
        torch.testing.assert_close(found, expected if needed is None else expected[needed], atol=1e-5, rtol=1e-4)
    later: list[Row] = [(len(tokens), [7]) for _, tokens in ROWS]  # keys and values in the cache have the delta too
    for model in (plain, changed):
        model.forward(ROWS)
    expected = torch.where(torch.tensor([False, True, False])[:, None], changed.logits(later), plain.logits(later))
    plain.forward(ROWS, mix=Deltas(OF_ROW == 1, deltas))
    found = plain.logits(later, mix=Deltas(torch.tensor([False, True, False]), deltas))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("end", ["self_attn.q_proj", "linear_attn.in_proj_qkvz", "linear_attn.out_proj"])
def test_deltas_are_in_the_order_of_the_weights_rows(end: str, tmp_path: Path):
    """Some layers keep their rows in another order: the queries and their gates, the heads of gated delta."""
    theirs = build("qwen3_next")
    (tmp_path / "plain").mkdir()
    plain = SteppedModel(save(theirs, tmp_path / "plain"), tmp_path)
    name, weight = next((name, each) for name, each in theirs.named_parameters() if name.endswith(f"{end}.weight"))
    delta = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) / 8
    with torch.no_grad():
        weight += delta
    (tmp_path / "changed").mkdir()
    changed = SteppedModel(save(theirs, tmp_path / "changed"), tmp_path)
    expected = torch.where((OF_ROW == 1)[:, None], changed.logits(ROWS), plain.logits(ROWS))
    found = plain.logits(ROWS, None, mix=Deltas(OF_ROW == 1, {name.removesuffix(".weight"): delta}))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("family", families())
def test_every_linear_layer_sees_the_mix_of_its_tokens(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    model = SteppedModel(saved(family)[1], tmp_path)
    layers = [part for part in model.model.loadables() if isinstance(part, Linear)]
    mix = Deltas(OF_ROW == 1)
    found = model.logits(ROWS, LAST, mix=mix)
    assert [list(layer.parts) for layer in layers if layer not in mix.seen] == []
    torch.testing.assert_close(found, model.logits(ROWS, LAST), atol=1e-5, rtol=1e-4)


def test_a_norm_and_a_product_are_fused_only_without_a_mix(saved: Callable[[str], Saved], tmp_path: Path):
    calls: list[int] = []

    def with_fusion(kernels: KernelSet) -> KernelSet:
        def fused(*arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
            calls.append(1)
            return kernels.norm_gate_up(*arguments)  # type: ignore[arg-type]

        return replace(kernels, fused_norm_gate_up=fused)

    model = SteppedModel(saved("llama")[1], tmp_path, with_fusion)
    model.forward(ROWS)
    assert len(calls) == model.spec.num_layers
    model.forward(ROWS, mix=Deltas(OF_ROW == 1))
    assert len(calls) == model.spec.num_layers
