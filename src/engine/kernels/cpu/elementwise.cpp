// The ops between the matrix products, each in one pass over its rows: norms, sums, activations, copies. rope_and_store
// is in heads.cpp. The reference of each op is in ../<op>.py; arithmetic is float32 for every type, and so are the
// weights of norms.

#include <cmath>

#include "activation.h"
#include "captured_graph.h"
#include "parallel.h"
#include "vector.h"

namespace {

// Writes x + residual to `total`, unless there is no residual. Returns what is normed: the sum as it was rounded, or x.
// body(value) is called for every vector of it.
template <class T, class Body>
ALWAYS_INLINE const T* add_row(const T* x, const T* residual, T* total, int64_t width, const Body& body) {
    if (!residual) {
        for_each_vector(width, [&](int64_t i, int64_t count) { body(load_up_to(x + i, count)); });
        return x;
    }
    for_each_vector(width, [&](int64_t i, int64_t count) {
        store_up_to(total + i, load_up_to(x + i, count) + load_up_to(residual + i, count), count);
        body(load_up_to(total + i, count));
    });
    return total;
}

template <class T>
void add_rms_norm(const T* x, const T* residual, const float* weight, T* normed, T* total, int64_t rows, int64_t width,
                  float eps) {
    parallel_ranges(rows, min_rows_per_thread(width), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const int64_t at = row * width;
            Floats squares{};
            const T* in = add_row(x + at, residual ? residual + at : nullptr, total + at, width,
                                  [&](Floats value) { squares += value * value; });
            const float scale = 1.0f / std::sqrt(sum(squares) / float(width) + eps);
            T* out = normed + at;
            for_each_vector(width, [&](int64_t i, int64_t count) {
                store_up_to(out + i, load_up_to(in + i, count) * scale * load_up_to(weight + i, count), count);
            });
        }
    });
}

// bias: null if there is none.
template <class T>
void add_layer_norm(const T* x, const T* residual, const float* weight, const float* bias, T* normed, T* total,
                    int64_t rows, int64_t width, float eps) {
    parallel_ranges(rows, min_rows_per_thread(width), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const int64_t at = row * width;
            Floats values{}, squares{};
            const T* in = add_row(x + at, residual ? residual + at : nullptr, total + at, width,
                                  [&](Floats value) { values += value; });
            const float mean = sum(values) / float(width);
            // Subtracted first: squares of a large mean would lose the rest.
            for_each_vector(width, [&](int64_t i, int64_t count) {
                const Floats centred = load_up_to(in + i, count) - mean;
                squares += count == kWidth ? centred * centred : first_lanes(centred * centred, count);
            });
            const float scale = 1.0f / std::sqrt(sum(squares) / float(width) + eps);
            T* out = normed + at;
            for_each_vector(width, [&](int64_t i, int64_t count) {
                Floats value = (load_up_to(in + i, count) - mean) * scale * load_up_to(weight + i, count);
                if (bias) value += load_up_to(bias + i, count);
                store_up_to(out + i, value, count);
            });
        }
    });
}

template <class T>
void add_scaled(const T* x, const T* residual, T* out, int64_t count, float scale) {
    parallel_ranges(count, kMinElementsPerThread, [&](int64_t begin, int64_t end) {
        for_each_vector(end - begin, [&](int64_t i, int64_t left) {
            const Floats value = load_up_to(x + begin + i, left), before = load_up_to(residual + begin + i, left);
            store_up_to(out + begin + i, multiply_add(value, broadcast(scale), before), left);
        });
    });
}

// softcap: 0 if there is none.
template <class T>
void scale_and_cap(T* x, int64_t count, float scale, float softcap) {
    parallel_ranges(count, kMinElementsPerThread, [&](int64_t begin, int64_t end) {
        for_each_vector(end - begin, [&](int64_t i, int64_t left) {
            T* at = x + begin + i;
            const Floats value = load_up_to(at, left) * scale;
            store_up_to(at, softcap ? hyperbolic_tangent(value / softcap) * softcap : value, left);
        });
    });
}

// gate_up: [rows, 2 * width], gates first. NaN stays.
template <class T>
void limit_gates(T* gate_up, int64_t rows, int64_t width, float limit) {
    parallel_ranges(rows, min_rows_per_thread(2 * width), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            T *gates = gate_up + row * 2 * width, *ups = gates + width;
            for_each_vector(width, [&](int64_t i, int64_t count) {
                const Floats gate = load_up_to(gates + i, count), up = load_up_to(ups + i, count);
                const Floats below = up > limit ? broadcast(limit) : up;
                store_up_to(gates + i, gate > limit ? broadcast(limit) : gate, count);
                store_up_to(ups + i, below < -limit ? broadcast(-limit) : below, count);
            });
        }
    });
}

// The rows of x are `x_stride` elements apart. factors: what the results are multiplied by, or null.
template <Activation kActivation, class T>
void activate_with(const T* x, int64_t x_stride, const T* factors, int64_t factors_stride, T* out, int64_t rows,
                   int64_t width) {
    parallel_ranges(rows, min_rows_per_thread(width), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const T *in = x + row * x_stride, *by = factors + row * factors_stride;
            T* to = out + row * width;
            for_each_vector(width, [&](int64_t i, int64_t count) {
                Floats value = activated<kActivation>(load_up_to(in + i, count));
                if (factors) value *= load_up_to(by + i, count);
                store_up_to(to + i, value, count);
            });
        }
    });
}

template <class T>
void activate(const T* x, int64_t x_stride, const T* factors, int64_t factors_stride, T* out, int64_t rows,
              int64_t width, int activation) {
    switch (activation) {
        case kSilu: return activate_with<kSilu>(x, x_stride, factors, factors_stride, out, rows, width);
        case kGelu: return activate_with<kGelu>(x, x_stride, factors, factors_stride, out, rows, width);
        case kGeluTanh: return activate_with<kGeluTanh>(x, x_stride, factors, factors_stride, out, rows, width);
        case kRelu: return activate_with<kRelu>(x, x_stride, factors, factors_stride, out, rows, width);
        case kRelu2: return activate_with<kRelu2>(x, x_stride, factors, factors_stride, out, rows, width);
    }
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                         \
    EXPORT void add_rms_norm_##suffix(const T* x, const T* residual, const float* weight, T* normed, T* total,        \
                                      int64_t rows, int64_t width, float eps) {                                       \
        add_rms_norm(x, residual, weight, normed, total, rows, width, eps);                                           \
    }                                                                                                                 \
    EXPORT void add_layer_norm_##suffix(const T* x, const T* residual, const float* weight, const float* bias,        \
                                        T* normed, T* total, int64_t rows, int64_t width, float eps) {                \
        add_layer_norm(x, residual, weight, bias, normed, total, rows, width, eps);                                   \
    }                                                                                                                 \
    EXPORT void add_scaled_##suffix(const T* x, const T* residual, T* out, int64_t count, float scale) {              \
        add_scaled(x, residual, out, count, scale);                                                                   \
    }                                                                                                                 \
    EXPORT void scale_and_cap_##suffix(T* x, int64_t count, float scale, float softcap) {                             \
        scale_and_cap(x, count, scale, softcap);                                                                      \
    }                                                                                                                 \
    EXPORT void limit_gates_##suffix(T* gate_up, int64_t rows, int64_t width, float limit) {                          \
        limit_gates(gate_up, rows, width, limit);                                                                     \
    }                                                                                                                 \
    EXPORT void activate_and_mul_##suffix(const T* x, T* out, int64_t rows, int64_t width, int activation) {          \
        activate(x, 2 * width, x + width, 2 * width, out, rows, width, activation);                                   \
    }                                                                                                                 \
    EXPORT void activate_##suffix(const T* x, T* out, int64_t rows, int64_t width, int activation) {                  \
        activate<T>(x, width, nullptr, 0, out, rows, width, activation);                                              \
    }                                                                                                                 \
    EXPORT void gate_inputs_##suffix(const T* gates, const T* inputs, int64_t inputs_stride, T* out, int64_t rows,    \
                                     int64_t width, int activation) {                                                 \
        activate(gates, width, inputs, inputs_stride, out, rows, width, activation);                                  \
    }                                                                                                                 \
    CAPTURABLE(add_rms_norm_##suffix)                                                                                 \
    CAPTURABLE(add_layer_norm_##suffix)                                                                               \
    CAPTURABLE(add_scaled_##suffix)                                                                                   \
    CAPTURABLE(scale_and_cap_##suffix)                                                                                \
    CAPTURABLE(limit_gates_##suffix)                                                                                  \
    CAPTURABLE(activate_and_mul_##suffix)                                                                             \
    CAPTURABLE(activate_##suffix)                                                                                     \
    CAPTURABLE(gate_inputs_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)

// Returns 0, or 1 without writing anything if a row is not in [0, table_rows).
EXPORT int copy_rows(const char* table, const int64_t* rows, char* out, int64_t count, int64_t table_rows,
                     int64_t row_bytes) {
    for (int64_t i = 0; i < count; i++) {
        if (rows[i] < 0 || rows[i] >= table_rows) return 1;
    }
    parallel_ranges(count, min_rows_per_thread(row_bytes / 4 + 1), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) memcpy(out + i * row_bytes, table + rows[i] * row_bytes, row_bytes);
    });
    return 0;
}
CAPTURABLE(copy_rows)

EXPORT void take_columns(const char* x, char* out, int64_t rows, int64_t row_bytes, int64_t first, int64_t count) {
    parallel_ranges(rows, min_rows_per_thread(count / 4 + 1), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) memcpy(out + i * count, x + i * row_bytes + first, count);
    });
}
CAPTURABLE(take_columns)

EXPORT void put_columns(const char* x, char* out, int64_t rows, int64_t row_bytes, int64_t first, int64_t count) {
    parallel_ranges(rows, min_rows_per_thread(count / 4 + 1), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) memcpy(out + i * row_bytes + first, x + i * count, count);
    });
}
CAPTURABLE(put_columns)

// Of each row of two halves, two rows, in each of which the other half is zeros.
EXPORT void part_halves(const char* x, char* out, int64_t rows, int64_t half) {
    parallel_ranges(rows, min_rows_per_thread(half + 1), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const char* from = x + i * 2 * half;
            char* to = out + i * 4 * half;
            memcpy(to, from, half);
            memset(to + half, 0, 2 * half);
            memcpy(to + 3 * half, from + half, half);
        }
    });
}
CAPTURABLE(part_halves)
