// Linear layers over quantised panels (quantised.h): y = x W^T + bias, x and y float32 or bfloat16, sums float32.
//
// Few rows multiply with codes that are widened in registers, more with what they are unpacked to (unpacking.h).

#include "program.h"
#include "quantised.h"
#include "unpacking.h"

namespace {

ALWAYS_INLINE void unpack_row(Int8Panels weights, const float* scales, int64_t row, float* to) {
    const Int8Panels panel = weights.from(row / kPanelWidth);
    const int column = int(row % kPanelWidth);
    for (int64_t k = 0; k < panel.depth; k++) to[k] = number_of(panel.codes[code_place(k, column)]) * scales[row];
}

ALWAYS_INLINE void unpack_row(Int4Panels weights, const float*, int64_t row, float* to) {
    const Int4Panels panel = weights.from(row / kPanelWidth);
    const int64_t column = row % kPanelWidth;
    for (int64_t k = 0; k < panel.depth; k++) {
        const uint32_t word = panel.codes[k / kCodesDeep * kPanelWidth + column];
        const float scale = widen_one(panel.scales[k / kGroup * kPanelWidth + column]);
        to[k] = kLevels[word >> code_shift(k % kCodesDeep) & 15] * scale;
    }
}

// Copies rows of the weight back out: the lookup of an embedding that is tied to the output layer. scales: of int8.
template <class Panels, class T>
int unpack_rows(Panels weights, const float* scales, const int64_t* rows, T* out, int64_t count, int64_t width) {
    const int64_t depth = weights.depth;
    for (int64_t i = 0; i < count; i++) {
        if (rows[i] < 0 || rows[i] >= width) return 1;
    }
    parallel_ranges(count, 4, [&](int64_t begin, int64_t end) {
        static thread_local Scratch scratch;
        float* row = scratch.numbers<float>(depth);
        for (int64_t i = begin; i < end; i++) {
            unpack_row(weights, scales, rows[i], row);
            for_each_vector(depth, [&](int64_t k, int64_t left) {
                store_up_to(out + i * depth + k, load_up_to(row + k, left), left);
            });
        }
    });
    return 0;
}

}  // namespace

// x: [rows, depth], y: [rows, width], bias: [width] or null; depth is a multiple of 32. int8's scales: [width rounded up
// to 16]. unpack_rows: out [count, depth]; returns 0, or 1 and nothing written if a row is not in [0, width).
#define LINEAR_QUANTISED(name, T)                                                                                    \
    EXPORT void linear_int8_##name(const T* x, const int8_t* codes, const float* scales, const T* bias, T* y,        \
                                   int64_t rows, int64_t width, int64_t depth) {                                     \
        linear_over(Layer<T>{bias, scales, width, depth}, x, Int8Panels{codes, depth}, rows, y);                     \
    }                                                                                                                \
    EXPORT void linear_int4_##name(const T* x, const uint32_t* codes, const BFloat16* scales, const T* bias, T* y,   \
                                   int64_t rows, int64_t width, int64_t depth) {                                     \
        linear_over(Layer<T>{bias, nullptr, width, depth}, x, Int4Panels{codes, scales, depth}, rows, y);            \
    }                                                                                                                \
    EXPORT int unpack_rows_int8_##name(const int8_t* codes, const float* scales, const int64_t* rows, T* out,        \
                                       int64_t count, int64_t width, int64_t depth) {                                \
        return unpack_rows(Int8Panels{codes, depth}, scales, rows, out, count, width);                               \
    }                                                                                                                \
    EXPORT int unpack_rows_int4_##name(const uint32_t* codes, const BFloat16* scales, const int64_t* rows, T* out,   \
                                       int64_t count, int64_t width, int64_t depth) {                                \
        return unpack_rows(Int4Panels{codes, scales, depth}, nullptr, rows, out, count, width);                      \
    }                                                                                                                \
    IN_PROGRAMS(linear_int8_##name)                                                                                  \
    IN_PROGRAMS(linear_int4_##name)                                                                                  \
    IN_PROGRAMS(unpack_rows_int8_##name)                                                                             \
    IN_PROGRAMS(unpack_rows_int4_##name)

LINEAR_QUANTISED(bfloat16, BFloat16)
LINEAR_QUANTISED(float32, float)
