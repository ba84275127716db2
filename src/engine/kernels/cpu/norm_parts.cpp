// norm_parts: the parts of each row, each in memory of its own, and divided by its root mean square. The reference is in
// ../norm_parts.py; arithmetic is float32 for every type.

#include <cmath>

#include "parallel.h"
#include "captured_graph.h"
#include "vector.h"

namespace {

constexpr int kParts = 3;

struct Norm {
    const float* weight;  // of all columns; null without weights
    float eps;
    int is_there;
};

template <class T>
void norm_part(const T* x, const float* weight, const Norm& norm, T* out, int64_t size) {
    float scale = 1.0f;
    if (norm.is_there) {
        Floats squares{};
        for_each_vector(size, [&](int64_t i, int64_t count) {
            const Floats value = load_up_to(x + i, count);
            squares = multiply_add(value, value, squares);
        });
        scale = 1.0f / std::sqrt(sum(squares) / float(size) + norm.eps);
    }
    for_each_vector(size, [&](int64_t i, int64_t count) {
        Floats value = load_up_to(x + i, count) * scale;
        if (weight) value = value * load_up_to(weight + i, count);
        store_up_to(out + i, value, count);
    });
}

template <class T>
void norm_parts(const T* x, int64_t rows, const int64_t (&sizes)[kParts], const Norm& norm, T* const (&outs)[kParts]) {
    const int64_t columns = sizes[0] + sizes[1] + sizes[2];
    parallel_ranges(rows, min_rows_per_thread(columns), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            int64_t at = 0;
            for (int part = 0; part < kParts; at += sizes[part++]) {
                norm_part(x + row * columns + at, norm.weight ? norm.weight + at : nullptr, norm,
                          outs[part] + row * sizes[part], sizes[part]);
            }
        }
    });
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                          \
    EXPORT void norm_parts_##suffix(const T* x, int64_t rows, int64_t first_size, int64_t second_size,                 \
                                    int64_t third_size, const float* weight, float eps, int has_norm, T* first,        \
                                    T* second, T* third) {                                                             \
        norm_parts<T>(x, rows, {first_size, second_size, third_size}, Norm{weight, eps, has_norm},                     \
                      {first, second, third});                                                                         \
    }                                                                                                                  \
    CAPTURABLE(norm_parts_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
