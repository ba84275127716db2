"""Routes of TEI (Hugging Face's text-embeddings-inference), for its clients."""

from __future__ import annotations

from typing import Any

from ... import version
from ...model.pooling import PoolActivation, PoolTask
from ...pooled import as_json, similarities
from ...text.pool_prompts import PoolPrompt
from ..endpoint import Call
from ..protocol.errors import bad_request, unsupported
from ..protocol.pooling import MAX_TEXTS
from ..protocol.pooling_dialects import (
    SimilarityParameters,
    TeiDecodeRequest,
    TeiEmbedRequest,
    TeiFields,
    TeiPredictRequest,
    TeiSimilarityRequest,
    TeiTokensRequest,
)
from .classify import labels_of, ranked_labels
from .embeddings import most_values, sparse_of
from .pooled_texts import (
    Pooled,
    checked_dimensions,
    head_of,
    id_prompts,
    in_thread,
    limits_of,
    pooled,
    prefix_of,
    text_prompts,
    vectors_of,
)
from .score import rerank, tei_cut


async def embed(call: Call) -> None:
    body = await call.body(TeiEmbedRequest, most_values(call))
    await call.named_model(body.model)
    head = head_of(call.service, "embed")
    dimensions = checked_dimensions(head, body.dimensions, "dimensions")
    found, _ = await _pooled(call, body, body.inputs, body.prompt_name, "embed")
    # TEI normalises the vectors of every model unless the request says otherwise.
    activation: PoolActivation = "none" if body.normalize is False else "normalize"

    def build() -> bytes:
        rows = vectors_of(call.service, head, found.rows("embed"), dimensions=dimensions, activation=activation)
        return as_json(rows)

    await call.answer(await call.sized(len(found.results) * head.width, build))


async def embed_all(call: Call) -> None:
    """A vector for each token of each text, as the model computes it: TEI does not normalise these."""
    body = await call.body(TeiTokensRequest, most_values(call))
    await call.named_model(body.model)
    head = head_of(call.service, "token_embed")
    found, _ = await _pooled(call, body, body.inputs, body.prompt_name, "token_embed")

    def build() -> bytes:
        return b"[%b]" % b",".join(
            as_json(vectors_of(call.service, head, each["token_embed"], activates=False)) for each in found.results
        )

    await call.answer(await call.sized(found.run.num_prompt_tokens * head.width, build))


async def embed_sparse(call: Call) -> None:
    body = await call.body(TeiTokensRequest, most_values(call))
    await call.named_model(body.model)
    head = head_of(call.service, "sparse")
    found, prompts = await _pooled(call, body, body.inputs, body.prompt_name, "sparse")

    def build() -> bytes:
        pairs = zip(found.results, prompts, strict=True)
        return b"[%b]" % b",".join(
            sparse_of(call.service, head, each["sparse"], prompt.token_ids) for each, prompt in pairs
        )

    await call.answer(await call.sized(found.run.num_prompt_tokens * 16, build))


async def predict(call: Call) -> None:
    """The labels of a text, or of a pair of texts, with their scores, the best first."""
    service = call.service
    body = await call.body(TeiPredictRequest)
    await call.named_model(body.model)
    head, labels = head_of(service, "classify"), labels_of(call)
    items = body.items
    params = [f"inputs[{index}]" if body.is_batch else "inputs" for index in range(len(items))]
    if len({len(item) for item in items}) > 1:
        raise bad_request("texts and pairs cannot be mixed in one request", param="inputs")
    cut = tei_cut(call, body.truncate, body.truncation_direction)
    if len(items[0]) == 1:
        prompts = await text_prompts(call, [item[0] for item in items], cut, params)
    else:
        maker, limits = service.prompt_maker, limits_of(service, cut)
        pairs = [(item[0], item[1]) for item in items]
        fields = [(f"{param}[0]", f"{param}[1]") for param in params]
        num_chars = sum(map(len, (text for pair in pairs for text in pair)))
        prompts = await in_thread(service, num_chars, lambda: maker.pairs(pairs, limits, params=fields))
    found = await pooled(call, body, prompts, params, ["classify"], prefix="predict-")
    rows = vectors_of(service, head, found.rows("classify"), activates=not body.raw_scores)
    shown = [ranked_labels(row, labels) for row in rows]
    await call.answer_sized(sum(map(len, shown)), lambda: shown if body.is_batch else shown[0])


async def similarity(call: Call) -> None:
    """The cosine of each sentence and the source sentence."""
    service = call.service
    body = await call.body(TeiSimilarityRequest)
    await call.named_model(body.model)
    head = head_of(service, "embed")
    parameters, inputs = body.parameters or SimilarityParameters(), body.inputs
    cut = tei_cut(call, parameters.truncate, parameters.truncation_direction)
    texts = [inputs.source_sentence, *inputs.sentences]
    params = ["inputs.source_sentence", *(f"inputs.sentences[{index}]" for index in range(len(inputs.sentences)))]
    prefix = prefix_of(service, parameters.prompt_name)
    prompts = await text_prompts(call, texts, cut, params, prefix=prefix)
    found = await pooled(call, body, prompts, params, ["embed"], prefix="similarity-")
    rows = vectors_of(service, head, found.rows("embed"))
    await call.answer(as_json(similarities(rows[0], rows[1:], "cosine")))


async def decode(call: Call) -> None:
    service = call.service
    body = await call.body(TeiDecodeRequest, most_values(call))
    await call.checked_model(body.model)
    tokenizer, vocab_size = service.need_tokenizer(), service.model_limits.vocab_size

    def decoded() -> list[Any]:
        if (worst := max((max(ids, default=0) for ids in body.ids), default=0)) >= vocab_size:
            message = f"token id {worst} is outside the vocabulary of {vocab_size} tokens"
            raise bad_request(message, code="invalid_token_id", param="ids")
        return [tokenizer.decode(ids, skip_special_tokens=body.skip_special_tokens) for ids in body.ids]

    await call.answer_sized(sum(map(len, body.ids)), decoded)


async def info(call: Call) -> None:
    """What TEI's clients read about a model."""
    service = call.service
    scheduler, abilities = service.resolved.scheduler, service.abilities
    kind: dict[str, Any]
    if "classify" in abilities:
        labels = labels_of(call)
        names = {"id2label": dict(enumerate(labels)), "label2id": {name: index for index, name in enumerate(labels)}}
        kind = {"reranker" if "score" in abilities else "classifier": names}
    else:
        modes = next((head.modes for head in service.need_pooling().heads if head.modes), ())
        kind = {"embedding": {"pooling": "_".join(modes) or "none"}}
    await call.answer(
        {
            "model_id": service.model_name,
            "model_sha": None,
            "model_dtype": service.engine_info.dtype,
            "model_type": kind,
            "max_concurrent_requests": service.max_queued_requests,
            "max_input_length": service.model_limits.context,
            "max_batch_tokens": scheduler.max_num_batched_tokens,
            "max_batch_requests": scheduler.max_num_seqs,
            "max_client_batch_size": MAX_TEXTS,
            "auto_truncate": True,
            "tokenization_workers": 1,
            "version": version.__version__,
            "sha": None,
            "docker_label": None,
        }
    )


async def root(call: Call) -> None:
    """POST / is what the model is for: TEI's clients know no other path."""
    abilities = call.service.abilities
    if "classify" in abilities:
        await (rerank(call) if "score" in abilities else predict(call))
    elif "embed" in abilities or "token_embed" in abilities:
        await embed(call)
    else:
        await embed_sparse(call)


async def _pooled(
    call: Call, body: TeiFields, inputs: list[Any], prompt_name: str | None, task: PoolTask
) -> tuple[Pooled, list[PoolPrompt]]:
    """The result of one task for texts or token ids, which are cut unless the request says otherwise."""
    service = call.service
    cut = tei_cut(call, body.truncate, body.truncation_direction)
    params = ["inputs"] if len(inputs) == 1 else [f"inputs[{index}]" for index in range(len(inputs))]
    if isinstance(inputs[0], str):
        prompts = await text_prompts(call, inputs, cut, params, prefix=prefix_of(service, prompt_name))
    elif prompt_name is not None:
        raise unsupported("prompt_name", " with token ids: it is for texts")
    else:
        limits = service.model_limits
        prompts = await call.sized(sum(map(len, inputs)), lambda: id_prompts(inputs, limits, cut, params))
    return await pooled(call, body, prompts, params, [task], prefix="embd-"), prompts
