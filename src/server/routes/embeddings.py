"""POST /v1/embeddings: a vector for each text. POST /pooling: what any of the model's tasks makes of each text."""

from __future__ import annotations

import base64
import json as plain_json
import time
from collections.abc import Sequence
from typing import Any

from ...model.pooling import PoolHead, PoolTask
from ...pooled import Floats, as_json, encoded, sparse_entries
from ..endpoint import Call
from ..protocol import json
from ..protocol.errors import unsupported
from ..protocol.json import MAX_VALUES
from ..protocol.pooling import MAX_TEXTS, EmbeddingRequest, PoolingRequest, VectorFields
from ..service import Service
from .pooled_texts import Pooled, checked_dimensions, head_of, input_prompts, pooled, vectors_of

OCTETS = "application/octet-stream"


async def embeddings(call: Call) -> None:
    body = await call.body(EmbeddingRequest, most_values(call))
    await _answer(call, body, _embedding_task(call), "embd-", "embedding")


async def pooling(call: Call) -> None:
    body = await call.body(PoolingRequest, most_values(call))
    task: PoolTask = body.task or call.service.need_pooling().heads[0].task  # type: ignore[assignment]  # checked by the model
    await _answer(call, body, task, "pool-", "pooling")


def most_values(call: Call) -> int:
    """The number of values that a body may have whose texts are lists of token ids."""
    return max(MAX_VALUES, min(MAX_TEXTS * call.service.max_model_len, 1 << 24))


def _embedding_task(call: Call) -> PoolTask:
    """One vector for each text, or one for each token if the model has no other."""
    return "embed" if "embed" in call.service.abilities else "token_embed"


async def _answer(call: Call, body: VectorFields, task: PoolTask, prefix: str, kind: str) -> None:
    """kind: of the objects in the answer."""
    service = call.service
    model = await call.named_model(body.model)
    head = head_of(service, task)
    dimensions = checked_dimensions(head, body.dimensions, "dimensions")
    if head.task == "sparse" and (body.is_binary or dimensions is not None):
        raise unsupported("encoding_format" if body.is_binary else "dimensions", " for the task `sparse`")
    prompts, params = await input_prompts(call, body)
    found = await pooled(call, body, prompts, params, [task], prefix=prefix)
    activates = body.use_activation is not False
    arrays = [result[task] for result in found.results]
    is_list = bool(head.modes)  # one vector for each text, not a matrix

    def vectors() -> list[Floats]:
        shown = [vectors_of(service, head, array, dimensions=dimensions, activates=activates) for array in arrays]
        step = service.need_pooling().step_token
        if step is None or head.modes:
            return shown
        return [
            rows[[token == step for token in prompt.token_ids]] for rows, prompt in zip(shown, prompts, strict=True)
        ]

    size = sum(array.size for array in arrays)
    if body.encoding_format in ("bytes", "bytes_only"):
        content, entries = await call.sized(size, lambda: _octets(vectors(), body, is_list=is_list))
        if body.encoding_format == "bytes":
            metadata = {"id": found.response_id, "created": int(time.time()), "model": model, "data": entries,
                        "usage": found.usage(service)}  # fmt: skip
            # bytes of a header are latin-1
            call.headers["metadata"] = plain_json.dumps(metadata, separators=(",", ":"))
        await call.answer(content, content_type=OCTETS)
        return
    name = "embedding" if kind == "embedding" else "data"

    def build() -> bytes:
        if head.task == "sparse":
            shown = [
                sparse_of(service, head, array, prompt.token_ids) for array, prompt in zip(arrays, prompts, strict=True)
            ]
        elif body.is_binary:
            shown = [_base64(array, body) for array in vectors()]
        else:
            shown = [as_json(array[0] if is_list else array) for array in vectors()]
        return listed(found, model, kind, name, shown, found.usage(service))

    await call.answer(await call.sized(size, build))


def listed(found: Pooled, model: str, kind: str, name: str, shown: Sequence[bytes], usage: dict[str, Any]) -> bytes:
    """The usual answer, a list of objects. name: of the field of each with what is `shown`, as JSON."""
    head = json.dump({"id": found.response_id, "object": "list", "created": int(time.time()), "model": model})
    objects = b",".join(
        b'{"object":"%b","index":%d,"%b":%b}' % (kind.encode(), index, name.encode(), value)
        for index, value in enumerate(shown)
    )
    return b'%b,"data":[%b],"usage":%b}' % (head[:-1], objects, json.dump(usage))


def _base64(vectors: Floats, body: VectorFields) -> bytes:
    content = encoded(vectors, body.embed_dtype or "float32", body.endianness or "little")
    return b'"%b"' % base64.b64encode(content)


def _octets(vectors: Sequence[Floats], body: VectorFields, *, is_list: bool) -> tuple[bytes, list[dict[str, Any]]]:
    """All vectors, and where each is in them."""
    element, endianness = body.embed_dtype or "float32", body.endianness or "little"
    pieces, entries, start = [], [], 0
    for index, array in enumerate(vectors):
        piece = encoded(array, element, endianness)
        shape = [array.shape[1]] if is_list else list(array.shape)
        entries.append({"index": index, "embed_dtype": element, "endianness": endianness, "start": start,
                        "end": start + len(piece), "shape": shape})  # fmt: skip
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces), entries


def sparse_of(service: Service, head: PoolHead, array: Floats, token_ids: Sequence[int]) -> bytes:
    """Weights of tokens of the vocabulary, as JSON."""
    kept = list(token_ids)
    if not head.modes:
        kept = kept[head.skips_first : len(kept) - head.skips_last]
    entries = sparse_entries(vectors_of(service, head, array), kept)
    return json.dump([{"index": entry.token_id, "value": entry.weight} for entry in entries])
