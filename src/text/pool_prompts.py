"""Prompts of pooling requests: texts, and pairs of texts, to token ids, many in one call.

A pair becomes one prompt by the tokenizer's post-processor, which writes the special tokens between the two, or by a
template, of models that were trained with one. A long prompt is refused, or cut: of a pair only the texts are cut,
never what the template writes around them.

Everything here takes time in proportion to the texts: call it on the tokenizer's threads (`Tokenizer.run`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import tokenizers

from ..engine.api import InvalidRequest
from ..model.pooling import Pooling
from .length import too_long
from .tokenizer import Side, Tokenizer, Truncation

BY_TOKENIZER, BY_CHAT = "tokenizer", "chat"  # as Pooling.pair; by chat template, which the caller renders
MAX_CALL_TOKENS = 1 << 22  # of all prompts of one request: their ids take about 150 MB
_PORTION_CHARS = 1 << 18  # encoded at a time: an encoding takes some 120 bytes for each token until its ids are read
_MAX_CHAR_BYTES = 4  # in UTF-8
_SLOTS = ("{instruction}", "{query}", "{document}")


@dataclass(frozen=True, slots=True)
class PoolPrompt:
    """The token ids of one prompt that is pooled.

    first, second: as in PoolingParams.
    """

    token_ids: list[int]
    first: int = 0
    second: int | None = None


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How long prompts and texts may be, in tokens.

    context: the most that the model takes. cut: a longer prompt is cut so; None: it is refused.
    query, document: longer texts of pairs are cut to these before they become prompts; None: they are not.
    call: the maximum number of tokens of all prompts of a call; None: any number.
    """

    context: int
    cut: Truncation | None = None
    query: int | None = None
    document: int | None = None
    call: int | None = None

    @property
    def longest(self) -> int:
        """The maximum number of tokens of a prompt, once it is cut."""
        return self.context if self.cut is None else self.cut.num_tokens

    def check_call(self, num_tokens: int, param: str) -> None:
        """Raises InvalidRequest if the prompts of a call have more tokens in all than it may have."""
        if self.call is not None and num_tokens > self.call:
            raise InvalidRequest(
                f"the prompts of this request have {num_tokens} tokens or more, and may have {self.call} in all: "
                "send fewer texts in one request",
                param=param,
                code="too_many_tokens",
            )

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

        Raises InvalidRequest for a text that is empty or too long, or of which a cut leaves nothing after a prefix
        that is not pooled.
        """
        prefix = self._cased(prefix)
        written = [prefix + self._plain(text, param) for text, param in zip(texts, params, strict=True)]
        ids = self._encode(written, limits, params, add_special_tokens=add_special_tokens)
        if not prefix or not self._leaves_out_prompts:
            return [PoolPrompt(each) for each in ids]
        num_before, num_special = self._tokenizer.num_before, len(self._tokenizer.encode(""))
        first, num_after = num_before(prefix), num_special - num_before("")
        if not add_special_tokens:
            first, num_after = first - num_before(""), 0
        found = []
        for each, param in zip(ids, params, strict=True):
            is_cut = self._is_full(each, limits)
            if is_cut and limits.side == "right" and first + num_after >= len(each):
                message = f"the prompt before this text has {first} tokens, and a cut to {len(each)} leaves no text"
                raise InvalidRequest(message, param=param)
            found.append(PoolPrompt(each, 0 if is_cut and limits.side == "left" else first))
        return found

    def queries(self, texts: Sequence[str], limits: PoolLimits, *, params: Sequence[str]) -> list[PoolPrompt]:
        """Prompts of queries that are compared token by token: with the model's marker, and cut and filled to its
        length, for which it was trained."""
        filler, length = self._pooling.query_filler, self._pooling.query_length
        if length is not None:
            limits = replace(limits, cut=Truncation(min(limits.longest, length), limits.side))
        found = self._marked(texts, limits, params, self._pooling.query_marker)
        if filler is None or length is None:
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
        plain = self.plain_pairs(pairs, limits, params)
        if self._template is None:
            return self._post_processed(plain, limits, [param for _, param in params])
        return self._filled(plain, self._pooling.instruction if instruction is None else instruction, limits, params)

    def plain_pairs(
        self, pairs: Sequence[tuple[str, str]], limits: PoolLimits, params: Sequence[tuple[str, str]]
    ) -> list[tuple[str, str]]:
        """Pairs as they become prompts, each text cut to its own limit.

        Many pairs often have the same query, which is cut and counted once. Raises InvalidRequest for an empty text, a
        text that is too long, or queries with more tokens than a call may have.
        """
        queries: dict[str, str] = {}
        num_chars, found = 0, []
        for (query, document), fields in zip(pairs, params, strict=True):
            if query not in queries:
                queries[query] = self._text_of_pair(query, limits.query, limits, fields[0])
            num_chars += len(queries[query])
            found.append((queries[query], self._text_of_pair(document, limits.document, limits, fields[1])))
        if limits.call is not None and num_chars * _MAX_CHAR_BYTES > limits.call:  # else there are fewer tokens
            counts = {text: len(self._tokenizer.encode(text, add_special_tokens=False)) for text in queries.values()}
            num_tokens = sum(min(counts[query], limits.longest) for query, _ in found)
            limits.check_call(num_tokens, params[0][0].partition("[")[0])
        return found

    def _text_of_pair(self, text: str, num_tokens: int | None, limits: PoolLimits, param: str) -> str:
        text = self._shortened(self._plain(text, param), num_tokens, limits.side)
        if limits.cut is not None:
            return self._near(text, limits.cut)
        self._tokenizer.text_limit(limits.context, has_output=False).check(text, param=param)
        return text

    def _plain(self, text: str, param: str) -> str:
        if not text:
            raise InvalidRequest(f"`{param}` is an empty text", param=param)
        return self._cased(text)

    def _cased(self, text: str) -> str:
        return text.lower() if self._pooling.lowers_case else text

    def _shortened(self, text: str, num_tokens: int | None, side: Side) -> str:
        # a text has at most as many tokens as bytes
        if num_tokens is None or len(text) * _MAX_CHAR_BYTES <= num_tokens:
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
        longest = limits.longest * tokenizer.text_limit(1).bytes_per_token
        found: list[list[int]] = []
        num_tokens = 0
        for portion in _portions(texts, [len(text) for text in texts]):
            short = [text if len(text) <= longest else "" for text in texts[portion]]  # the others are cut for sure
            encodings = tokenizer.encode_many(short, add_special_tokens=add_special_tokens)
            for text, encoding, is_whole, param in zip(texts[portion], encodings, short, params[portion], strict=True):
                ids = encoding.ids
                if cut is None and len(ids) > limits.context:
                    raise too_long(len(ids), limits.context, param=param, has_output=False)
                if cut is not None and (len(ids) > cut.num_tokens or not is_whole):
                    ids = tokenizer.encode_cut(text, cut, add_special_tokens=add_special_tokens)
                num_tokens += len(ids)
                found.append(ids)
            limits.check_call(num_tokens, params[0].partition("[")[0])
        return found

    @staticmethod
    def _is_full(ids: Sequence[int], limits: PoolLimits) -> bool:
        """Whether the prompt may have been cut."""
        return limits.cut is not None and len(ids) >= limits.cut.num_tokens

    def _post_processed(
        self, pairs: Sequence[tuple[str, str]], limits: PoolLimits, params: Sequence[str]
    ) -> list[PoolPrompt]:
        """A query that many pairs have is encoded once, and the documents in portions."""
        backend, cut = self._tokenizer.backend, limits.cut
        num_special = backend.num_special_tokens_to_add(True)
        distinct = list(dict.fromkeys(query for query, _ in pairs))
        queries = dict(zip(distinct, self._tokenizer.encode_many(distinct, add_special_tokens=False), strict=True))
        documents = [document for _, document in pairs]
        found: list[PoolPrompt] = []
        total = 0
        for portion in _portions(documents, [len(query) + len(document) for query, document in pairs]):
            encodings = self._tokenizer.encode_many(documents[portion], add_special_tokens=False)
            for (query, _), document, param in zip(pairs[portion], encodings, params[portion], strict=True):
                first, num_tokens = queries[query], len(queries[query]) + len(document) + num_special
                if num_tokens > limits.longest:
                    if cut is None:
                        raise too_long(num_tokens, limits.context, param=param, has_output=False)
                    first = self._cut_pair(first, document, cut, param)
                encoding = backend.post_process(first, document, True)
                second = next((place for place, kind in enumerate(encoding.type_ids) if kind == 1), None)
                if second is None:  # a post-processor of a model without types of tokens
                    second = encoding.sequence_ids.index(1) if 1 in encoding.sequence_ids else None
                found.append(PoolPrompt(encoding.ids, second=second))
                total += len(encoding)
            limits.check_call(total, params[0].partition("[")[0])
        return found

    def _near(self, text: str, cut: Truncation) -> str:
        """The text without what is cut for sure: megabytes of it are not encoded."""
        longest = cut.num_tokens * self._tokenizer.text_limit(1).bytes_per_token
        return text if len(text) <= longest else self._tokenizer.shortened(text, cut.num_tokens, cut.side)

    def _cut_pair(
        self, query: tokenizers.Encoding, document: tokenizers.Encoding, cut: Truncation, param: str
    ) -> tokenizers.Encoding:
        """Cut the longer of the two until both fit, as transformers and sentence-transformers do.

        The document is changed. Returns the query, of which other pairs may have need, as a copy.
        """
        room = cut.num_tokens - self._tokenizer.backend.num_special_tokens_to_add(True)
        if room < 2:
            raise InvalidRequest(f"{cut.num_tokens} tokens have no room for a pair of texts", param=param)
        shorter = min(len(query), len(document), room // 2)
        longer = room - shorter
        query_is_shorter = len(query) <= len(document)
        query = tokenizers.Encoding.merge([query], growing_offsets=False)
        query.truncate(shorter if query_is_shorter else longer, direction=cut.side)
        document.truncate(longer if query_is_shorter else shorter, direction=cut.side)
        return query

    def _filled(
        self, pairs: Sequence[tuple[str, str]], instruction: str, limits: PoolLimits, params: Sequence[tuple[str, str]]
    ) -> list[PoolPrompt]:
        """The template with these texts; if it is too long, the document is cut."""
        longest = limits.longest
        without_document: dict[str, int] = {}  # tokens of the template with each query of which a document was cut
        found: list[PoolPrompt] = []
        total = 0
        for (query, document), (_, param) in zip(pairs, params, strict=True):
            ids = self._encoded_template(query, document, instruction)
            if len(ids) > longest:
                if limits.cut is None:
                    raise too_long(len(ids), limits.context, param=param, has_output=False)
                if query not in without_document:
                    without_document[query] = len(self._encoded_template(query, "", instruction))
                room = longest - without_document[query]
            while len(ids) > longest:
                if room <= 0:
                    message = f"the query and the model's template leave no room for a document in {longest} tokens"
                    raise InvalidRequest(message, param=param)
                document = self._tokenizer.shortened(document, room, limits.side)
                ids = self._encoded_template(query, document, instruction)
                room = min(room - 1, room + longest - len(ids))
            total += len(ids)
            limits.check_call(total, param.partition("[")[0])
            found.append(PoolPrompt(ids))
        return found

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


def _portions(texts: Sequence[str], sizes: Sequence[int]) -> Iterator[slice]:
    """Slices of the texts, each with about `_PORTION_CHARS` characters in all. sizes: characters of each text."""
    start, num_chars = 0, 0
    for index, size in enumerate(sizes):
        num_chars += size
        if num_chars >= _PORTION_CHARS or index == len(texts) - 1:
            yield slice(start, index + 1)
            start, num_chars = index + 1, 0


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
