"""Reads an adapter: its configuration and the header of its weights, against the model that it is for.

Nothing is loaded. Whatever the engine does not compute is refused with the key or the tensor: an adapter that is
applied in part gives wrong answers without an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from ...input_file import open_file
from ...model.adapted_layers import is_adapted, is_of_expert
from ...model.adapter import AdapterSpec, LowRank, Replaced, StoredMatrix
from ...model.feed_forwards import Experts
from ...model.spec import ModelSpec
from ...model.tensors import EMBEDDING, FUSED, OUTPUT
from ..errors import ModelFilesError
from .adapter_config import ADAPTER_CONFIG, ADAPTER_WEIGHTS, MERGE, AdapterConfig, read_adapter_config
from .adapter_experts import split_pair
from .adapter_saved import embedding_delta, replaced_by
from .adapter_targets import Targets
from .adapter_tensors import AdapterTensors, Pair, tensors_in
from .safetensors import read_header
from .stored import StoredTensor

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # values of `lora.max_lora_rank`
_OLD_WEIGHTS = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth")
_CHUNK_BYTES, _NUM_THREADS = 8 << 20, 8
_READ_BYTES = 1 << 18  # at once: they are hashed while they are in the cache


def read_adapter(
    folder: Path,
    spec: ModelSpec,
    *,
    max_rank: int | None = None,
    target_modules: Collection[str] = (),
    digest: str | None = None,
) -> AdapterSpec:
    """What an adapter adds to a model, if the engine computes all of it.

    Args:
        spec: of the whole model, not of one device's part.
        max_rank: `lora.max_lora_rank`; None: any.
        target_modules: `lora.lora_target_modules`; layers with other names are left out. Empty: none is.
        digest: what the description has as its digest, where the caller computes that of the files; None: it is
            computed here.

    Raises ModelFilesError that names the key or the tensor: M302 for a missing file, M303 for a damaged one, M305 for
    weights in another format, M306 for an invalid value, M310 for what this build does not compute, M311 for what does
    not fit the model.
    """
    found = _described(folder, spec, target_modules, digest)
    if max_rank is not None and found.max_rank > max_rank:
        worst = max(found.deltas, key=lambda delta: delta.rank)
        wanted = next((rank for rank in RANKS if rank >= worst.rank), None)
        fix = f"set `lora.max_lora_rank: {wanted}`" if wanted else f"ranks up to {RANKS[-1]} can be served"
        raise ModelFilesError(
            f"{found.weights}: tensor `{worst.a.name}` has rank {worst.rank}, and `lora.max_lora_rank` is {max_rank}; "
            f"{fix}",
            code="M311",
        )
    return found


def _described(folder: Path, spec: ModelSpec, target_modules: Collection[str], digest: str | None) -> AdapterSpec:
    config = read_adapter_config(folder)
    weights = _weights(folder)
    targets = Targets(spec)
    tensors = tensors_in(weights, read_header(weights))
    deltas: dict[str, LowRank] = {}
    for pair in tensors.pairs:
        if pair.is_embedding:
            continue
        for delta in _deltas(weights, pair, config, targets):
            if (other := deltas.get(delta.target)) is not None:
                raise ModelFilesError(
                    f"{weights}: tensors `{other.a.name}` and `{delta.a.name}` are both of `{delta.target}`",
                    code="M311",
                )
            deltas[delta.target] = delta
    _check_complete(config, weights, targets, deltas)
    embedding, replaced = _in_place(weights, tensors, config, targets, deltas)
    places = {target: place for place, target in enumerate(targets.shapes)}
    chosen = [delta for target, delta in deltas.items() if is_adapted(target, target_modules)]
    kept = [each for each in replaced if is_adapted(each.target, target_modules)]
    if embedding is not None and not is_adapted(embedding.target, target_modules):
        embedding = None
    if not chosen and not kept and embedding is None:
        why = "; `lora.lora_target_modules` leaves all of them out" if tensors.pairs or tensors.saved else ""
        raise ModelFilesError(f"{weights}: no tensor of it changes a layer of the model{why}", code="M311")
    return AdapterSpec(
        folder=folder,
        digest=adapter_digest(folder) if digest is None else digest,
        weights=weights,
        deltas=tuple(sorted(chosen, key=lambda delta: places[delta.target])),
        replaced=tuple(kept),
        embedding=embedding,
        base_model=config.base_model,
        left_out=tuple(sorted(deltas.keys() - {delta.target for delta in chosen})),
    )


def _in_place(
    file: Path, tensors: AdapterTensors, config: AdapterConfig, targets: Targets, deltas: Collection[str]
) -> tuple[LowRank | Replaced | None, list[Replaced]]:
    """What the adapter does to the embedding, and what it has in place of weights of linear layers."""
    embeddings: list[LowRank | Replaced] = [
        embedding_delta(file, pair, config, targets) for pair in tensors.pairs if pair.is_embedding
    ]
    replaced: dict[tuple[str, bool], Replaced] = {}
    for each in replaced_by(file, tensors.saved, config, targets):
        if each.target == EMBEDDING.removesuffix(".weight"):
            embeddings.append(each)
            continue
        if (each.target, each.is_bias) in replaced or (each.target in deltas and not each.is_bias):
            raise ModelFilesError(
                f"{file}: tensor `{each.values.name}` is not the only one of `{each.target}`", code="M311"
            )
        replaced[each.target, each.is_bias] = each
    if len(embeddings) > 1:
        raise ModelFilesError(f"{file}: several tensors change the embedding in different ways", code="M311")
    output = OUTPUT.removesuffix(".weight")
    is_common = config.is_tied and targets.spec.is_tied and embeddings and isinstance(embeddings[0], LowRank)
    if is_common and output not in deltas:
        raise ModelFilesError(
            f"{file}: no tensors of `{output}`, although `ensure_weight_tying` in {config.path.name} is true",
            code="M311",
        )
    return embeddings[0] if embeddings else None, list(replaced.values())


def adapter_digest(folder: Path) -> str:
    """Digest of every byte of the configuration and of the weights: 64 hexadecimal digits.

    All bytes, because an adapter that is loaded again under its name must get a new digest whatever has changed in it;
    chunks are hashed by several threads. Raises ModelFilesError.
    """
    whole = hashlib.sha256()
    try:
        for name in ADAPTER_CONFIG, ADAPTER_WEIGHTS:
            whole.update(f"\n{name}\n".encode())
            for part in _chunk_digests(folder / name):
                whole.update(part)
    except OSError as error:
        raise ModelFilesError.unreadable(folder, error) from error
    return whole.hexdigest()


def _chunk_digests(path: Path) -> Iterator[bytes]:
    with open_file(path) as file:
        size = file.seek(0, 2)

    def digest(start: int) -> bytes:
        found, buffer, left = hashlib.sha256(), memoryview(bytearray(_READ_BYTES)), _CHUNK_BYTES
        with open_file(path) as own:
            own.seek(start)
            while left and (count := own.readinto(buffer[:left])):
                found.update(buffer[:count])
                left -= count
        return found.digest()

    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        yield from pool.map(digest, range(0, size, _CHUNK_BYTES))


def _weights(folder: Path) -> Path:
    path = folder / ADAPTER_WEIGHTS
    if not path.exists():
        old = next((name for name in _OLD_WEIGHTS if (folder / name).exists()), None)
        if old is not None:
            raise ModelFilesError(
                f"{folder / old}: adapters are read from {ADAPTER_WEIGHTS}; load it with PEFT and save it again with "
                "`save_pretrained(folder)`",
                code="M305",
            )
        raise ModelFilesError(f"{path}: no such file", code="M302")
    return path


def _deltas(file: Path, pair: Pair, config: AdapterConfig, targets: Targets) -> Iterator[LowRank]:
    """What one pair adds to each matrix that it changes."""
    for delta in _any_deltas(file, pair, config, targets):
        if is_of_expert(delta.target):
            _check_of_expert(file, delta, targets)
        yield delta


def _any_deltas(file: Path, pair: Pair, config: AdapterConfig, targets: Targets) -> Iterator[LowRank]:
    name = targets.name_of(pair.module)
    if parts := targets.parts_of(name):
        yield from _of_linear(file, pair, config, targets, parts)
    elif (found := targets.experts_of(name)) is not None:
        layer, part, experts = found
        stacked = split_pair(file, pair, targets.spec, experts, part)
        module = pair.module.removesuffix(".base_layer")
        module = module if part is not None else f"{module}.{stacked.parameter}"
        _check_rank(file, pair, stacked.rank, module, config)
        for each in stacked.matrices:
            target = f"model.layers.{layer}.mlp.experts.{each.expert}.{each.part}"
            outputs, inputs = targets.shapes[target]
            yield LowRank(target, stacked.rank, config.scale_of(module), inputs, outputs, each.a, each.b)
    else:
        raise ModelFilesError(f"{file}: tensor `{pair.a_name}`: {targets.why_unknown(name)}", code="M311")


def _of_linear(file: Path, pair: Pair, config: AdapterConfig, targets: Targets, parts: list[str]) -> Iterator[LowRank]:
    """parts: of a fused layer, whose rows of B follow one another while A is common to all."""
    shapes = [targets.shapes[part] for part in parts]
    outputs, inputs = sum(rows for rows, _ in shapes), shapes[0][1]
    rank = pair.a.shape[0] if pair.a.shape else 0
    wanted: list[tuple[str, StoredTensor, tuple[int | str, ...], bool]] = [
        (pair.a_name, pair.a, ("rank", inputs), len(pair.a.shape) == 2 and pair.a.shape[1] == inputs),
        (pair.b_name, pair.b, (outputs, rank), pair.b.shape == (outputs, rank)),
    ]
    if pair.bias_name is not None and pair.bias is not None:
        wanted.append((pair.bias_name, pair.bias, (outputs,), pair.bias.shape == (outputs,)))
    if pair.magnitude_name is not None and pair.magnitude is not None:
        wanted.append((pair.magnitude_name, pair.magnitude, (outputs,), pair.magnitude.shape == (outputs,)))
    for name, tensor, shape, is_fitting in wanted:
        if not is_fitting:
            raise ModelFilesError(
                f"{file}: tensor `{name}` has shape {list(tensor.shape)}; `{parts[0]}`"
                f"{' and its neighbours need' if len(parts) > 1 else ' needs'} [{', '.join(map(str, shape))}]",
                code="M311",
            )
    _check_rank(file, pair, rank, pair.module, config)
    first = 0
    for part, (rows, _) in zip(parts, shapes, strict=True):
        factor = targets.factor(part)
        has_vectors = pair.bias_name is not None or pair.magnitude_name is not None
        if factor is None or (factor != 1 and has_vectors):
            raise ModelFilesError(
                f"{file}: tensor `{pair.b_name}` adds to `{part}`, whose rows have multipliers of their own, which "
                "this build does not apply to adapters",
                code="M310",
            )
        own_rows = None if len(parts) == 1 else (first, first + rows)
        b = StoredMatrix(pair.b_name, (outputs, rank), rows=own_rows)
        if (head := targets.row_pairs(part)) is not None:
            b = replace(b, head_dim=head)
        yield LowRank(
            target=part,
            rank=rank,
            scale=config.scale_of(pair.module) * factor,
            in_features=inputs,
            out_features=rows,
            a=StoredMatrix(pair.a_name, (rank, inputs)),
            b=b,
            bias=None if pair.bias_name is None else replace(b, name=pair.bias_name, view=(outputs, 1)),
            magnitude=None if pair.magnitude_name is None else replace(b, name=pair.magnitude_name, view=(outputs, 1)),
        )
        first += rows


def _check_of_expert(file: Path, delta: LowRank, targets: Targets) -> None:
    """Raise M310 for what the op of experts does not add to the product of one."""
    layer, _, part = delta.target.removeprefix("model.layers.").partition(".")
    block = targets.spec.layers[int(layer)].feed_forward
    vectors = (delta.bias, "a bias of the adapter"), (delta.magnitude, "the magnitudes (DoRA)")
    for vector, what in vectors:
        if vector is not None:
            raise ModelFilesError(
                f"{file}: tensor `{vector.name}` is {what} of an expert, which this build does not compute; {MERGE}",
                code="M310",
            )
    has_scales = isinstance(block, Experts) and block.has_scales and part.endswith("down_proj")
    if has_scales or targets.factor(delta.target) != 1:
        raise ModelFilesError(
            f"{file}: tensor `{delta.b.name}` adds to `{delta.target}`, which the model multiplies by a number of the "
            f"expert's own; this build does not apply it to adapters; {MERGE}",
            code="M310",
        )


def _check_rank(file: Path, pair: Pair, rank: int, module: str, config: AdapterConfig) -> None:
    if rank != config.rank_of(module):
        raise ModelFilesError(
            f"{file}: tensor `{pair.a_name}` has shape {list(pair.a.shape)}, which is rank {rank}, and "
            f"{config.path.name} says {config.rank_of(module)} for this module",
            code="M311",
        )


def _check_complete(config: AdapterConfig, file: Path, targets: Targets, deltas: Collection[str]) -> None:
    """Raise M311 if a module that `target_modules` names has tensors in some layers only, or experts that
    `target_parameters` names have none in a layer: the others have been lost."""
    for name in config.targets:
        ends = (f".{name}", *(f".{part}" for part in FUSED.get(name.rpartition(".")[2], ())))
        found = [target for target in deltas if f".{target}".endswith(ends)]
        for own in sorted({target.split(".", 3)[3] for target in found if target.startswith("model.layers.")}):
            for layer in range(targets.spec.num_layers):
                target = f"model.layers.{layer}.{own}"
                if target in targets.shapes and target not in deltas:
                    raise ModelFilesError(
                        f"{file}: no tensors of `{target}`, although `target_modules` in {config.path.name} has "
                        f"`{name}`; write `layers_to_transform` if only some layers were trained",
                        code="M311",
                    )
    for name in config.parameters:
        place, _, last = name.rpartition(".")
        for layer in range(targets.spec.num_layers) if place in ("experts", "mlp.experts") else ():
            target = f"model.layers.{layer}.mlp.experts.0.{FUSED.get(last, (last,))[0]}"
            if target in targets.shapes and target not in deltas:
                raise ModelFilesError(
                    f"{file}: no tensors of `{target}`, although `target_parameters` in {config.path.name} has "
                    f"`{name}`",
                    code="M311",
                )
