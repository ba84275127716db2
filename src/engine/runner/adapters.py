"""Adapters in the steps of a runner: what it has of them, the field of a step, and loads before a step."""

from __future__ import annotations

from functools import partial

import torch

from ...config import Resolved
from ...config.checkpoint.adapter_files import read_adapter
from ...model.tensor_parallel import slices
from ...model.tensors import EMBEDDING, OUTPUT
from ..kernels.adapt_rows import LoraEmbedding
from ..layers.expert_places import ExpertPlaces
from ..layers.expert_weights import Experts
from ..layers.linear import Linear
from ..layers.step_input import StepInput
from ..lora.adapters import Adapters
from ..lora.mix import AdaptedLayers, AdapterMix
from ..lora.places import Places
from ..lora.settings import LoraSettings
from ..models.decoder import Decoder, LaterStage
from ..models.model import Model
from ..step.plan import NO_ADAPTER, StepPlan
from .loaded_model import LoadedModel
from .slot_columns import ADAPTER_SLOT
from .slot_table import SlotTable
from .step_features import Columns, StepFeature
from .step_shape import StepFlag


def adapters_of(resolved: Resolved, loaded: LoadedModel) -> Adapters | None:
    """The adapters of this process, of which none is loaded; None without `lora.enable_lora`."""
    settings = LoraSettings.of(resolved)
    if settings is None:
        return None
    read = partial(
        read_adapter,
        spec=resolved.model_spec,
        max_rank=settings.max_rank,
        target_modules=settings.target_modules,
        digest="",
    )
    return Adapters(
        places_of(resolved, settings, loaded),
        read,
        settings.max_copies,
        getattr(torch, resolved.model.dtype),
        loaded.device,
        0 if loaded.ranks is None else loaded.ranks.rank,
    )


def places_of(resolved: Resolved, settings: LoraSettings, loaded: LoadedModel) -> Places:
    spec, model, ranks = resolved.model_spec, loaded.model, loaded.ranks
    linears = linears_of(model, getattr(torch, resolved.model.dtype))
    experts, embed = experts_of(loaded), model.embed if isinstance(model, Decoder) else None
    own = {name for each in linears for name in each.parts}
    own |= {name for each in experts for expert in each.sizes.held for name in weights_of(each, expert)}
    elsewhere = {
        name
        for each in experts
        for expert in set(range(each.sizes.count)).difference(each.sizes.held)
        for name in weights_of(each, expert)
    }
    wanted = {name.removesuffix(".weight") for name, _ in model.wanted() if name.endswith(".weight")}
    tied = {OUTPUT.removesuffix(".weight"): EMBEDDING.removesuffix(".weight")} if spec.is_tied else {}
    return Places(
        linears,
        wanted - own,
        settings.max_loras,
        settings.max_rank,
        loaded.device,
        experts=experts,
        elsewhere=elsewhere,
        kernels=loaded.kernels,
        embedding=LoraEmbedding(spec.hidden_size, settings.max_loras, loaded.device) if embed is not None else None,
        multiplier=1.0 if embed is None else embed.multiplier,
        max_saved_elements=settings.max_saved_elements,
        embedding_elements=settings.embedding_elements,
        slices=None if ranks is None else slices(spec, ranks.size, ranks.rank),
        aliases=tied,
        is_whole=resolved.num_stages == 1,
    )


def linears_of(model: Model | LaterStage, dtype: torch.dtype) -> list[Linear]:
    """The layers to which adapters can add, once each, in the order of loading: those that compute in the model's own
    dtype, which adapters have too. Routers of experts may compute in float32. Heads that pool read the output layer
    without a mix: adapters of it are refused where the model generates nothing."""
    found = dict.fromkeys(each for each in model.loadables() if isinstance(each, Linear))
    unread = () if model.model_spec.generates else (OUTPUT.removesuffix(".weight"),)
    return [each for each in found if each.dtype == dtype and not any(name in each.parts for name in unread)]


def experts_of(loaded: LoadedModel) -> list[Experts]:
    """The layers of experts to which adapters can add, in the order of loading: those whose experts stay in their
    process, and compute no tokens of other replicas, whose adapters are not known here."""
    if loaded.replicas is not None:
        return []
    experts = [each for each in loaded.model.loadables() if isinstance(each, Experts)]
    return [each for each in experts if not isinstance(each.sizes.own, ExpertPlaces)]


def weights_of(experts: Experts, expert: int) -> tuple[str, ...]:
    """The names of the weights of an expert."""
    gate_up, down = experts.products(expert)
    return *gate_up, down


def adapter_features(loaded: LoadedModel) -> tuple[StepFeature, ...]:
    """What fills the mix of steps in which a row has an adapter."""
    if loaded.adapters is None:
        return ()
    places = loaded.adapters.places
    layers = adapted_layers(loaded, loaded.adapters)
    places.use(linears_of(loaded.model, loaded.adapters.dtype), loaded.kernels)

    def is_in(plan: StepPlan, slots: SlotTable) -> bool:
        return bool(slots.columns[ADAPTER_SLOT][plan.slots].any())

    def fill(step: StepInput, columns: Columns) -> AdapterMix:
        return AdapterMix.of(slots_of_tokens(step, columns[ADAPTER_SLOT]), layers, places.num_slots)

    return (StepFeature(StepFlag.MIX, is_in, fill),)


def adapted_layers(loaded: LoadedModel, adapters: Adapters) -> AdaptedLayers:
    """The layers of this model: kernels that are compiled meanwhile have a model of their own."""
    linears, experts = linears_of(loaded.model, adapters.dtype), experts_of(loaded)
    return AdaptedLayers(
        dict(zip(linears, adapters.places.layers, strict=True)),
        dict(zip(experts, adapters.places.experts, strict=True)),
        adapters.places.embedding,
        loaded.kernels.lora_add,
        loaded.kernels.adapt_rows,
    )


def slots_of_tokens(step: StepInput, column: torch.Tensor) -> torch.Tensor:
    """column: [slots] int32, one more than the slot of an adapter. Returns [T] int32, NO_ADAPTER without one."""
    of_rows = column[step.seq_slots.long().clamp_(min=0)] + NO_ADAPTER
    of_rows = torch.where(step.seq_slots < 0, NO_ADAPTER, of_rows)  # padding rows
    if step.num_tokens == step.num_rows and step.max_query_len == 1:
        return of_rows.to(torch.int32)
    return of_rows.repeat_interleave(step.query_start.diff(), output_size=step.num_tokens).to(torch.int32)


class AdapterLoads:
    """A StepCopy: places the adapters that a plan names before its step."""

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters

    def before(self, plan: StepPlan) -> None:
        """Reads no files: an adapter that a plan names stays in memory until the step is finished."""
        for load in plan.adapter_loads:
            self._adapters.place(load.slot, load.ref)

    def after(self, plan: StepPlan) -> None:
        """Does nothing."""
