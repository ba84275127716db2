// The ops between the matrix products, each in one pass over its rows: add_rms_norm, silu_and_mul, rope_and_store,
// copy_rows. The reference of each op is in ../<op>.py; arithmetic is float32 for every type.

#include <cmath>

#include "parallel.h"
#include "captured_graph.h"
#include "vector.h"

namespace {

// With fewer elements, waking a second thread (about 2 us) costs more than it saves.
constexpr int64_t kMinElementsPerThread = 8192;

int64_t min_rows_per_thread(int64_t elements_per_row) { return 1 + kMinElementsPerThread / elements_per_row; }

template <class T>
void add_rms_norm(const T* x, const T* residual, const T* weight, T* normed, T* total, int64_t rows, int64_t width,
                  float eps) {
    parallel_ranges(rows, min_rows_per_thread(width), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const T* in = x + row * width;
            Floats squares{};
            if (residual) {
                const T* before = residual + row * width;
                T* out = total + row * width;
                for_each_vector(width, [&](int64_t i, int64_t count) {
                    store_up_to(out + i, load_up_to(in + i, count) + load_up_to(before + i, count), count);
                    const Floats rounded = load_up_to(out + i, count);  // what the next layer reads
                    squares += rounded * rounded;
                });
                in = out;
            } else {
                for_each_vector(width, [&](int64_t i, int64_t count) {
                    const Floats value = load_up_to(in + i, count);
                    squares += value * value;
                });
            }
            const float scale = 1.0f / std::sqrt(sum(squares) / float(width) + eps);
            T* out = normed + row * width;
            for_each_vector(width, [&](int64_t i, int64_t count) {
                store_up_to(out + i, load_up_to(in + i, count) * scale * load_up_to(weight + i, count), count);
            });
        }
    });
}

template <class T>
void silu_and_mul(const T* gate_up, T* out, int64_t rows, int64_t width) {
    parallel_ranges(rows, min_rows_per_thread(width), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const T *gates = gate_up + row * 2 * width, *ups = gates + width;
            T* products = out + row * width;
            for_each_vector(width, [&](int64_t i, int64_t count) {
                const Floats gate = load_up_to(gates + i, count), up = load_up_to(ups + i, count);
                store_up_to(products + i, gate / (exponential(-gate) + 1.0f) * up, count);
            });
        }
    });
}

constexpr int kMaxHeadDim = 512;

struct Rotation {
    const float *cosines, *sines;  // [half]
    int half;                      // rotated pairs: (i, i + half)
};

// One head: RMSNorm if `norm` is not null, then the rotation. `in` and `out` may be the same.
template <class T>
void norm_and_rotate_parts(const T* in, const T* norm, float eps, Rotation rotation, int head_dim, T* out) {
    float head[kMaxHeadDim];
    Floats squares{};
    for (int i = 0; i < head_dim; i += kWidth) {
        const Floats value = load(in + i);
        squares += value * value;
        store(head + i, value);
    }
    if (norm) {
        const float scale = 1.0f / std::sqrt(sum(squares) / float(head_dim) + eps);
        for (int i = 0; i < head_dim; i += kWidth) store(head + i, load(head + i) * scale * load(norm + i));
    }
    float *first = head, *second = head + rotation.half;
    for_each_vector(rotation.half, [&](int64_t i, int64_t count) {
        const Floats a = load_up_to(first + i, count), b = load_up_to(second + i, count);
        const Floats cosine = load_up_to(rotation.cosines + i, count), sine = load_up_to(rotation.sines + i, count);
        store_up_to(first + i, a * cosine - b * sine, count);
        store_up_to(second + i, b * cosine + a * sine, count);
    });
    for (int i = 0; i < head_dim; i += kWidth) store(out + i, load(head + i));
}

// The same for a head of `Vectors` vectors all of whose elements are rotated, in registers.
template <int Vectors, class T>
void norm_and_rotate_whole(const T* in, const T* norm, float eps, Rotation rotation, T* out) {
    constexpr int half = Vectors / 2;
    Floats head[Vectors], squares{};
    for (int v = 0; v < Vectors; v++) {
        head[v] = load(in + v * kWidth);
        squares += head[v] * head[v];
    }
    if (norm) {
        const float scale = 1.0f / std::sqrt(sum(squares) / float(Vectors * kWidth) + eps);
        for (int v = 0; v < Vectors; v++) head[v] = head[v] * scale * load(norm + v * kWidth);
    }
    for (int v = 0; v < half; v++) {
        const Floats a = head[v], b = head[v + half];
        const Floats cosine = load(rotation.cosines + v * kWidth), sine = load(rotation.sines + v * kWidth);
        store(out + v * kWidth, a * cosine - b * sine);
        store(out + (v + half) * kWidth, b * cosine + a * sine);
    }
}

template <class T>
void norm_and_rotate(const T* in, const T* norm, float eps, Rotation rotation, int head_dim, T* out) {
    constexpr int max_vectors = kWidth == 16 ? 8 : 4;  // that fit in registers
    const bool is_whole = 2 * rotation.half == head_dim;
    if (is_whole && head_dim == max_vectors * kWidth) {
        return norm_and_rotate_whole<max_vectors>(in, norm, eps, rotation, out);
    }
    if (is_whole && head_dim == max_vectors / 2 * kWidth) {
        return norm_and_rotate_whole<max_vectors / 2>(in, norm, eps, rotation, out);
    }
    norm_and_rotate_parts(in, norm, eps, rotation, head_dim, out);
}

template <class T>
void rope_and_store(const T* qkv, const T* q_norm, const T* k_norm, const float* cos_sin, const int64_t* positions,
                    const int64_t* slots, T* queries, T* k_cache, T* v_cache, int64_t tokens, int num_heads,
                    int num_kv_heads, int head_dim, int rotary_dim, int block_size, float eps) {
    const int64_t row_width = int64_t(num_heads + 2 * num_kv_heads) * head_dim;
    parallel_ranges(tokens, min_rows_per_thread(row_width), [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; token++) {
            const int half = rotary_dim / 2;
            const float* cosines = cos_sin + positions[token] * rotary_dim;
            const Rotation rotation{cosines, cosines + half, half};
            const T* head = qkv + token * row_width;
            T* query = queries + token * num_heads * head_dim;
            for (int h = 0; h < num_heads; h++, head += head_dim, query += head_dim) {
                norm_and_rotate(head, q_norm, eps, rotation, head_dim, query);
            }
            const int64_t block = slots[token] / block_size, offset = slots[token] % block_size;
            for (int h = 0; h < num_kv_heads; h++, head += head_dim) {
                const int64_t at = ((block * num_kv_heads + h) * block_size + offset) * head_dim;
                norm_and_rotate(head, k_norm, eps, rotation, head_dim, k_cache + at);
                memcpy(v_cache + at, head + int64_t(num_kv_heads) * head_dim, head_dim * sizeof(T));
            }
        }
    });
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                         \
    EXPORT void add_rms_norm_##suffix(const T* x, const T* residual, const T* weight, T* normed, T* total,            \
                                      int64_t rows, int64_t width, float eps) {                                       \
        add_rms_norm(x, residual, weight, normed, total, rows, width, eps);                                           \
    }                                                                                                                 \
    EXPORT void silu_and_mul_##suffix(const T* gate_up, T* out, int64_t rows, int64_t width) {                        \
        silu_and_mul(gate_up, out, rows, width);                                                                      \
    }                                                                                                                 \
    EXPORT void rope_and_store_##suffix(const T* qkv, const T* q_norm, const T* k_norm, const float* cos_sin,         \
                                        const int64_t* positions, const int64_t* slots, T* queries, T* k_cache,       \
                                        T* v_cache, int64_t tokens, int num_heads, int num_kv_heads, int head_dim,    \
                                        int rotary_dim, int block_size, float eps) {                                  \
        rope_and_store(qkv, q_norm, k_norm, cos_sin, positions, slots, queries, k_cache, v_cache, tokens, num_heads,  \
                       num_kv_heads, head_dim, rotary_dim, block_size, eps);                                          \
    }                                                                                                                 \
    CAPTURABLE(add_rms_norm_##suffix)                                                                                \
    CAPTURABLE(silu_and_mul_##suffix)                                                                                \
    CAPTURABLE(rope_and_store_##suffix)

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
