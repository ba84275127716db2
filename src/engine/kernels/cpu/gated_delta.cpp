// gated_delta: the gated delta rule over a step, one state per sequence and value head, with the norm and the gate of
// its outputs. The reference is in ../gated_delta.py; arithmetic is float32 for every type.
//
// With the state S before a token, its decay g, key k and query q, the token's change d of the values is
// beta * (v - g S'k), its output g S'q + (k'q) d, and the new state g S + k d'. So the pass that updates the state for
// one token also reads it for the next one, and each column of S is computed by itself, in the order of its rows: the
// results depend neither on the batch nor on how a prompt is divided into steps.

#include <cmath>

#include "parallel.h"
#include "captured_graph.h"
#include "recurrent.h"
#include "scratch.h"
#include "vector.h"

namespace {

constexpr int64_t kTokens = 16;  // prepared at a time: their keys and queries stay in the first-level cache
constexpr int kWholeRow = kWidth == 16 ? 8 : 4;  // vectors of a strip for one token: memory is read in order
constexpr int kResident = 4;                     // for several tokens: 128 rows of a strip stay in the first-level cache

struct Shape {
    int64_t key_heads, value_heads, key_dim, value_dim;

    int64_t keys() const { return key_heads * key_dim; }
    int64_t values() const { return value_heads * value_dim; }
    int64_t channels() const { return 2 * keys() + values(); }
};

// Up to kTokens tokens of a head.
struct Tokens {
    int64_t count;
    float *keys, *queries, *values;  // [count, key_dim] twice, [count, value_dim], which the outputs replace
    float decay[kTokens], beta[kTokens], key_query[kTokens];
};

ALWAYS_INLINE float dot(const float* a, const float* b, int64_t size) {
    Floats total{};
    for_each_vector(size, [&](int64_t i, int64_t count) {
        total = multiply_add(load_up_to(a + i, count), load_up_to(b + i, count), total);
    });
    return sum(total);
}

// to = from / |from| * factor
template <class T>
void normalise(const T* from, float* to, int64_t size, float factor) {
    convert(from, to, size);
    const float scale = factor / std::sqrt(dot(to, to, size) + 1e-6f);
    for_each_vector(size, [&](int64_t i, int64_t count) {
        store_up_to(to + i, load_up_to(to + i, count) * scale, count);
    });
}

ALWAYS_INLINE float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// The columns of the state that a strip of Vectors vectors holds; the last vector of them has `last` columns.
template <int Vectors>
void scan_strip(float* state, const Tokens& tokens, const Shape& shape, int64_t column, int64_t last) {
    const int64_t stride = shape.value_dim;
    state += column;
    const int64_t size = Vectors > 1 ? kWidth : last;
    Floats known[Vectors] = {}, read[Vectors] = {};  // of the next token: S'k and S'q
    const float *key = tokens.keys, *query = tokens.queries;
    for (int64_t row = 0; row < shape.key_dim; row++) {
        const Floats k = broadcast(key[row]), q = broadcast(query[row]);
        for (int v = 0; v < Vectors; v++) {
            const Floats value = load_up_to(state + row * stride + v * kWidth, size);
            known[v] = multiply_add(value, k, known[v]);
            read[v] = multiply_add(value, q, read[v]);
        }
    }
    for (int64_t token = 0; token < tokens.count; token++) {
        const float decay = tokens.decay[token], beta = tokens.beta[token], key_query = tokens.key_query[token];
        float* values = tokens.values + token * stride + column;
        Floats change[Vectors];
        for (int v = 0; v < Vectors; v++) {
            const Floats value = load_up_to(values + v * kWidth, size);
            change[v] = (value - known[v] * decay) * beta;
            const Floats output = multiply_add(change[v], broadcast(key_query), read[v] * decay);
            store_up_to(values + v * kWidth, output, size);
            known[v] = read[v] = Floats{};
        }
        const float* own = tokens.keys + token * shape.key_dim;
        const bool is_last = token + 1 == tokens.count;
        key = is_last ? own : own + shape.key_dim;
        query = tokens.queries + (is_last ? token : token + 1) * shape.key_dim;
        for (int64_t row = 0; row < shape.key_dim; row++) {
            const Floats o = broadcast(own[row]), k = broadcast(key[row]), q = broadcast(query[row]);
            for (int v = 0; v < Vectors; v++) {
                float* at = state + row * stride + v * kWidth;
                const Floats value = multiply_add(o, change[v], load_up_to(at, size) * decay);
                store_up_to(at, value, size);
                known[v] = multiply_add(value, k, known[v]);
                read[v] = multiply_add(value, q, read[v]);
            }
        }
    }
}

void scan(float* state, const Tokens& tokens, const Shape& shape) {
    const int64_t most = tokens.count == 1 ? kWholeRow : kResident;
    for (int64_t column = 0; column < shape.value_dim;) {
        const int64_t left = (shape.value_dim - column) / kWidth;
        int64_t vectors = 1;
        if (left >= kWholeRow && most >= kWholeRow) {
            scan_strip<kWholeRow>(state, tokens, shape, column, kWidth), vectors = kWholeRow;
        } else if (left >= 4) {
            scan_strip<4>(state, tokens, shape, column, kWidth), vectors = 4;
        } else if (left >= 2) {
            scan_strip<2>(state, tokens, shape, column, kWidth), vectors = 2;
        } else {
            scan_strip<1>(state, tokens, shape, column, left ? kWidth : shape.value_dim - column);
        }
        column += vectors * kWidth;
    }
}

struct Weights {
    const float *a_log, *dt_bias, *norm;  // [value_heads] twice, [value_dim]
    float eps;
};

// mixed: [tokens, channels], queries, keys and values. projected: [tokens, channels + values + 2 * value_heads], of which
// the gates z, and b and a of each head are read.
template <class T, class S>
void gated_delta(const T* mixed, const T* projected, const Weights& weights, S* states, T* out,
                 const RecurrentRows& rows, const Shape& shape) {
    const int64_t channels = shape.channels(), values = shape.values(), state_size = shape.key_dim * shape.value_dim;
    const int64_t width = channels + values + 2 * shape.value_heads;
    const float query_scale = 1.0f / std::sqrt(float(shape.key_dim));
    parallel_tasks(rows.count * shape.value_heads, [&](int64_t task) {
        static thread_local Scratch scratch;
        const int64_t row = task / shape.value_heads, head = task % shape.value_heads;
        const int64_t key_head = head / (shape.value_heads / shape.key_heads);
        S* kept = states + (rows.slot(row) * shape.value_heads + head) * state_size;
        const float rate = -std::exp(weights.a_log[head]);
        Tokens tokens;
        tokens.keys = scratch.reserve<float>(kTokens * (2 * shape.key_dim + shape.value_dim) + room_for_state<S>(state_size));
        tokens.queries = tokens.keys + kTokens * shape.key_dim;
        tokens.values = tokens.queries + kTokens * shape.key_dim;
        float* state = open_state(kept, tokens.values + kTokens * shape.value_dim, state_size, rows.is_new(row));
        const int64_t end = rows.first(row) + rows.num_tokens(row);
        for (int64_t first = rows.first(row); first < end; first += kTokens) {
            tokens.count = end - first < kTokens ? end - first : kTokens;
            for (int64_t i = 0; i < tokens.count; i++) {
                const T* from = mixed + (first + i) * channels;
                const T* gates = projected + (first + i) * width + channels + values;
                float *key = tokens.keys + i * shape.key_dim, *query = tokens.queries + i * shape.key_dim;
                normalise(from + key_head * shape.key_dim, query, shape.key_dim, query_scale);
                normalise(from + shape.keys() + key_head * shape.key_dim, key, shape.key_dim, 1.0f);
                convert(from + 2 * shape.keys() + head * shape.value_dim, tokens.values + i * shape.value_dim,
                      shape.value_dim);
                float b, a;
                convert(gates + head, &b, 1);
                convert(gates + shape.value_heads + head, &a, 1);
                tokens.beta[i] = 1.0f / (1.0f + std::exp(-b));
                tokens.decay[i] = std::exp(rate * softplus(a + weights.dt_bias[head]));
                tokens.key_query[i] = dot(key, query, shape.key_dim);
            }
            scan(state, tokens, shape);
            for (int64_t i = 0; i < tokens.count; i++) {
                const float* output = tokens.values + i * shape.value_dim;
                const int64_t at = head * shape.value_dim;
                const T* z = projected + (first + i) * width + channels + at;
                T* to = out + (first + i) * values + at;
                const float mean = dot(output, output, shape.value_dim) / float(shape.value_dim);
                const float scale = 1.0f / std::sqrt(mean + weights.eps);
                for_each_vector(shape.value_dim, [&](int64_t j, int64_t count) {
                    const Floats gate = load_up_to(z + j, count);
                    const Floats normed = load_up_to(output + j, count) * scale * load_up_to(weights.norm + j, count);
                    store_up_to(to + j, normed * (gate / (exponential(-gate) + 1.0f)), count);
                });
            }
        }
        close_state(kept, state, state_size);
    });
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                          \
    EXPORT void gated_delta_##suffix(const T* mixed, const T* projected, const float* a_log, const float* dt_bias,     \
                                     const float* norm, float eps, void* states, T* out, const int32_t* query_start,   \
                                     const int32_t* context_lens, const int32_t* slots, int64_t rows,                  \
                                     int64_t key_heads, int64_t value_heads, int64_t key_dim, int64_t value_dim,       \
                                     int has_narrow_states) {                                                          \
        const Weights weights{a_log, dt_bias, norm, eps};                                                              \
        const RecurrentRows of_step{query_start, context_lens, slots, rows};                                           \
        const Shape shape{key_heads, value_heads, key_dim, value_dim};                                                 \
        if (has_narrow_states) {                                                                                       \
            gated_delta(mixed, projected, weights, static_cast<BFloat16*>(states), out, of_step, shape);               \
        } else {                                                                                                       \
            gated_delta(mixed, projected, weights, static_cast<float*>(states), out, of_step, shape);                  \
        }                                                                                                              \
    }                                                                                                                  \
    CAPTURABLE(gated_delta_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
