"""Request fields of OpenAI's API, vLLM, SGLang and llama.cpp's server that are not served: refused, or without effect.

Served fields are in the protocol models (chat.py, completions.py, tokenize.py). A field that is in neither place
is unknown. docs/reference/request-fields.md is written from both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Route(StrEnum):
    CHAT = "/v1/chat/completions"
    TEXT = "/v1/completions"
    GENERATE = "/inference/v1/generate"
    ABORT = "/inference/v1/abort_requests"
    DERENDER_CHAT = "/v1/chat/completions/derender"
    DERENDER_TEXT = "/v1/completions/derender"
    TOKENIZE = "/tokenize"
    DETOKENIZE = "/detokenize"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    EMBEDDINGS = "/v1/embeddings"
    POOLING = "/pooling"
    CLASSIFY = "/classify"
    SCORE = "/score"
    RERANK = "/rerank"
    COHERE_EMBED = "/v2/embed"
    TEI_EMBED = "/embed"
    TEI_EMBED_ALL = "/embed_all"
    TEI_PREDICT = "/predict"
    TEI_SIMILARITY = "/similarity"
    TEI_DECODE = "/decode"


GENERATING = (Route.CHAT, Route.TEXT)
EMPTY: tuple[Any, ...] = (False, "", [], {})
NO_FEATURES: Mapping[str, Any] = {"mm_hashes": {}, "mm_placeholders": {}}  # of a prompt that is text


@dataclass(frozen=True, slots=True)
class UnservedField:
    """off: values that are accepted besides null, because they change nothing; None: no value has an effect."""

    name: str
    reason: str
    off: tuple[Any, ...] | None

    def refuses(self, value: Any) -> bool:
        if self.off is None or value is None:
            return False
        return not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in self.off)


def _refused(
    reason: str, names: str, *, routes: Sequence[Route] = GENERATING, off: tuple[Any, ...] = EMPTY
) -> Mapping[Route, list[UnservedField]]:
    """off: values that are accepted, because they ask for what happens anyway."""
    return {route: [UnservedField(name, reason, off) for name in names.split()] for route in routes}


def _no_effect(reason: str, names: str, *, routes: Sequence[Route] = GENERATING) -> Mapping[Route, list[UnservedField]]:
    return {route: [UnservedField(name, reason, None) for name in names.split()] for route in routes}


CHAT, TEXT, TOKENIZE, GENERATE = (Route.CHAT,), (Route.TEXT,), (Route.TOKENIZE,), (Route.GENERATE,)
ONLY_CHAT = "only /v1/chat/completions has it"
TEXT_ONLY = "the model accepts text only"
ONE_ENGINE = "KV blocks of other engines are read by /v1/chat/completions, /v1/completions and /inference/v1/generate"
NOT_RETURNED = "the engine does not return this"
NAMED_ADAPTERS = "name the adapter as the `model` of the request"
NOT_SAMPLED_SO = "this is not among the sampler's methods"
RESPONSES, MESSAGES = (Route.RESPONSES,), (Route.MESSAGES,)
POOLED = (Route.EMBEDDINGS, Route.POOLING, Route.CLASSIFY, Route.SCORE, Route.RERANK)  # of OpenAI and vLLM
VECTORS = (Route.EMBEDDINGS, Route.POOLING)
# Other fields that constrain the output, of structured.py.
GRAMMARS = ("guided_json guided_regex guided_choice guided_grammar guided_json_object guided_whitespace_pattern "
            "regex ebnf json_schema grammar")  # fmt: skip
_DIALECTS = (
    _refused("send `previous_response_id`, or the whole conversation", "conversation", routes=RESPONSES),
    _refused("send `previous_response_id`, or the whole conversation", "previous_input_messages", routes=RESPONSES),
    _refused("the server has no stored prompts; send `instructions` and `input`", "prompt", routes=RESPONSES),
    _refused("the server has no moderation", "moderation", routes=RESPONSES),
    _refused("the context is not compacted; the client decides what to send", "context_management", routes=RESPONSES),
    _refused("send `max_output_tokens`", "max_tokens max_completion_tokens", routes=RESPONSES),
    _refused("send `text.format`", "response_format structured_outputs " + GRAMMARS, routes=RESPONSES),
    _refused("send `reasoning.effort`", "reasoning_effort", routes=RESPONSES),
    _refused("send `reasoning`", "thinking output_config", routes=RESPONSES),
    _refused("send `chat_template_kwargs`", "enable_thinking", routes=RESPONSES),
    _refused("send `instructions`", "system", routes=RESPONSES),
    _refused("send `stop`", "stop_sequences", routes=RESPONSES),
    _refused("send `input`", "messages", routes=RESPONSES),
    _refused("one response has one answer", "n best_of", routes=RESPONSES, off=(1,)),
    _refused(NOT_RETURNED, "enable_response_messages return_token_ids", routes=RESPONSES),
    _refused(TEXT_ONLY, "image mm_processor_kwargs media_io_kwargs modalities audio", routes=RESPONSES),
    _refused("there are no plug-ins that read it", "vllm_xargs", routes=RESPONSES),
    _refused(ONE_ENGINE, "kv_transfer_params", routes=(*RESPONSES, *MESSAGES)),
    _refused("there are no programs for which access is granted", "access_programs", routes=RESPONSES),
    _no_effect("a response in the background begins at once", "background_options", routes=RESPONSES),
    _no_effect("a label; the model does not see it", "service_tier prompt_cache_retention prompt_cache_options "
               "personality", routes=RESPONSES),
    _refused("code does not run in the server", "container", routes=MESSAGES),
    _refused("send `output_config.format`", "response_format structured_outputs " + GRAMMARS, routes=MESSAGES),
    _refused("send `output_config.effort`", "reasoning_effort", routes=MESSAGES),
    _refused("send `max_tokens`", "max_completion_tokens max_output_tokens", routes=MESSAGES),
    _refused("send `messages`", "input prompt", routes=MESSAGES),
    _refused("send `system`", "instructions", routes=MESSAGES),
    _refused("send `output_config`", "reasoning text", routes=MESSAGES),
    _refused("send `thinking`", "enable_thinking", routes=MESSAGES),
    _refused("send the whole conversation", "previous_response_id", routes=MESSAGES),
    _refused("send blocks of the type `document`", "documents", routes=MESSAGES),
    _refused("send the whole conversation", "previous_response_id", routes=GENERATING),
    _refused("send a message of the system", "instructions system", routes=CHAT),
    _refused("send `messages`", "input", routes=CHAT),
    _refused("send `response_format`", "text", routes=CHAT),
    _refused("send `reasoning_effort`, or `response_format`", "output_config", routes=CHAT),
    _refused("send `max_tokens`", "max_output_tokens"),
    _refused("send `stop`", "stop_sequences"),
    _refused("send `prompt`", "input instructions system", routes=TEXT),
    _refused("one message has one answer", "n best_of", routes=MESSAGES, off=(1,)),
    _refused(NOT_RETURNED, "logprobs top_logprobs prompt_logprobs return_token_ids", routes=MESSAGES, off=(*EMPTY, 0)),
    _refused("send `tool_choice.disable_parallel_tool_use`", "parallel_tool_calls", routes=MESSAGES, off=(True,)),
    _refused("the client runs the tools; send them as `tools`", "mcp_servers", routes=MESSAGES),
    _refused("send `output_config.format`", "output_format", routes=MESSAGES),
    _refused("one deployment serves one model", "fallbacks fallback_credit_token", routes=MESSAGES),
    _refused("the client decides what to send", "compaction thread", routes=MESSAGES),
    _no_effect("the context is not edited: the header `X-Stoker-Ignored-Fields` says so", "context_management",
               routes=MESSAGES),
    _no_effect("every prefix is cached", "cache_control", routes=MESSAGES),
    _no_effect("a label; the model does not see it", "service_tier inference_geo user_profile_id workspace_id speed "
               "diagnostics betas billing_policy", routes=MESSAGES),
)  # fmt: skip
_POOLING = (
    _no_effect("a label; the model does not see it", "user", routes=POOLED),
    _no_effect("texts of one request are not padded to one length", "padding", routes=POOLED),
    _refused(TEXT_ONLY, "mm_processor_kwargs media_io_kwargs", routes=POOLED),
    _refused("send `use_activation`", "normalize softmax activation", routes=POOLED, off=(True,)),
    _refused("a text has one vector, which is not that of its parts", "late_chunking_params", routes=VECTORS),
    _refused("there are no plug-ins that read it", "data", routes=(Route.POOLING,)),
    _refused("send token ids as `input`", "prompt_token_ids", routes=VECTORS),
    _refused("only /pooling has it", "task", routes=(Route.EMBEDDINGS,), off=("embed",)),
    _refused("vectors are embeddings of texts: POST /v1/embeddings returns them", "dimensions encoding_format "
             "embed_dtype endianness", routes=(Route.CLASSIFY, Route.SCORE, Route.RERANK)),
    _refused("send `instruction`", "chat_template chat_template_kwargs", routes=(Route.SCORE, Route.RERANK)),
    _refused("send one query and its documents", "item_first label_token_ids apply_softmax", routes=(Route.SCORE,)),
    _refused("documents are texts; send those of one field", "rank_fields", routes=(Route.RERANK,)),
    _refused("documents are not cut in parts", "max_chunks_per_doc overlap_tokens", routes=(Route.RERANK,)),
    _refused(TEXT_ONLY, "images", routes=(Route.COHERE_EMBED,)),
    _refused("send `raw_scores`, which leaves out the activation", "parameters", routes=(Route.TEI_PREDICT,)),
    _refused("send `prompt`: this is not TEI's route of that name", "inputs", routes=(Route.TOKENIZE,)),
)  # fmt: skip
_TABLE = (
    *_POOLING,
    _refused("a grammar applies to the whole answer", "grammar_lazy grammar_triggers preserved_tokens"),
    _refused("only /v1/completions has it", "prompt", routes=CHAT),
    _refused(ONLY_CHAT, "messages tools documents chat_template chat_template_kwargs "
             "max_completion_tokens reasoning_effort continue_final_message", routes=TEXT),
    _refused(ONLY_CHAT, "top_logprobs", routes=TEXT, off=(0,)),
    _refused(ONLY_CHAT, "prediction", routes=TEXT),
    _refused(ONLY_CHAT, "tool_choice", routes=TEXT, off=("none", "auto")),
    _refused(ONLY_CHAT, "add_generation_prompt parallel_tool_calls", routes=TEXT, off=(True,)),
    _refused(ONLY_CHAT, "modalities", routes=TEXT, off=([], ["text"])),
    _refused("text is not generated between a prompt and a suffix", "suffix"),
    _refused("send `tools` instead", "functions", routes=CHAT),
    _refused("send `tools` instead", "function_call", routes=CHAT, off=("none", "auto", {})),
    _refused("calls are always read; send `tool_choice: none`", "parse_tool_calls", routes=CHAT, off=(True,)),
    _refused(TEXT_ONLY, "audio prompt_embeds mm_processor_kwargs media_io_kwargs images_config video_config "
             "max_dynamic_patch min_dynamic_patch use_audio_in_video return_mm_kwargs"),
    _refused(TEXT_ONLY, "mm_processor_kwargs media_io_kwargs", routes=TOKENIZE),
    _refused(TEXT_ONLY, "mm_payload", off=("tensors",)),
    _refused("the server does not search the web", "web_search_options", routes=CHAT, off=()),
    _refused("the server has no moderation", "moderation", routes=CHAT),
    _refused("the chat template opens thinking", "thinking_forced_open"),
    _refused(ONLY_CHAT, "thinking_token_budget", routes=TEXT, off=()),
    _refused(ONLY_CHAT, "thinking_budget_tokens", routes=TEXT, off=(-1,)),
    _refused(ONLY_CHAT, "include_reasoning separate_reasoning stream_reasoning", routes=TEXT, off=(True, False)),
    _refused(ONLY_CHAT, "reasoning_format", routes=TEXT, off=("none", "auto")),
    _refused(ONLY_CHAT, "enable_thinking thinking", routes=TEXT, off=(False,)),
    _refused("the chat template alone makes the prompt", "task", routes=CHAT),
    _refused(ONE_ENGINE, "ec_transfer_params bootstrap_host bootstrap_port bootstrap_room "
             "disagg_prefill_dp_rank"),
    _refused("send the header `X-Data-Parallel-Rank`", "data_parallel_rank routed_dp_rank", off=()),
    _refused(NAMED_ADAPTERS, "lora lora_path lora_request"),
    _refused(NOT_RETURNED, "return_hidden_states return_routed_experts return_weight_versions return_token_offsets "
             "return_prompt_text return_meta_info return_sampling_mask sampling_logprobs_mode response_fields "
             "return_spec_tokens_details return_progress timings_per_token post_sampling_probs "
             "return_flat_raw_output_top_logprobs"),
    _no_effect("only with `return_flat_raw_output_top_logprobs`", "return_flat_raw_top_logprobs_b64"),
    _refused(NOT_RETURNED, "routed_experts_prompt_start routed_experts_start_len min_keep", off=(0,)),
    _refused("set `server.enable_prompt_tokens_details` in the deployment", "return_cached_tokens_details"),
    _refused("send `return_token_ids`", "return_prompt_token_ids return_input_ids_in_sglext "
             "return_output_ids_in_sglext return_tokens"),
    _refused("only the most likely tokens have log-probabilities", "logprob_token_ids"),
    _refused("send `logprobs`", "n_probs", off=(0,)),
    _refused("repetition is not detected", "repetition_detection"),
    _refused("there are no plug-ins that read it", "vllm_xargs custom_params custom_logit_processor session_params"),
    _refused("send `stop`: stop strings are no patterns", "stop_regex"),
    _refused("send `include_stop_str_in_output`", "no_stop_trim"),
    _refused("send `request_id`", "rid"),
    _refused("send `cache_salt`", "extra_key"),
    _refused("send token ids as `prompt` to /v1/completions", "input_ids", routes=CHAT),
    _refused("text is not watermarked", "watermark watermarking"),
    _refused("send `max_tokens`", "n_predict", off=(-1,)),
    _refused("send `n`", "n_cmpl", off=(1,)),
    _refused("send `repetition_penalty`", "repeat_penalty", off=(1,)),
    _refused("a request has no time limit", "t_max_predict_ms", off=(0, -1)),
    _refused("indentation is not limited", "n_indent", off=(0,)),
    _refused(NOT_SAMPLED_SO, "samplers"),
    _refused(NOT_SAMPLED_SO, "xtc_probability dynatemp_range mirostat dry_multiplier", off=(0,)),
    _refused(NOT_SAMPLED_SO, "typical_p typ_p", off=(1,)),
    _refused(NOT_SAMPLED_SO, "top_n_sigma adaptive_target", off=(-1,)),
    _no_effect("only with `xtc_probability`", "xtc_threshold"),
    _no_effect("only with `dynatemp_range`", "dynatemp_exponent"),
    _no_effect("only with `mirostat`", "mirostat_tau mirostat_eta"),
    _no_effect("only with `dry_multiplier`", "dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers"),
    _no_effect("only with `adaptive_target`", "adaptive_decay"),
    _no_effect("only with `repeat_penalty`", "repeat_last_n"),
    _no_effect("the context is not shifted", "n_keep n_discard"),
    _no_effect("the answer is the same", "cache_prompt id_slot backend_sampling stream_interval session_id "
               "speculative.n_max speculative.n_min speculative.p_min"),
    _no_effect("tokens are joined as bytes, without spaces", "spaces_between_special_tokens"),
    _no_effect("a label; the model does not see it", "user store service_tier safety_identifier "
               "prompt_cache_retention prompt_cache_options verbosity custom_labels"),
    _no_effect("a label; the model does not see it", "metadata prompt_cache_key", routes=TEXT),
    _no_effect("chunks are not padded", "stream_options.include_obfuscation"),
    _no_effect("the chat template is used", "chat_format"),
    _refused("send `token_ids`", "prompt add_special_tokens echo", routes=GENERATE),
    _refused(TEXT_ONLY, "features", routes=GENERATE, off=(*EMPTY, NO_FEATURES, {**NO_FEATURES, "kwargs_data": None})),
    _refused("the request that was rendered is more than these tokens: send it to its own route", "not_carried",
             routes=GENERATE),
    _refused("only the routes that render know it", "assistant_tokens_mask token_offsets", routes=GENERATE),
    _refused("send `cache_salt`: other requests then share no prefix with it", "skip_reading_prefix_cache",
             routes=GENERATE),
    _refused("there are no plug-ins that read it", "extra_args", routes=GENERATE),
    _no_effect("the answer is the same", "detokenize output_kind flat_logprobs skip_clone", routes=GENERATE),
    *_DIALECTS,
    _refused("send `prompt`", "content", routes=TOKENIZE),
    _refused("send `add_special_tokens`", "add_special", routes=TOKENIZE, off=()),
    _refused("special tokens in a text are always read as such", "parse_special", routes=TOKENIZE, off=(True,)),
    _refused("send `return_token_strs`", "with_pieces", routes=TOKENIZE),
    _refused("omit `tools` instead", "tool_choice", routes=TOKENIZE, off=("auto",)),
)  # fmt: skip
UNSERVED: dict[Route, dict[str, UnservedField]] = {
    route: {field.name: field for part in _TABLE for field in part.get(route, ())} for route in Route
}
# What /v1/completions does not serve, this route does not either.
UNSERVED[Route.GENERATE] = {**UNSERVED[Route.TEXT], **UNSERVED[Route.GENERATE]}
