// Attention of one new token per row: bound by reading the row's keys and values once.
//
// A task is one row and one kv head: every key and value is read once for all query heads that share it. Tokens go by
// in tiles small enough that keys, values and what is fetched ahead of them stay in the first-level cache.
#pragma once

#include <type_traits>

#include "attention.h"
#include "vector.h"

constexpr int kTile = 32;      // tokens
constexpr int kMaxGroup = 16;  // query heads in one pass over the cache; more take another pass

// Heads and tokens whose products stay in registers together, and the registers for sums of values.
#if defined(__AVX512F__)
constexpr int kHeads = 4, kTokens = 4, kSums = 16;
#else
constexpr int kHeads = 2, kTokens = 2, kSums = 8;
#endif

constexpr int kStep = 2 * kWidth;  // numbers of a load_two

// Queries and sums hold a head's numbers in the order in which load_two yields them.
struct DecodeState {
    float queries[kMaxGroup][kMaxHeadDim];
    float sums[kMaxGroup][kMaxHeadDim];          // of values, weighted
    float scores[kMaxGroup][kTile];              // then the weights
    float highest[kMaxGroup], total[kMaxGroup];  // softmax so far: greatest score, sum of weights
};

// Where the tokens of a tile are.
template <class T>
struct Tile {
    const T *keys[kTile], *values[kTile];
    int tokens = 0;

    void locate(const Attention<T>& call, int row, int kv_head, int64_t first, int64_t end) {
        tokens = int(std::max<int64_t>(0, std::min<int64_t>(kTile, end - first)));
        for (int t = 0; t < tokens;) {
            const T *key = call.at(call.k_cache, row, kv_head, first + t);
            const T *value = call.at(call.v_cache, row, kv_head, first + t);
            for (int left = call.run_length(first + t, tokens - t); left > 0; left--, t++) {
                keys[t] = key, values[t] = value;
                key += call.head_dim, value += call.head_dim;
            }
        }
    }
};

// The last step of a head may be less than kStep numbers: what follows in the cache belongs to another token.
template <bool IsWhole, class T>
ALWAYS_INLINE Two load_step(const T* from, int count) {
    if constexpr (IsWhole) {
        return load_two(from);
    } else {
        return load_two_first(from, count);
    }
}

template <class T>
ALWAYS_INLINE Two load_step(const T* from, int count) {
    return count >= kStep ? load_two(from) : load_two_first(from, count);
}

template <int Heads, int Tokens>
struct Products {
    Floats at[Heads][Tokens];

    ALWAYS_INLINE Products() {  // as Sums in panels.h
        for (int h = 0; h < Heads; h++) {
            for (int t = 0; t < Tokens; t++) at[h][t] = Floats{};
        }
    }
};

template <bool IsWhole, int Heads, int Tokens, class T>
ALWAYS_INLINE void add_products(const DecodeState& state, int head, const T* const* keys, const T* const* next, int d,
                                int count, Products<Heads, Tokens>& products) {
    Two query[Heads];
    for (int h = 0; h < Heads; h++) query[h] = load_two(state.queries[head + h] + d);
    for (int t = 0; t < Tokens; t++) {
        __builtin_prefetch(next[t] + d);
        const Two key = load_step<IsWhole>(keys[t] + d, count);
        for (int h = 0; h < Heads; h++) {
            products.at[h][t] += query[h].first * key.first;
            products.at[h][t] += query[h].second * key.second;
        }
    }
}

// Lane by lane products of `Tokens` keys with `Heads` queries; `partial` has a row of kWidth for each head.
template <int Heads, int Tokens, class T>
ALWAYS_INLINE void score_tokens(const DecodeState& state, int head, const T* const* keys, const T* const* next,
                                int head_dim, Floats* partial) {
    Products<Heads, Tokens> products;
    int d = 0;
    for (; d + kStep <= head_dim; d += kStep) add_products<true>(state, head, keys, next, d, kStep, products);
    if (d < head_dim) add_products<false>(state, head, keys, next, d, head_dim - d, products);
    for (int h = 0; h < Heads; h++) {
        for (int t = 0; t < Tokens; t++) partial[h * kWidth + t] = products.at[h][t];
    }
}

template <int Heads, class T>
void score_tile(DecodeState& state, int head, const Tile<T>& tile, const Tile<T>& next, int head_dim) {
    Floats partial[Heads][kWidth];
    for (int first = 0; first < tile.tokens; first += kWidth) {
        const int end = std::min(first + kWidth, tile.tokens);
        int t = first;
        for (; t + kTokens <= end; t += kTokens) {
            score_tokens<Heads, kTokens>(state, head, tile.keys + t, next.keys + t, head_dim, &partial[0][t - first]);
        }
        for (; t < end; t++) {
            score_tokens<Heads, 1>(state, head, tile.keys + t, next.keys + t, head_dim, &partial[0][t - first]);
        }
        for (; t < first + kWidth; t++) {
            for (int h = 0; h < Heads; h++) partial[h][t - first] = Floats{};
        }
        for (int h = 0; h < Heads; h++) store(state.scores[head + h] + first, sum_each(partial[h]));
    }
}

// Turns a head's scores into weights relative to the greatest score so far, and rescales what was summed before.
inline void weigh_tile(DecodeState& state, int head, int tokens, int head_dim) {
    float* scores = state.scores[head];
    for (int t = tokens; t < kTile; t++) scores[t] = -__builtin_inff();
    Floats most = broadcast(state.highest[head]);
    for (int t = 0; t < kTile; t += kWidth) most = maximum(most, load(scores + t));
    const float highest = largest(most);
    Floats total{};
    for (int t = 0; t < kTile; t += kWidth) {
        const Floats weights = exponential(load(scores + t) - highest);
        store(scores + t, weights);
        total += weights;
    }
    if (highest > state.highest[head]) {
        const float shrink = exponential(broadcast(state.highest[head] - highest))[0];
        state.total[head] *= shrink;
        for (int d = 0; d < head_dim; d += kStep) {
            const Two sums = load_two(state.sums[head] + d);
            store_two(state.sums[head] + d, {sums.first * shrink, sums.second * shrink});
        }
        state.highest[head] = highest;
    }
    state.total[head] += sum(total);
}

// sums += weights * values, for the steps from `d` on that registers hold.
template <bool IsWhole, int Heads, int Steps, class T>
ALWAYS_INLINE void add_values(DecodeState& state, int head, const Tile<T>& tile, const Tile<T>& next, int d,
                              int head_dim) {
    Two sums[Heads][Steps];
    for (int h = 0; h < Heads; h++) {
        for (int s = 0; s < Steps; s++) sums[h][s] = load_two(state.sums[head + h] + d + s * kStep);
    }
    for (int t = 0; t < tile.tokens; t++) {
        Floats weights[Heads];
        for (int h = 0; h < Heads; h++) weights[h] = broadcast(state.scores[head + h][t]);
        for (int s = 0; s < Steps; s++) {
            const int at = d + s * kStep;
            __builtin_prefetch(next.values[t] + at);
            const Two value = load_step<IsWhole>(tile.values[t] + at, head_dim - at);
            for (int h = 0; h < Heads; h++) {
                sums[h][s].first += weights[h] * value.first;
                sums[h][s].second += weights[h] * value.second;
            }
        }
    }
    for (int h = 0; h < Heads; h++) {
        for (int s = 0; s < Steps; s++) store_two(state.sums[head + h] + d + s * kStep, sums[h][s]);
    }
}

template <int Heads, class T>
void attend_tile(DecodeState& state, int head, const Tile<T>& tile, const Tile<T>& next, int head_dim) {
    score_tile<Heads>(state, head, tile, next, head_dim);
    for (int h = 0; h < Heads; h++) weigh_tile(state, head + h, tile.tokens, head_dim);
    constexpr int steps = kSums / Heads / 2;
    int d = 0;
    for (; d + steps * kStep <= head_dim; d += steps * kStep) {
        add_values<true, Heads, steps>(state, head, tile, next, d, head_dim);
    }
    for (; d + kStep <= head_dim; d += kStep) add_values<true, Heads, 1>(state, head, tile, next, d, head_dim);
    if (d < head_dim) add_values<false, Heads, 1>(state, head, tile, next, d, head_dim);
}

// The query heads [first_head, first_head + heads) of one kv head, heads <= kMaxGroup.
template <class T>
void decode_heads(const Attention<T>& call, int row, int kv_head, int first_head, int heads) {
    DecodeState state;
    const int64_t context = call.context_lens[row], token = call.query_start[row];
    const T* queries = call.queries + (token * call.num_heads + first_head) * call.head_dim;
    for (int h = 0; h < heads; h++) {
        for (int d = 0; d < call.head_dim; d += kStep) {
            const Two query = load_step(queries + h * call.head_dim + d, call.head_dim - d);
            store_two(state.queries[h] + d, {query.first * call.scale, query.second * call.scale});
            store_two(state.sums[h] + d, Two{});
        }
        state.highest[h] = -__builtin_inff();
        state.total[h] = 0;
    }
    Tile<T> tiles[2];
    int64_t first = std::max<int64_t>(0, context - call.window);
    tiles[0].locate(call, row, kv_head, first, context);
    for (int turn = 0; first < context; first += kTile, turn ^= 1) {
        const Tile<T>& tile = tiles[turn];
        Tile<T>& next = tiles[turn ^ 1];
        next.locate(call, row, kv_head, first + kTile, context);
        for (int t = next.tokens; t < tile.tokens; t++) next.keys[t] = next.values[t] = tile.keys[t];
        int head = 0;
        for (; head + kHeads <= heads; head += kHeads) attend_tile<kHeads>(state, head, tile, next, call.head_dim);
        if constexpr (kHeads > 2) {
            for (; head + 2 <= heads; head += 2) attend_tile<2>(state, head, tile, next, call.head_dim);
        }
        for (; head < heads; head++) attend_tile<1>(state, head, tile, next, call.head_dim);
    }
    T* out = call.out + (token * call.num_heads + first_head) * call.head_dim;
    for (int h = 0; h < heads; h++) {
        const float norm = 1.0f / state.total[h];
        for (int d = 0; d < call.head_dim; d += kStep) {
            Two sums = load_two(state.sums[h] + d);
            sums.first *= norm, sums.second *= norm;
            const int count = call.head_dim - d;
            T* to = out + h * call.head_dim + d;
            count >= kStep ? store_two(to, sums) : store_two_first(to, sums, count);
        }
    }
}

template <class T>
void decode_row(const Attention<T>& call, int row, int kv_head) {
    const int group = call.group();
    for (int head = 0; head < group; head += kMaxGroup) {
        decode_heads(call, row, kv_head, kv_head * group + head, std::min(kMaxGroup, group - head));
    }
}
