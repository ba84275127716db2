// Products of a row with a factor of its own, or element by element with part of another row. The references are in
// ../products.py; arithmetic is float32 for every type.

#include "parallel.h"
#include "captured_graph.h"
#include "vector.h"

namespace {

template <class T>
void scale_rows(const T* x, const float* factors, T* out, int64_t rows, int64_t width) {
    parallel_ranges(rows, min_rows_per_thread(width), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            for_each_vector(width, [&](int64_t i, int64_t count) {
                store_up_to(out + row * width + i, load_up_to(x + row * width + i, count) * factors[row], count);
            });
        }
    });
}

template <class T>
void multiply(const T* x, const T* others, int64_t others_stride, T* out, int64_t rows, int64_t width) {
    parallel_ranges(rows, min_rows_per_thread(width), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const T *in = x + row * width, *other = others + row * others_stride;
            for_each_vector(width, [&](int64_t i, int64_t count) {
                store_up_to(out + row * width + i, load_up_to(in + i, count) * load_up_to(other + i, count), count);
            });
        }
    });
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                         \
    EXPORT void scale_rows_##suffix(const T* x, const float* factors, T* out, int64_t rows, int64_t width) {          \
        scale_rows(x, factors, out, rows, width);                                                                     \
    }                                                                                                                 \
    EXPORT void multiply_##suffix(const T* x, const T* others, int64_t others_stride, T* out, int64_t rows,           \
                                  int64_t width) {                                                                    \
        multiply(x, others, others_stride, out, rows, width);                                                         \
    }                                                                                                                 \
    CAPTURABLE(scale_rows_##suffix)                                                                                   \
    CAPTURABLE(multiply_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
