"""What `LLM.encode`, `embed`, `classify`, `reward` and `score` take and return, with the names of vLLM's classes.

Pooler makes prompts of texts, has the engine pool them, and finishes what it returns (pooled.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ..engine.api import EngineOutput, InvalidRequest
from ..engine.api import PoolingParams as Task
from ..model.pooling import PoolHead, Pooling
from ..pooled import Floats, array_of, compared, dimensions_problem, max_sim, of_steps, results_of, similarities
from ..text.length import context_limit, too_long
from ..text.pool_prompts import BY_CHAT, PoolLimits, PoolPrompt, PromptMaker
from ..text.tokenizer import Side, Tokenizer, Truncation


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """How prompts are pooled.

    truncate_prompt_tokens: longer prompts are cut to this number of tokens; -1: to the model's context; None: they are
        refused.
    truncation_side: where they are cut.
    dimensions: of vectors, of a model that was trained for several sizes; None: what `pooler_config` or the model says.
    use_activation: False returns results without normalisation, softmax or sigmoid; None: what the model says.
    task: as `pooling_task` of LLM.encode.
    """

    truncate_prompt_tokens: int | None = None
    truncation_side: Side = "right"
    dimensions: int | None = None
    use_activation: bool | None = None
    task: str | None = None


@dataclass(slots=True)
class PoolingOutput:
    data: Floats  # [elements], or [tokens, elements] of a task with a result for each token


@dataclass(slots=True)
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    probs: list[float]  # in the order of the model's labels

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    score: float


OutputT = TypeVar("OutputT")
Made = TypeVar("Made")


@dataclass(slots=True)
class PoolingRequestOutput(Generic[OutputT]):
    request_id: str
    outputs: OutputT
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    finished: bool = True

    def with_output(self, output: Made) -> PoolingRequestOutput[Made]:
        """The same with another form of its output."""
        return PoolingRequestOutput(self.request_id, output, self.prompt_token_ids, self.num_cached_tokens)


EmbeddingRequestOutput = PoolingRequestOutput[EmbeddingOutput]
ClassificationRequestOutput = PoolingRequestOutput[ClassificationOutput]
ScoringRequestOutput = PoolingRequestOutput[ScoringOutput]


class PooledOutput:
    """A Collector of the only output of a request that is pooled."""

    def __init__(self) -> None:
        self.output: EngineOutput | None = None

    def take(self, output: EngineOutput, clock: Callable[[], float]) -> bool:
        """Raises RuntimeError if the engine has failed."""
        if output.error is not None:
            raise RuntimeError(output.error)
        self.output = output
        return True


# Has the engine pool prompts with one task. Returns an id and the output of each.
Compute = Callable[[Sequence[PoolPrompt], str], list[tuple[str, EngineOutput]]]
AsMessages = Callable[[str, str], list[int]]  # the prompt of a query and a document by the model's chat template


@dataclass(frozen=True, slots=True)
class Pooler:
    """pooling: of the model. tokenizer: None if prompts are token ids."""

    pooling: Pooling
    tokenizer: Tokenizer | None
    context: int  # tokens

    def head(self, task: str) -> PoolHead:
        """Raises InvalidRequest for a task that the model does not have."""
        head = self.pooling.head(task)
        if head is None:
            tasks = ", ".join(each.task for each in self.pooling.heads)
            raise InvalidRequest(f"this model does not have the task {task!r}: its tasks are {tasks}", param="task")
        return head

    def default_task(self, params: PoolingParams, task: str | None) -> str:
        """The task of `encode`: the one that is named, or the only one."""
        if task is not None and params.task not in (None, task):
            raise InvalidRequest(f"pooling_task is {task!r}, and pooling_params have {params.task!r}", param="task")
        named = task or params.task
        if named is None:
            if len(self.pooling.heads) > 1:
                tasks = ", ".join(each.task for each in self.pooling.heads)
                raise InvalidRequest(f"name one of the model's tasks in pooling_task: {tasks}", param="pooling_task")
            named = self.pooling.heads[0].task
        return self.head(named).task

    def pooled(
        self, prompts: Sequence[PoolPrompt], task: str, params: PoolingParams, compute: Compute
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """The finished result of each prompt. Raises InvalidRequest, and RuntimeError if the engine fails."""
        head, activates = self.head(task), params.use_activation is not False
        size = params.dimensions
        if size is not None and (problem := dimensions_problem(head, size)) is not None:
            raise InvalidRequest(problem, param="dimensions")
        outputs = compute(prompts, task)
        arrays = [array_of(output.vectors[task]) for _, output in outputs if output.vectors is not None]
        if head.modes and arrays:  # one row each, which are finished together
            arrays = list(results_of(self.pooling, head, np.concatenate(arrays), size, activates=activates))
        else:
            finished = [results_of(self.pooling, head, rows, size, activates=activates) for rows in arrays]
            arrays = [
                of_steps(self.pooling, head, rows, prompt.token_ids)
                for rows, prompt in zip(finished, prompts, strict=True)
            ]
        return [
            PoolingRequestOutput(request_id, PoolingOutput(data), prompt.token_ids, output.num_cached_tokens)
            for prompt, (request_id, output), data in zip(prompts, outputs, arrays, strict=True)
        ]

    def limits(self, params: PoolingParams) -> PoolLimits:
        wanted = params.truncate_prompt_tokens
        if wanted is not None and (wanted < -1 or wanted == 0):
            raise InvalidRequest("truncate_prompt_tokens must be -1 or above 0", param="truncate_prompt_tokens")
        if wanted is None:
            return PoolLimits(self.context)
        if wanted > self.context:
            message = f"{context_limit(self.context)}, but truncate_prompt_tokens is {wanted}"
            raise InvalidRequest(message, param="truncate_prompt_tokens", code="context_length_exceeded")
        num_tokens = self.context if wanted == -1 else wanted
        return PoolLimits(self.context, Truncation(num_tokens, params.truncation_side))

    def prompts(self, given: Sequence[str | list[int]], params: PoolingParams) -> list[PoolPrompt]:
        """Texts and token ids as prompts. Raises InvalidRequest for one that is empty or too long."""
        limits = self.limits(params)
        texts = [each for each in given if isinstance(each, str)]
        made = iter(self._maker.texts(texts, limits, params=["prompts"] * len(texts)) if texts else ())
        return [next(made) if isinstance(each, str) else self._of_ids(each, limits) for each in given]

    def _of_ids(self, token_ids: list[int], limits: PoolLimits) -> PoolPrompt:
        if limits.cut is not None:
            token_ids = limits.cut.of(token_ids)
        if len(token_ids) > limits.context:
            raise too_long(len(token_ids), limits.context, param="prompts", has_output=False)
        return PoolPrompt(token_ids)

    @property
    def _maker(self) -> PromptMaker:
        if self.tokenizer is None:
            raise InvalidRequest("texts need a tokenizer, and this LLM has none: give token ids", param="prompts")
        return PromptMaker(self.tokenizer, self.pooling)

    def scores(
        self,
        queries: Sequence[str],
        documents: Sequence[str],
        params: PoolingParams,
        compute: Compute,
        as_messages: AsMessages,
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        """How well each document matches its query: by one pass over both, or by a comparison of their vectors."""
        if len(queries) not in (1, len(documents)) or not documents:
            message = f"{len(queries)} queries for {len(documents)} documents: there must be one, or one for each"
            raise InvalidRequest(message, param="data_1")
        every = list(queries) * (len(documents) if len(queries) == 1 else 1)
        head = self.pooling.head("classify")
        if head is not None and head.width == 1:
            prompts = self._pairs(list(zip(every, documents, strict=True)), params, as_messages)
            rated = self.pooled(prompts, "classify", params, compute)
            return [each.with_output(ScoringOutput(float(each.outputs.data[0]))) for each in rated]
        if params.use_activation is not None:
            raise InvalidRequest("scores of this model are comparisons of vectors", param="use_activation")
        return self._by_vectors(queries, documents, params, compute)

    def _pairs(
        self, pairs: Sequence[tuple[str, str]], params: PoolingParams, as_messages: AsMessages
    ) -> list[PoolPrompt]:
        limits = self.limits(params)
        if self.pooling.pair != BY_CHAT:
            return self._maker.pairs(pairs, limits, params=[("data_1", "data_2")] * len(pairs))
        if limits.cut is not None:
            message = "pairs that the model's chat template writes are not cut"
            raise InvalidRequest(message, param="truncate_prompt_tokens")
        return [self._of_ids(as_messages(*pair), limits) for pair in pairs]

    def _by_vectors(
        self, queries: Sequence[str], documents: Sequence[str], params: PoolingParams, compute: Compute
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        limits, maker, is_late = self.limits(params), self._maker, self.pooling.head("embed") is None
        task = "token_embed" if is_late else "embed"
        of_queries, of_documents = (maker.queries, maker.documents) if is_late else (maker.texts, maker.texts)
        prompts = of_queries(queries, limits, params=["data_1"] * len(queries))
        prompts += of_documents(documents, limits, params=["data_2"] * len(documents))
        rows = self.pooled(prompts, task, params, compute)
        first, second = rows[: len(queries)], rows[len(queries) :]
        head, found = self.head(task), []
        for index, each in enumerate(second):
            query = first[index if len(first) > 1 else 0].outputs.data
            if is_late:
                score = max_sim(query, compared(self.pooling, head, each.outputs.data, each.prompt_token_ids))
            else:
                score = float(similarities(query, each.outputs.data[None], self.pooling.similarity)[0])
            found.append(each.with_output(ScoringOutput(score)))
        return found


def task_of(prompt: PoolPrompt, task: str) -> Task:
    """What the engine is asked for."""
    return Task((task,), prompt.first, prompt.second)
