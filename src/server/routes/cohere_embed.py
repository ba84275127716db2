"""POST /v2/embed: vectors of texts as Cohere's clients ask for them, in several forms at once."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from ...pooled import Floats, as_json, encoded, quantised
from ...text.tokenizer import Truncation
from ..endpoint import Call
from ..protocol import json
from ..protocol.errors import bad_request
from ..protocol.pooling_dialects import CohereEmbedRequest, CohereType
from ..service import Service
from .pooled_texts import checked_dimensions, head_of, pooled, text_prompts, vectors_of

# What models call the prompts of Cohere's types of input, in order of preference.
_PROMPT_NAMES = {
    "search_document": ("search_document", "document", "passage", "retrieval.passage", "retrieval_document"),
    "search_query": ("search_query", "query", "retrieval.query", "retrieval_query"),
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "Clustering"),
}


async def cohere_embed(call: Call) -> None:
    service = call.service
    body = await call.body(CohereEmbedRequest)
    await call.named_model(body.model)
    head = head_of(service, "embed")
    dimensions = checked_dimensions(head, body.output_dimension, "output_dimension")
    wanted: Sequence[CohereType] = body.embedding_types or ("float",)
    types = list(dict.fromkeys(wanted))
    width = dimensions or service.need_pooling().default_dimensions or head.width
    if width % 8 and (bits := [each for each in types if each in ("binary", "ubinary")]):
        message = f"vectors of {width} elements are not a whole number of bytes, as bits ({bits[0]})"
        raise bad_request(message, param="embedding_types")
    field, texts = ("texts", body.texts) if body.texts is not None else ("inputs", body.inputs or [])
    params = [f"{field}[{index}]" for index in range(len(texts))]
    prefix = _prompt(service, body.input_type)
    prompts = await text_prompts(call, texts, _cut(service, body), params, prefix=prefix)
    found = await pooled(call, body, prompts, params, ["embed"], prefix="embd-")

    def build() -> bytes:
        vectors = vectors_of(service, head, found.rows("embed"), dimensions=dimensions)
        shown = b",".join(b'"%b":%b' % (kind.encode(), _as(kind, vectors)) for kind in types)
        billed = {"input_tokens": found.run.num_prompt_tokens}
        rest = {"texts": texts, "meta": {"api_version": {"version": "2"}, "billed_units": billed},
                "response_type": "embeddings_by_type"}  # fmt: skip
        return b'{"id":%b,"embeddings":{%b},%b' % (json.dump(found.response_id), shown, json.dump(rest)[1:])

    await call.answer(await call.sized(len(texts) * width, build))


def _as(kind: CohereType, vectors: Floats) -> bytes:
    """The vectors in one form, as JSON."""
    if kind == "float":
        return as_json(vectors)
    if kind == "base64":
        return json.dump([base64.b64encode(encoded(row[None])).decode() for row in vectors])
    return as_json(quantised(vectors, kind))


def _cut(service: Service, body: CohereEmbedRequest) -> Truncation | None:
    """The end of a long text is cut, unless the request says otherwise."""
    context = service.model_limits.context
    num_tokens = context if body.max_tokens is None else min(body.max_tokens, context)
    if body.truncate == "NONE":
        if body.max_tokens is not None:
            raise bad_request("`max_tokens` cuts texts, which `truncate` forbids as NONE", param="max_tokens")
        return None
    return Truncation(num_tokens, "left" if body.truncate == "START" else "right")


def _prompt(service: Service, input_type: str | None) -> str:
    """The text before each text. A model without prompts has none for any of Cohere's types. Raises ApiError."""
    prompts = service.need_pooling().prompts
    if input_type is None:
        return ""
    names: Sequence[str] = _PROMPT_NAMES.get(input_type, (input_type,))
    chosen = next((prompts[name] for name in names if name in prompts), None)
    if chosen is not None:
        return chosen
    # sentence-transformers writes empty prompts into the files of models that have none
    if not any(prompts.values()) and input_type in _PROMPT_NAMES:
        return ""
    known = ", ".join(sorted(prompts) or sorted(_PROMPT_NAMES))
    raise bad_request(f"this model has no prompt for {input_type!r}; it has {known}", param="input_type")
