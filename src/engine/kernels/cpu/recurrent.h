// The rows of a step, as kernels with a state per sequence see them: RecurrentStep in ../recurrent_step.py.
#pragma once

#include <cstdint>

struct RecurrentRows {
    const int32_t *query_start, *context_lens, *slots;
    int64_t count;

    int64_t first(int64_t row) const { return query_start[row]; }
    int64_t num_tokens(int64_t row) const { return query_start[row + 1] - query_start[row]; }
    int64_t slot(int64_t row) const { return slots[row]; }
    // Nothing of the sequence is computed: its slot holds what another sequence has left there.
    bool is_new(int64_t row) const { return context_lens[row] == num_tokens(row); }
};
