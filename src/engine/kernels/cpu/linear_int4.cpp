// Linear layers over int4 weights in panels (quantised.h): y = x W^T + bias, x and y float32 or bfloat16, sums float32.
//
// Few rows are multiplied by codes that are converted in registers, more rows by the unpacked weights (unpacking.h).

#include "captured_graph.h"
#include "quantised.h"
#include "quantised_rows.h"
#include "unpacking.h"

namespace {

ALWAYS_INLINE void unpack_row(Int4Panels weights, int64_t row, float* to) {
    const Int4Panels panel = weights.from(row / kPanelWidth);
    const int64_t column = row % kPanelWidth;
    for (int64_t k = 0; k < panel.depth; k++) {
        const uint32_t word = panel.codes[k / kCodesDeep * kPanelWidth + column];
        const float scale = widen_one(panel.scales[k / kGroup * kPanelWidth + column]);
        to[k] = kLevels[word >> code_shift(k % kCodesDeep) & 15] * scale;
    }
}

}  // namespace

// x: [rows, depth], y: [rows, width], bias: [width] or null; depth is a multiple of 32.
// unpack_rows: out [count, depth]; returns 0, or 1 without writing anything if a row is not in [0, width).
#define EXPORT_FOR(T, suffix)                                                                                         \
    EXPORT void linear_int4_##suffix(const T* x, const uint32_t* codes, const BFloat16* scales, const T* bias, T* y,  \
                                   int64_t rows, int64_t width, int64_t depth) {                                      \
        linear_over(Layer<T>{bias, nullptr, width, depth, is_streamed(y, rows, width)}, x,                            \
                    Int4Panels{codes, scales, depth}, rows, y);                                                       \
    }                                                                                                                 \
    EXPORT void panels_int4_##suffix(const Weight& weight, const T* x, int64_t rows, int64_t begin, int64_t end,      \
                                     T* y) {                                                                          \
        const Int4Panels all{static_cast<const uint32_t*>(weight.panels),                                             \
                             static_cast<const BFloat16*>(weight.scales), weight.depth};                              \
        panels_over(weight.layer<T>(), x, all, rows, begin, end, y);                                                  \
    }                                                                                                                 \
    EXPORT int unpack_rows_int4_##suffix(const uint32_t* codes, const BFloat16* scales, const int64_t* rows, T* out,  \
                                       int64_t count, int64_t width, int64_t depth) {                                 \
        return unpack_rows(rows, out, count, width, depth,                                                            \
                           [&](int64_t row, float* to) { unpack_row(Int4Panels{codes, scales, depth}, row, to); });   \
    }                                                                                                                 \
    CAPTURABLE(linear_int4_##suffix)                                                                                 \
    CAPTURABLE(unpack_rows_int4_##suffix)

EXPORT_FOR(BFloat16, bfloat16)
EXPORT_FOR(float, float32)
