"""Bodies of the routes that pool texts, as OpenAI, vLLM, Jina and Infinity have them, and parts of all such bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from ...model.pooling import PoolTask
from ...pooled import ElementType, Endianness
from .chat import MAX_MESSAGES, MAX_TEMPLATE_CHARS, Conversation, Message
from .errors import FieldError, bad_request, unsupported
from .fields import MAX_SALT_CHARS, MAX_TIMEOUT_S, MAX_TOKENS, REQUEST_ID, TemplateKwargs
from .unserved import TEXT_ONLY, Route
from .wire import Integer, Wire

MAX_TEXTS = 1 << 14
MAX_CONVERSATIONS = 1024
MAX_INSTRUCTION_CHARS = 1 << 14
MAX_PROMPT_NAME_CHARS = 128
BYTES_FORMATS = ("bytes", "bytes_only")

EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]
TokenLimit = Annotated[Integer, Field(ge=1, le=MAX_TOKENS)]
ServedName = Annotated[str | None, Field(max_length=512)]


def texts_of(value: Any) -> Any:
    """One text or several, as a list of texts. Not a pydantic union, which reports an error once for each form."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise FieldError("must be a string or a list of strings", code="invalid_type")
    _check_number(value)
    for index, text in enumerate(value):
        if not isinstance(text, str):
            raise FieldError("must be a string", code="invalid_type", place=f"[{index}]")
    return value


def texts_or_ids(value: Any) -> Any:
    """One text or several, each as a text or as token ids, as a list of either."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise FieldError("must be a string, token ids, or a list of either", code="invalid_type")
    if value and type(value[0]) is int:
        value = [value]
    _check_number(value)
    is_text = isinstance(value[0], str)
    for index, item in enumerate(value):
        if is_text and not isinstance(item, str):
            raise FieldError("texts and token ids cannot be mixed", code="invalid_type", place=f"[{index}]")
        if not is_text and not (isinstance(item, list) and all(type(each) is int for each in item)):
            raise FieldError("must be a text, or a list of token ids", code="invalid_type", place=f"[{index}]")
        if not item:
            what = "the text is empty" if is_text else "the list has no token ids"
            raise FieldError(what, code="invalid_value", place=f"[{index}]")
    return value


def documents_of(value: Any) -> Any:
    """Texts, each as a string, as an object with `text`, or as parts of content; as a list of strings."""
    if isinstance(value, str | dict):
        value = [value]
    if not isinstance(value, list):
        raise FieldError("must be a text or a list of texts", code="invalid_type")
    _check_number(value)
    return [_document(item, f"[{index}]") for index, item in enumerate(value)]


def _document(item: Any, place: str) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, dict) and isinstance(item.get("text"), str):
        return str(item["text"])
    if isinstance(item, dict) and isinstance(item.get("content"), list):
        return _joined(item["content"], f"{place}.content")
    raise FieldError("must be a text, or an object with `text` or with parts as `content`", code="invalid_type",
                     place=place)  # fmt: skip


def _joined(parts: Sequence[Any], place: str) -> str:
    """The texts of parts of content, joined."""
    texts = []
    for index, part in enumerate(parts):
        kind = part.get("type", "text") if isinstance(part, dict) else None
        if kind not in ("text", "input_text"):
            shown = str(kind)[:40]
            raise FieldError(f"parts of type {shown!r} are not supported: {TEXT_ONLY}", code="unsupported_parameter",
                             place=f"{place}[{index}]")  # fmt: skip
        if not isinstance(part.get("text"), str):
            raise FieldError("`text` must be a string", code="invalid_type", place=f"{place}[{index}].text")
        texts.append(part["text"])
    return "".join(texts)


def _check_number(value: Sequence[Any]) -> None:
    if not value:
        raise FieldError("the list is empty", code="empty_array")
    if len(value) > MAX_TEXTS:
        raise FieldError(f"must have at most {MAX_TEXTS} entries", code="array_above_max_length")


def _safe_id(value: str | None) -> str | None:
    if value is not None and REQUEST_ID.fullmatch(value) is None:
        raise FieldError("must have 1 to 128 letters, digits, dots, underscores and hyphens")
    return value


Texts = Annotated[list[str], BeforeValidator(texts_of, json_schema_input_type=str | list[str])]
Documents = Annotated[
    list[str],
    BeforeValidator(documents_of, json_schema_input_type=str | dict[str, Any] | list[str | dict[str, Any]]),
]
TextsOrIds = Annotated[
    list[Any], BeforeValidator(texts_or_ids, json_schema_input_type=str | list[str] | list[int] | list[list[int]])
]
RequestId = Annotated[str | None, AfterValidator(_safe_id)]


class PoolingFields(Wire):
    """Fields that the routes for texts have in common, whatever their dialect."""

    model: ServedName = Field(None, description="a served model name; may be absent")
    priority: Integer | None = Field(
        None, ge=-(2**31), le=2**31 - 1, description="smaller first; needs `scheduler.scheduling_policy: priority`"
    )
    cache_salt: str | None = Field(
        None, min_length=1, max_length=MAX_SALT_CHARS, description="shares cached prefixes only with the same salt"
    )
    request_id: RequestId = Field(
        None, description="the last part of the answer's id; the header `X-Request-Id` has precedence"
    )
    timeout: float | None = Field(
        None,
        gt=0,
        le=MAX_TIMEOUT_S,
        description="seconds until the request is aborted; as the header X-Request-Timeout",
    )


class TruncationFields(PoolingFields):
    """How a text that is too long is cut, as in vLLM."""

    truncate_prompt_tokens: Integer | None = Field(
        None, ge=-1, le=MAX_TOKENS, description="maximum length; a longer text is cut to it; -1: what the model takes"
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="the side of the text that is cut; right by default"
    )

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _keeps_tokens(cls, value: int | None) -> int | None:
        if value == 0:
            raise FieldError("must be -1 or at least 1: there is no result of a text without tokens")
        return value

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if self.truncation_side is not None and self.truncate_prompt_tokens is None:
            raise unsupported("truncation_side", " without `truncate_prompt_tokens`")


class InputFields(TruncationFields):
    """Texts, token ids, or messages, of which something is made one by one."""

    content_fields = frozenset({"input", "messages"})
    input: TextsOrIds | None = Field(None, description="one or several texts, or lists of token ids")
    messages: list[list[Message]] | None = Field(
        None, description="in place of `input`: a conversation, or a list of them; text only"
    )
    add_special_tokens: bool | None = Field(
        None, description="the tokenizer adds special tokens; true by default, and false for messages"
    )
    add_generation_prompt: bool | None = Field(None, description="of messages; false by default")
    continue_final_message: bool | None = Field(None, description="the prompt ends within the last message")
    chat_template: str | None = Field(
        None, min_length=1, max_length=MAX_TEMPLATE_CHARS, description="needs `server.trust_request_chat_template`"
    )
    chat_template_kwargs: TemplateKwargs = None
    use_activation: bool | None = Field(
        None, description="false: results are returned as the model computes them, not as unit vectors or probabilities"
    )
    prompt_name: str | None = Field(
        None, max_length=MAX_PROMPT_NAME_CHARS, description="a prompt of the model, which is written before each text"
    )

    @field_validator("messages", mode="before", json_schema_input_type=list[Message] | list[list[Message]] | None)
    @classmethod
    def _conversations(cls, value: Any) -> Any:
        """One conversation or several, as a list of conversations."""
        if value is None:
            return value
        if not isinstance(value, list):
            raise FieldError("must be a list of messages, or a list of such lists", code="invalid_type")
        found = value if value and isinstance(value[0], list) else [value]
        if len(found) > MAX_CONVERSATIONS:
            raise FieldError(f"must have at most {MAX_CONVERSATIONS} conversations", code="array_above_max_length")
        for index, messages in enumerate(found):
            if not isinstance(messages, list) or not messages:
                raise FieldError("must be a list with at least one message", code="empty_array", place=f"[{index}]")
            if len(messages) > MAX_MESSAGES:
                raise FieldError(f"must have at most {MAX_MESSAGES} messages", code="array_above_max_length")
        return found

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if (self.input is None) == (self.messages is None):
            raise bad_request("send either `input` or `messages`", code="missing_required_parameter", param="input")
        of_messages = ("add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs")
        for name in of_messages:
            if self.messages is None and getattr(self, name) is not None:
                raise unsupported(name, " without `messages`")
        if self.prompt_name is not None and (self.input is None or not isinstance(self.input[0], str)):
            raise unsupported("prompt_name", " with messages or token ids: it is for texts")

    def essentials(self) -> dict[str, Any]:
        found = super().essentials()
        if self.messages is not None:
            found["messages"] = [
                [each.model_dump(exclude_none=True) for each in messages] for messages in self.messages
            ]
        return found

    @property
    def conversations(self) -> list[Conversation]:
        """The messages in the form that is rendered."""
        return [
            Conversation(
                messages=messages,
                add_generation_prompt=bool(self.add_generation_prompt),
                continue_final_message=bool(self.continue_final_message),
                chat_template=self.chat_template,
                chat_template_kwargs=self.chat_template_kwargs,
            )
            for messages in self.messages or ()
        ]


class VectorFields(InputFields):
    """How vectors are returned."""

    encoding_format: EncodingFormat | None = Field(
        None, description="float by default; base64; bytes: all vectors as octets, described in the header `metadata`"
    )
    embed_dtype: ElementType | None = Field(
        None, description="of the elements in base64 and bytes; float32 by default. A float has all its digits"
    )
    endianness: Endianness | None = Field(None, description="of the elements in base64 and bytes; little by default")
    dimensions: Integer | None = Field(
        None, ge=1, le=MAX_TOKENS, description="elements of a vector, for models that were trained for fewer ones"
    )

    @property
    def is_binary(self) -> bool:
        return self.encoding_format not in (None, "float")

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if not self.is_binary:
            if self.embed_dtype not in (None, "float32"):
                raise unsupported("embed_dtype", f" {self.embed_dtype!r} without base64 or bytes as `encoding_format`")
            if self.endianness is not None:
                raise unsupported("endianness", " without base64 or bytes as `encoding_format`")


class EmbeddingRequest(VectorFields):
    route = Route.EMBEDDINGS
    modality: Literal["text"] | None = Field(None, description="only `text`, as Infinity's clients send it")


class PoolingRequest(VectorFields):
    route = Route.POOLING
    task: list[str] | None = Field(
        None, description="one or several of the model's tasks, also as `embed&sparse`; by default its first one"
    )

    @field_validator("task", mode="before", json_schema_input_type=str | list[str] | None)
    @classmethod
    def _known_tasks(cls, value: Any) -> Any:
        """One task or several, as a list of them."""
        if isinstance(value, str):
            value = value.split("&")
        if value is None or not isinstance(value, list):
            return value
        known = get_args(PoolTask)
        if not value or len(value) > len(known) or len(set(map(str, value))) < len(value):
            raise FieldError(f"must be one or several of {', '.join(known)}, each once")
        for index, task in enumerate(value):
            if task not in known:
                message = f"{str(task)[:40]!r} is not a task; the tasks are {', '.join(known)}"
                raise FieldError(message, place=f"[{index}]" if len(value) > 1 else "")
        return value

    @property
    def tasks(self) -> list[PoolTask]:
        """The tasks that the request names, if it names some."""
        return self.task or []  # type: ignore[return-value]  # checked above


class ClassifyRequest(InputFields):
    route = Route.CLASSIFY
    raw_scores: bool | None = Field(
        None, description="answers in Infinity's form, with all labels; true: without the activation"
    )


class PairFields(TruncationFields):
    """How pairs of texts are compared."""

    max_tokens_per_query: TokenLimit | None = Field(None, description="a longer query is cut to it")
    max_tokens_per_doc: TokenLimit | None = Field(None, description="a longer document is cut to it")
    instruction: str | None = Field(
        None, max_length=MAX_INSTRUCTION_CHARS, description="what a match is, for models whose template has it"
    )
    use_activation: bool | None = Field(
        None, description="false: scores as the model computes them; for models that score pairs in one pass"
    )


class ScoreRequest(PairFields):
    route = Route.SCORE
    content_fields = frozenset({"queries", "documents"})
    queries: Documents = Field(description="one or several texts; also as `text_1` or `data_1`")
    documents: Documents = Field(description="one or several texts; also as `items`, `text_2` or `data_2`")

    @model_validator(mode="before")
    @classmethod
    def _own_names(cls, value: Any) -> Any:
        """Older and other names of the two fields."""
        if not isinstance(value, dict):
            return value
        found = dict(value)
        for name, others in (("queries", ("text_1", "data_1")), ("documents", ("items", "text_2", "data_2"))):
            given = [each for each in (name, *others) if each in found]
            if len(given) > 1:
                raise bad_request(f"`{given[0]}` and `{given[1]}` are the same field", param=given[1])
            if given:
                found[name] = found.pop(given[0])
        return found

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if len(self.queries) not in (1, len(self.documents)):
            message = f"{len(self.queries)} queries cannot be paired with {len(self.documents)} documents: send one "
            raise bad_request(message + "query, or one for each document", param="queries")


class RerankRequest(PairFields):
    """documents: vLLM, Jina, Cohere and Infinity. texts: TEI, whose other fields are those after it."""

    route = Route.RERANK
    content_fields = frozenset({"query", "documents", "texts"})
    query: Any = Field(description="a text, or its parts of content")
    documents: Documents | None = Field(None, description="the texts that are ranked")
    top_n: Integer | None = Field(None, ge=0, le=MAX_TEXTS, description="the number of results; 0 is all, the default")
    return_documents: bool | None = Field(None, description="false: results are without the texts")
    texts: Texts | None = Field(None, description="the texts, from clients of TEI, which get its form of the answer")
    raw_scores: bool | None = Field(
        None, description="scores as the model computes them; with `documents` the answer has Infinity's form"
    )
    return_text: bool | None = Field(None, description="with `texts`: results have the texts, too")
    truncate: bool | None = Field(None, description="with `texts`: a pair that is too long is cut; true by default")
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = Field(
        None, description="with `texts`: the side that is cut; right by default"
    )

    @field_validator("query", mode="before", json_schema_input_type=str | dict[str, Any])
    @classmethod
    def _one_query(cls, value: Any) -> Any:
        if isinstance(value, list):
            raise FieldError("must be one text", code="invalid_type")
        return documents_of(value)[0]

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if (self.documents is None) == (self.texts is None):
            raise bad_request("send `documents`", code="missing_required_parameter", param="documents")
        others = ("return_text", "truncate", "truncation_direction")
        ours = ("top_n", "return_documents", "truncate_prompt_tokens", "max_tokens_per_query", "max_tokens_per_doc",
                "instruction", "use_activation")  # fmt: skip
        for name in others if self.texts is None else ours:
            if getattr(self, name) is not None:
                field = "texts" if self.texts is None else "documents"
                raise unsupported(name, f" without `{field}`")
        if self.raw_scores is not None and self.use_activation is not None:
            raise unsupported("use_activation", " with `raw_scores`, which says the same")
