// The rows of a step, as kernels with a state per sequence see them: RecurrentStep in ../recurrent_step.py.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "vector.h"

struct RecurrentRows {
    const int32_t *query_start, *context_lens, *slots;
    int64_t count;

    int64_t first(int64_t row) const { return query_start[row]; }
    int64_t num_tokens(int64_t row) const { return query_start[row + 1] - query_start[row]; }
    int64_t slot(int64_t row) const { return slots[row]; }
    // Nothing of the sequence is computed: its slot holds what another sequence has left there.
    bool is_new(int64_t row) const { return context_lens[row] == num_tokens(row); }
};

template <class From, class To>
ALWAYS_INLINE void convert(const From* from, To* to, int64_t size) {
    for_each_vector(size, [&](int64_t i, int64_t count) { store_up_to(to + i, load_up_to(from + i, count), count); });
}

// Elements of `room` for a state of `size` elements of type S.
template <class S>
constexpr int64_t room_for_state(int64_t size) {
    return std::is_same_v<S, float> ? 0 : size;
}

// A state in float32, for a row's tokens: itself, or a copy in `room`, which close_state rounds once.
template <class S>
ALWAYS_INLINE float* open_state(S* state, float* room, int64_t size, bool is_new) {
    if constexpr (std::is_same_v<S, float>) room = state;
    if (is_new) {
        memset(room, 0, size * sizeof(float));
    } else if constexpr (!std::is_same_v<S, float>) {
        convert(state, room, size);
    }
    return room;
}

template <class S>
ALWAYS_INLINE void close_state(S* state, const float* room, int64_t size) {
    if constexpr (!std::is_same_v<S, float>) convert(room, state, size);
}
