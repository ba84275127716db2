"""POST /classify: the label of each text, with the probabilities of all; in vLLM's form, or in Infinity's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ...pooled import Floats
from ..endpoint import Call
from ..protocol.errors import unsupported
from ..protocol.pooling import ClassifyRequest
from .embeddings import most_values
from .pooled_texts import head_of, input_prompts, pooled, vectors_of


async def classify(call: Call) -> None:
    """`raw_scores` is a field of Infinity's clients only: with it, the answer has the form that they read."""
    service = call.service
    body = await call.body(ClassifyRequest, most_values(call))
    if body.raw_scores is not None and body.use_activation is not None:
        raise unsupported("use_activation", " with `raw_scores`, which says the same")
    model = await call.named_model(body.model)
    head, labels = head_of(service, "classify"), labels_of(call)
    prompts, params = await input_prompts(call, body)
    found = await pooled(call, body, prompts, params, ["classify"], prefix="classify-")
    activates = body.use_activation is not False and not body.raw_scores
    rows = vectors_of(service, head, found.rows("classify"), activates=activates)

    def build() -> dict[str, Any]:
        answer: dict[str, Any] = {"id": found.response_id, "object": "list", "created": int(time.time()),
                                  "model": model}  # fmt: skip
        if body.raw_scores is not None:
            answer["object"] = "classify"
            return {**answer, "data": [ranked_labels(row, labels) for row in rows], "usage": found.usage(service)}
        data = [
            {"index": index, "label": labels[int(row.argmax())], "probs": row.tolist(), "num_classes": len(row)}
            for index, row in enumerate(rows)
        ]
        return {**answer, "data": data, "usage": found.usage(service)}

    await call.answer_sized(rows.size, build)


def labels_of(call: Call) -> Sequence[str]:
    """The labels of the model; `LABEL_0` and so on where its files name none, as transformers calls them."""
    service = call.service
    head = head_of(service, "classify")
    labels = service.need_pooling().labels
    return [labels[index] if index < len(labels) else f"LABEL_{index}" for index in range(head.width)]


def ranked_labels(row: Floats, labels: Sequence[str]) -> list[dict[str, Any]]:
    """All labels with their scores, the best first."""
    return [{"score": float(row[index]), "label": labels[index]} for index in (-row).argsort(kind="stable").tolist()]
