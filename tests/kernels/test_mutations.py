"""Mutation tests: each small change to a kernel makes a test of this folder fail.

Most are slow. The quick ones of several modules run every time, and that every mutation can still be applied.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from triton.runtime.errors import InterpreterError

from . import (
    test_attend_whole,
    test_attention,
    test_attention_plan,
    test_compressed_attention,
    test_elementwise,
    test_experts,
    test_gated_residual,
    test_gemv,
    test_grouped,
    test_hyper_connections,
    test_latent_attention,
    test_linear,
    test_lora_add,
    test_recurrent,
    test_sample,
    test_sample_logprobs,
    test_sample_ops,
    test_sparse_attention,
    test_step,
)
from .conftest import HAS_GPU
from .mutation import (
    Change,
    Mutation,
    argument,
    becomes,
    expression,
    left,
    operand,
    removed,
    right,
    swapped,
    value,
    without_item,
    without_keyword,
)

pytestmark = pytest.mark.skipif(HAS_GPU, reason="mutates kernels in Triton's interpreter")

Check = Callable[[torch.device], None]
SMALL = torch.float32


def decode(device: torch.device) -> None:
    for name in ("plain", "window, softcap and sinks", "slopes", "chunks", "scaled"):
        test_attention.test_decode(device, name, 5)
    test_attention.test_a_workspace_serves_one_step_after_another(device)


def prefill(device: torch.device) -> None:
    for name in ("plain", "window, softcap and sinks", "slopes", "chunks", "scaled"):
        test_attention.test_prefill(device, name, 5)


def shared(device: torch.device) -> None:
    test_attention.test_each_kernel_leaves_the_rows_of_the_other(device)


def window(device: torch.device) -> None:
    for attend in (test_attention.decoded, test_attention.prefilled):
        test_attention.test_keys_before_the_window_are_not_read(device, attend, 16, False)


def wide_groups(device: torch.device) -> None:
    test_attention.test_prefill_of_other_shapes(device, SMALL, 14, 2, 16, 32)


def plan(device: torch.device) -> None:
    test_attention_plan.test_layers_share_a_plan_and_each_window_has_its_own(device)


def latents(device: torch.device) -> None:
    for programs in (1, 64):
        for has_sinks in (False, True):
            test_latent_attention.test_queries_attend_to_latents(device, 3, programs, has_sinks)
        for window in (1, 20, 64):
            test_latent_attention.test_queries_attend_to_their_windows(device, programs, window)
    test_latent_attention.test_tokens_after_the_last_row_see_nothing(device)


def whole_sequences(device: torch.device) -> None:
    for sizes, window, slopes in (((6, 2, 24), None, False), ((4, 4, 32), 5, True)):
        test_attend_whole.test_queries_attend_to_their_sequence(device, SMALL, sizes, window, slopes)
    test_attend_whole.test_biases_of_distances_are_added(device, SMALL, None, False, 40)


def lora_add(device: torch.device) -> None:
    for case in (((70, 32, 33), 100, [0, -1, 1, 0, 2, 1, 1]), ((40, 9), 65, [0] * 37 + [-1] * 2 + [1] * 18)):
        test_lora_add.test_the_rows_of_each_adapter_get_its_delta(device, SMALL, *case)


def hyper_connections(device: torch.device) -> None:
    for form in test_hyper_connections.FORMS:
        test_hyper_connections.test_streams_are_read_and_written(device, SMALL, form, 19, 3, 700)


def stored_latents(device: torch.device) -> None:
    for is_interleaved in (True, False):
        for has_key_norm in (True, False):
            test_latent_attention.test_latents_are_normed_rotated_and_stored(device, is_interleaved, True, has_key_norm)


def norm(device: torch.device) -> None:
    test_elementwise.test_add_rms_norm(device, torch.float16, 3, 100, True)


def layer_norm(device: torch.device) -> None:
    test_elementwise.test_add_layer_norm(device, SMALL, 3, 100, True)


def activations(device: torch.device) -> None:
    for activation in test_elementwise.ACTIVATIONS:
        test_elementwise.test_activations(device, SMALL, 3, 1100, activation)


def scaling(device: torch.device) -> None:
    test_elementwise.test_scaling(device, SMALL, 3, 1100, 1.5)


def heads(device: torch.device) -> None:
    for name in test_elementwise.HEAD_VARIANTS:
        test_elementwise.test_variants_of_heads(device, SMALL, name, True)
    for is_layer_norm in (False, True):
        test_elementwise.test_a_norm_over_all_heads(device, SMALL, is_layer_norm)


def experts(device: torch.device) -> None:
    for gate in test_experts.GATES:
        test_experts.test_experts(device, SMALL, gate, 7, 5, 3, True)
    test_experts.test_experts(device, SMALL, test_experts.SILU, 40, 2, 1, False)


def unknown_experts(device: torch.device) -> None:
    test_experts.test_an_expert_that_does_not_exist_adds_nothing(device)


def routing(device: torch.device) -> None:
    for name in test_experts.ROUTINGS:
        test_experts.test_route_experts(device, SMALL, name)
    test_experts.test_of_equal_scores_the_lower_index_is_chosen(device)
    test_experts.test_a_row_of_nan_chooses_experts_that_exist(device)


def rope(device: torch.device) -> None:
    test_elementwise.test_rope_and_store(device, SMALL, True, 2, 2, 80, 32, 32)
    test_elementwise.test_rope_and_store_in_fp8_clamps_values_out_of_range(device)
    test_elementwise.test_rope_and_store_divides_keys_and_values_by_their_scales(device, torch.float32)
    test_elementwise.test_a_token_without_a_slot_is_not_stored(device)


def noise(device: torch.device) -> None:
    test_sample_ops.test_noise_equals_the_reference(device)


def gumbel_max(device: torch.device) -> None:
    for min_p in (None, 0.05):
        test_sample_ops.test_tokens_equal_the_reference(device, 24, 1000, SMALL, min_p)
    test_sample_ops.test_equal_logits_give_the_first_token_greedily(device)
    test_sample_ops.test_a_row_without_valid_logits_gives_no_token(device)


def products(device: torch.device) -> None:
    test_gemv.test_products_are_those_of_matrices(device, SMALL, 2, 70, 1100, True, True)


def linear_ops(device: torch.device) -> None:
    for op in ("norm_linear", "norm_gate_up"):
        for tokens in (test_linear.MAX_TOKENS, test_linear.MAX_TOKENS + 1):
            test_linear.test_a_fused_layer_equals_the_separate_ops(device, SMALL, op, tokens, True)
        test_linear.test_a_fused_layer_equals_the_separate_ops(device, torch.float16, op, 2, True)


def codes(device: torch.device) -> None:
    for kind in ("gptq act-order", "q4_k", "q6_k", "one group", "groups of 48"):
        for tokens in (2, 3, test_grouped.FEW_TOKENS + 1):
            test_grouped.test_products_are_those_of_the_numbers(device, SMALL, kind, tokens)


def rows_of_codes(device: torch.device) -> None:
    for kind in test_grouped.ALL_KINDS:
        test_grouped.test_rows_are_those_of_the_numbers(device, SMALL, kind)


def levels(device: torch.device) -> None:
    test_grouped.test_all_codes_have_their_levels(device)


def pieces(device: torch.device) -> None:
    test_grouped.test_layers_of_several_parts_and_forms(device, 3)


def few_tokens(device: torch.device) -> None:
    test_sample.test_tokens_are_those_of_the_hosts_sampler(device, 36, 7, 64, 64)


def fast_path(device: torch.device) -> None:
    test_sample.test_the_fast_path_samples_what_the_full_sampler_does(device)


def cuts(device: torch.device) -> None:
    test_sample.test_cuts_change_tokens_where_logits_are_flat(device)


def ties(device: torch.device) -> None:
    test_sample.test_of_equal_logits_the_first_are_kept(device)


def no_valid_logits(device: torch.device) -> None:
    test_sample.test_rows_without_valid_logits_give_no_token(device)


def tiny_temperature(device: torch.device) -> None:
    test_sample.test_extreme_temperatures(device, 2e-5)


def candidates(device: torch.device) -> None:
    test_sample.test_there_are_few_candidates(device)


def convolution(device: torch.device) -> None:
    test_recurrent.test_states_of_the_convolution_are_copied_exactly(device)
    for rows in (test_recurrent.DECODE, test_recurrent.MIXED):
        for kind in test_recurrent.KINDS:
            test_recurrent.test_the_convolution(device, SMALL, kind, rows, 20, 4, True)


def rms_norm_gated(device: torch.device) -> None:
    for order in test_recurrent.ORDERS:
        test_recurrent.test_the_gated_rms_norm(device, SMALL, order, 120, 3, "silu")


def delta(device: torch.device) -> None:
    for rows in (test_recurrent.DECODE, test_recurrent.MIXED):
        test_recurrent.test_the_gated_delta_rule(device, SMALL, rows, (1, 2, 24, 20))


def kimi_delta(device: torch.device) -> None:
    for rows in (test_recurrent.DECODE, test_recurrent.MIXED):
        for least_log in (None, -5.0):
            test_recurrent.test_kimi_delta(device, SMALL, rows, (2, 24), least_log)


def norm_parts(device: torch.device) -> None:
    test_recurrent.test_the_norms_of_parts(device, SMALL, "weighted", (40, 7, 9))


def sparse(device: torch.device) -> None:
    for count in (40, 9):
        test_sparse_attention.test_queries_attend_to_chosen_tokens(device, SMALL, 6, 2, 24, count)
    test_sparse_attention.test_queries_after_the_last_row_see_nothing(device)


def heads_turned(device: torch.device) -> None:
    test_compressed_attention.test_heads_are_normed_and_rotated(device, SMALL, True, 1e-1, 70, 64)


def compress(device: torch.device) -> None:
    for rows in (test_compressed_attention.DECODE, test_compressed_attention.MIXED):
        for rate, overlaps in ((4, True), (16, False)):
            test_compressed_attention.test_tokens_are_compressed(device, SMALL, rows, rate, overlaps)


def choose(device: torch.device) -> None:
    for rows in (test_compressed_attention.DECODE, test_compressed_attention.MIXED):
        with pytest.MonkeyPatch.context() as patch:
            test_compressed_attention.test_the_best_vectors_are_chosen(device, SMALL, rows, 3, 5, 16, patch)
    test_compressed_attention.test_equal_scores_are_chosen_from_the_first(device)


def attend(device: torch.device) -> None:
    for programs in (1, 200):
        for count in (20, None):
            test_compressed_attention.test_queries_attend_to_the_window_and_vectors(
                device, SMALL, test_compressed_attention.DECODE, 3, 20, 4, count, programs
            )


def attend_in_chunks(device: torch.device) -> None:
    for count in (20, None):
        test_compressed_attention.test_queries_attend_to_the_window_and_vectors(
            device, SMALL, test_compressed_attention.MIXED, 3, 20, 4, count, 1
        )


def streams(device: torch.device) -> None:
    for check in (
        test_gated_residual.test_streams_are_normed,
        test_gated_residual.test_streams_are_averaged,
        test_gated_residual.test_a_result_is_added_to_streams,
        test_gated_residual.test_values_are_gated,
    ):
        for shape in ((3, 3, 1100), (5, 4, 40)):
            check(device, SMALL, *shape)


def delta_with_a_sigmoid(device: torch.device) -> None:
    test_recurrent.test_a_gated_delta_rule_with_a_sigmoid(device)


def selective_scan(device: torch.device) -> None:
    for rows in (test_recurrent.DECODE, test_recurrent.MIXED):
        test_recurrent.test_the_selective_scan(device, SMALL, rows, (120, 5, 3))


def rg_lru(device: torch.device) -> None:
    for rows in (test_recurrent.DECODE, test_recurrent.MIXED):
        test_recurrent.test_the_gated_unit(device, SMALL, rows, 70)


def state_space(device: torch.device) -> None:
    for rows in (test_recurrent.DECODE, test_recurrent.MIXED):
        test_recurrent.test_the_state_space(device, SMALL, rows, (2, 1, 24, 20), (0.1, 0.5))


def wide_state_space(device: torch.device) -> None:
    test_recurrent.test_the_state_space(device, SMALL, test_recurrent.MIXED, (1, 1, 40, 40), (0.0, 1.0))


def time_steps(device: torch.device) -> None:
    test_recurrent.test_time_steps_are_exact(device)


def large_decays(device: torch.device) -> None:
    test_recurrent.test_a_large_decay_in_a_chunk_does_not_hide_smaller_ones(device)


def prepare_step(device: torch.device) -> None:
    for step in test_step.STEPS:
        test_step.test_tensors_are_built_from_tables(step, 1, device)


def finish_step(device: torch.device) -> None:
    test_step.test_sampled_tokens_are_kept_and_counted(130, device)


def logprobs(device: torch.device) -> None:
    test_sample_logprobs.test_logprobs(device, SMALL, 9001, True)
    test_sample_logprobs.test_softmax_mass_and_counts(device, SMALL, 3)


# function, the check that fails, kind of node, position among those nodes and how many there are, what the node becomes
MUTATIONS: dict[str, list[tuple[str, Check, str, int, int, Change]]] = {
    "decode_attention": [
        ("_plan", shared, "==", 0, 1, becomes(">=")),  # rows with several queries are taken too
        ("_decode", window, "first_key", 0, 2, value(0)),  # tiles before the window are not skipped
        ("_decode", decode, "<", 4, 6, becomes("<=")),  # a key after the last one is seen
        ("_decode", decode, ">=", 0, 1, becomes(">")),  # the window's first key is not
        ("_decode", decode, "k_scale", 0, 1, value(1.0)),
        ("_decode", decode, "tl.store()", 3, 5, removed),  # the ticket stays for the next launch
        ("_decode", decode, "tl.where()", 1, 3, swapped(1, 2)),  # the other one of a program's two parts is merged
        ("_decode", decode, "tl.exp2()", 1, 4, value(1.0)),  # totals are merged without their bases
        ("_decode", decode, "v_scale", 0, 1, value(1.0)),
        ("decode_attention", plan, "tuple", 0, 3, without_item(1)),  # windows share a plan
        ("decode_attention", plan, "tuple", 0, 3, without_item(2)),  # a window and chunks share a plan
    ],
    "prefill_attention": [
        ("_plan", prefill, "1", 2, 3, value(2)),  # rows with two queries are left out
        ("_attend", window, "&", 0, 2, left),  # keys before the window are read
        ("_attend", prefill, "<=", 0, 1, becomes("<")),  # a query does not see its own key
        ("_attend", prefill, ">=", 1, 2, becomes(">")),  # the window is a key narrower
        ("_prefill", wide_groups, "&", 0, 2, right),  # lanes after the last query are queries
        ("_prefill", prefill, "%", 1, 2, value(0)),  # a group has one head
        ("_prefill", prefill, "1", 5, 6, value("TILE")),  # a tile that the diagonal cuts is not masked
        ("_prefill", prefill, "tl.cdiv()", 1, 2, value(0)),  # a tile that the window cuts is not masked
        # The plan of the other kernel is taken.
        (
            "prefill_attention",
            plan,
            "tuple",
            1,
            4,
            expression("'decode', None, False, tile_of(head_dim, q.element_size())"),
        ),
    ],
    "attention_tile": [
        ("first_visible", decode, "*", 0, 1, left),  # chunks begin at their number
        ("first_visible", decode, "+", 0, 1, left),  # the window is a key wider
    ],
    "add_rms_norm": [
        ("_add_rms_norm", norm, "eps", 0, 1, value(0.0)),
        ("_add_rms_norm", norm, "width", 2, 4, value("BLOCK")),  # the mean of a padded row
    ],
    "add_layer_norm": [
        ("_add_layer_norm", layer_norm, "eps", 0, 1, value(0.0)),
        ("_add_layer_norm", layer_norm, "tl.where()", 0, 1, argument(1)),  # padding counts in the variance
        ("_add_layer_norm", layer_norm, "width", 2, 5, value("BLOCK")),
        ("_add_layer_norm", layer_norm, "+=", 0, 1, becomes("-=")),  # the bias
    ],
    "activation": [
        ("_activate", activations, "width", 1, 3, value(0)),  # ups are read where gates are
        ("activated", activations, "0.044715", 0, 1, value(0.04)),
        ("activated", activations, "0.7071067811865476", 0, 1, value(1.0)),
        ("activated", activations, "tl.sigmoid()", 0, 2, value(1.0)),
        ("activated", activations, "tl.maximum()", 0, 3, argument(0)),  # relu
        ("activated", activations, "tl.maximum()", 2, 3, value(1.0)),  # relu without the square
    ],
    "scaling": [
        ("_add_scaled", scaling, "scale", 0, 1, value(1.0)),
        ("_scale_and_cap", scaling, "scale", 0, 1, value(1.0)),
        ("_scale_and_cap", scaling, "softcap", 0, 2, value(1.0)),
    ],
    "experts": [  # none that leaves places unwritten: the interpreter would read what those address
        ("_gated", experts, "tl.where()", 0, 3, argument(2)),  # gates are not clamped
        ("_gated", experts, "-x", 1, 2, operand),  # what is clamped below changes its sign
        ("_gated", experts, "offset", 0, 1, value(1.0)),
        ("_multiply_rows", experts, "<=", 0, 1, becomes("<")),  # the tile after an expert's last one is still its own
        ("_multiply_rows", experts, "*", 0, 4, value(0)),  # every tile has the first rows of its expert
        ("_multiply_rows", experts, "tuple", 0, 7, expression("rows % per_token, places")),  # not of the token
        ("_multiply_rows", experts, "tuple", 1, 7, expression("places, places")),  # outputs stay sorted
        ("_add_rows", unknown_experts, "tl.where()", 0, 1, argument(1)),  # outputs that were not computed are added
        ("_add_rows", experts, "tl.sigmoid()", 0, 1, value(1.0)),
    ],
    "route_experts": [
        ("_largest", routing, "tl.where()", 0, 1, argument(1)),  # a NaN
        ("_of_best_groups", routing, "+=", 0, 1, removed),  # groups by their maximum
        ("_of_best_groups", routing, "tl.where()", 1, 5, argument(2)),  # twice the best
        ("_of_best_groups", routing, "|", 0, 1, right),  # the last group alone
        ("_route_experts", routing, "tl.where()", 4, 8, argument(1)),  # an expert that is taken has a share of the next
        ("_route_experts", routing, "tl.where()", 6, 8, argument(2)),  # the best one each time
        ("_route_experts", routing, "tl.where()", 7, 8, argument(1)),  # places that are none have a share
        ("_route_experts", routing, "scale", 0, 1, value(1.0)),
        ("_weight_of_best", routing, "tl.abs()", 0, 1, argument(0)),  # negative logits are all near
        ("_weight_of_best", routing, "tl.where()", 0, 1, argument(2)),  # those that are far have a share
    ],
    "latent_attention": [
        ("_attend_latents", latents, "tl.where()", 0, 3, argument(1)),  # tokens after the last row see something
        ("_attend_latents", latents, "-", 1, 5, left),  # every query of a chunk has a context of its own
        ("_attend_latents", latents, "-", 3, 5, left),  # the window
        ("_attend_latents", latents, ">=", 0, 1, becomes(">")),  # the first token of the window
        ("_attend_latents", latents, "+=", 0, 1, removed),  # the rotated part of the score
        ("_attend_latents", latents, "tl.minimum()", 0, 1, argument(0)),  # shares overlap
        ("_attend_latents", latents, "add_sinks()", 0, 1, expression("(total, sums)")),
        ("_merge", latents, "*", 3, 11, left),  # totals relative to the maximum of their share
        ("_merge", latents, "%", 0, 1, value(0)),  # all heads have the sink of the first
        ("_merge", latents, "+=", 0, 2, removed),  # the sink has no share
    ],
    "hyper_connections": [
        ("_multiply_streams", hyper_connections, "+=", 1, 2, becomes("-=")),  # the squares
        ("_multiply_streams", hyper_connections, "*", 1, 7, value(0)),  # every program has the first columns
        ("_total", hyper_connections, "<", 0, 1, becomes("<=")),  # a chunk of the next token
        ("_balanced", hyper_connections, "tl.where()", 0, 4, argument(1)),  # padding has a share of the softmax
        ("_balanced", hyper_connections, "range()", 0, 1, expression("range(0, iterations)")),
        ("_balanced", hyper_connections, "eps", 0, 4, value(0.0)),
        ("_balanced", hyper_connections, "/=", 2, 3, removed),
        ("_read_streams", hyper_connections, "norm_eps", 0, 1, value(0.0)),
        ("_read_streams", hyper_connections, "eps", 0, 2, value(0.0)),
        ("_read_streams", hyper_connections, "+", 18, 31, left),  # the factor of the sum's weights
        ("_read_streams", hyper_connections, "output_eps", 0, 1, value(0.0)),
        ("_read_streams", hyper_connections, "*", 17, 21, left),  # rows of the matrix overlap
        ("_write_streams", hyper_connections, "*", 5, 9, left),  # and here
        ("_write_streams", hyper_connections, "*=", 0, 1, removed),
    ],
    "attend_whole": [
        (
            "_attend_whole",
            whole_sequences,
            "<=",
            0,
            1,
            becomes("<"),
        ),  # the first token of a sequence is of the one before
        ("_attend_whole", whole_sequences, "+", 5, 28, left),  # a search that ends too early
        ("_attend_whole", whole_sequences, "+", 9, 28, left),  # the last token of a window
        ("_attend_whole", whole_sequences, "tl.maximum()", 0, 2, argument(0)),  # no window before the query
        ("_attend_whole", whole_sequences, ">=", 0, 1, becomes(">")),  # the first key
        ("_attend_whole", whole_sequences, "<", 5, 6, becomes("<=")),  # a key of the next sequence
        ("_attend_whole", whole_sequences, "-x", 0, 2, operand),  # slopes grow
        ("_attend_whole", whole_sequences, "+", 26, 28, left),  # all heads write to the first
        ("_attend_whole", whole_sequences, "tl.minimum()", 1, 2, argument(0)),  # biases of keys beyond the span
        ("_attend_whole", whole_sequences, "+", 24, 28, left),  # biases of other heads
    ],
    "lora_add": [
        ("_shrink", lora_add, "+", 4, 19, left),  # every tile has the first rows of the slot
        ("_shrink", lora_add, "+", 15, 19, left),  # every step has the first weights
        ("_shrink", lora_add, "<", 4, 5, becomes("<=")),  # an input of the next row
        ("_expand", lora_add, ">=", 0, 1, becomes(">")),  # the first panel of a part
        ("_expand", lora_add, "tl.where()", 1, 3, argument(2)),  # all parts have the columns of the first
        ("_expand", lora_add, "+", 19, 33, right),  # and its ranks
        ("_expand", lora_add, "+", 23, 33, left),  # all ranks have the weights of the first
        ("_expand", lora_add, "<", 2, 5, becomes("<=")),  # a column of the next part has its bias twice
        ("_expand", lora_add, "+=", 0, 1, removed),  # no bias
    ],
    "store_latents": [
        ("_store_latents", stored_latents, "tl.where()", 0, 4, argument(1)),  # a token in slot -1 is stored
        ("_store_latents", stored_latents, "-x", 0, 1, operand),  # the sine of the first element of a pair
        ("_store_latents", stored_latents, "partners", 0, 2, value("lanes")),
        ("_store_latents", stored_latents, "partners", 1, 2, value("lanes")),  # the weights of the partner
        ("_store_latents", stored_latents, "*=", 0, 2, removed),  # the norm of the key
        ("_store_latents", stored_latents, "*=", 1, 2, removed),
        ("_store_latents", stored_latents, "eps", 2, 3, value(0.0)),  # of the norm of the key
        ("_store_latents", stored_latents, "tl.where()", 3, 4, argument(1)),  # and its key
    ],
    "rope_and_store": [
        ("_rope_and_store", rope, "-x", 0, 1, operand),  # the sine of the first half
        ("_rope_and_store", rope, "partners", 1, 2, value("lanes")),  # the norm of the partner
        ("_rope_and_store", rope, "%", 0, 3, becomes("//")),  # the offset in a block
        ("_rope_and_store", rope, "ROTARY_DIM", 4, 6, value("HEAD_DIM")),  # elements that are not rotated
        ("_rope_and_store", heads, "%", 1, 3, becomes("//")),  # which element of a pair is the first
        ("_rope_and_store", heads, "+=", 0, 2, removed),  # all heads have the weights of the first
        (
            "_rope_and_store",
            heads,
            "kind",
            1,
            2,
            expression("qkv + token * stride"),
        ),  # the norm of all queries for keys
        ("_rope_and_store", heads, "*=", 0, 2, removed),  # the norm of values
        ("_rope_and_store", heads, "*=", 1, 2, removed),  # the scales of queries
        ("_of_head", heads, "tl.where()", 0, 1, argument(1)),  # padding counts in the variance
        ("_of_all_heads", heads, "+=", 0, 2, removed),
        ("_of_all_heads", heads, "tl.where()", 0, 1, argument(1)),
        ("_rope_and_store", rope, "as_stored()", 0, 2, argument(0)),  # values are not clamped
        ("_rope_and_store", rope, "k_factor", 0, 1, value(1.0)),
        ("_rope_and_store", rope, "v_factor", 0, 1, value(1.0)),
        ("as_stored", rope, "tl.where()", 0, 2, argument(2)),  # nothing is clamped above
        ("as_stored", rope, "-x", 1, 2, operand),  # what is clamped below changes its sign
    ],
    "gumbel_max": [
        ("row_key", few_tokens, "_splitmix()", 1, 2, argument(0)),
        ("exponential_noise", noise, "15", 0, 1, value(16)),
        ("exponential_noise", noise, "16", 1, 2, value(17)),
        ("exponential_noise", noise, "2", 0, 1, value(3)),  # the series of the logarithm
        ("exponential_noise", noise, "0.0625", 0, 1, value(0.5)),  # up to where the series is taken
        ("logarithms", tiny_temperature, "tl.where()", 1, 2, argument(2)),  # not measured from the largest logit
        ("best_of", gumbel_max, "==", 0, 1, becomes("<=")),
        ("token_of_row", fast_path, "logarithms()", 0, 1, argument(0)),  # tiles are compared without temperature
        ("token_of_row", gumbel_max, "-x", 0, 1, value(0)),  # a token where there is none
    ],
    "sample_row": [
        ("cuts_of", cuts, "|", 1, 2, left),  # min-p alone does not cut
        ("values_of", no_valid_logits, "==", 0, 1, expression("values < 1e30")),  # infinity is forbidden
        ("values_of", few_tokens, "32767", 0, 1, value(0xFFFF)),  # the bit of prompts is counted
        ("values_of", few_tokens, "counts", 1, 2, value("generated")),  # tokens of the prompt are not penalised
        ("values_of", few_tokens, ">", 0, 2, becomes("<")),
        ("order_of", ties, "tl.where()", 0, 2, argument(2)),  # -0.0 and 0.0 differ
        ("keys_of", cuts, "^", 0, 1, left),  # of equal logits the last comes first
    ],
    "sample_ranked": [
        ("least_candidate", cuts, "GROUP", 0, 1, value(1)),
        ("least_candidate", candidates, "256", 0, 1, value(1 << 26)),  # the bisection ends too early
        ("sample_ranked_rows", cuts, "vocab_size", 0, 6, value("count")),  # a row with a full list is not searched
        ("sample_ranked_rows", cuts, "<", 0, 5, expression("above - least > 1")),  # the difference leaves int64
        ("sample_ranked_rows", few_tokens, ">=", 2, 5, becomes(">")),  # one token more than top_k
        ("sample_ranked_rows", cuts, "<", 4, 5, becomes(">")),  # the first sample is taken, in the nucleus or not
        ("sample_ranked_rows", cuts, ">=", 4, 5, becomes("<")),
    ],
    "sample": [
        ("_is_last", few_tokens, "tl.store()", 0, 1, removed),  # the ticket stays
        ("_survey", cuts, "tl.store()", 6, 10, removed),  # candidates are counted from the step before
        ("_survey", few_tokens, "==", 0, 1, becomes("<")),  # padding is left as it was
        ("_gather", cuts, ">=", 1, 3, becomes("!=")),  # min-p forbids nothing
        ("_gather", cuts, "tl.cumsum()", 0, 1, argument(0)),  # candidates overwrite each other
    ],
    "sample_logprobs": [
        ("_measure", logprobs, ">", 0, 1, becomes(">=")),
        ("_measure", logprobs, ">=", 0, 1, becomes("<=")),
        ("_join", logprobs, "*", 1, 2, left),  # masses are added without their bases
    ],
    "gemv": [
        ("_gemv", products, "+", 8, 11, left),  # the bias of gates for ups
        ("_gemv", products, "tl.sigmoid()", 0, 1, value(1.0)),
        ("_added", products, "+", 0, 1, right),  # the first tile is lost
    ],
    "dequantise": [
        ("_levels_of", levels, "first_level", 0, 2, value(0.0)),
        ("_levels_of", levels, "first_level", 1, 2, value(0.0)),
        ("_levels_of", levels, "9", 0, 1, value(8)),  # fp4 with another bit of the exponent
        ("_levels_of", levels, "20", 0, 1, value(19)),  # fp8
        ("_levels_of", levels, "-x", 1, 2, operand),  # no sign
        ("_levels_of", levels, "24", 0, 1, value(22)),
        ("_load_factor", rows_of_codes, "*=", 0, 1, removed),  # no outer factor
        ("_load_factor", rows_of_codes, "//", 1, 2, value(0)),  # the first one for all groups
        ("load_levels", rows_of_codes, "HALF", 1, 4, value(0)),  # both halves of bytes are the first
        ("load_levels", rows_of_codes, ">>", 0, 3, left),
        ("load_levels", rows_of_codes, "%", 0, 1, left),  # upper bits of the next group
        ("load_levels", rows_of_codes, "+", 10, 11, left),  # upper bits of the first half
        ("load_levels", rows_of_codes, "240", 0, 1, value(15)),  # both halves of bytes are the first
        ("_steps", rows_of_codes, "first_level", 0, 1, value(0.0)),
        ("load_numbers", rows_of_codes, "-=", 1, 4, removed),  # zeros
        ("load_numbers", rows_of_codes, "-=", 2, 4, removed),  # minima
        ("input_ids", codes, "<", 1, 2, becomes("<=")),  # inputs of the second half twice
    ],
    "grouped": [
        ("_of_step", codes, "%", 0, 1, value(0)),  # the first part of a group for all of it
        ("_of_step", rows_of_codes, "%", 0, 1, value(0)),
        ("_load_inputs", codes, "tl.load()", 0, 2, value("k")),  # inputs in their own order
        ("_grouped_linear", codes, "HALF", 0, 1, value(0)),
        ("_grouped_gemv", codes, "-=", 0, 2, removed),  # zeros
        ("_grouped_gemv", codes, "-=", 1, 2, removed),  # minima
        ("_grouped_gemv", codes, "HALF", 0, 1, value(0)),
        ("_add_splits", codes, "split", 0, 1, value(0)),
        ("_add_splits", codes, "+=", 1, 2, removed),  # no bias
        ("_grouped_rows", rows_of_codes, "&", 0, 1, right),  # an id below 0
        ("_grouped_rows", rows_of_codes, "HALF", 0, 1, value(0)),
        ("_few_tokens_linear", pieces, "out.stride()", 0, 1, value("width")),  # pieces overwrite each other
        ("_dequantised_linear", codes, "+=", 0, 1, removed),
    ],
    "linear": [
        ("norm_gate_up_gpu", linear_ops, "total", 0, 2, value("normed")),
        ("norm_gate_up_gpu", linear_ops, "normed", 1, 3, value("x")),
        ("norm_gate_up_gpu", linear_ops, "normed", 2, 3, value("x")),
    ],
    "prepare_step": [
        ("_prepare_step", prepare_step, "count", 0, 2, value(0)),  # the context without the step's tokens
        ("_prepare_step", prepare_step, "-x", 0, 3, value(0)),  # the last token of a row that has none
        ("_prepare_step", prepare_step, "start", 0, 1, value(0)),
        ("_prepare_step", prepare_step, "tl.where()", 3, 4, argument(1)),  # padding is written into the cache
    ],
    "causal_convolution": [
        ("_inputs", convolution, "*", 1, 2, left),  # inputs are not gated
        ("_finished", convolution, "*=", 0, 2, removed),  # outputs are not
        ("_finished", convolution, "IS_ACTIVE", 0, 1, value(True)),  # all are activated
        ("_seen", convolution, "past", 0, 1, value("HISTORY")),  # a new row sees what its slot holds
        ("_convolve", convolution, "tl.minimum()", 0, 1, argument(1)),  # rows of fewer tokens write the next one's
        ("_convolve", convolution, "-", 2, 6, becomes("+")),  # the state keeps what follows
        ("_convolve", convolution, ">=", 1, 2, becomes(">")),  # a token is left out between the two kinds of programs
        ("_convolve", convolution, "first", 1, 2, expression("0 * first")),  # the bias of the later tokens
        ("causal_convolution_gpu", convolution, ">=", 0, 1, becomes(">")),  # a step of W tokens has none of these
    ],
    "rms_norm_gated": [
        ("_gate", rms_norm_gated, "eps", 0, 1, value(0.0)),
        ("_gate", rms_norm_gated, "SIZE", 2, 3, value("BLOCK")),  # the mean of a padded group
        ("_gate", rms_norm_gated, "*=", 0, 3, removed),  # the gate before the norm
        ("_gate", rms_norm_gated, "*=", 2, 3, removed),  # and after it
        ("_gate", kimi_delta, "IS_SILU", 0, 1, value(True)),
        ("_gate", rms_norm_gated, "WEIGHT_STRIDE", 0, 1, value(0)),  # all groups have the weights of the first
    ],
    "gated_delta": [
        ("inverse_of", delta, "==", 1, 2, becomes(">=")),  # blocks of other pairs
        ("inverse_of", delta, "-=", 0, 1, becomes("+=")),
        ("_gated_delta", delta, "<=", 0, 1, becomes("<")),  # a row of FEW tokens belongs to no kernel
        ("_gated_delta", delta, "has_state", 0, 1, value(True)),  # a new row begins with what its slot holds
        ("_gated_delta", delta, "beta_scale", 0, 2, value(1.0)),
        ("_gated_delta", delta, "beta_scale", 1, 2, value(1.0)),
        ("_gated_delta", delta, "//", 1, 5, left),  # value heads do not share keys
        ("_gated_delta", delta, "tl.where()", 0, 2, argument(1)),  # places after the last token decay the state
        ("_gated_delta", delta, "since", 0, 2, expression("1 + 0 * since")),  # the state has not decayed
        ("_gated_delta", delta, "since", 1, 2, expression("1 + 0 * since")),
        ("_gated_delta", delta, "decays", 1, 3, expression("1.0 * (places[:, None] >= places[None, :])")),
        ("_gated_delta", delta, "left", 0, 1, expression("1 + 0 * left")),  # changes do not decay
        ("_gated_delta", delta, "*=", 2, 6, removed),  # the state does not, in a chunk
        ("_gated_delta", delta, "beta", 2, 3, value(1.0)),  # and of a token
        ("_gated_delta", delta, "tl.store()", 2, 3, removed),  # the state
        ("gated_delta_gpu", delta_with_a_sigmoid, "norm_groups()", 0, 1, without_keyword("gate")),
    ],
    "kimi_delta": [
        ("_similarities", kimi_delta, "is_later", 0, 2, value(True)),  # keys see later ones
        ("_similarities", kimi_delta, "is_later", 1, 2, value(True)),  # decays before a token count for it
        ("_similarities", kimi_delta, "until_end", 0, 2, expression("0.0 * until_end")),  # changes do not decay
        ("_kimi_delta", kimi_delta, "<=", 0, 1, becomes("<")),  # a row of FEW tokens belongs to no kernel
        ("_kimi_delta", kimi_delta, "has_state", 0, 1, value(True)),  # a new row begins with what its slot holds
        ("_kimi_delta", kimi_delta, "since", 0, 2, expression("0.0 * since")),  # the state has not decayed
        ("_kimi_delta", kimi_delta, "since", 1, 2, expression("0.0 * since")),
        ("_kimi_delta", kimi_delta, "until_end", 0, 1, expression("0.0 * until_end")),  # it does not, in a chunk
        ("_kimi_delta", kimi_delta, "tl.where()", 0, 1, argument(1)),  # places after the last token decay the state
        ("_kimi_delta", kimi_delta, "tl.store()", 2, 3, removed),  # the state
    ],
    "norm_parts": [
        ("_norm_parts", norm_parts, "==", 1, 2, becomes("!=")),
        ("_norm_parts", norm_parts, "+", 0, 9, left),  # the third part begins within the second
        ("_norm_parts", norm_parts, "size", 1, 3, value("BLOCK")),  # the mean of a padded part
        ("_norm_parts", norm_parts, "eps", 0, 1, value(0.0)),
        ("_norm_parts", norm_parts, "*=", 1, 2, removed),
        ("_norm_parts", norm_parts, "begin", 1, 2, value(0)),  # all parts have the weights of the first
    ],
    "sparse_attention": [
        ("_sparse_attention", sparse, "head", 0, 3, value(0)),  # all heads have the query of the first
        ("_sparse_attention", sparse, "scale", 0, 1, value(1.0)),
        ("_sparse_attention", sparse, ">=", 0, 1, becomes(">")),  # the first token of a context is not chosen
        ("_sparse_attention", sparse, "GROUP", 1, 2, value("HEADS")),  # all heads have the first key
        ("_sparse_attention", sparse, "tl.where()", 1, 4, argument(1)),  # places without a token have a score of 0
        ("_sparse_attention", sparse, "kept", 0, 2, value(1.0)),
        ("_sparse_attention", sparse, "kept", 1, 2, value(1.0)),
        ("_sparse_attention", sparse, "tl.where()", 3, 4, value("total")),  # a division by 0
    ],
    "norm_and_turn": [
        ("_norm_and_turn", heads_turned, "eps", 0, 1, value(0.0)),
        ("_norm_and_turn", heads_turned, "HEADS", 0, 3, value(0)),  # every program has the first heads
    ],
    "turned_pairs": [
        ("turned_pairs", attend, "sign", 0, 1, value(1.0)),  # results are rotated further, not back
        ("turned_pairs", heads_turned, "-", 0, 3, left),  # the first pairs are rotated
        ("turned_pairs", heads_turned, "-", 2, 3, becomes("+")),
    ],
    "keep_rows": [
        ("_keep_rows", compress, "<=", 0, 1, becomes("<")),  # a ring keeps one token less
        ("_keep_rows", attend_in_chunks, "offset", 0, 1, value(0)),  # places are those of tokens, not of positions
    ],
    "compress_tokens": [
        ("_compress_tokens", compress, "==", 0, 3, becomes("!=")),
        ("_compress_tokens", compress, "tl.where()", 1, 4, argument(1)),  # the first group has one before it
        ("_compress_tokens", compress, ">=", 2, 5, becomes("<=")),  # tokens without a slot are stored
        ("_compress_tokens", compress, ">=", 4, 5, becomes(">")),  # the row's first token is read from the ring
        ("_compress_tokens", compress, "shrink", 0, 2, value(1.0)),
        ("_compress_tokens", compress, "shrink", 1, 2, value(1.0)),
        ("_compress_tokens", compress, "//", 1, 3, expression("0 * places")),  # both groups have the first half
        ("_compress_tokens", compress, "RATE", 4, 7, value(1)),  # a vector has the position of its last token
        ("_compress_tokens", compress, "eps", 0, 1, value(1.0)),
        ("_compress_tokens", compress, "tl.store()", 1, 2, removed),  # decode steps keep no inputs
    ],
    "choose_compressed": [
        ("_score", choose, "tl.maximum()", 0, 1, argument(0)),  # negative products count
        ("_score", choose, "weight", 0, 1, expression("weight * 0 + 1")),
        ("_score", choose, "first", 0, 1, value(0)),  # the keys are the vectors of attention
        ("_ordered", choose, "tl.where()", 0, 1, argument(2)),  # the order of negative scores is reversed
        ("_choose", choose, "<=", 1, 2, becomes("<")),  # one of the equal scores is missing
        ("_choose", choose, "-=", 0, 1, removed),
        ("_choose", choose, "+=", 3, 4, removed),  # each tile is written over the one before
    ],
    "compressed_attention": [
        ("_attend_window", attend_in_chunks, ">=", 0, 1, becomes(">")),  # a query does not see its own key
        ("_attend_window", attend_in_chunks, "<", 2, 3, becomes("<=")),  # the window has a token more
        ("_attend_window", attend_in_chunks, "<", 0, 3, becomes("<=")),  # what is new is read from the ring too
        ("_attend_compressed", attend_in_chunks, "+", 30, 52, left),  # a vector is seen a token too late
        ("_attend_compressed", attend, ">=", 3, 4, becomes(">")),  # the first vector cannot be chosen
        ("_attend_compressed", attend, "+", 9, 52, left),  # the last of the chosen is not read
        ("_attend_compressed", attend, "begin_tile", 1, 4, value(0)),  # programs begin with the window
        ("_attend_compressed", attend, "begin_tile", 3, 4, value(0)),  # with the vectors
        ("_attend_compressed", attend, "num_old", 2, 4, value(0)),  # the token's own key is left out
        ("_attend_compressed", attend, "tl.store()", 0, 5, removed),  # decode steps keep no keys
        ("_attend_compressed", attend_in_chunks, "&", 5, 8, right),  # queries see the vectors of other rows
        ("_fold", attend, "scale", 0, 1, value(1.0)),
        ("_merge", attend, "factor", 0, 1, value(1.0)),
        ("_merge", attend, "sink", 1, 2, value(0.0)),
    ],
    "gated_residual": [
        ("_norm_streams", streams, "count", 0, 1, value(1)),  # every token begins after one stream of the last
        ("_norm_streams", streams, "SIZE", 3, 4, value("BLOCK")),  # the mean of a padded stream
        ("_norm_streams", streams, "stream", 1, 2, value(0)),  # all streams have the weights of the first
        ("_norm_streams", streams, "eps", 0, 1, value(0.0)),
        ("_average_streams", streams, "+=", 0, 1, becomes("-=")),
        ("_average_streams", streams, "/", 0, 1, left),  # a sum
        ("_average_streams", streams, "BLOCK", 0, 3, value(0)),  # every program has the first elements
        ("_add_to_streams", streams, "scale", 0, 1, value(1.0)),
        ("_add_to_streams", streams, "*", 2, 8, right),  # weights of the sigmoid, not of twice as much
        ("_add_to_streams", streams, "stream", 0, 2, value(0)),  # all streams have the weight of the first
        ("_gate_streams", streams, "scale", 0, 1, value(1.0)),
        ("_gate_streams", streams, "tl.maximum()", 0, 1, argument(0)),
        ("_gate_streams", streams, "-x", 0, 1, operand),  # the sign
        ("_gate_streams", streams, "0.0", 2, 4, value(1.0)),  # of a product of 0
    ],
    "selective_scan": [
        (
            "_selective_scan",
            selective_scan,
            "has_state",
            0,
            1,
            value(True),
        ),  # a new row begins with what its slot holds
        ("_selective_scan", selective_scan, "BLOCK", 1, 5, value(0)),  # every program has the first channels
        ("_selective_scan", selective_scan, "group", 0, 3, value(0)),  # of the first group
        ("_selective_scan", selective_scan, "group", 1, 3, value(0)),  # all groups have the B of the first
        ("_selective_scan", selective_scan, "group", 2, 3, value(0)),
        ("_selective_scan", selective_scan, ">", 1, 2, becomes(">=")),  # a token of the next row belongs to this one
        ("_selective_scan", selective_scan, "bias", 0, 1, value(0.0)),
        ("_selective_scan", selective_scan, "tl.where()", 2, 4, argument(1)),  # the state decays after the last token
        ("_selective_scan", selective_scan, "tl.exp()", 0, 1, expression("1 + 0 * rate")),  # it does not decay
        ("_selective_scan", selective_scan, "*", 19, 31, right),  # inputs are not scaled by the time step
        ("_selective_scan", selective_scan, "share", 0, 1, value(0.0)),
        ("_selective_scan", selective_scan, "*=", 0, 1, removed),  # no gate
        ("_selective_scan", selective_scan, "gate", 2, 3, value(0.0)),
        ("_selective_scan", selective_scan, "<", 4, 5, becomes("<=")),  # the output of a token that is another row's
        ("_selective_scan", selective_scan, "+=", 8, 13, removed),  # every group has the gates of the first
        ("_selective_scan", selective_scan, "+=", 11, 13, removed),
        ("_selective_scan", selective_scan, "+=", 12, 13, removed),
        ("_selective_scan", selective_scan, "tl.store()", 1, 2, removed),  # the state
    ],
    "rg_lru": [
        ("_rg_lru", rg_lru, "has_state", 0, 2, value(True)),  # a new row begins with what its slot holds
        ("_rg_lru", rg_lru, "BLOCK", 0, 3, value(0)),  # every program has the first channels
        ("_rg_lru", rg_lru, ">", 1, 2, becomes(">=")),  # a token of the next row belongs to this one
        ("_rg_lru", rg_lru, "of_input", 0, 1, value(0.0)),
        ("_rg_lru", rg_lru, "of_decay", 0, 1, value(0.0)),
        ("_rg_lru", rg_lru, "tl.where()", 1, 3, argument(2)),  # the first input is scaled
        ("_rg_lru", rg_lru, "==", 0, 2, becomes("!=")),  # the first input of a step is not
        ("_rg_lru", rg_lru, "tl.where()", 2, 3, argument(1)),  # the state goes on after the last token
        ("_rg_lru", rg_lru, "tl.exp()", 1, 2, expression("1 + 0 * log")),  # it does not decay
        ("_rg_lru", rg_lru, "+=", 5, 9, removed),  # every group has the inputs of the first
        ("_rg_lru", rg_lru, "+=", 6, 9, removed),
        ("_rg_lru", rg_lru, "+=", 7, 9, removed),
        ("_rg_lru", rg_lru, "+=", 8, 9, removed),
        ("_rg_lru", rg_lru, "tl.store()", 1, 2, removed),  # the state
    ],
    "state_space": [
        ("_time_steps", state_space, "tl.minimum()", 0, 1, argument(0)),
        ("_time_steps", state_space, "tl.maximum()", 0, 1, argument(0)),
        ("_time_steps", state_space, "tl.where()", 0, 1, argument(1)),  # places after the last token decay the state
        ("_state_space", state_space, ">", 0, 2, becomes(">=")),  # a row of FEW tokens belongs to both kernels
        ("_state_space", state_space, "has_state", 0, 1, value(True)),
        ("_state_space", state_space, "//", 1, 5, left),  # heads do not share B and C
        ("_state_space", state_space, "tl.exp()", 2, 5, expression("1 + 0 * d")),  # the state has not decayed
        ("_state_space", wide_state_space, "*", 14, 40, right),  # every part has the first elements
        ("_state_space", state_space, "*=", 0, 1, removed),  # the state does not decay in a chunk
        ("_state_space", state_space, "share", 0, 2, value(0.0)),
        ("_state_space", state_space, "share", 1, 2, value(0.0)),
    ],
    "recurrent": [
        ("launches", state_space, ">", 0, 1, becomes("<")),  # no chunks
        ("load_row", state_space, "tl.where()", 0, 1, argument(1)),  # padding has tokens
        ("load_row", state_space, ">", 0, 1, becomes(">=")),  # every row continues
        ("softplus", time_steps, "/", 6, 8, expression("1.0 / 4")),
        ("softplus", time_steps, "tl.exp()", 0, 1, expression("tl.exp(-tl.abs(x)) + 1 - 1")),
        ("sums_between", large_decays, "tl.where()", 0, 2, argument(1)),
        (
            "sums_between",
            large_decays,
            "sums",
            0,
            1,
            expression("tl.cumsum(values, 0)[:, None] - tl.cumsum(values, 0)[None, :]"),
        ),
    ],
    "token_rows": [
        (
            "rows_of_tokens",
            prepare_step,
            "<=",
            0,
            1,
            becomes("<"),
        ),  # the first token of a row belongs to the one before
    ],
    "finish_step": [
        ("_finish_step", finish_step, "&", 0, 5, left),  # rows that do not sample get tokens
        ("_finish_step", finish_step, "0", 6, 11, value(1)),  # the token of a row that has none
        ("_finish_step", finish_step, "&", 4, 5, left),  # the bit of prompts counts
    ],
}
QUICK = {"add_rms_norm", "prepare_step", "token_rows", "finish_step"}  # modules whose mutations run every time


def mutations() -> list[tuple[Mutation, Check]]:
    return [
        (Mutation(module, function, kind, position, count, change), check)
        for module, rows in MUTATIONS.items()
        for function, check, kind, position, count, change in rows
    ]


def test_every_mutation_applies():
    """Tests of the mutations show that each gives a function that can be parsed."""
    for mutation, _ in mutations():
        assert mutation.tree().body, mutation


@pytest.mark.parametrize(
    ("mutation", "check"),
    [
        pytest.param(mutation, check, id=str(mutation), marks=() if mutation.module in QUICK else pytest.mark.slow)
        for mutation, check in mutations()
    ],
)
def test_a_mutation_is_noticed(
    mutation: Mutation, check: Check, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mutation.apply(tmp_path, monkeypatch)
    with pytest.raises((AssertionError, InterpreterError)) as raised:
        check(device)
    error: BaseException | None = raised.value
    while error is not None:
        assert not isinstance(error, NameError | SyntaxError), f"the mutated function is not valid: {error}"
        error = error.__cause__


def test_a_mutation_whose_site_has_changed_fails():
    gone = Mutation("finish_step", "_finish_step", "&", 0, 4, left)
    with pytest.raises(pytest.fail.Exception, match="there are 5 such nodes now"):
        gone.tree()


def test_a_mutation_ends_with_its_test(device: torch.device, tmp_path: Path):
    mutation = Mutation("finish_step", "_finish_step", "&", 0, 5, left)
    with pytest.MonkeyPatch.context() as patch:
        mutation.apply(tmp_path, patch)
        with pytest.raises(AssertionError):
            finish_step(device)
    finish_step(device)
