// Copies rows of a quantised weight, for an embedding that is tied to the output layer.
#pragma once

#include "quantised.h"
#include "scratch.h"

// Writes one row of int8 weights, in the layout of Panels, as float32.
template <class Panels>
ALWAYS_INLINE void unpack_int8_row(Panels weights, const float* scales, int64_t row, float* to) {
    const Panels panel = weights.from(row / kPanelWidth);
    const int column = int(row % kPanelWidth);
    for (int64_t k = 0; k < panel.depth; k++) {
        to[k] = Panels::value_of(panel.codes[Panels::index(k, column)]) * scales[row];
    }
}

// Writes rows of the weight to out, [count, depth]. unpack_row(row, to) writes one row as float32. Returns 0, or 1
// without writing anything if a row is not in [0, width).
template <class T, class UnpackRow>
int unpack_rows(const int64_t* rows, T* out, int64_t count, int64_t width, int64_t depth, const UnpackRow& unpack_row) {
    for (int64_t i = 0; i < count; i++) {
        if (rows[i] < 0 || rows[i] >= width) return 1;
    }
    parallel_ranges(count, 4, [&](int64_t begin, int64_t end) {
        static thread_local Scratch scratch;
        float* row = scratch.reserve<float>(depth);
        for (int64_t i = begin; i < end; i++) {
            unpack_row(rows[i], row);
            for_each_vector(depth, [&](int64_t k, int64_t left) {
                store_up_to(out + i * depth + k, load_up_to(row + k, left), left);
            });
        }
    });
    return 0;
}
