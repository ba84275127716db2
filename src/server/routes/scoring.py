"""How well pairs of texts match, by what the model can do: one pass over both, or a comparison of their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...model.pooling import PoolTask
from ...pooled import compared, max_sim, similarities
from ...text.length import too_long
from ...text.pool_prompts import BY_CHAT, PoolLimits, PoolPrompt, PromptMaker
from ...text.tokenizer import Truncation
from ..endpoint import Call
from ..protocol.chat import Conversation, Message
from ..protocol.errors import bad_request, unsupported
from ..protocol.pooling import PoolingFields
from .pooled_texts import Pooled, head_of, in_thread, limits_of, pooled, vectors_of
from .rendering import rendered


class Named(NamedTuple):
    """A text, and the field that has it."""

    text: str
    param: str


class Options(NamedTuple):
    """How pairs are compared. query, document: to how many tokens these are cut."""

    cut: Truncation | None = None
    query: int | None = None
    document: int | None = None
    instruction: str | None = None
    use_activation: bool | None = None


async def scored(
    call: Call, body: PoolingFields, queries: Sequence[Named], documents: Sequence[Named], options: Options,
    *, prefix: str,
) -> tuple[list[float], Pooled]:  # fmt: skip
    """A score for each document, with its query or, if there is one, with that one. A larger score is a better match.

    Raises ApiError, InvalidRequest or ClientGone.
    """
    call.service.need_tokenizer(documents[0].param.partition("[")[0])
    maker = call.service.prompt_maker
    if options.instruction is not None and not maker.has_instruction:
        raise unsupported("instruction", ": this model's prompts have none")
    if any(head.task == "classify" and head.width == 1 for head in call.service.need_pooling().heads):
        return await _in_one_pass(call, body, queries, documents, options, prefix)
    if options.use_activation is not None:
        raise unsupported("use_activation", ": this model's scores are comparisons of vectors")
    return await _by_vectors(
        call, body, queries, documents, options, prefix, is_late="embed" not in call.service.abilities
    )


async def _in_one_pass(
    call: Call, body: PoolingFields, queries: Sequence[Named], documents: Sequence[Named], options: Options, prefix: str
) -> tuple[list[float], Pooled]:
    service = call.service
    maker, limits = service.prompt_maker, _limits(call, options)
    both = [(queries[index if len(queries) > 1 else 0], document) for index, document in enumerate(documents)]

    def prompts() -> list[PoolPrompt]:
        return maker.pairs(
            [(query.text, document.text) for query, document in both],
            limits,
            params=[(query.param, document.param) for query, document in both],
            instruction=options.instruction,
        )

    num_chars = sum(len(query.text) + len(document.text) for query, document in both)
    if service.need_pooling().pair == BY_CHAT:
        made = await _by_chat_template(call, both, limits)
    else:
        made = await in_thread(service, num_chars, prompts)
    found = await pooled(call, body, made, [each.param for each in documents], ["classify"], prefix=prefix)
    activates = options.use_activation is not False
    rows = vectors_of(service, head_of(service, "classify"), found.rows("classify"), activates=activates)
    return rows[:, 0].tolist(), found


async def _by_chat_template(call: Call, both: Sequence[tuple[Named, Named]], limits: PoolLimits) -> list[PoolPrompt]:
    """Each pair by the model's chat template."""
    texts = [(query.text, document.text) for query, document in both]
    params = [(query.param, document.param) for query, document in both]
    maker, num_chars = call.service.prompt_maker, sum(map(len, (text for pair in texts for text in pair)))
    plain = await in_thread(call.service, num_chars, lambda: maker.plain_pairs(texts, limits, params))
    found: list[PoolPrompt] = []
    num_tokens = 0
    for pair, (_, param) in zip(plain, params, strict=True):
        found.append(await _as_messages(call, *pair, limits, param))
        num_tokens += len(found[-1].token_ids)
        limits.check_call(num_tokens, param.partition("[")[0])
    return found


async def _as_messages(call: Call, query: str, document: str, limits: PoolLimits, param: str) -> PoolPrompt:
    """A pair by the model's chat template, which has a role for each of the two. A long document is cut."""
    maker, longest = call.service.prompt_maker, limits.longest

    async def token_ids(text: str) -> list[int]:
        messages = [Message(role="query", content=query), Message(role="document", content=text)]
        conversation = Conversation(messages=messages, add_generation_prompt=False)
        prompt = await rendered(
            call, conversation, max_tokens=limits.context, add_special_tokens=False, cut=None, has_output=False
        )
        return prompt.token_ids

    if limits.cut is not None:
        document = maker.shortened([document], longest, limits.side)[0]
    ids = await token_ids(document)
    if len(ids) > longest and limits.cut is None:
        raise too_long(len(ids), limits.context, param=param, has_output=False)
    room = longest - len(await token_ids("")) if len(ids) > longest else 0
    while len(ids) > longest:
        if room <= 0:
            message = f"the query and the model's template leave no room for a document in {longest} tokens"
            raise bad_request(message, param=param)
        document = maker.shortened([document], room, limits.side)[0]
        ids = await token_ids(document)
        room = min(room - 1, room + longest - len(ids))
    return PoolPrompt(ids)


def _limits(call: Call, options: Options) -> PoolLimits:
    return limits_of(call.service, options.cut, query=options.query, document=options.document)


async def _by_vectors(
    call: Call, body: PoolingFields, queries: Sequence[Named], documents: Sequence[Named], options: Options,
    prefix: str, *, is_late: bool,
) -> tuple[list[float], Pooled]:  # fmt: skip
    """is_late: the vectors of all tokens are compared (late interaction), not one vector of each text."""
    service = call.service
    maker, limits = service.prompt_maker, _limits(call, options)
    prompts = await in_thread(
        service,
        sum(len(each.text) for each in (*queries, *documents)),
        lambda: _both_kinds(maker, queries, documents, limits, is_late=is_late),
    )
    task: PoolTask = "token_embed" if is_late else "embed"
    params = [each.param for each in (*queries, *documents)]
    answer = await pooled(call, body, prompts, params, [task], prefix=prefix)
    head = head_of(service, task)

    pooling, num_queries = service.need_pooling(), len(queries)

    def compare_tokens() -> list[float]:
        arrays = [vectors_of(service, head, result[task]) for result in answer.results]
        kept = [
            compared(pooling, head, array, prompt.token_ids)
            for array, prompt in zip(arrays[num_queries:], prompts[num_queries:], strict=True)
        ]
        return [max_sim(arrays[index if num_queries > 1 else 0], array) for index, array in enumerate(kept)]

    def compare() -> list[float]:
        rows = vectors_of(service, head, answer.rows(task))
        if num_queries == 1:
            found: list[float] = similarities(rows[0], rows[1:], pooling.similarity).tolist()
            return found
        pairs = zip(rows[:num_queries], rows[num_queries:], strict=True)
        return [float(similarities(query, document[None], pooling.similarity)[0]) for query, document in pairs]

    num_tokens = sum(len(prompt.token_ids) for prompt in prompts)
    return await call.sized(num_tokens, compare_tokens if is_late else compare), answer


def _both_kinds(
    maker: PromptMaker, queries: Sequence[Named], documents: Sequence[Named], limits: PoolLimits, *, is_late: bool
) -> list[PoolPrompt]:
    """Prompts of the queries, then those of the documents."""
    found: list[PoolPrompt] = []
    for texts, num_tokens, kind in ((queries, limits.query, "query"), (documents, limits.document, "document")):
        shortened = maker.shortened([each.text for each in texts], num_tokens, limits.side)
        params = [each.param for each in texts]
        make = {"query": maker.queries, "document": maker.documents}[kind] if is_late else maker.texts
        found += make(shortened, limits, params=params)
    return found
