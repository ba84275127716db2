// Rings: the newest rows of each sequence, of which the token at position p has place p % size.
#pragma once

#include <algorithm>

#include "parallel.h"
#include "recurrent.h"
#include "vector.h"

template <class S>
struct Ring {
    S* at;                              // of slot 0
    int64_t size;                       // rows of a slot
    int64_t slot_stride, row_stride;    // in elements

    S* row(int64_t slot, int64_t position) const { return at + slot * slot_stride + position % size * row_stride; }
};

// The position of a row's first token of the step.
inline int64_t first_position(const RecurrentRows& rows, int64_t row) {
    return rows.context_lens[row] - rows.num_tokens(row);
}

// Whether a row has tokens, and a slot: padding has none.
inline bool is_used(const RecurrentRows& rows, int64_t row) { return rows.num_tokens(row) > 0 && rows.slot(row) >= 0; }

// Writes the last tokens of each row to their places. from: [tokens, width], whose rows are `stride` elements apart.
template <class T, class S>
void keep_last(const RecurrentRows& rows, const T* from, int64_t stride, int64_t width, const Ring<S>& ring) {
    parallel_ranges(rows.count, min_rows_per_thread(width), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            if (!is_used(rows, row)) continue;
            const int64_t last = rows.context_lens[row], count = std::min<int64_t>(rows.num_tokens(row), ring.size);
            const T* in = from + (rows.first(row) + rows.num_tokens(row)) * stride;
            for (int64_t i = 1; i <= count; i++) convert(in - i * stride, ring.row(rows.slot(row), last - i), width);
        }
    });
}
