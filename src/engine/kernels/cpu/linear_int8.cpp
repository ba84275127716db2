// Linear layers over int8 weights in panels (quantised.h): y = x W^T + bias, x and y float32 or bfloat16, sums float32.
//
// Few rows are multiplied by codes that are converted in registers, more rows by the unpacked weights (unpacking.h).

#include "captured_graph.h"
#include "quantised.h"
#include "quantised_rows.h"
#include "unpacking.h"

// x: [rows, depth], y: [rows, width], bias: [width] or null; depth is a multiple of 32.
// scales: [width rounded up to 16]. unpack_rows: out [count, depth]; returns 0, or 1 without writing anything if a row
// is not in [0, width).
#define EXPORT_FOR(T, suffix)                                                                                         \
    EXPORT void linear_int8_##suffix(const T* x, const int8_t* codes, const float* scales, const T* bias, T* y,       \
                                   int64_t rows, int64_t width, int64_t depth) {                                      \
        linear_over(Layer<T>{bias, scales, width, depth, is_streamed(y, rows, width)}, x, Int8Panels{codes, depth},   \
                    rows, y);                                                                                         \
    }                                                                                                                 \
    EXPORT void panels_int8_##suffix(const Weight& weight, const T* x, int64_t rows, int64_t begin, int64_t end,      \
                                     T* y) {                                                                          \
        panels_over(weight.layer<T>(static_cast<const float*>(weight.scales)), x,                                     \
                    Int8Panels{static_cast<const int8_t*>(weight.panels), weight.depth}, rows, begin, end, y);        \
    }                                                                                                                 \
    EXPORT int unpack_rows_int8_##suffix(const int8_t* codes, const float* scales, const int64_t* rows, T* out,       \
                                       int64_t count, int64_t width, int64_t depth) {                                 \
        return unpack_rows(rows, out, count, width, depth,                                                            \
                           [&](int64_t row, float* to) {                                   \
            unpack_int8_row(Int8Panels{codes, depth}, scales, row, to);                                               \
        });                                                                                                           \
    }                                                                                                                 \
    CAPTURABLE(linear_int8_##suffix)                                                                                 \
    CAPTURABLE(unpack_rows_int8_##suffix)

EXPORT_FOR(BFloat16, bfloat16)
EXPORT_FOR(float, float32)
