"""Prompts of pooling requests: texts, and pairs of texts, to token ids, many in one call.

A pair becomes one prompt by the tokenizer's post-processor, which writes the special tokens between the two, or by a
template, of models that were trained with one. A long prompt is refused, or cut: of a pair only the texts are cut,
never what the template writes around them.

Everything here takes time in proportion to the texts: call it on the tokenizer's threads (`Tokenizer.run`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import tokenizers

from ..engine.api import InvalidRequest
from ..model.pooling import Pooling
from .length import too_long
from .tokenizer import Side, Tokenizer, Truncation

BY_TOKENIZER, BY_CHAT = "tokenizer", "chat"  # as Pooling.pair; by chat template, which the caller renders
_SLOTS = ("{instruction}", "{query}", "{document}")


@dataclass(frozen=True, slots=True)
class PoolPrompt:
    """first, second: as in PoolingParams."""

    token_ids: list[int]
    first: int = 0
    second: int | None = None


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How long prompts and texts may be, in tokens.

    context: the most that the model takes. cut: a longer prompt is cut so; None: it is refused.
    query, document: longer texts of pairs are cut to these before they become prompts; None: they are not.
    """

    context: int
    cut: Truncation | None = None
    query: int | None = None
    document: int | None = None

    @property
    def side(self) -> Side:
        return "right" if self.cut is None else self.cut.side


class PromptMaker:
    def __init__(self, tokenizer: Tokenizer, pooling: Pooling) -> None:
        self._tokenizer = tokenizer
        self._pooling = pooling
        self._template = None if pooling.pair in (BY_TOKENIZER, BY_CHAT) else _parts_of(pooling.pair)
        self._leaves_out_prompts = any(not head.includes_prompt for head in pooling.heads)

    @property
    def has_instruction(self) -> bool:
        """Whether prompts of pairs have an instruction."""
        return self._template is not None and "{instruction}" in self._template

    def texts(
        self, texts: Sequence[str], limits: PoolLimits, *, params: Sequence[str], prefix: str = "",
        add_special_tokens: bool = True,
    ) -> list[PoolPrompt]:  # fmt: skip
        """One prompt for each text. params: the field of each, for errors. prefix: written before each.

        Raises InvalidRequest for a text that is empty or too long.
        """
        written = [prefix + self._plain(text, param) for text, param in zip(texts, params, strict=True)]
        ids = self._encode(written, limits, params, add_special_tokens=add_special_tokens)
        first = self._tokenizer.num_before(prefix) if prefix and self._leaves_out_prompts else 0
        cuts_prefix = limits.cut is not None and limits.cut.side == "left"
        return [PoolPrompt(each, 0 if cuts_prefix and self._is_full(each, limits) else first) for each in ids]

    def queries(self, texts: Sequence[str], limits: PoolLimits, *, params: Sequence[str]) -> list[PoolPrompt]:
        """Prompts of queries that are compared token by token: with the model's marker, and filled to its length."""
        found = self._marked(texts, limits, params, self._pooling.query_marker)
        filler, length = self._pooling.query_filler, self._pooling.query_length or 0
        if filler is None:
            return found
        return [PoolPrompt(each.token_ids + [filler] * (length - len(each.token_ids))) for each in found]

    def documents(self, texts: Sequence[str], limits: PoolLimits, *, params: Sequence[str]) -> list[PoolPrompt]:
        """Prompts of the documents that are compared with such queries."""
        return self._marked(texts, limits, params, self._pooling.document_marker)

    def _marked(
        self, texts: Sequence[str], limits: PoolLimits, params: Sequence[str], marker: str | None
    ) -> list[PoolPrompt]:
        """The marker is a token before the text, after the special token at the beginning."""
        if marker is None:
            return self.texts(texts, limits, params=params)
        ids = self._tokenizer.encode(marker, add_special_tokens=False)
        cut = limits.cut
        room = replace(
            limits,
            context=limits.context - len(ids),
            cut=None if cut is None else Truncation(max(1, cut.num_tokens - len(ids)), cut.side),
        )
        place = self._tokenizer.num_before("")
        found = [each.token_ids for each in self.texts(texts, room, params=params)]
        return [PoolPrompt([*each[:place], *ids, *each[place:]]) for each in found]

    def shortened(self, texts: Sequence[str], num_tokens: int | None, side: Side) -> list[str]:
        """Each text, or its part of about `num_tokens` tokens; None: it stays as it is."""
        return [self._shortened(text, num_tokens, side) for text in texts]

    def pairs(
        self, pairs: Sequence[tuple[str, str]], limits: PoolLimits, *, params: Sequence[tuple[str, str]],
        instruction: str | None = None,
    ) -> list[PoolPrompt]:  # fmt: skip
        """One prompt for each query and its document. params: the fields of each pair.

        instruction: None for the model's own. Raises InvalidRequest for a text that is empty, or a pair that is too
        long.
        """
        plain = [self.pair(*pair, limits, fields) for pair, fields in zip(pairs, params, strict=True)]
        if self._template is None:
            return self._post_processed(plain, limits, [param for _, param in params])
        wanted = self._pooling.instruction if instruction is None else instruction
        return [
            PoolPrompt(self._filled(query, document, wanted, limits, param))
            for (query, document), (_, param) in zip(plain, params, strict=True)
        ]

    def pair(self, query: str, document: str, limits: PoolLimits, params: tuple[str, str]) -> tuple[str, str]:
        """A pair as it becomes a prompt, each text cut to its own limit. Raises InvalidRequest for an empty text."""
        return (
            self._shortened(self._plain(query, params[0]), limits.query, limits.side),
            self._shortened(self._plain(document, params[1]), limits.document, limits.side),
        )

    def _plain(self, text: str, param: str) -> str:
        if not text:
            raise InvalidRequest(f"`{param}` is an empty text", param=param)
        return text.lower() if self._pooling.lowers_case else text

    def _shortened(self, text: str, num_tokens: int | None, side: Side) -> str:
        # a text has at most as many tokens as bytes
        if num_tokens is None or len(text) * 4 <= num_tokens:
            return text
        return self._tokenizer.shortened(text, num_tokens, side)

    def _encode(
        self, texts: Sequence[str], limits: PoolLimits, params: Sequence[str], *, add_special_tokens: bool
    ) -> list[list[int]]:
        tokenizer, cut = self._tokenizer, limits.cut
        if cut is None:
            limit = tokenizer.text_limit(limits.context, has_output=False)
            for text, param in zip(texts, params, strict=True):
                limit.check(text, param=param)
            found = [each.ids for each in tokenizer.encode_many(texts, add_special_tokens=add_special_tokens)]
            for ids, param in zip(found, params, strict=True):
                if len(ids) > limits.context:
                    raise too_long(len(ids), limits.context, param=param, has_output=False)
            return found
        longest = cut.num_tokens * tokenizer.text_limit(1).bytes_per_token
        short = [text if len(text) <= longest else "" for text in texts]  # the others are cut for sure
        found = [each.ids for each in tokenizer.encode_many(short, add_special_tokens=add_special_tokens)]
        for index, (text, ids) in enumerate(zip(texts, found, strict=True)):
            if len(ids) > cut.num_tokens or not short[index]:
                found[index] = tokenizer.encode_cut(text, cut, add_special_tokens=add_special_tokens)
        return found

    @staticmethod
    def _is_full(ids: Sequence[int], limits: PoolLimits) -> bool:
        """Whether the prompt may have been cut."""
        return limits.cut is not None and len(ids) >= limits.cut.num_tokens

    def _post_processed(
        self, pairs: Sequence[tuple[str, str]], limits: PoolLimits, params: Sequence[str]
    ) -> list[PoolPrompt]:
        tokenizer, cut = self._tokenizer, limits.cut
        if cut is None:
            limit = tokenizer.text_limit(limits.context, has_output=False)
            for (query, document), param in zip(pairs, params, strict=True):
                limit.check(query, param=param)
                limit.check(document, param=param)
        else:
            pairs = [(self._near(query, cut), self._near(document, cut)) for query, document in pairs]
        found = []
        for index, encoding in enumerate(tokenizer.encode_many(pairs)):
            longest = limits.context if cut is None else cut.num_tokens
            if len(encoding.ids) > longest:
                if cut is None:
                    raise too_long(len(encoding.ids), limits.context, param=params[index], has_output=False)
                encoding = self._cut_pair(pairs[index], cut, params[index])
            second = next((place for place, kind in enumerate(encoding.type_ids) if kind == 1), None)
            if second is None:  # a post-processor of a model without types of tokens
                second = encoding.sequence_ids.index(1) if 1 in encoding.sequence_ids else None
            found.append(PoolPrompt(encoding.ids, second=second))
        return found

    def _near(self, text: str, cut: Truncation) -> str:
        """The text without what is cut for sure: megabytes of it are not encoded."""
        longest = cut.num_tokens * self._tokenizer.text_limit(1).bytes_per_token
        return text if len(text) <= longest else self._tokenizer.shortened(text, cut.num_tokens, cut.side)

    def _cut_pair(self, pair: tuple[str, str], cut: Truncation, param: str) -> tokenizers.Encoding:
        """Cut the longer of the two until both fit, as transformers and sentence-transformers do."""
        backend = self._tokenizer.backend
        query, document = self._tokenizer.encode_many(pair, add_special_tokens=False)
        room = cut.num_tokens - backend.num_special_tokens_to_add(True)
        if room < 2:
            raise InvalidRequest(f"{cut.num_tokens} tokens have no room for a pair of texts", param=param)
        shorter = min(len(query.ids), len(document.ids), room // 2)
        longer = room - shorter
        if len(query.ids) <= len(document.ids):
            query.truncate(shorter, direction=cut.side)
            document.truncate(longer, direction=cut.side)
        else:
            query.truncate(longer, direction=cut.side)
            document.truncate(shorter, direction=cut.side)
        return backend.post_process(query, document, True)

    def _filled(self, query: str, document: str, instruction: str, limits: PoolLimits, param: str) -> list[int]:
        """The template with these texts; if it is too long, the document is cut."""
        tokenizer = self._tokenizer
        longest = limits.context if limits.cut is None else limits.cut.num_tokens
        if limits.cut is None:
            tokenizer.text_limit(limits.context, has_output=False).check(document, param=param)
        else:
            document = self._near(document, limits.cut)
        ids = self._encoded_template(query, document, instruction)
        if len(ids) > longest and limits.cut is None:
            raise too_long(len(ids), limits.context, param=param, has_output=False)
        room = longest - len(self._encoded_template(query, "", instruction)) if len(ids) > longest else 0
        while len(ids) > longest:
            if room <= 0:
                raise InvalidRequest(
                    f"the query and the model's template leave no room for a document in {longest} tokens", param=param
                )
            document = tokenizer.shortened(document, room, limits.side)
            ids = self._encoded_template(query, document, instruction)
            room = min(room - 1, room + longest - len(ids))
        return ids

    def _encoded_template(self, query: str, document: str, instruction: str) -> list[int]:
        """Control tokens in the texts are text: a document cannot end the template's message and begin another."""
        assert self._template is not None
        given = {"{query}": query, "{document}": document, "{instruction}": instruction}
        text, breaks = "", []
        for part in self._template:
            if (value := given.get(part)) is None:
                text += part
                continue
            marks = (found.start() + 1 for found in self._tokenizer.control_tokens.pattern.finditer(value))
            breaks += [len(text) + mark for mark in marks]
            text += value
        return self._tokenizer.encode(text, breaks, add_special_tokens=False)


def _parts_of(template: str) -> list[str]:
    """A template as texts and slots, in order. Raises ValueError unless it has a query and a document."""
    parts = [template]
    for slot in _SLOTS:
        split: list[str] = []
        for part in parts:
            if part in _SLOTS:
                split.append(part)
                continue
            pieces = part.split(slot)
            split.append(pieces[0])
            for piece in islice(pieces, 1, None):
                split += [slot, piece]
        parts = split
    if not {"{query}", "{document}"} <= set(parts):
        raise ValueError("a template of pairs needs {query} and {document}")
    return [part for part in parts if part]
