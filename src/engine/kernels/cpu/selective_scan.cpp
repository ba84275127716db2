// selective_scan: the selective state space of Mamba over a step, one state per sequence and channel, and the gate of its
// outputs. The reference is in ../selective_scan.py; arithmetic is float32 for every type.
//
// A task takes some channels of a row through all of its tokens, with their states in memory of its own, which stay in
// the first-level cache. Each element goes through the tokens in their order, and each output is summed in the order of
// the state's elements: the results depend neither on the batch nor on how a prompt is divided into steps.

#include "activation.h"
#include "parallel.h"
#include "captured_graph.h"
#include "recurrent.h"
#include "scratch.h"
#include "softplus.h"
#include "vector.h"

namespace {

constexpr int64_t kChannels = 64;  // of a task: whole cache lines for every type

struct Weights {
    const float *rates, *dt_bias, *skip;  // [state_size, channels], [channels] twice
    int64_t channels, state_size, groups;  // of channels
};

// x, steps: [tokens, channels]. projected: [tokens, 2 * channels], of which the gates, the last columns, are read.
// b, c: [tokens, groups, state_size].
template <class T>
struct Inputs {
    const T *x, *projected, *steps, *b, *c;
};

// One token, in `count` channels from `channel` on. state: theirs, in rows of kChannels. b, c: [state_size].
template <class T>
ALWAYS_INLINE void scan_vector(const Inputs<T>& inputs, const Weights& weights, float* state, const float* b,
                               const float* c, T* out, int64_t token, int64_t channel, int64_t count) {
    const int64_t at = token * weights.channels + channel;
    const Floats step = softplus(load_up_to(inputs.steps + at, count) + load_up_to(weights.dt_bias + channel, count));
    const Floats input = load_up_to(inputs.x + at, count), added = step * input;
    Floats total{};
    for (int64_t row = 0; row < weights.state_size; row++) {
        const Floats rate = load_up_to(weights.rates + row * weights.channels + channel, count);
        const Floats value =
            multiply_add(broadcast(b[row]), added, load(state + row * kChannels) * exponential(rate * step));
        total = multiply_add(value, broadcast(c[row]), total);
        store(state + row * kChannels, value);
    }
    total = multiply_add(input, load_up_to(weights.skip + channel, count), total);
    const Floats gate = load_up_to(inputs.projected + at + (token + 1) * weights.channels, count);
    store_up_to(out + at, total * activated<kSilu>(gate), count);
}

template <class T, class S>
void selective_scan(const Inputs<T>& inputs, const Weights& weights, S* states, T* out, const RecurrentRows& rows) {
    const int64_t channels = weights.channels, state_size = weights.state_size;
    const int64_t of_group = channels / weights.groups, pieces = (of_group + kChannels - 1) / kChannels;
    const int64_t blocks = weights.groups * pieces;
    parallel_tasks(rows.count * blocks, [&](int64_t task) {
        static thread_local Scratch scratch;
        const int64_t row = task / blocks, group = task % blocks / pieces, own = task % pieces * kChannels;
        const int64_t begin = group * of_group + own;
        const int64_t size = of_group - own < kChannels ? of_group - own : kChannels;
        S* kept = states + rows.slot(row) * state_size * channels + begin;
        float* state = scratch.reserve<float>(state_size * (kChannels + 2));
        float *b = state + state_size * kChannels, *c = b + state_size;
        for (int64_t i = 0; i < state_size; i++) {
            if (rows.is_new(row)) {
                memset(state + i * kChannels, 0, kChannels * sizeof(float));
            } else {
                for_each_vector(size, [&](int64_t j, int64_t count) {
                    store(state + i * kChannels + j, load_up_to(kept + i * channels + j, count));
                });
            }
        }
        const int64_t first = rows.first(row), end = first + rows.num_tokens(row);
        for (int64_t token = first; token < end; token++) {
            const int64_t keys = (token * weights.groups + group) * state_size;
            convert(inputs.b + keys, b, state_size);
            convert(inputs.c + keys, c, state_size);
            for_each_vector(size, [&](int64_t j, int64_t count) {
                scan_vector(inputs, weights, state + j, b, c, out, token, begin + j, count);
            });
        }
        for (int64_t i = 0; i < state_size; i++) convert(state + i * kChannels, kept + i * channels, size);
    });
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                          \
    EXPORT void selective_scan_##suffix(const T* x, const T* projected, const T* steps, const T* b, const T* c,        \
                                        const float* rates, const float* dt_bias, const float* skip, void* states,     \
                                        T* out, const int32_t* query_start, const int32_t* context_lens,               \
                                        const int32_t* slots, int64_t rows, int64_t channels, int64_t state_size,      \
                                        int64_t groups, int has_narrow_states) {                                       \
        const Inputs<T> inputs{x, projected, steps, b, c};                                                             \
        const Weights weights{rates, dt_bias, skip, channels, state_size, groups};                                     \
        const RecurrentRows of_step{query_start, context_lens, slots, rows};                                           \
        if (has_narrow_states) {                                                                                       \
            selective_scan(inputs, weights, static_cast<BFloat16*>(states), out, of_step);                             \
        } else {                                                                                                       \
            selective_scan(inputs, weights, static_cast<float*>(states), out, of_step);                                \
        }                                                                                                              \
    }                                                                                                                  \
    CAPTURABLE(selective_scan_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
