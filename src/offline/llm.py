"""LLM: a model in this process, for batches of prompts; no server, no second process.

llm = LLM("Qwen/Qwen3-0.6B", max_model_len=4096)
for result in llm.generate(["Hello", "Once upon a time"], SamplingParams(max_tokens=32)):
    print(result.outputs[0].text)
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..beam_search import BeamSearch, BeamSearchParams, check_searchable
from ..config import Resolved, fetch_model, load_deployment, read_machine_spec, read_model_files, resolve_deployment
from ..config.checkpoint.chat_templates import TemplateSource, TemplateUnreadable, template_of
from ..engine.api import (
    CacheScope,
    EngineInfo,
    EngineOutput,
    EngineRequest,
    InvalidRequest,
    RequestInputs,
    SamplingParams,
    Task,
    check_allowed,
    fan_out,
)
from ..engine.executor.build import build_core
from ..engine.executor.launcher import join_launcher, start_of
from ..engine.host.on_node import bound_to
from ..engine.loop.engine_core import EngineCore
from ..engine.loop.engine_loop import EngineLoop
from ..isolated.isolation import IsolatedProcesses
from ..text.length import too_long
from ..text.pool_prompts import BY_CHAT, PoolPrompt
from ..text.renderer import Renderer
from ..text.template_jobs import TEMPLATE_JOBS
from ..text.tokenizer import Tokenizer
from .adapters import LoRARequest, OfflineAdapters, one_each
from .batch import OfflineBatch
from .outputs import Collector, OneOutput, RequestOutput, SequenceCollector
from .pooling import (
    ClassificationOutput,
    Compute,
    EmbeddingOutput,
    PooledOutput,
    Pooler,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringOutput,
    task_of,
)

Prompt = str | Sequence[int] | Mapping[str, Any]
ChatMessage = Mapping[str, Any]


class LLM:
    """Options have the names of the command line. Others come from the environment, or are defaults.

    Raises ConfigError for an unknown option or a value that is not allowed, ModelFilesError for a model that does not
    exist or cannot be run, ValueError for several replicas.
    """

    def __init__(
        self,
        model: str,
        *,
        tokenizer: str | None = None,
        skip_tokenizer_init: bool | None = None,
        revision: str | None = None,
        dtype: str | None = None,
        max_model_len: int | str | None = None,
        gpu_memory_utilization: float | None = None,
        seed: int | None = None,
        hf_overrides: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Load the model. None leaves an option unset. `options`: any other option of the catalogue, such as
        max_num_seqs=8."""
        named = {
            "model": model,
            "tokenizer": tokenizer,
            "skip_tokenizer_init": skip_tokenizer_init,
            "revision": revision,
            "dtype": dtype,
            "max_model_len": max_model_len,
            "gpu_memory_utilization": gpu_memory_utilization,
            "seed": seed,
            "hf_overrides": hf_overrides,
            **options,
        }
        arguments = {name: value for name, value in named.items() if value is not None}
        deployment = load_deployment([], arguments=arguments)
        fetch_model(deployment)
        self._open(resolve_deployment(deployment, read_model_files(deployment), read_machine_spec()))

    @classmethod
    def of(cls, resolved: Resolved) -> LLM:
        """The LLM of a deployment that is already resolved, as in `engine bench`."""
        made = cls.__new__(cls)
        made._open(resolved)
        return made

    def _open(self, resolved: Resolved) -> None:
        if resolved.topology.num_served > 1:
            raise ValueError(
                "LLM runs one replica, in this process: leave `data_parallel_size` out, or serve with `engine up`"
            )
        with contextlib.ExitStack() as until_closed:
            if resolved.numa_places:
                until_closed.enter_context(bound_to(*resolved.numa_places[0]))
            self._start(resolved)
            self._until_closed = until_closed.pop_all()

    def _start(self, resolved: Resolved) -> None:
        self._launched = join_launcher(resolved)
        self._resolved = resolved if self._launched is None else self._launched.resolved
        self._tokenizer: Tokenizer | None = None
        self._renderer: Renderer | None = None
        self._template_processes = IsolatedProcesses(TEMPLATE_JOBS)
        with start_of(self._launched):
            if not self._resolved.model.skip_tokenizer_init:
                self._tokenizer = Tokenizer.load(self._resolved.model.tokenizer, self._resolved.model.tokenizer_mode)
            self._core: EngineCore | None = build_core(self._resolved, launched=self._launched)
        self._adapters = OfflineAdapters(self._resolved)
        self._request_numbers = itertools.count()
        self._handles = itertools.count()  # one per sequence

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory of weights and KV cache. Nothing can be generated afterwards."""
        if self._core is not None:
            self._core.close()
        self._core = None
        self._template_processes.close()
        self._until_closed.close()

    @property
    def info(self) -> EngineInfo:
        """What the engine measured at the start. Raises RuntimeError after `close`."""
        return self._running.info

    @property
    def _running(self) -> EngineCore:
        if self._core is None:
            raise RuntimeError("this LLM is closed")
        return self._core

    def get_tokenizer(self) -> Tokenizer:
        """Raises RuntimeError with skip_tokenizer_init."""
        if self._tokenizer is None:
            raise RuntimeError("this LLM has no tokenizer: it was made with skip_tokenizer_init=True")
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters that `generate` uses if none are given: the recommendation of the model, if it has one."""
        return SamplingParams(**self._resolved.sampling_defaults)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """One result per prompt, in order.

        prompts: text, token ids, or {"prompt": ...} or {"prompt_token_ids": ...}; or a list of these.
        sampling_params: for all prompts, or one for each.
        use_tqdm: show progress, if standard error is a terminal.
        lora_request: the adapter of all prompts, or one for each; None: the model itself.
        Raises InvalidRequest, before anything is generated, and RuntimeError if the engine fails in a step.
        """
        parsed = [self._parse(prompt) for prompt in _listed(prompts)]
        return self._generate(parsed, sampling_params, use_tqdm, lora_request)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        sampling_params: SamplingParams | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """The best `n` answers of a beam search, best first, with their `cumulative_logprob`. See `generate`.

        sampling_params: its n, lengths, ends, temperature and logit_bias; what only samples need is refused.
        """
        sampling = sampling_params or SamplingParams()
        if sampling.n > params.width:
            raise InvalidRequest(f"n is {sampling.n}, but the search has {params.width} beams", param="n")
        check_searchable(sampling)
        sampling = replace(sampling, logprobs=sampling.logprobs or 0)
        requests: list[EngineRequest] = []
        results: list[RequestOutput] = []
        parsed = [self._parse(prompt) for prompt in _listed(prompts)]
        for (text, token_ids), adapter in zip(parsed, one_each(lora_request, len(parsed)), strict=True):
            self._check(sampling, token_ids)
            request_id = str(next(self._request_numbers))
            requests.append(EngineRequest(request_id=request_id, inputs=self._inputs(token_ids, sampling, adapter)))
            results.append(RequestOutput(request_id, text, token_ids, [], lora_request=adapter))
        started = time.perf_counter()
        eos_token_ids, context = self.info.eos_token_ids, self.info.max_cached_len
        searches = [BeamSearch(request, params, eos_token_ids, context) for request in requests]
        self._search(searches, show_progress=use_tqdm)
        for request, result, search in zip(requests, results, searches, strict=True):
            for output in search.best(sampling.n):
                collector = SequenceCollector(result, request, self._tokenizer)
                collector.take(output, lambda: time.perf_counter() - started)
        return results

    def _search(self, searches: Sequence[BeamSearch], *, show_progress: bool) -> None:
        """Run all searches to their end, side by side: each step of all of them is one batch of requests."""
        with _progress(len(searches), show=show_progress) as advance:
            while live := [search for search in searches if not search.is_finished]:
                beams = [[(request, OneOutput()) for request in search.requests()] for search in live]
                self._run(list(itertools.chain.from_iterable(beams)), lambda: None)
                for search, own in zip(live, beams, strict=True):
                    search.advance([kept.output for _, kept in own if kept.output is not None])
                    if search.is_finished:
                        advance()

    def chat(
        self,
        messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers to one conversation or a list of them, through the model's chat template. See `generate`."""
        tokenizer = self.get_tokenizer()
        renderer = self._renderer_of(chat_template)
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        parsed: list[tuple[str | None, list[int]]] = []
        for conversation in conversations:
            template, rendering = renderer.rendering(
                conversation,  # type: ignore[arg-type]  # a list of messages, by the line above
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                template_kwargs=chat_template_kwargs,
            )
            text = template.render(rendering)
            parsed.append((text, tokenizer.encode(text, rendering.breaks, add_special_tokens=False)))
        return self._generate(parsed, sampling_params, use_tqdm, lora_request)

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | None = None,
        *,
        pooling_task: str | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What the model makes of each prompt, in order, as an array: `outputs.data`.

        prompts, use_tqdm, lora_request: as of `generate`. A prompt may fill the context.
        pooling_task: one of the model's tasks, such as embed, classify or token_embed; None: the only one that it has.
        Raises InvalidRequest, before anything is computed, and RuntimeError if the engine fails, or computes a result
        that is not finite.
        """
        params, pooler = pooling_params or PoolingParams(), self._pooler
        task = pooler.default_task(params, pooling_task)
        parsed = pooler.prompts([_text_or_ids(each) for each in _listed(prompts)], params)
        return pooler.pooled(parsed, task, params, self._pools(use_tqdm, lora_request))

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[PoolingRequestOutput[EmbeddingOutput]]:
        """An embedding of each prompt: `outputs.embedding`. See `encode`."""
        found = self.encode(prompts, pooling_params, pooling_task="embed", use_tqdm=use_tqdm, lora_request=lora_request)
        return [each.with_output(EmbeddingOutput(each.outputs.data.tolist())) for each in found]

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[PoolingRequestOutput[ClassificationOutput]]:
        """The score of each label, for each prompt: `outputs.probs`. See `encode`."""
        found = self.encode(
            prompts, pooling_params, pooling_task="classify", use_tqdm=use_tqdm, lora_request=lora_request
        )
        return [each.with_output(ClassificationOutput(each.outputs.data.tolist())) for each in found]

    def reward(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """The rewards of each prompt: of its steps or tokens, of a model that rates these, else one. See `encode`."""
        task = "classify" if self._pooler.pooling.head("token_classify") is None else "token_classify"
        return self.encode(prompts, pooling_params, pooling_task=task, use_tqdm=use_tqdm, lora_request=lora_request)

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | None = None,
        chat_template: str | None = None,
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        """How well each text of data_2 matches data_1, which is one text or one for each: `outputs.score`.

        A model with one score rates both texts in one prompt; of others their vectors are compared. chat_template: of
        models whose prompts of pairs are messages; None: the model's own. See `encode`.
        """
        queries = [data_1] if isinstance(data_1, str) else list(data_1)
        documents = [data_2] if isinstance(data_2, str) else list(data_2)
        renderer = self._renderer_of(chat_template) if self._pooler.pooling.pair == BY_CHAT else None
        if chat_template is not None and renderer is None:
            raise InvalidRequest("this model's prompts of pairs have no chat template", param="chat_template")

        def as_messages(query: str, document: str) -> list[int]:
            assert renderer is not None, "the pair is not one of messages"
            messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
            template, rendering = renderer.rendering(messages, add_generation_prompt=False)
            text = template.render(rendering)
            return self.get_tokenizer().encode(text, rendering.breaks, add_special_tokens=False)

        params = pooling_params or PoolingParams()
        return self._pooler.scores(queries, documents, params, self._pools(use_tqdm, lora_request), as_messages)

    @property
    def _pooler(self) -> Pooler:
        spec = self._resolved.model_spec
        if spec.pooling is None:
            raise InvalidRequest("this model only generates tokens", param="pooling_task")
        return Pooler(spec.pooling, self._tokenizer, self._resolved.model.max_model_len)

    def _pools(self, use_tqdm: bool, lora_request: LoRARequest | Sequence[LoRARequest | None] | None) -> Compute:
        def compute(prompts: Sequence[PoolPrompt], task: str) -> list[tuple[str, EngineOutput]]:
            requests: list[tuple[EngineRequest, PooledOutput]] = []
            for prompt, adapter in zip(prompts, one_each(lora_request, len(prompts)), strict=True):
                inputs = self._inputs(prompt.token_ids, task_of(prompt, task), adapter)
                request = EngineRequest(request_id=str(next(self._request_numbers)), inputs=inputs)
                requests.append((request, PooledOutput()))
            with _progress(len(requests), show=use_tqdm) as advance:
                self._run(requests, advance)
            return [(request.request_id, kept.output) for request, kept in requests if kept.output is not None]

        return compute

    def collective_rpc(
        self, method: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Calls a method of `worker_extension_cls` in each process of the model. Returns their results, by rank.

        args, kwargs: what JSON has, bytes, tuples, numpy arrays and tensors, if there are several processes.
        Nothing that was cached is reused afterwards. Raises CallError for a method that does not exist, or fails, and
        RuntimeError if a process of the model has ended.
        """
        return self._running.call_workers(method, args, kwargs or {})

    def _renderer_of(self, chat_template: str | None) -> Renderer:
        """chat_template: None for that of the model, or of the options."""
        if chat_template is not None:
            return self._new_renderer(_template(chat_template))
        self._renderer = self._renderer or self._new_renderer(self._resolved.chat_template)
        return self._renderer

    def _new_renderer(self, chat_template: TemplateSource | None) -> Renderer:
        server = self._resolved.server
        return Renderer(
            self.get_tokenizer(),
            chat_template,
            content_format=server.chat_template_content_format,
            default_kwargs=server.default_chat_template_kwargs,
            processes=self._template_processes,
            reads_control_tokens=server.parse_special_tokens_in_content,
        )

    def _parse(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """(text, token ids) of one prompt."""
        given = _text_or_ids(prompt)
        if isinstance(given, str):
            return given, self.get_tokenizer().encode(given)
        return prompt.get("prompt") if isinstance(prompt, Mapping) else None, given

    def _generate(
        self,
        prompts: list[tuple[str | None, list[int]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None,
    ) -> list[RequestOutput]:
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        sampling = _one_each(sampling_params, len(prompts))
        adapters = one_each(lora_request, len(prompts))
        requests: list[tuple[EngineRequest, Collector]] = []
        results: list[RequestOutput] = []
        has_drafts = self._resolved.speculative.method is not None
        for (text, token_ids), params, adapter in zip(prompts, sampling, adapters, strict=True):
            request_id = str(next(self._request_numbers))
            result = RequestOutput(request_id, text, token_ids, [], lora_request=adapter)
            self._check(params, token_ids)
            if params.bad_words:
                params = replace(params, bad_word_ids=self.get_tokenizer().word_ids(params.bad_words))
            inputs = self._inputs(token_ids, params, adapter)
            for request in fan_out(EngineRequest(request_id=request_id, inputs=inputs)):
                collector = SequenceCollector(result, request, self._tokenizer, has_drafts=has_drafts)
                requests.append((request, collector))
            results.append(result)
        with _progress(len(requests), show=use_tqdm) as advance:
            self._run(requests, advance)
        return results

    def _inputs(self, token_ids: list[int], params: Task, adapter: LoRARequest | None) -> RequestInputs:
        """Raises InvalidRequest for an adapter that cannot be used."""
        if adapter is None:
            return RequestInputs(token_ids, params)
        ref = self._adapters.load(self._running, adapter)
        return RequestInputs(token_ids, params, CacheScope(adapter=ref.digest), ref)

    def _run(self, requests: Sequence[tuple[EngineRequest, Collector]], on_end: Callable[[], None]) -> None:
        """Run all to their end. on_end: called after the end of each."""
        core = self._running
        loop: EngineLoop[None] = EngineLoop(
            core, OfflineBatch(core, dict(zip(self._handles, requests, strict=False)), on_end)
        )
        try:
            loop.run()
        finally:  # an interrupt included: nothing of this batch stays in the engine
            loop.forget(None)

    def _check(self, params: SamplingParams, token_ids: list[int]) -> None:
        """Raises InvalidRequest for errors that can be found before anything runs."""
        params.validate()
        check_allowed(params.logits_processors, self._resolved.model.logits_processor_pattern)
        if self._launched is not None:
            self._launched.check(params)
        most, context = self._resolved.model.max_logprobs, self._resolved.model.max_model_len
        for name in ("logprobs", "prompt_logprobs"):
            asked = getattr(params, name)
            if asked is not None and most != -1 and asked > most:
                raise InvalidRequest(f"{name} is {asked}; max_logprobs allows {most}", param=name)
        if params.stop and self._tokenizer is None:
            raise InvalidRequest("stop strings need a tokenizer; use stop_token_ids", param="stop")
        if len(token_ids) >= context:
            raise too_long(len(token_ids), context, param="prompts")


def _template(value: str) -> TemplateSource:
    """A template, or the name of its file."""
    try:
        return template_of(value, "chat_template")
    except TemplateUnreadable as error:
        message = f"chat_template is neither a template nor a file that can be read: {error}"
        raise InvalidRequest(message, param="chat_template") from None


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts, from one prompt or several. A list of token ids is one prompt; a list of lists is several."""
    if isinstance(prompts, str | Mapping) or (len(prompts) and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _text_or_ids(prompt: Prompt) -> str | list[int]:
    if isinstance(prompt, Mapping):
        if "prompt_token_ids" in prompt:
            return list(prompt["prompt_token_ids"])
        if "prompt" not in prompt:
            raise InvalidRequest("a prompt given as a dict needs `prompt` or `prompt_token_ids`", param="prompts")
        return _text_or_ids(prompt["prompt"])
    return prompt if isinstance(prompt, str) else list(prompt)


def _one_each(sampling: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    if isinstance(sampling, SamplingParams):
        return [sampling] * count
    if len(sampling) != count:
        raise InvalidRequest(f"{len(sampling)} sampling_params for {count} prompts", param="sampling_params")
    return list(sampling)


@contextlib.contextmanager
def _progress(total: int, *, show: bool) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error, if that is a terminal. Yields a function that counts one finished sequence."""
    console = Console(stderr=True)
    if not show or not console.is_terminal:
        yield lambda: None
        return
    columns = (TextColumn("sequences"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
