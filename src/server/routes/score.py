"""POST /score and /rerank, in the forms of vLLM, Jina, Cohere, Infinity and TEI."""

from __future__ import annotations

import time
from typing import Any

from ...text.tokenizer import Truncation
from ..endpoint import Call
from ..protocol.pooling import PairFields, RerankRequest, ScoreRequest
from .pooled_texts import cut_of, side_of
from .scoring import Named, Options, scored


async def score(call: Call) -> None:
    body = await call.body(ScoreRequest)
    model = await call.named_model(body.model)
    queries = _named(body.queries, "queries")
    documents = _named(body.documents, "documents")
    scores, found = await scored(call, body, queries, documents, _options(call, body), prefix="score-")
    data = [{"index": index, "object": "score", "score": each} for index, each in enumerate(scores)]
    answer = {"id": found.response_id, "object": "list", "created": int(time.time()), "model": model}
    await call.answer({**answer, "data": data, "usage": found.usage(call.service)})


async def rerank(call: Call) -> None:
    """TEI's clients send `texts`, all others `documents`; Infinity's send `raw_scores`, too."""
    body = await call.body(RerankRequest)
    model = await call.named_model(body.model)
    query = [Named(body.query, "query")]
    if body.texts is not None:
        await _as_tei(call, body, query)
        return
    texts = body.documents or []
    options = _options(call, body)
    if body.raw_scores is not None:
        options = options._replace(use_activation=False if body.raw_scores else None)
    scores, found = await scored(call, body, query, _named(texts, "documents"), options, prefix="rerank-")
    best = _best(scores)[: body.top_n or None]
    has_documents = body.return_documents is not False if body.raw_scores is None else bool(body.return_documents)
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in best]
    for result in results if has_documents else ():
        text = texts[result["index"]]
        result["document"] = text if body.raw_scores is not None else {"text": text}
    usage = found.usage(call.service)
    answer: dict[str, Any] = {"id": found.response_id, "object": "rerank", "created": int(time.time()),
                              "model": model, "results": results, "usage": usage}  # fmt: skip
    # Cohere's clients read what they are billed for.
    billed = {"search_units": 1, "input_tokens": usage["prompt_tokens"]}
    answer["meta"] = {"api_version": {"version": "2"}, "billed_units": billed}
    await call.answer(answer)


async def _as_tei(call: Call, body: RerankRequest, query: list[Named]) -> None:
    texts = body.texts or []
    options = Options(
        cut=tei_cut(call, body.truncate, body.truncation_direction),
        use_activation=False if body.raw_scores else None,
    )
    scores, _ = await scored(call, body, query, _named(texts, "texts"), options, prefix="rerank-")
    results: list[dict[str, Any]] = [{"index": index, "score": scores[index]} for index in _best(scores)]
    for result in results if body.return_text else ():
        result["text"] = texts[result["index"]]
    await call.answer(results)


def tei_cut(call: Call, truncate: bool | None, direction: str | None) -> Truncation | None:
    """How TEI's clients have a long text cut: to what the model takes, unless they switch it off."""
    if truncate is False:
        return None
    side = side_of(call.service) if direction is None else "left" if direction.lower() == "left" else "right"
    return Truncation(call.service.model_limits.context, side)


def _named(texts: list[str], param: str) -> list[Named]:
    return [Named(text, f"{param}[{index}]") for index, text in enumerate(texts)]


def _options(call: Call, body: PairFields) -> Options:
    return Options(
        cut=cut_of(body, call.service),
        query=body.max_tokens_per_query,
        document=body.max_tokens_per_doc,
        instruction=body.instruction,
        use_activation=body.use_activation,
    )


def _best(scores: list[float]) -> list[int]:
    """Indices by descending score; of equal ones the earlier first."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])
