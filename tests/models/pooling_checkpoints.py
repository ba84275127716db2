"""Tiny random checkpoints of classes that generate no tokens, saved by transformers, which is the reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedModel

from .checkpoints import COMMON, FAMILIES, spread
from .stepped import Row, SteppedModel

TEXTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 5, 6, 15, 16, 17, 18, 19, 20, 21, 22, 23], [7]]


def build(architecture: str, model_type: str, **settings: Any) -> PreTrainedModel:
    """A float32 model of a class of transformers."""
    config = AutoConfig.for_model(model_type, **{key: value for key, value in settings.items() if value is not ...})
    torch.manual_seed(0)
    model = spread(getattr(transformers, architecture)(config).float())
    model.config.architectures = [architecture]
    return model


def build_decoder(architecture: str, family: str, **changes: Any) -> PreTrainedModel:
    """The same of a class of a decoder with the sizes of a family of checkpoints.py."""
    settings = {**COMMON, **FAMILIES[family], **changes}
    return build(architecture, settings.pop("model_type"), **settings)


def pooled(
    model: SteppedModel, task: str, texts: Sequence[list[int]], first: Sequence[int] | None = None, **fields: Any
) -> list[torch.Tensor]:
    """Results of each text, all in one step. first: as of Pooler.pool. fields: of the StepInput."""
    rows: list[Row] = [(0, text) for text in texts]
    pooler = model.model.poolers[task]
    ends = torch.tensor([len(text) for text in texts]).cumsum(0)
    starts = torch.cat((torch.zeros(1, dtype=torch.int64), ends))
    needed = None
    counts = [len(text) for text in texts]
    if pooler.head.needs_first or not pooler.head.needs_all:
        needed = ends - 1 if not pooler.head.needs_first else starts[:-1].clone()
        starts, counts = torch.arange(len(texts) + 1), [1] * len(texts)
    hidden, residual = model.forward(rows, needed, **fields)
    with torch.inference_mode():
        found = pooler.pool(hidden, residual, starts, first)
    assert found.dtype == torch.float32
    assert found.shape[1] == pooler.head.width
    return list(found.split(counts)) if not pooler.head.modes else list(found.unsqueeze(1).unbind(0))


def stepped(folder: Path, place: Path, num_rows: int = len(TEXTS), **sections: Any) -> SteppedModel:
    """A model whose step has room for the longest text. sections: also `with_kernels`."""
    return SteppedModel(folder, place, num_rows=num_rows, **{"scheduler": {"max_num_batched_tokens": 64}, **sections})


def assert_alone_and_together(
    model: SteppedModel, task: str, expected: Sequence[torch.Tensor], tolerance: float = 1e-5, **fields: Any
) -> None:
    """The results of TEXTS in one step, and of each in a step of its own."""
    together = pooled(model, task, TEXTS, **fields)
    for text, found, wanted in zip(TEXTS, together, expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)
        (alone,) = pooled(model, task, [text])
        torch.testing.assert_close(alone, wanted, atol=tolerance, rtol=tolerance)
