// What surrounds attention over latents: store_latents (norms, rotated key, cache), and the products of each head with a
// matrix of its own. The references are in ../store_latents.py and ../latent_heads.py; arithmetic is float32 for every
// type, and each sum has one order, whatever the number of tokens.

#include <algorithm>
#include <cmath>

#include "captured_graph.h"
#include "parallel.h"
#include "rotation.h"
#include "scratch.h"
#include "vector.h"

namespace {

constexpr int kStep = 2 * kWidth;                     // elements of a load_two
constexpr int kTokens = kWidth == 16 ? 4 : 2;         // that are multiplied together
constexpr int kSteps = 2;                             // of several tokens: their sums fit in registers
constexpr int kWholeSteps = kWidth == 16 ? 8 : 4;     // of one token: memory is read in order

template <class T>
void widen(const T* from, float* to, int64_t size) {
    for_each_vector(size, [&](int64_t i, int64_t count) { store_up_to(to + i, load_up_to(from + i, count), count); });
}

template <class T, class To>
void normalise(const T* from, const float* weights, float eps, int64_t size, To* to) {
    Floats squares{};
    for_each_vector(size, [&](int64_t i, int64_t count) {
        const Floats x = load_up_to(from + i, count);
        squares = multiply_add(x, x, squares);
    });
    const float scale = 1.0f / std::sqrt(sum(squares) / float(size) + eps);
    for_each_vector(size, [&](int64_t i, int64_t count) {
        store_up_to(to + i, load_up_to(from + i, count) * scale * load_up_to(weights + i, count), count);
    });
}

// Rotates `size` elements into `to`. cos_sin: of the position. norm: weights of a norm before the rotation, or null.
template <class T>
void rotate_into(const T* from, const float* cos_sin, int size, bool is_interleaved, T* to, const float* norm = nullptr,
                 float eps = 0.0f) {
    static thread_local Scratch scratch;
    float* head = scratch.reserve<float>(size);
    if (norm) {
        normalise(from, norm, eps, size, head);
    } else {
        widen(from, head, size);
    }
    rotate(head, Rotation{cos_sin, cos_sin + size / 2, size / 2}, is_interleaved);
    for_each_vector(size, [&](int64_t i, int64_t count) { store_up_to(to + i, load_up_to(head + i, count), count); });
}

template <class T>
void store_latents(const T* projected, int64_t row_width, const float* q_norm, const float* kv_norm,
                   const float* key_norm, float eps, const float* cos_sin, bool is_interleaved,
                   const int64_t* positions, const int64_t* slots, T* queries, T* cache, int64_t tokens,
                   int query_width, int rank, int rope_dim, int64_t token_stride) {
    parallel_ranges(tokens, min_rows_per_thread(row_width), [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; token++) {
            const T* row = projected + token * row_width;
            if (q_norm) normalise(row, q_norm, eps, query_width, queries + token * query_width);
            if (slots[token] < 0) continue;  // another rank keeps the token
            T* to = cache + slots[token] * token_stride;
            normalise(row + query_width, kv_norm, eps, rank, to);
            rotate_into(row + query_width + rank, cos_sin + positions[token] * rope_dim, rope_dim, is_interleaved,
                        to + rank, key_norm, eps);
        }
    });
}

// Elements `at` to `at + kStep` of a row of `size`.
template <class T>
ALWAYS_INLINE Two load_step(const T* from, int64_t at, int64_t size) {
    return size - at >= kStep ? load_two(from + at) : load_two_partial(from + at, size - at);
}

// Steps steps of the outputs of Tokens tokens, from `at` on: out = x * matrix. x: [Tokens, inputs].
template <int Tokens, int Steps, class T>
void multiply(const float* x, const T* matrix, int64_t inputs, int64_t outputs, int64_t at, T* out,
              int64_t out_stride) {
    Two sums[Tokens][Steps];
    for (int t = 0; t < Tokens; t++) {
        for (int s = 0; s < Steps; s++) sums[t][s] = {Floats{}, Floats{}};
    }
    const bool is_whole = at + Steps * kStep <= outputs;
    const auto add = [&](auto load) {
        for (int64_t i = 0; i < inputs; i++) {
            const T* row = matrix + i * outputs;
            for (int s = 0; s < Steps; s++) {
                const Two weights = load(row, at + s * kStep);
                for (int t = 0; t < Tokens; t++) {
                    const Floats value = broadcast(x[t * inputs + i]);
                    sums[t][s].first = multiply_add(value, weights.first, sums[t][s].first);
                    sums[t][s].second = multiply_add(value, weights.second, sums[t][s].second);
                }
            }
        }
    };
    if (is_whole) {
        add([](const T* row, int64_t from) { return load_two(row + from); });
    } else {
        add([&](const T* row, int64_t from) {
            return from < outputs ? load_step(row, from, outputs) : Two{Floats{}, Floats{}};
        });
    }
    for (int t = 0; t < Tokens; t++) {
        for (int s = 0; s < Steps; s++) {
            const int64_t from = at + s * kStep, left = outputs - from;
            T* to = out + t * out_stride + from;
            if (left >= kStep) {
                store_two(to, sums[t][s]);
            } else if (left > 0) {
                store_two_partial(to, sums[t][s], left);
            }
        }
    }
}

// Heads of vectors, of tokens that are `stride` elements apart; heads are `head` elements apart.
template <class T>
struct HeadVectors {
    T* at;
    int64_t stride, head;
};

// to = from * matrix of the head, and `after(head)` once for each head. matrices: [heads, inputs, outputs].
template <class T, class After>
void multiply_heads(HeadVectors<const T> from, const T* matrices, int64_t heads, int64_t inputs, int64_t outputs,
                    int64_t tokens, HeadVectors<T> to, const After& after) {
    const int64_t columns = (tokens == 1 ? kWholeSteps : kSteps) * kStep, pieces = (outputs + columns - 1) / columns;
    parallel_tasks(heads * pieces, [&](int64_t task) {
        const int64_t head = task / pieces, at = task % pieces * columns;
        const T *x = from.at + head * from.head, *matrix = matrices + head * inputs * outputs;
        T* out = to.at + head * to.head;
        static thread_local Scratch scratch;
        float* wide = scratch.reserve<float>(kTokens * inputs);
        for (int64_t token = 0; token < tokens;) {
            const int64_t count = std::min<int64_t>(kTokens, tokens - token);
            for (int64_t t = 0; t < count; t++) widen(x + (token + t) * from.stride, wide + t * inputs, inputs);
            T* own = out + token * to.stride;
            if (tokens == 1) {
                multiply<1, kWholeSteps>(wide, matrix, inputs, outputs, at, own, to.stride);
            } else if (count == kTokens) {
                multiply<kTokens, kSteps>(wide, matrix, inputs, outputs, at, own, to.stride);
            } else {
                for (int64_t t = 0; t < count; t++) {
                    multiply<1, kSteps>(wide + t * inputs, matrix, inputs, outputs, at, own + t * to.stride, to.stride);
                }
            }
            token += count;
        }
        if (!at) after(head);
    });
}

template <class T>
void absorb_queries(const T* queries, int64_t row_width, const T* keys, const float* cos_sin, bool is_interleaved,
                    const int64_t* positions, T* out, int64_t tokens, int heads, int plain_dim, int rank,
                    int rope_dim) {
    const int64_t size = plain_dim + rope_dim, width = rank + rope_dim;
    multiply_heads<T>({queries, row_width, size}, keys, heads, plain_dim, rank, tokens,
                      {out, heads * width, width}, [&](int64_t head) {
                          for (int64_t token = 0; token < tokens; token++) {
                              rotate_into(queries + token * row_width + head * size + plain_dim,
                                          cos_sin + positions[token] * rope_dim, rope_dim, is_interleaved,
                                          out + (token * heads + head) * width + rank);
                          }
                      });
}

template <class T>
void expand_values(const T* attended, const T* values, T* out, int64_t tokens, int heads, int rank, int value_dim) {
    const int64_t width = int64_t(heads) * value_dim;
    multiply_heads<T>({attended, int64_t(heads) * rank, rank}, values, heads, rank, value_dim, tokens,
                      {out, width, value_dim}, [](int64_t) {});
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                          \
    EXPORT void store_latents_##suffix(const T* projected, const float* q_norm, const float* kv_norm,                  \
                                       const float* key_norm, const float* cos_sin, const int64_t* positions,          \
                                       const int64_t* slots, T* queries, T* cache, int64_t tokens, int64_t row_width,  \
                                       int64_t token_stride, int query_width, int rank, int rope_dim,                  \
                                       int is_interleaved, float eps) {                                                \
        store_latents(projected, row_width, q_norm, kv_norm, key_norm, eps, cos_sin, is_interleaved != 0, positions,   \
                      slots, queries, cache, tokens, query_width, rank, rope_dim, token_stride);                       \
    }                                                                                                                  \
    CAPTURABLE(store_latents_##suffix)                                                                                 \
    EXPORT void absorb_queries_##suffix(const T* queries, const T* keys, const float* cos_sin,                         \
                                        const int64_t* positions, T* out, int64_t tokens, int64_t row_width,           \
                                        int heads, int plain_dim, int rank, int rope_dim, int is_interleaved) {        \
        absorb_queries(queries, row_width, keys, cos_sin, is_interleaved != 0, positions, out, tokens, heads,          \
                       plain_dim, rank, rope_dim);                                                                     \
    }                                                                                                                  \
    CAPTURABLE(absorb_queries_##suffix)                                                                                \
    EXPORT void expand_values_##suffix(const T* attended, const T* values, T* out, int64_t tokens, int heads,          \
                                       int rank, int value_dim) {                                                      \
        expand_values(attended, values, out, tokens, heads, rank, value_dim);                                          \
    }                                                                                                                  \
    CAPTURABLE(expand_values_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
