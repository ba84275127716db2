"""The request fields of other servers, by route: the names that each of them documents or declares.

OpenAI: its Python client 2.x and 3.x. vLLM 0.33, SGLang 0.5.23. llama.cpp: the documentation of its server.
"""

from __future__ import annotations

OPENAI_CHAT = """
audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens messages metadata
modalities model moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_options
prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop store stream
stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options
"""
OPENAI_TEXT = """
best_of echo frequency_penalty logit_bias logprobs max_tokens model n presence_penalty prompt seed stop stream
stream_options suffix temperature top_p user
"""
VLLM_BOTH = """
model frequency_penalty logit_bias logprobs max_tokens n presence_penalty response_format seed stop stream
stream_options temperature top_p user use_beam_search top_k min_p repetition_penalty watermarking length_penalty
stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo
add_special_tokens structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
return_weight_versions routed_experts_prompt_start return_token_offsets mm_payload return_mm_kwargs cache_salt
kv_transfer_params ec_transfer_params vllm_xargs repetition_detection stream_interval thinking_token_budget
guided_json guided_regex guided_choice guided_grammar guided_decoding_backend guided_whitespace_pattern
logits_processors early_stopping
"""
VLLM_CHAT = """
messages top_logprobs max_completion_tokens tools tool_choice reasoning_effort include_reasoning parallel_tool_calls
add_generation_prompt continue_final_message documents chat_template chat_template_kwargs media_io_kwargs
mm_processor_kwargs return_prompt_text best_of
"""
VLLM_TEXT = "prompt suffix prompt_embeds best_of"
SGLANG_BOTH = """
bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank data_parallel_rank
return_hidden_states return_routed_experts routed_experts_start_len return_cached_tokens_details
return_spec_tokens_details regex ebnf stop_regex no_stop_trim lora_path session_id session_params custom_params
custom_logit_processor watermark images_config mm_processor_kwargs rid extra_key cache_salt priority
"""
SGLANG_CHAT = """
return_prompt_token_ids return_meta_info return_input_ids_in_sglext return_output_ids_in_sglext return_sampling_mask
sampling_logprobs_mode return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 thinking task
separate_reasoning stream_reasoning max_dynamic_patch min_dynamic_patch use_audio_in_video video_config input_ids
"""
SGLANG_TEXT = "json_schema custom_labels"
LLAMA_CPP_BOTH = """
dynatemp_range dynatemp_exponent top_k min_p n_predict n_indent n_keep n_discard n_cmpl typical_p typ_p repeat_penalty
repeat_last_n dry_multiplier dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers xtc_probability
xtc_threshold mirostat mirostat_tau mirostat_eta grammar grammar_lazy grammar_triggers preserved_tokens json_schema seed
ignore_eos logit_bias n_probs min_keep t_max_predict_ms id_slot cache_prompt return_tokens samplers timings_per_token
return_progress post_sampling_probs response_fields lora top_n_sigma adaptive_target adaptive_decay backend_sampling
speculative.n_max speculative.n_min speculative.p_min
"""
LLAMA_CPP_CHAT = """
chat_template_kwargs chat_format parse_tool_calls reasoning_format thinking_forced_open thinking_budget_tokens
add_generation_prompt
"""
VLLM_GENERATE = """
request_id token_ids assistant_tokens_mask token_offsets features model stream stream_options cache_salt priority
kv_transfer_params ec_transfer_params
n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed stop stop_token_ids
ignore_eos max_tokens min_tokens logprobs prompt_logprobs logprob_token_ids flat_logprobs detokenize
skip_special_tokens spaces_between_special_tokens include_stop_str_in_output output_kind skip_clone structured_outputs
logit_bias allowed_token_ids bad_words extra_args skip_reading_prefix_cache thinking_token_budget repetition_detection
routed_experts_prompt_start output_mode parse_context
"""
VLLM_DERENDER = "model prompt_tokens prompt_token_ids stream generate_chunk stream_state"
VLLM_RESPONSES = """
background include input instructions max_output_tokens max_tool_calls metadata model logit_bias parallel_tool_calls
previous_response_id prompt reasoning service_tier store stream temperature text tool_choice tools top_logprobs top_p
top_k truncation user skip_special_tokens include_stop_str_in_output stop ignore_eos repetition_penalty presence_penalty
frequency_penalty seed priority cache_salt request_id mm_processor_kwargs enable_response_messages
previous_input_messages structured_outputs vllm_xargs kv_transfer_params chat_template_kwargs
"""
VLLM_MESSAGES = """
model messages max_tokens metadata stop_sequences stream system temperature tool_choice tools top_k top_p thinking
output_config chat_template_kwargs kv_transfer_params
"""
VLLM_TOKENIZE = """
model prompt messages add_special_tokens return_token_strs add_generation_prompt continue_final_message chat_template
chat_template_kwargs media_io_kwargs mm_processor_kwargs tools
"""
SGLANG_TOKENIZE = "tool_choice reasoning_effort"
LLAMA_CPP_TOKENIZE = "content add_special parse_special with_pieces"

OPENAI_EMBEDDINGS = "input model dimensions encoding_format user"
VLLM_POOLED = """
model user truncate_prompt_tokens truncation_side padding request_id priority mm_processor_kwargs cache_salt
"""
VLLM_OF_TEXTS = """
input messages add_generation_prompt continue_final_message chat_template chat_template_kwargs add_special_tokens
use_activation media_io_kwargs
"""
VLLM_OLDER = "normalize softmax activation"
VLLM_VECTORS = "encoding_format embed_dtype endianness dimensions late_chunking_params"
VLLM_PAIRS = "max_tokens_per_query max_tokens_per_doc instruction chat_template_kwargs use_activation"
JINA_AND_INFINITY = "return_documents raw_scores"
TEI_OF_TEXTS = "inputs truncate truncation_direction prompt_name"

KNOWN: dict[str, frozenset[str]] = {
    route: frozenset(" ".join(parts).split())
    for route, parts in {
        "/v1/chat/completions": (
            OPENAI_CHAT, VLLM_BOTH, VLLM_CHAT, SGLANG_BOTH, SGLANG_CHAT, LLAMA_CPP_BOTH, LLAMA_CPP_CHAT,
        ),
        "/v1/completions": (OPENAI_TEXT, VLLM_BOTH, VLLM_TEXT, SGLANG_BOTH, SGLANG_TEXT, LLAMA_CPP_BOTH),
        "/inference/v1/generate": (VLLM_GENERATE,),
        "/inference/v1/abort_requests": ("request_ids",),
        "/v1/chat/completions/derender": (VLLM_DERENDER, "generate_response chat_request"),
        "/v1/completions/derender": (VLLM_DERENDER, "generate_responses completion_request"),
        "/tokenize": (VLLM_TOKENIZE, SGLANG_TOKENIZE, LLAMA_CPP_TOKENIZE),
        "/detokenize": ("model tokens skip_special_tokens",),
        "/v1/responses": (VLLM_RESPONSES,),
        "/v1/messages": (VLLM_MESSAGES,),
        "/v1/embeddings": (OPENAI_EMBEDDINGS, VLLM_POOLED, VLLM_OF_TEXTS, VLLM_VECTORS, VLLM_OLDER, "modality"),
        "/pooling": (VLLM_POOLED, VLLM_OF_TEXTS, VLLM_VECTORS, VLLM_OLDER, "task data"),
        "/classify": (VLLM_POOLED, VLLM_OF_TEXTS, VLLM_OLDER, "raw_scores"),
        "/score": (VLLM_POOLED, VLLM_PAIRS, VLLM_OLDER, "queries documents"),
        "/rerank": (
            VLLM_POOLED, VLLM_PAIRS, VLLM_OLDER, JINA_AND_INFINITY, "query documents top_n",
            "texts truncate truncation_direction return_text",
        ),
        "/v2/embed": (
            "model input_type texts images inputs max_tokens output_dimension embedding_types truncate priority",
        ),
        "/embed": (TEI_OF_TEXTS, "normalize dimensions"),
        "/embed_all": (TEI_OF_TEXTS,),
        "/predict": ("inputs truncate truncation_direction raw_scores",),
        "/similarity": ("inputs parameters",),
        "/decode": ("ids skip_special_tokens",),
    }.items()
}  # fmt: skip
