"""Bodies of the pooling routes of Cohere and of TEI (Hugging Face's text-embeddings-inference)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from .errors import FieldError, bad_request
from .pooling import MAX_PROMPT_NAME_CHARS, MAX_TEXTS, Documents, PoolingFields, Texts, TextsOrIds, TokenLimit, texts_of
from .unserved import Route
from .wire import Integer, Wire

CohereType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
Direction = Literal["left", "right", "Left", "Right"]
MAX_IDS = 1 << 20


class CohereEmbedRequest(PoolingFields):
    route = Route.COHERE_EMBED
    content_fields = frozenset({"texts", "inputs"})
    texts: Texts | None = Field(None, description="one or several texts")
    inputs: Documents | None = Field(None, description="the same as objects whose `content` is a list of text parts")
    input_type: str | None = Field(
        None, max_length=MAX_PROMPT_NAME_CHARS, description="such as `search_query`: chooses the model's prompt"
    )
    embedding_types: list[CohereType] | None = Field(
        None, min_length=1, max_length=6, description="forms in which vectors are returned; float by default"
    )
    output_dimension: Integer | None = Field(
        None, ge=1, le=1 << 20, description="elements of a vector, for models that were trained for fewer ones"
    )
    max_tokens: TokenLimit | None = Field(None, description="maximum length of a text")
    truncate: Literal["NONE", "START", "END"] | None = Field(
        None, description="the end of a longer text that is cut; END by default; NONE refuses it"
    )

    @field_validator("embedding_types", mode="before")
    @classmethod
    def _known_types(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if (self.texts is None) == (self.inputs is None):
            raise bad_request("send either `texts` or `inputs`", code="missing_required_parameter", param="texts")


class TeiFields(PoolingFields):
    """Fields that the routes of TEI have in common."""

    content_fields = frozenset({"inputs"})
    truncate: bool | None = Field(None, description="a text that is too long is cut; true by default, as in TEI")
    truncation_direction: Direction | None = Field(None, description="the side that is cut; right by default")


class TeiEmbedRequest(TeiFields):
    route = Route.TEI_EMBED
    inputs: TextsOrIds = Field(description="one or several texts, or lists of token ids")
    prompt_name: str | None = Field(
        None, max_length=MAX_PROMPT_NAME_CHARS, description="a prompt of the model, which is written before each text"
    )
    normalize: bool | None = Field(None, description="false: vectors as the model computes them; true by default")
    dimensions: Integer | None = Field(
        None, ge=1, le=1 << 20, description="elements of a vector, for models that were trained for fewer ones"
    )


class TeiTokensRequest(TeiFields):
    """Body of the routes that return something for each token."""

    route = Route.TEI_EMBED_ALL
    inputs: TextsOrIds = Field(description="one or several texts, or lists of token ids")
    prompt_name: str | None = Field(
        None, max_length=MAX_PROMPT_NAME_CHARS, description="a prompt of the model, which is written before each text"
    )


class TeiPredictRequest(TeiFields):
    """inputs: a text, a pair of texts, or a list of lists, each with a text or a pair."""

    route = Route.TEI_PREDICT
    inputs: Any = Field(description="a text, a pair of texts, or a list of lists with a text or a pair in each")
    raw_scores: bool | None = Field(None, description="true: scores as the model computes them")

    @field_validator("inputs", mode="before", json_schema_input_type=str | list[str] | list[list[str]])
    @classmethod
    def _texts_or_pairs(cls, value: Any) -> Any:
        if isinstance(value, str):
            return value
        if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
            if len(value) > 2:
                raise FieldError("a list of texts is one pair; several texts are a list of lists", code="invalid_type")
            return value
        if not isinstance(value, list) or not value or len(value) > MAX_TEXTS:
            message = f"must be a text, a pair of texts, or a list of 1 to {MAX_TEXTS} lists of these"
            raise FieldError(message, code="invalid_type")
        for index, each in enumerate(value):
            if isinstance(each, str):
                each = [each]
            if not isinstance(each, list) or len(each) not in (1, 2) or not all(isinstance(item, str) for item in each):
                raise FieldError("must be a list with a text, or with a pair", code="invalid_type", place=f"[{index}]")
        return value

    @property
    def is_batch(self) -> bool:
        return isinstance(self.inputs, list) and not all(isinstance(each, str) for each in self.inputs)

    @property
    def items(self) -> list[tuple[str, ...]]:
        """Each text as a tuple of one, each pair as a tuple of two."""
        if isinstance(self.inputs, str):
            return [(self.inputs,)]
        if not self.is_batch:
            return [tuple(self.inputs)]
        return [(each,) if isinstance(each, str) else tuple(each) for each in self.inputs]


class SimilarityInputs(Wire):
    source_sentence: str
    sentences: Annotated[list[str], BeforeValidator(texts_of)]


class SimilarityParameters(Wire):
    truncate: bool | None = None
    truncation_direction: Direction | None = None
    prompt_name: str | None = Field(None, max_length=MAX_PROMPT_NAME_CHARS)


class TeiSimilarityRequest(PoolingFields):
    route = Route.TEI_SIMILARITY
    content_fields = frozenset({"inputs"})
    inputs: SimilarityInputs = Field(description="`source_sentence`, and the `sentences` that are compared with it")
    parameters: SimilarityParameters | None = Field(
        None, description="`truncate`, `truncation_direction` and `prompt_name`, as in /embed"
    )


class TeiDecodeRequest(Wire):
    route = Route.TEI_DECODE
    model: str | None = Field(None, max_length=512, description="a served model name; may be absent")
    ids: list[Any] = Field(max_length=MAX_IDS, description="token ids, or several lists of them")
    skip_special_tokens: bool = Field(True, description="special tokens are not shown")

    @field_validator("ids", mode="before", json_schema_input_type=list[int] | list[list[int]])
    @classmethod
    def _lists(cls, value: Any) -> Any:
        if isinstance(value, list) and value and type(value[0]) is int:
            value = [value]
        if not isinstance(value, list) or not value:
            raise FieldError("must be a list of token ids, or a list of such lists", code="invalid_type")
        for index, ids in enumerate(value):
            if not isinstance(ids, list) or not all(type(each) is int and each >= 0 for each in ids):
                raise FieldError("must be a list of token ids", code="invalid_type", place=f"[{index}]")
        return value
