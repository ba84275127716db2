"""POST /v1/embeddings: a vector for each text. POST /pooling: what any of the model's tasks makes of each text."""

from __future__ import annotations

import base64
import functools
import json as plain_json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...model.pooling import PoolHead, PoolTask
from ...pooled import Floats, as_json, encoded, of_steps, sparse_entries
from ...text.pool_prompts import PoolPrompt
from ..endpoint import Call
from ..protocol import json
from ..protocol.errors import bad_request, unsupported
from ..protocol.json import MAX_VALUES
from ..protocol.pooling import BYTES_FORMATS, MAX_TEXTS, EmbeddingRequest, PoolingRequest, VectorFields
from ..service import Service
from .pooled_texts import Pooled, checked_dimensions, head_of, input_prompts, pooled, vectors_of

MAX_DESCRIBED = 400  # vectors in the header of octets: clients refuse headers beyond 64 KB
OCTETS = "application/octet-stream"


async def embeddings(call: Call) -> None:
    body = await call.body(EmbeddingRequest, most_values(call))
    # One vector for each text, or one for each token if the model has no other.
    task: PoolTask = "embed" if "embed" in call.service.abilities else "token_embed"
    await _answer(call, body, [task], "embd-", "embedding")


async def pooling(call: Call) -> None:
    """Several tasks are results of one pass; what is returned for a text is then an object by task."""
    body = await call.body(PoolingRequest, most_values(call))
    heads = call.service.need_pooling().heads
    tasks = dict.fromkeys(_known(call, task) for task in body.tasks)
    await _answer(call, body, [*tasks] or [heads[0].task], "pool-", "pooling")


def _known(call: Call, task: PoolTask) -> PoolTask:
    """vLLM's clients call the weights of tokens of BGE-M3 `token_classify`."""
    abilities = call.service.abilities
    return "sparse" if task == "token_classify" and task not in abilities and "sparse" in abilities else task


def most_values(call: Call) -> int:
    """The number of values that a body may have whose texts are lists of token ids."""
    return max(MAX_VALUES, min(MAX_TEXTS * call.service.max_model_len, 1 << 24))


async def _answer(call: Call, body: VectorFields, tasks: Sequence[PoolTask], prefix: str, kind: str) -> None:
    """kind: of the objects in the answer."""
    service = call.service
    model = await call.named_model(body.model)
    # `dimensions` is about the embeddings among the results of several tasks.
    cut = {"embed"} if "embed" in tasks else set(tasks)
    forms = [_Form(service, body, head_of(service, task), is_cut=task in cut) for task in tasks]
    is_octets = body.encoding_format in BYTES_FORMATS
    if is_octets and len(forms) > 1:
        raise unsupported("encoding_format", f" {body.encoding_format!r} with several tasks")
    prompts, params = await input_prompts(call, body)
    if body.encoding_format == "bytes" and len(prompts) > MAX_DESCRIBED:
        message = f"a header describes at most {MAX_DESCRIBED} vectors, not {len(prompts)}: send `bytes_only` or base64"
        raise bad_request(message, code="array_above_max_length", param="encoding_format")
    found = await pooled(call, body, prompts, params, tasks, prefix=prefix)
    size = sum(array.size for result in found.results for array in result.values())
    if is_octets:
        form, arrays = forms[0], [result[tasks[0]] for result in found.results]
        content, entries = await call.sized(size, lambda: _octets(form.rows(arrays, prompts), body, form.head))
        if body.encoding_format == "bytes":
            metadata = {"id": found.response_id, "created": int(time.time()), "model": model, "data": entries,
                        "usage": found.usage(service)}  # fmt: skip
            call.headers["metadata"] = plain_json.dumps(metadata, separators=(",", ":"))  # ASCII, as headers must be
        await call.answer(content, content_type=OCTETS)
        return

    def build() -> bytes:
        columns = [form.values([result[form.task] for result in found.results], prompts) for form in forms]
        names = [form.task.encode() for form in forms]
        shown = columns[0]
        if len(forms) > 1:
            fields = [
                [b'"%b":%b' % (name, each) for each in column] for name, column in zip(names, columns, strict=True)
            ]
            shown = [b"{%b}" % b",".join(values) for values in zip(*fields, strict=True)]
        return listed(found, model, kind, "embedding" if kind == "embedding" else "data", shown, found.usage(service))

    await call.answer(await call.sized(size, build))


class _Form:
    """How the results of one task are returned."""

    def __init__(self, service: Service, body: VectorFields, head: PoolHead, *, is_cut: bool) -> None:
        """is_cut: whether `dimensions` is about these results. Raises ApiError for a form that they do not have."""
        self.head = head
        self.task: PoolTask = head.task
        self._service, self._body = service, body
        self._dimensions = checked_dimensions(head, body.dimensions, "dimensions") if is_cut else None
        if head.task == "sparse" and body.is_binary:
            raise unsupported("encoding_format", f" {body.encoding_format!r} for the task `sparse`")
        if head.task == "sparse" and body.use_activation is False:
            raise unsupported("use_activation", ": false would return a weight for every token of the vocabulary")

    def rows(self, found: Sequence[Floats], prompts: Sequence[PoolPrompt]) -> list[Floats]:
        """The vectors of each text; of a task of tokens only those of step tokens, if the model has such."""
        activates = self._body.use_activation is not False
        finish = functools.partial(
            vectors_of, self._service, self.head, dimensions=self._dimensions, activates=activates
        )
        if self.head.modes:  # one for each text: all at once
            return np.split(finish(np.concatenate(found)), len(found))
        pooling = self._service.need_pooling()
        return [
            of_steps(pooling, self.head, finish(rows), prompt.token_ids)
            for rows, prompt in zip(found, prompts, strict=True)
        ]

    def values(self, found: Sequence[Floats], prompts: Sequence[PoolPrompt]) -> list[bytes]:
        """The same as JSON."""
        if self.task == "sparse":
            pairs = zip(found, prompts, strict=True)
            return [sparse_of(self._service, self.head, each, prompt.token_ids) for each, prompt in pairs]
        rows, body = self.rows(found, prompts), self._body
        if body.is_binary:
            element, endianness = body.embed_dtype or "float32", body.endianness or "little"
            return [b'"%b"' % base64.b64encode(encoded(each, element, endianness)) for each in rows]
        return [as_json(each[0] if self.head.modes else each) for each in rows]


def listed(found: Pooled, model: str, kind: str, name: str, shown: Sequence[bytes], usage: dict[str, Any]) -> bytes:
    """The usual answer, a list of objects. name: of the field of each with what is `shown`, as JSON."""
    head = json.dump({"id": found.response_id, "object": "list", "created": int(time.time()), "model": model})
    objects = b",".join(
        b'{"object":"%b","index":%d,"%b":%b}' % (kind.encode(), index, name.encode(), value)
        for index, value in enumerate(shown)
    )
    return b'%b,"data":[%b],"usage":%b}' % (head[:-1], objects, json.dump(usage))


def _octets(vectors: Sequence[Floats], body: VectorFields, head: PoolHead) -> tuple[bytes, list[dict[str, Any]]]:
    """All vectors, and where each is in them."""
    element, endianness = body.embed_dtype or "float32", body.endianness or "little"
    pieces, entries, start = [], [], 0
    for index, array in enumerate(vectors):
        piece = encoded(array, element, endianness)
        shape = [array.shape[1]] if head.modes else list(array.shape)
        entries.append({"index": index, "embed_dtype": element, "endianness": endianness, "start": start,
                        "end": start + len(piece), "shape": shape})  # fmt: skip
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces), entries


def sparse_of(service: Service, head: PoolHead, array: Floats, token_ids: Sequence[int]) -> bytes:
    """Weights of tokens of the vocabulary, as JSON, without those of special tokens wherever they are in the text.

    Without a tokenizer, it is not known which tokens are special: then the head says how many there are at the ends.
    """
    kept, special = list(token_ids), frozenset[int]()
    if not head.modes:
        if service.tokenizer is None:
            kept = kept[head.skips_first : len(kept) - head.skips_last]
        else:
            special = service.tokenizer.special_ids
            head = head.model_copy(update={"skips_first": 0, "skips_last": 0})
    entries = sparse_entries(vectors_of(service, head, array), kept, leaves_out=special)
    return json.dump([{"index": entry.token_id, "value": entry.weight} for entry in entries])
