// rms_norm_gated: outputs of a state space times the activation of a gate, and their norm by group. The reference is in
// ../rms_norm_gated.py; arithmetic is float32 for every type.

#include <cmath>

#include "activation.h"
#include "parallel.h"
#include "captured_graph.h"

namespace {

// In the order of ORDERS in ../rms_norm_gated.py.
enum Order { kNoNorm, kBeforeGate, kAfterGate };

template <bool IsSilu>
ALWAYS_INLINE Floats gate_of(Floats z) {
    if constexpr (IsSilu) return activated<kSilu>(z);
    return 1.0f / (exponential(-z) + 1.0f);
}

// One group of one row: its `size` values, which are overwritten, and their gates.
template <Order order, bool IsSilu, class T>
void gate_group(float* x, const T* gates, const float* weight, float eps, T* out, int64_t size) {
    Floats squares{};
    if constexpr (order != kNoNorm) {
        for_each_vector(size, [&](int64_t i, int64_t count) {
            Floats value = load_up_to(x + i, count);
            if constexpr (order == kAfterGate) {
                value = value * gate_of<IsSilu>(load_up_to(gates + i, count));
                store_up_to(x + i, value, count);
            }
            squares = multiply_add(value, value, squares);
        });
    }
    const float scale = order == kNoNorm ? 1.0f : 1.0f / std::sqrt(sum(squares) / float(size) + eps);
    for_each_vector(size, [&](int64_t i, int64_t count) {
        Floats value = load_up_to(x + i, count);
        if constexpr (order != kNoNorm) value = value * scale * load_up_to(weight + i, count);
        if constexpr (order != kAfterGate) value = value * gate_of<IsSilu>(load_up_to(gates + i, count));
        store_up_to(out + i, value, count);
    });
}

// x, out: [rows, width]. gates: [rows, width] in rows of `stride` columns. weight: [width], null without a norm.
template <Order order, bool IsSilu, class T>
void gate_rows(float* x, const T* gates, int64_t stride, const float* weight, float eps, T* out, int64_t rows,
               int64_t width, int64_t groups) {
    const int64_t size = width / groups;
    parallel_ranges(rows * groups, min_rows_per_thread(size), [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++) {
            const int64_t row = task / groups, at = task % groups * size;
            gate_group<order, IsSilu>(x + row * width + at, gates + row * stride + at, weight ? weight + at : nullptr, eps,
                              out + row * width + at, size);
        }
    });
}

template <bool IsSilu, class T>
void rms_norm_gated(float* x, const T* gates, int64_t stride, const float* weight, float eps, int order, T* out,
                int64_t rows, int64_t width, int64_t groups) {
    switch (order) {
        case kNoNorm: return gate_rows<kNoNorm, IsSilu>(x, gates, stride, weight, eps, out, rows, width, groups);
        case kBeforeGate: return gate_rows<kBeforeGate, IsSilu>(x, gates, stride, weight, eps, out, rows, width, groups);
        case kAfterGate: return gate_rows<kAfterGate, IsSilu>(x, gates, stride, weight, eps, out, rows, width, groups);
    }
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                         \
    EXPORT void rms_norm_gated_##suffix(float* x, const T* gates, int64_t stride, const float* weight, float eps,         \
                                    int order, int is_silu, T* out, int64_t rows, int64_t width, int64_t groups) {    \
        if (is_silu) {                                                                                                \
            rms_norm_gated<true>(x, gates, stride, weight, eps, order, out, rows, width, groups);                         \
        } else {                                                                                                      \
            rms_norm_gated<false>(x, gates, stride, weight, eps, order, out, rows, width, groups);                        \
        }                                                                                                             \
    }                                                                                                                 \
    CAPTURABLE(rms_norm_gated_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
