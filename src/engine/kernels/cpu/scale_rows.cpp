// Rows times a factor each. The reference is in ../scale_rows.py; arithmetic is float32 for every type.

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

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                         \
    EXPORT void scale_rows_##suffix(const T* x, const float* factors, T* out, int64_t rows, int64_t width) {          \
        scale_rows(x, factors, out, rows, width);                                                                     \
    }                                                                                                                 \
    CAPTURABLE(scale_rows_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
