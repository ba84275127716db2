// state_space: the selective state space of Mamba-2 over a step, one state per sequence and head. The reference is in
// ../state_space.py; arithmetic is float32 for every type.
//
// A token's change of the state does not depend on the state before it, so a pass over the rows of the state adds the
// changes of several tokens to each element while it is in a register. Each element goes through the tokens in their
// order, and each output is summed in the order of the rows: the results depend neither on the batch nor on how a
// prompt is divided into steps or passes.

#include <cmath>

#include "parallel.h"
#include "captured_graph.h"
#include "recurrent.h"
#include "scratch.h"
#include "softplus.h"
#include "vector.h"

namespace {

constexpr int64_t kTokens = 16;             // prepared at a time: their B and C stay in the first-level cache
constexpr int kTogether = 4;                // tokens of a pass: their inputs and outputs stay in registers
constexpr int kNarrow = kWidth == 16 ? 2 : 1;  // vectors of a strip in such a pass
constexpr int kWide = 4;                    // in a pass for one token: memory is read in order

struct Shape {
    int64_t heads, head_dim, groups, state_size;

    int64_t width() const { return heads * head_dim; }
    int64_t channels() const { return width() + 2 * groups * state_size; }
};

struct Weights {
    const float *a_log, *dt_bias, *skip;  // [heads]
    float min_step, max_step;
};

// Up to kTokens tokens of a head.
struct Tokens {
    int64_t count;
    float *b, *c, *inputs, *outputs;  // [count, state_size] twice, [count, head_dim] twice
    float decay[kTokens];
};

// `Count` tokens from `first` on, in the columns of a strip of Vectors vectors; the last one of them has `last` columns.
template <int Count, int Vectors>
void scan_strip(float* state, const Tokens& tokens, const Shape& shape, int64_t first, int64_t column, int64_t last) {
    const int64_t stride = shape.head_dim, rows = shape.state_size;
    const int64_t size = Vectors > 1 ? kWidth : last;
    const float *b = tokens.b + first * rows, *c = tokens.c + first * rows, *decay = tokens.decay + first;
    Floats inputs[Count][Vectors], outputs[Count][Vectors] = {};
    for (int token = 0; token < Count; token++) {
        for (int v = 0; v < Vectors; v++) {
            inputs[token][v] = load_up_to(tokens.inputs + (first + token) * stride + column + v * kWidth, size);
        }
    }
    for (int64_t row = 0; row < rows; row++) {
        for (int v = 0; v < Vectors; v++) {
            float* at = state + row * stride + column + v * kWidth;
            Floats value = load_up_to(at, size);
            for (int token = 0; token < Count; token++) {
                value = multiply_add(broadcast(b[token * rows + row]), inputs[token][v], value * decay[token]);
                outputs[token][v] = multiply_add(value, broadcast(c[token * rows + row]), outputs[token][v]);
            }
            store_up_to(at, value, size);
        }
    }
    for (int token = 0; token < Count; token++) {
        for (int v = 0; v < Vectors; v++) {
            store_up_to(tokens.outputs + (first + token) * stride + column + v * kWidth, outputs[token][v], size);
        }
    }
}

// All columns of the state, in strips of Vectors vectors and then of one.
template <int Count, int Vectors>
void scan_columns(float* state, const Tokens& tokens, const Shape& shape, int64_t first) {
    int64_t column = 0;
    for (; column + Vectors * kWidth <= shape.head_dim; column += Vectors * kWidth) {
        scan_strip<Count, Vectors>(state, tokens, shape, first, column, kWidth);
    }
    for (; column < shape.head_dim; column += kWidth) {
        const int64_t left = shape.head_dim - column;
        scan_strip<Count, 1>(state, tokens, shape, first, column, left < kWidth ? left : kWidth);
    }
}

void scan(float* state, const Tokens& tokens, const Shape& shape) {
    int64_t first = 0;
    for (; first + kTogether <= tokens.count; first += kTogether) {
        scan_columns<kTogether, kNarrow>(state, tokens, shape, first);
    }
    for (; first < tokens.count; first++) scan_columns<1, kWide>(state, tokens, shape, first);
}

// mixed: [tokens, channels], inputs of all heads, B and C of all groups. projected: [tokens, channels + width + heads], of
// which the time steps, the last columns, are read. out: [tokens, width].
template <class T, class S>
void state_space(const T* mixed, const T* projected, const Weights& weights, S* states, float* out,
                 const RecurrentRows& rows, const Shape& shape) {
    const int64_t channels = shape.channels(), width = shape.width(), state_size = shape.state_size;
    const int64_t columns = channels + width + shape.heads;
    parallel_tasks(rows.count * shape.heads, [&](int64_t task) {
        static thread_local Scratch scratch;
        const int64_t row = task / shape.heads, head = task % shape.heads;
        const int64_t group = head / (shape.heads / shape.groups);
        const int64_t elements = state_size * shape.head_dim;
        S* kept = states + (rows.slot(row) * shape.heads + head) * elements;
        const float rate = -std::exp(weights.a_log[head]), skip = weights.skip[head];
        Tokens tokens;
        tokens.b = scratch.reserve<float>(kTokens * 2 * (state_size + shape.head_dim) + room_for_state<S>(elements));
        tokens.c = tokens.b + kTokens * state_size;
        tokens.inputs = tokens.c + kTokens * state_size;
        tokens.outputs = tokens.inputs + kTokens * shape.head_dim;
        float* state = open_state(kept, tokens.outputs + kTokens * shape.head_dim, elements, rows.is_new(row));
        const int64_t end = rows.first(row) + rows.num_tokens(row);
        for (int64_t first = rows.first(row); first < end; first += kTokens) {
            tokens.count = end - first < kTokens ? end - first : kTokens;
            for (int64_t i = 0; i < tokens.count; i++) {
                const T* from = mixed + (first + i) * channels;
                convert(from + width + group * state_size, tokens.b + i * state_size, state_size);
                convert(from + width + (shape.groups + group) * state_size, tokens.c + i * state_size, state_size);
                float step;
                convert(projected + (first + i) * columns + channels + width + head, &step, 1);
                step = softplus(step + weights.dt_bias[head]);
                step = step < weights.min_step ? weights.min_step : step > weights.max_step ? weights.max_step : step;
                tokens.decay[i] = std::exp(rate * step);
                for_each_vector(shape.head_dim, [&](int64_t j, int64_t count) {
                    store_up_to(tokens.inputs + i * shape.head_dim + j,
                                load_up_to(from + head * shape.head_dim + j, count) * step, count);
                });
            }
            scan(state, tokens, shape);
            for (int64_t i = 0; i < tokens.count; i++) {
                const int64_t at = head * shape.head_dim;
                const float* output = tokens.outputs + i * shape.head_dim;
                for_each_vector(shape.head_dim, [&](int64_t j, int64_t count) {
                    const Floats input = load_up_to(mixed + (first + i) * channels + at + j, count);
                    store_up_to(out + (first + i) * width + at + j,
                                multiply_add(input, broadcast(skip), load_up_to(output + j, count)), count);
                });
            }
        }
        close_state(kept, state, elements);
    });
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                          \
    EXPORT void state_space_##suffix(const T* mixed, const T* projected, const float* a_log, const float* dt_bias,     \
                                     const float* skip, float min_step, float max_step, void* states, float* out,      \
                                     const int32_t* query_start, const int32_t* context_lens, const int32_t* slots,    \
                                     int64_t rows, int64_t heads, int64_t head_dim, int64_t groups,                    \
                                     int64_t state_size, int has_narrow_states) {                                      \
        const Weights weights{a_log, dt_bias, skip, min_step, max_step};                                               \
        const RecurrentRows of_step{query_start, context_lens, slots, rows};                                           \
        const Shape shape{heads, head_dim, groups, state_size};                                                        \
        if (has_narrow_states) {                                                                                       \
            state_space(mixed, projected, weights, static_cast<BFloat16*>(states), out, of_step, shape);               \
        } else {                                                                                                       \
            state_space(mixed, projected, weights, static_cast<float*>(states), out, of_step, shape);                  \
        }                                                                                                              \
    }                                                                                                                  \
    CAPTURABLE(state_space_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
