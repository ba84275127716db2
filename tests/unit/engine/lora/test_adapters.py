"""What a process keeps of adapters, and how it reads them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stoker.config import ModelFilesError
from stoker.config.checkpoint.adapter_config import ADAPTER_WEIGHTS
from stoker.engine.api import AdapterError, AdapterRef
from stoker.engine.kernels.adapt_rows import adapt_rows_reference
from stoker.engine.kernels.lora_add import LoraWeights, lora_add_reference
from stoker.engine.lora.adapters import Adapters
from stoker.engine.lora.mix import AdaptedLayers, AdapterMix
from stoker.engine.lora.places import Places
from stoker.engine.lora.weights import read_weights
from stoker.model.adapter import AdapterSpec, LowRank, StoredMatrix
from stoker.model.adapter_bytes import adapters_bytes
from stoker.model.tensor_parallel import Slice

CPU = torch.device("cpu")
NO_LAYERS = AdaptedLayers({}, {}, None, lora_add_reference, adapt_rows_reference)


@dataclass(eq=False)
class Layer:
    parts: dict[str, int]
    in_features: int

    def rows_of(self, part: str, rows: range) -> torch.Tensor:
        """Ones."""
        return torch.ones(len(rows), self.in_features)

    def bias_of(self, part: str) -> torch.Tensor | None:
        return None


QKV, OUT = Layer({"q": 40, "k": 8, "v": 8}, 16), Layer({"o": 16}, 40)


def spec_of(folder: Path, digest: str, rank: int = 3, targets: tuple[str, ...] = ("q", "v", "o")) -> AdapterSpec:
    """Random matrices in a file, under names that no part of the engine knows."""
    folder.mkdir(exist_ok=True)
    random = torch.Generator().manual_seed(rank)
    tensors: dict[str, torch.Tensor] = {}
    deltas = []
    for target in targets:
        layer = QKV if target in QKV.parts else OUT
        outputs = layer.parts.get(target, 4)
        tensors[f"{target}.down"] = torch.randn(rank, layer.in_features, generator=random)
        tensors[f"{target}.up"] = torch.randn(outputs, rank, generator=random)
        a = StoredMatrix(f"{target}.down", (rank, layer.in_features))
        deltas.append(
            LowRank(target, rank, 0.5, layer.in_features, outputs, a, StoredMatrix(f"{target}.up", (outputs, rank)))
        )
    save_file(tensors, folder / "weights.safetensors")
    return AdapterSpec(folder, digest, folder / "weights.safetensors", tuple(deltas))


class Store:
    """Adapters by the names of their folders, which are their digests too."""

    def __init__(self, place: Path, max_copies: int, num_slots: int = 2) -> None:
        self.place, self.reads = place, []
        self.adapters = Adapters(
            Places([QKV, OUT], {"norm"}, num_slots, 8, CPU),
            self._read,
            max_copies,
            torch.float32,
            CPU,
            digest=lambda folder: folder.name,
        )

    def _read(self, folder: Path) -> AdapterSpec:
        self.reads.append(folder.name)
        if not folder.exists():
            raise ModelFilesError(f"{folder}: no such folder")
        return spec_of(folder, folder.name)

    def ref(self, name: str) -> AdapterRef:
        (self.place / name).mkdir(exist_ok=True)
        return AdapterRef(name, name, str(self.place / name))


def test_the_adapters_that_were_used_last_are_kept(tmp_path: Path):
    store = Store(tmp_path, max_copies=2)
    for name in "abacb":
        store.adapters.load(store.ref(name))
    assert store.reads == ["a", "b", "c", "b"]  # c has taken the place of b


def test_an_adapter_in_a_slot_is_kept(tmp_path: Path):
    store = Store(tmp_path, max_copies=2)
    store.adapters.load(store.ref("a"))
    store.adapters.place(0, store.ref("a"))
    for name in "bca":
        store.adapters.load(store.ref(name))
    assert store.reads == ["a", "b", "c"]
    store.adapters.load(store.ref("b"))
    store.adapters.place(0, store.ref("b"))
    for name in "cbab":
        store.adapters.load(store.ref(name))
    assert store.reads == ["a", "b", "c", "b", "c", "a"]  # a was in no slot any more


def test_a_forgotten_adapter_is_read_again_and_computes_until_it_is_replaced(tmp_path: Path):
    store = Store(tmp_path, max_copies=2)
    store.adapters.load(store.ref("a"))
    store.adapters.place(1, store.ref("a"))
    before = store.adapters.num_bytes
    store.adapters.forget("a")
    assert (before > 0, store.adapters.num_bytes) == (True, 0)
    assert store.adapters.places.layers[1].slots[1] is not None
    store.adapters.load(store.ref("a"))
    assert store.reads == ["a", "a"]


def test_a_copy_that_sequences_hold_is_not_freed(tmp_path: Path):
    """Requests of an adapter that was replaced under its name ended with "the files have changed": the copy of the new
    files took the place of theirs."""
    store = Store(tmp_path, max_copies=1, num_slots=1)
    adapters = store.adapters
    adapters.load(store.ref("running"))
    adapters.place(0, store.ref("running"))
    adapters.hold("old")
    adapters.load(store.ref("old"))
    adapters.load(store.ref("new"))
    adapters.forget("old")
    assert [adapters.has(name) for name in ("running", "old", "new")] == [True, True, False]
    adapters.place(0, store.ref("old"))
    adapters.drop("old")
    assert store.reads == ["running", "old", "new"]
    assert not adapters.has("old")  # it was to be forgotten when its sequence ended


def test_a_copy_that_a_planned_step_places_is_not_freed(tmp_path: Path):
    """Its sequence was aborted and its adapter was unloaded before the step began, which then read files."""
    store = Store(tmp_path, max_copies=1, num_slots=1)
    store.adapters.load(store.ref("a"))
    store.adapters.pin("a")
    store.adapters.forget("a")
    store.adapters.load(store.ref("b"))
    store.adapters.make_space()
    shutil.rmtree(tmp_path / "a")
    store.adapters.place(0, AdapterRef("a", "a", str(tmp_path / "a")))
    assert store.adapters.places.layers[0].slots[0] is not None
    store.adapters.unpin("a")
    assert not store.adapters.has("a")


def test_there_is_space_for_one_more_than_the_copies_that_are_kept(tmp_path: Path):
    """A forgotten adapter that is still in a slot has its memory still, and counts."""
    store = Store(tmp_path, max_copies=2)
    adapters = store.adapters
    adapters.load(store.ref("a"))
    adapters.place(0, store.ref("a"))
    adapters.forget("a")
    adapters.load(store.ref("b"))
    assert [adapters.has_space(number) for number in (0, 1, 2)] == [True, True, False]  # nothing needs b
    adapters.hold("b")
    assert [adapters.has_space(number) for number in (0, 1)] == [True, False]
    adapters.hold("c")
    adapters.load(store.ref("c"))
    assert not adapters.has_space(0)
    adapters.make_space()  # b has waited longer
    assert ([adapters.has(name) for name in "bc"], adapters.has_space(0)) == ([False, True], True)


class Failing:
    """Raises an error where an adapter is read."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, folder: Path) -> AdapterSpec:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            "adapter_memory",
        ),
        (MemoryError(), "adapter_memory"),
        (KeyError("q.down"), "adapter_unreadable"),
        (ValueError("cannot reshape"), "adapter_unreadable"),
        (OSError("Stale file handle"), "adapter_unreadable"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_whatever_fails_while_reading_is_an_error_of_the_adapter(error: Exception, code: str, tmp_path: Path):
    """torch raises RuntimeError when it gets no memory, which ended the engine."""
    store = Store(tmp_path, max_copies=1)
    store.adapters._read = Failing(error)
    with pytest.raises(AdapterError) as caught:
        store.adapters.load(store.ref("a"))
    assert (caught.value.code, store.adapters.has("a")) == (code, False)


def test_files_that_are_replaced_while_they_are_read_are_refused(tmp_path: Path):
    """Weights were kept under the digest of the bytes that had been there before."""
    store = Store(tmp_path, max_copies=1)
    ref = store.ref("a")
    (tmp_path / "a" / ADAPTER_WEIGHTS).write_bytes(b"before")
    read = store.adapters._read

    def read_and_replace(folder: Path) -> AdapterSpec:
        spec = read(folder)
        (folder / "new").write_bytes(b"after.")
        (folder / "new").replace(folder / ADAPTER_WEIGHTS)
        return spec

    store.adapters._read = read_and_replace
    with pytest.raises(AdapterError, match="have changed") as caught:
        store.adapters.load(ref)
    assert (caught.value.code, store.adapters.has("a")) == ("adapter_changed", False)
    store.adapters._read = read
    store.adapters.load(ref)
    assert store.adapters.has("a")


def test_what_cannot_be_read_changes_nothing(tmp_path: Path):
    store = Store(tmp_path, max_copies=1)
    store.adapters.load(store.ref("a"))
    with pytest.raises(AdapterError, match=r"adapter `x`: .*no such folder"):
        store.adapters.load(AdapterRef("x", "x", str(tmp_path / "x")))
    with pytest.raises(AdapterError, match="have changed"):
        store.adapters.load(AdapterRef("b", "other", store.ref("b").folder))
    store.adapters.load(store.ref("a"))
    assert store.reads == ["a", "x", "b"]


@pytest.mark.parametrize(("is_whole", "target"), [(True, "norm"), (True, "elsewhere"), (False, "norm")])
def test_a_weight_without_deltas_is_refused(is_whole: bool, target: str, tmp_path: Path):
    places = Places([QKV, OUT], {"norm"}, 1, 8, CPU, is_whole=is_whole)
    with pytest.raises(AdapterError, match=f"changes `{target}`"):
        places.check(spec_of(tmp_path / "a", "a", targets=("q", target)))


def test_a_stage_reads_the_layers_that_it_has(tmp_path: Path):
    places = Places([QKV], {"norm"}, 1, 8, CPU, is_whole=False)
    spec = spec_of(tmp_path / "a", "a")
    places.check(spec)
    assert list(read_weights(spec, places, torch.float32, CPU).by_layer) == [0]


def test_adapters_take_the_bytes_that_are_planned(tmp_path: Path):
    store = Store(tmp_path, max_copies=2)
    spec = spec_of(tmp_path / "a", "a", targets=("q", "k", "v", "o"))
    weights = read_weights(spec, store.adapters.places, torch.bfloat16, CPU)
    assert weights.num_bytes == adapters_bytes([(40, 16), (8, 16), (8, 16), (16, 40)], 1, 3, 2)


def matrix_of(weights: LoraWeights, part: int, columns: int) -> torch.Tensor:
    """B @ A of one part."""
    b, first = weights.b[part], weights.first[part]
    return torch.cat([panel.T for panel in b])[:columns] @ weights.a[first : first + b.shape[1]]


def test_ranks_have_their_rows_and_columns_of_a_delta(tmp_path: Path):
    """Rank 1 of two: the queries of one half, padded, and the outputs by their inputs."""
    rows = Slice((40, 16), 0, (range(24, 40),))
    columns = Slice((16, 40), 1, (range(24, 40),))
    own = [Layer({"q": 20, "k": 8, "v": 8}, 16), Layer({"o": 16}, 16)]
    places = Places(own, (), 1, 8, CPU, slices={"q.weight": rows, "o.weight": columns})
    spec = spec_of(tmp_path / "a", "a")
    whole = read_weights(spec, Places([QKV, OUT], (), 1, 8, CPU), torch.float32, CPU).by_layer
    part = read_weights(spec, places, torch.float32, CPU, rank=1).by_layer
    torch.testing.assert_close(matrix_of(part[0], 0, 20)[:16], matrix_of(whole[0], 0, 40)[24:])
    assert matrix_of(part[0], 0, 20)[16:].abs().max() == 0
    torch.testing.assert_close(matrix_of(part[1], 0, 16), matrix_of(whole[1], 0, 16)[:, 24:])


def test_a_mix_sorts_its_tokens_and_is_narrowed():
    mix = AdapterMix.of(torch.tensor([1, -1, 0, 1, -1], dtype=torch.int32), NO_LAYERS, 3)
    assert (mix.tokens.tolist(), mix.starts.tolist()) == ([2, 0, 3, 1, 4], [0, 1, 3, 3])
    narrow = mix.of_tokens(torch.tensor([3, 1, -1, 2]))
    assert (narrow.slots.tolist(), narrow.tokens.tolist(), narrow.starts.tolist()) == (
        [1, -1, -1, 0],
        [3, 0, 1, 2],
        [0, 1, 2, 2],
    )
    into = mix.clone()
    into.copy_(AdapterMix.of(torch.tensor([-1, 2, -1, -1, -1], dtype=torch.int32), NO_LAYERS, 3))
    assert (into.tokens.tolist(), into.starts.tolist()) == ([1, 0, 2, 3, 4], [0, 0, 0, 1])
    assert mix.starts.tolist() == [0, 1, 3, 3]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_found_in_layers_of_other_stages_too(tmp_path: Path, value: float):
    """Another stage met it in a step, which ended the engine."""
    spec = spec_of(tmp_path, "bad")
    tensors = load_file(spec.weights)
    tensors["o.up"][0, 0] = value
    save_file(tensors, spec.weights)
    stage = Places([QKV], set(), 2, 8, CPU, is_whole=False)
    with pytest.raises(ModelFilesError, match=r"tensor `o\.up` has elements that are infinite or not a number"):
        read_weights(spec, stage, torch.float32, CPU)
