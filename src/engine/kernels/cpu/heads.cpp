// rope_and_store: queries, keys and values of a token between the projection and attention. The reference is in
// ../rope_and_store.py; arithmetic is float32 for every type.

#include <cmath>

#include "parallel.h"
#include "captured_graph.h"
#include "kv_codes.h"
#include "rotation.h"
#include "scratch.h"
#include "vector.h"

namespace {

// What differs between models: HeadVariant in ../rope_and_store.py.
enum Flags {
    kInterleaved = 1, kLayerNorm = 2, kOverAllHeads = 4, kNormLast = 8, kNormValues = 16, kValuesAreKeys = 32
};
constexpr int kOfQueriesAndKeys = kInterleaved | kLayerNorm | kOverAllHeads | kNormLast;

// The queries or the keys of a token.
struct Heads {
    int count, head_dim;
    const float* norm;  // weights, or null
    int norm_stride;    // elements between the weights of two heads: head_dim, or 0 if they share them
    float eps;
    int flags;

    bool has(Flags flag) const { return flags & flag; }
};

void normalise(float* values, const Heads& heads) {
    const int total = heads.count * heads.head_dim, span = heads.has(kOverAllHeads) ? total : heads.head_dim;
    for (int first = 0; first < total; first += span) {
        float* part = values + first;
        float mean = 0;
        if (heads.has(kLayerNorm)) {
            Floats sums{};
            for (int i = 0; i < span; i += kWidth) sums += load(part + i);
            mean = sum(sums) / float(span);
        }
        Floats squares{};
        for (int i = 0; i < span; i += kWidth) {
            const Floats centred = load(part + i) - mean;
            squares += centred * centred;
        }
        const float scale = 1.0f / std::sqrt(sum(squares) / float(span) + heads.eps);
        for (int head = 0; head < span; head += heads.head_dim) {
            const float* weights = heads.norm + (first + head) / heads.head_dim * heads.norm_stride;
            for (int i = 0; i < heads.head_dim; i += kWidth) {
                store(part + head + i, (load(part + head + i) - mean) * scale * load(weights + i));
            }
        }
    }
}

// A head of `Vectors` vectors all of whose elements are rotated, in registers. `in` and `out` may be the same.
template <int Vectors, class T>
void norm_and_rotate_whole(const T* in, const float* norm, float eps, const Rotation& rotation, T* out) {
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

// Head h of the result, times `scale`, is written to out(h).
template <class T, class Out>
void prepare(const T* in, const Heads& heads, const Rotation& rotation, float scale, const Out& out) {
    constexpr int max_vectors = kWidth == 16 ? 8 : 4;  // that fit in registers
    const int head_dim = heads.head_dim;
    if (!(heads.flags & kOfQueriesAndKeys) && !heads.norm_stride && scale == 1.0f && 2 * rotation.half == head_dim) {
        if (head_dim == max_vectors * kWidth) {
            for (int h = 0; h < heads.count; h++, in += head_dim) {
                norm_and_rotate_whole<max_vectors>(in, heads.norm, heads.eps, rotation, out(h));
            }
            return;
        }
        if (head_dim == max_vectors / 2 * kWidth) {
            for (int h = 0; h < heads.count; h++, in += head_dim) {
                norm_and_rotate_whole<max_vectors / 2>(in, heads.norm, heads.eps, rotation, out(h));
            }
            return;
        }
    }
    static thread_local Scratch scratch;
    const int total = heads.count * head_dim;
    float* values = scratch.reserve<float>(total);
    for (int i = 0; i < total; i += kWidth) store(values + i, load(in + i));
    if (heads.norm && !heads.has(kNormLast)) normalise(values, heads);
    for (int h = 0; h < heads.count; h++) rotate(values + h * head_dim, rotation, heads.has(kInterleaved));
    if (heads.norm && heads.has(kNormLast)) normalise(values, heads);
    for (int h = 0; h < heads.count; h++) {
        T* to = out(h);
        for (int i = 0; i < head_dim; i += kWidth) store(to + i, load(values + h * head_dim + i) * scale);
    }
}

// Writes a head's values, with a root mean square of one if `has_norm`.
template <class T>
void store_values(const T* in, int head_dim, bool has_norm, float eps, T* out) {
    if (!has_norm) {
        memcpy(out, in, head_dim * sizeof(T));
        return;
    }
    Floats squares{};
    for (int i = 0; i < head_dim; i += kWidth) squares += load(in + i) * load(in + i);
    const float scale = 1.0f / std::sqrt(sum(squares) / float(head_dim) + eps);
    for (int i = 0; i < head_dim; i += kWidth) store(out + i, load(in + i) * scale);
}

// qkv: [tokens, row_width]: queries, keys, values unless they are the keys, and what is not read. Without key heads
// nothing is written to the caches. query_scales: by position, or null.
template <class T, class C>
void rope_and_store(const T* qkv, const Heads& queries, const Heads& keys, const float* cos_sin, int rotary_dim,
                    const float* query_scales, const int64_t* positions, const int64_t* slots, T* to_queries,
                    C* k_cache, C* v_cache, int64_t tokens, int64_t row_width, int block_size) {
    const int head_dim = queries.head_dim;
    parallel_ranges(tokens, min_rows_per_thread(row_width), [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; token++) {
            const int half = rotary_dim / 2;
            const float* cosines = cos_sin + positions[token] * rotary_dim;
            const Rotation rotation{cosines, cosines + half, half};
            const float scale = query_scales ? query_scales[positions[token]] : 1.0f;
            const T* row = qkv + token * row_width;
            prepare(row, queries, rotation, scale,
                    [&](int h) { return to_queries + (token * queries.count + h) * head_dim; });
            if (slots[token] < 0) continue;  // another rank keeps the token
            const int64_t block = slots[token] / block_size, offset = slots[token] % block_size;
            const int64_t block_elements = int64_t(block_size) * (head_dim + kScaleElements<C>);
            const auto at = [&](int h) { return (block * keys.count + h) * block_elements + offset * head_dim; };
            row += queries.count * head_dim;
            if constexpr (std::is_same_v<C, T>) {
                prepare(row, keys, rotation, 1.0f, [&](int h) { return k_cache + at(h); });
                if (!keys.has(kValuesAreKeys)) row += keys.count * head_dim;
                for (int h = 0; h < keys.count; h++) {
                    store_values(row + h * head_dim, head_dim, keys.has(kNormValues), keys.eps, v_cache + at(h));
                }
            } else {
                static thread_local Scratch scratch;
                T* wide = scratch.reserve<T>(keys.count * head_dim);
                const int64_t to_scale = (block_size - offset) * head_dim + offset * kScaleElements<C>;
                prepare(row, keys, rotation, 1.0f, [&](int h) { return wide + h * head_dim; });
                for (int h = 0; h < keys.count; h++) {
                    pack_codes(wide + h * head_dim, head_dim, k_cache + at(h), k_cache + at(h) + to_scale);
                }
                if (!keys.has(kValuesAreKeys)) row += keys.count * head_dim;
                for (int h = 0; h < keys.count; h++) {
                    store_values(row + h * head_dim, head_dim, keys.has(kNormValues), keys.eps, wide);
                    pack_codes(wide, head_dim, v_cache + at(h), v_cache + at(h) + to_scale);
                }
            }
        }
    });
}

}  // namespace

#define EXPORT_FOR(T, C, suffix)                                                                                         \
    EXPORT void rope_and_store_##suffix(const T* qkv, const float* q_norm, const float* k_norm, const float* cos_sin, \
                                        const float* query_scales, const int64_t* positions, const int64_t* slots,    \
                                        T* queries, C* k_cache, C* v_cache, int64_t tokens, int64_t row_width,        \
                                        int num_heads, int num_kv_heads, int head_dim, int rotary_dim,                \
                                        int block_size, int norm_stride, int flags, float eps) {                      \
        rope_and_store(qkv, Heads{num_heads, head_dim, q_norm, norm_stride, eps, flags},                              \
                       Heads{num_kv_heads, head_dim, k_norm, norm_stride, eps, flags}, cos_sin, rotary_dim,           \
                       query_scales, positions, slots, queries, k_cache, v_cache, tokens, row_width, block_size);     \
    }                                                                                                                 \
    CAPTURABLE(rope_and_store_##suffix)

EXPORT_FOR(float, float, float32)
EXPORT_FOR(BFloat16, BFloat16, bfloat16)
EXPORT_FOR(float, Code, int8_float32)
EXPORT_FOR(BFloat16, Code, int8_bfloat16)
