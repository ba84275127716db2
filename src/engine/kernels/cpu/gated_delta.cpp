// gated_delta: the gated delta rule over a step, one state per sequence and value head, with the norm and the gate of
// its outputs. kimi_delta: the same with a decay for each row of the state. The references are in ../gated_delta.py and
// ../kimi_delta.py; arithmetic is float32 for every type.
//
// With the state S before a token, its decay g, key k and query q, the token's change d of the values is
// beta * (v - g S'k), its output g S'q + (k'q) d, and the new state g S + k d'. So the pass that updates the state for
// one token also reads it for the next one, and each column of S is computed by itself, in the order of its rows: the
// results depend neither on the batch nor on how a prompt is divided into steps. With a decay for each row, S is read
// with the products g k and g q.

#include <cmath>

#include "parallel.h"
#include "captured_graph.h"
#include "recurrent.h"
#include "scratch.h"
#include "softplus.h"
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
    float *decays, *decayed_keys;    // [count, key_dim] twice, with a decay for each row; `queries` are decayed then
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

// The columns of the state that a strip of Vectors vectors holds; the last vector of them has `last` columns.
template <bool EachRow, int Vectors>
void scan_strip(float* state, const Tokens& tokens, const Shape& shape, int64_t column, int64_t last) {
    const int64_t stride = shape.value_dim;
    state += column;
    const int64_t size = Vectors > 1 ? kWidth : last;
    Floats known[Vectors] = {}, read[Vectors] = {};  // of the next token: S'k and S'q
    const float* const read_keys = EachRow ? tokens.decayed_keys : tokens.keys;
    const float *key = read_keys, *query = tokens.queries;
    for (int64_t row = 0; row < shape.key_dim; row++) {
        const Floats k = broadcast(key[row]), q = broadcast(query[row]);
        for (int v = 0; v < Vectors; v++) {
            const Floats value = load_up_to(state + row * stride + v * kWidth, size);
            known[v] = multiply_add(value, k, known[v]);
            read[v] = multiply_add(value, q, read[v]);
        }
    }
    for (int64_t token = 0; token < tokens.count; token++) {
        const float decay = EachRow ? 1.0f : tokens.decay[token];
        const float beta = tokens.beta[token], key_query = tokens.key_query[token];
        float* values = tokens.values + token * stride + column;
        Floats change[Vectors];
        for (int v = 0; v < Vectors; v++) {
            const Floats value = load_up_to(values + v * kWidth, size);
            change[v] = (value - (EachRow ? known[v] : known[v] * decay)) * beta;
            const Floats output = multiply_add(change[v], broadcast(key_query), EachRow ? read[v] : read[v] * decay);
            store_up_to(values + v * kWidth, output, size);
            known[v] = read[v] = Floats{};
        }
        const float* own = tokens.keys + token * shape.key_dim;
        const bool is_last = token + 1 == tokens.count;
        const float* decays = EachRow ? tokens.decays + token * shape.key_dim : nullptr;
        const int64_t next = is_last ? token : token + 1;
        key = read_keys + next * shape.key_dim;
        query = tokens.queries + next * shape.key_dim;
        for (int64_t row = 0; row < shape.key_dim; row++) {
            const Floats o = broadcast(own[row]), k = broadcast(key[row]), q = broadcast(query[row]);
            for (int v = 0; v < Vectors; v++) {
                float* at = state + row * stride + v * kWidth;
                const Floats value = multiply_add(o, change[v], load_up_to(at, size) * (EachRow ? decays[row] : decay));
                store_up_to(at, value, size);
                known[v] = multiply_add(value, k, known[v]);
                read[v] = multiply_add(value, q, read[v]);
            }
        }
    }
}

template <bool EachRow>
void scan(float* state, const Tokens& tokens, const Shape& shape) {
    const int64_t most = tokens.count == 1 ? kWholeRow : kResident;
    for (int64_t column = 0; column < shape.value_dim;) {
        const int64_t left = (shape.value_dim - column) / kWidth;
        int64_t vectors = 1;
        if (left >= kWholeRow && most >= kWholeRow) {
            scan_strip<EachRow, kWholeRow>(state, tokens, shape, column, kWidth), vectors = kWholeRow;
        } else if (left >= 4) {
            scan_strip<EachRow, 4>(state, tokens, shape, column, kWidth), vectors = 4;
        } else if (left >= 2) {
            scan_strip<EachRow, 2>(state, tokens, shape, column, kWidth), vectors = 2;
        } else {
            scan_strip<EachRow, 1>(state, tokens, shape, column, left ? kWidth : shape.value_dim - column);
        }
        column += vectors * kWidth;
    }
}

struct Weights {
    const float *a_log, *dt_bias, *norm;  // [value_heads], one for each decay, [value_dim]
    float eps, beta_scale, least_log;     // of the norm; 0 where decays have no bound
    bool is_silu;                         // of the gates; else they are sigmoids
};

// Takes a token's key, query and value into the tokens of a head.
template <class T>
void take(const T* mixed, Tokens& tokens, int64_t i, const Shape& shape, int64_t head) {
    const int64_t key_head = head / (shape.value_heads / shape.key_heads);
    float *key = tokens.keys + i * shape.key_dim, *query = tokens.queries + i * shape.key_dim;
    normalise(mixed + key_head * shape.key_dim, query, shape.key_dim, 1.0f / std::sqrt(float(shape.key_dim)));
    normalise(mixed + shape.keys() + key_head * shape.key_dim, key, shape.key_dim, 1.0f);
    convert(mixed + 2 * shape.keys() + head * shape.value_dim, tokens.values + i * shape.value_dim, shape.value_dim);
    tokens.key_query[i] = dot(key, query, shape.key_dim);
}

template <class T>
ALWAYS_INLINE float sigmoid_of(const T* from) {
    float value;
    convert(from, &value, 1);
    return 1.0f / (1.0f + std::exp(-value));
}

// The output of a head for a token, normed and then gated: by silu(z), or by sigmoid(z).
template <bool IsSilu, class T>
void finish(const float* output, const T* z, const Weights& weights, T* to, int64_t size) {
    const float scale = 1.0f / std::sqrt(dot(output, output, size) / float(size) + weights.eps);
    for_each_vector(size, [&](int64_t j, int64_t count) {
        const Floats gate = load_up_to(z + j, count);
        const Floats normed = load_up_to(output + j, count) * scale * load_up_to(weights.norm + j, count);
        store_up_to(to + j, normed * ((IsSilu ? gate : broadcast(1.0f)) / (exponential(-gate) + 1.0f)), count);
    });
}

// Calls prepare(tokens, i, token, head) and finish(output, token, head) of every token and value head, and scans states.
template <bool EachRow, class S, class Prepare, class Finish>
void each_state(S* states, const RecurrentRows& rows, const Shape& shape, Prepare prepare, Finish finish) {
    const int64_t state_size = shape.key_dim * shape.value_dim;
    parallel_tasks(rows.count * shape.value_heads, [&](int64_t task) {
        static thread_local Scratch scratch;
        const int64_t row = task / shape.value_heads, head = task % shape.value_heads;
        S* kept = states + (rows.slot(row) * shape.value_heads + head) * state_size;
        const int64_t width = (EachRow ? 4 : 2) * shape.key_dim + shape.value_dim;
        Tokens tokens;
        tokens.keys = scratch.reserve<float>(kTokens * width + room_for_state<S>(state_size));
        tokens.queries = tokens.keys + kTokens * shape.key_dim;
        tokens.values = tokens.queries + kTokens * shape.key_dim;
        tokens.decays = tokens.values + kTokens * shape.value_dim;
        tokens.decayed_keys = tokens.decays + kTokens * shape.key_dim;
        float* state = open_state(kept, tokens.keys + kTokens * width, state_size, rows.is_new(row));
        const int64_t end = rows.first(row) + rows.num_tokens(row);
        for (int64_t first = rows.first(row); first < end; first += kTokens) {
            tokens.count = end - first < kTokens ? end - first : kTokens;
            for (int64_t i = 0; i < tokens.count; i++) prepare(tokens, i, first + i, head);
            scan<EachRow>(state, tokens, shape);
            for (int64_t i = 0; i < tokens.count; i++) finish(tokens.values + i * shape.value_dim, first + i, head);
        }
        close_state(kept, state, state_size);
    });
}

// mixed: [tokens, channels], queries, keys and values. projected: [tokens, channels + values + 2 * value_heads], of which
// the gates z, and b and a of each head are read.
template <class T, class S>
void gated_delta(const T* mixed, const T* projected, const Weights& weights, S* states, T* out,
                 const RecurrentRows& rows, const Shape& shape) {
    const int64_t channels = shape.channels(), values = shape.values();
    const int64_t width = channels + values + 2 * shape.value_heads;
    const auto prepare = [&](Tokens& tokens, int64_t i, int64_t token, int64_t head) {
        const T* gates = projected + token * width + channels + values;
        float a;
        convert(gates + shape.value_heads + head, &a, 1);
        take(mixed + token * channels, tokens, i, shape, head);
        tokens.beta[i] = weights.beta_scale * sigmoid_of(gates + head);
        tokens.decay[i] = std::exp(-std::exp(weights.a_log[head]) * softplus(a + weights.dt_bias[head]));
    };
    each_state<false>(states, rows, shape, prepare, [&](const float* output, int64_t token, int64_t head) {
        const int64_t at = head * shape.value_dim;
        const T* z = projected + token * width + channels + at;
        T* to = out + token * values + at;
        if (weights.is_silu) {
            finish<true>(output, z, weights, to, shape.value_dim);
        } else {
            finish<false>(output, z, weights, to, shape.value_dim);
        }
    });
}

// mixed: as above. projected: [tokens, projected_width], of which the last columns, b of each head, are read.
// a: [tokens, value_heads, key_dim]. z: [tokens, values].
template <class T, class S>
void kimi_delta(const T* mixed, const T* projected, int64_t projected_width, const T* a, const T* z, const Weights& weights,
                S* states, T* out, const RecurrentRows& rows, const Shape& shape) {
    const int64_t size = shape.key_dim, width = shape.value_heads * size;
    const T* b = projected + projected_width - shape.value_heads;
    const auto prepare = [&](Tokens& tokens, int64_t i, int64_t token, int64_t head) {
        take(mixed + token * shape.channels(), tokens, i, shape, head);
        tokens.beta[i] = sigmoid_of(b + token * projected_width + head);
        const T* own = a + token * width + head * size;
        const float *bias = weights.dt_bias + head * size, *key = tokens.keys + i * size;
        float *decays = tokens.decays + i * size, *query = tokens.queries + i * size;
        float* decayed = tokens.decayed_keys + i * size;
        const float rate = std::exp(weights.a_log[head]), least_log = weights.least_log;
        for_each_vector(size, [&](int64_t j, int64_t count) {
            const Floats steps = load_up_to(own + j, count) + load_up_to(bias + j, count);
            const Floats log = least_log < 0.0f ? least_log / (exponential(steps * -rate) + 1.0f) : softplus(steps) * -rate;
            const Floats decay = exponential(log);
            store_up_to(decays + j, decay, count);
            store_up_to(decayed + j, load_up_to(key + j, count) * decay, count);
            store_up_to(query + j, load_up_to(query + j, count) * decay, count);
        });
    };
    each_state<true>(states, rows, shape, prepare, [&](const float* output, int64_t token, int64_t head) {
        const int64_t at = token * shape.values() + head * shape.value_dim;
        finish<false>(output, z + at, weights, out + at, shape.value_dim);
    });
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                          \
    EXPORT void gated_delta_##suffix(const T* mixed, const T* projected, const float* a_log, const float* dt_bias,     \
                                     const float* norm, float eps, float beta_scale, int is_silu, void* states, T* out, \
                                     const int32_t* query_start, const int32_t* context_lens, const int32_t* slots,    \
                                     int64_t rows, int64_t key_heads, int64_t value_heads, int64_t key_dim,            \
                                     int64_t value_dim, int has_narrow_states) {                                       \
        const Weights weights{a_log, dt_bias, norm, eps, beta_scale, 0.0f, is_silu != 0};                              \
        const RecurrentRows of_step{query_start, context_lens, slots, rows};                                           \
        const Shape shape{key_heads, value_heads, key_dim, value_dim};                                                 \
        if (has_narrow_states) {                                                                                       \
            gated_delta(mixed, projected, weights, static_cast<BFloat16*>(states), out, of_step, shape);               \
        } else {                                                                                                       \
            gated_delta(mixed, projected, weights, static_cast<float*>(states), out, of_step, shape);                  \
        }                                                                                                              \
    }                                                                                                                  \
    CAPTURABLE(gated_delta_##suffix)                                                                                   \
    EXPORT void kimi_delta_##suffix(const T* mixed, const T* projected, int64_t width, const T* a, const T* z,         \
                                    const float* a_log, const float* dt_bias, const float* norm, float eps,            \
                                    float least_log, void* states, T* out, const int32_t* query_start, const int32_t* context_lens,     \
                                    const int32_t* slots, int64_t rows, int64_t heads, int64_t head_dim,               \
                                    int has_narrow_states) {                                                           \
        const Weights weights{a_log, dt_bias, norm, eps, 1.0f, least_log, false};                                      \
        const RecurrentRows of_step{query_start, context_lens, slots, rows};                                           \
        const Shape shape{heads, heads, head_dim, head_dim};                                                           \
        if (has_narrow_states) {                                                                                       \
            kimi_delta(mixed, projected, width, a, z, weights, static_cast<BFloat16*>(states), out, of_step, shape);   \
        } else {                                                                                                       \
            kimi_delta(mixed, projected, width, a, z, weights, static_cast<float*>(states), out, of_step, shape);      \
        }                                                                                                              \
    }                                                                                                                  \
    CAPTURABLE(kimi_delta_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
