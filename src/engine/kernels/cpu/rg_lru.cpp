// rg_lru: the real-gated linear recurrent unit over a step, one element of state per sequence and channel. The reference
// is in ../rg_lru.py; arithmetic is float32 for every type.
//
// A task takes some channels of a row through all of its tokens, so that no result depends on the batch or on how a
// prompt is divided into steps.

#include "activation.h"
#include "parallel.h"
#include "captured_graph.h"
#include "recurrent.h"
#include "vector.h"

namespace {

constexpr int64_t kChannels = 64;  // of a task: whole cache lines for every type

struct Weights {
    const float *rates, *input_bias, *decay_bias;  // [channels]
    int64_t channels;
};

template <class T>
struct Inputs {
    const T *x, *input_gates, *decay_gates;  // [tokens, channels]
};

ALWAYS_INLINE Floats square_root(Floats x) {
    for (int i = 0; i < kWidth; i++) x[i] = __builtin_sqrtf(x[i]);
    return x;
}

// The state after a token, in `count` channels from `channel` on. is_first: of the sequence.
template <class T>
ALWAYS_INLINE Floats next_state(const Inputs<T>& inputs, const Weights& weights, Floats state, int64_t token,
                                int64_t channel, int64_t count, bool is_first) {
    const int64_t at = token * weights.channels + channel;
    const Floats gate =
        sigmoid(load_up_to(inputs.input_gates + at, count) + load_up_to(weights.input_bias + channel, count));
    const Floats decay_gate =
        sigmoid(load_up_to(inputs.decay_gates + at, count) + load_up_to(weights.decay_bias + channel, count));
    const Floats log = load_up_to(weights.rates + channel, count) * decay_gate;
    Floats input = load_up_to(inputs.x + at, count) * gate;
    if (!is_first) input *= square_root(maximum(1.0f - exponential(log + log), Floats{}));
    return multiply_add(exponential(log), state, input);
}

template <class T, class S>
void rg_lru(const Inputs<T>& inputs, const Weights& weights, S* states, T* out, const RecurrentRows& rows) {
    const int64_t channels = weights.channels, blocks = (channels + kChannels - 1) / kChannels;
    parallel_tasks(rows.count * blocks, [&](int64_t task) {
        const int64_t row = task / blocks, begin = task % blocks * kChannels;
        const int64_t size = channels - begin < kChannels ? channels - begin : kChannels;
        S* kept = states + rows.slot(row) * channels + begin;
        float state[kChannels] = {};
        const bool is_new = rows.is_new(row);
        if (!is_new) convert(kept, state, size);
        const int64_t first = rows.first(row), end = first + rows.num_tokens(row);
        for (int64_t token = first; token < end; token++) {
            for_each_vector(size, [&](int64_t i, int64_t count) {
                const Floats value = next_state(inputs, weights, load(state + i), token, begin + i, count,
                                                is_new && token == first);
                store(state + i, value);
                store_up_to(out + token * channels + begin + i, value, count);
            });
        }
        convert(state, kept, size);
    });
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                          \
    EXPORT void rg_lru_##suffix(const T* x, const T* input_gates, const T* decay_gates, const float* rates,            \
                                const float* input_bias, const float* decay_bias, void* states, T* out,                \
                                const int32_t* query_start, const int32_t* context_lens, const int32_t* slots,         \
                                int64_t rows, int64_t channels, int has_narrow_states) {                               \
        const Inputs<T> inputs{x, input_gates, decay_gates};                                                           \
        const Weights weights{rates, input_bias, decay_bias, channels};                                                \
        const RecurrentRows of_step{query_start, context_lens, slots, rows};                                           \
        if (has_narrow_states) {                                                                                       \
            rg_lru(inputs, weights, static_cast<BFloat16*>(states), out, of_step);                                     \
        } else {                                                                                                       \
            rg_lru(inputs, weights, static_cast<float*>(states), out, of_step);                                        \
        }                                                                                                              \
    }                                                                                                                  \
    CAPTURABLE(rg_lru_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
