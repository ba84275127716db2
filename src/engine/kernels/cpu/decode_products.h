// The two products of decode attention over a tile of tokens: scores of its keys, and the weighted sum of its values.
//
// There are two implementations: in float32 over any type of cache, and by products of pairs of bfloat16, which need no
// conversion and do twice as much per instruction, for CPUs where they are fast (STOKER_PAIR_PRODUCTS).
#pragma once

#include <algorithm>
#include <type_traits>

#include "attention.h"
#include "panels.h"
#include "vector.h"

constexpr int kTileTokens = 32;  // tokens

// Heads and tokens whose products fit in registers together, and the registers for sums of values.
#if defined(__AVX512F__)
constexpr int kHeads = 4, kTokens = 4, kSums = 16;
#else
constexpr int kHeads = 2, kTokens = 2, kSums = 8;
#endif

constexpr int kStep = 2 * kWidth;  // elements of a load_two

template <class T>
constexpr bool kPairs = false;
#if defined(STOKER_PAIR_PRODUCTS)
template <>
constexpr bool kPairs<BFloat16> = true;
#endif

// The type of queries during the multiplication by keys.
template <class T>
using Query = std::conditional_t<kPairs<T>, BFloat16, float>;

// A tile of one kv head: the offsets of its tokens in the caches, and those of the next tile, which is prefetched
// meanwhile.
template <class T>
struct Tile {
    const T *keys, *values;
    const int64_t* at;  // [kTileTokens], for keys and values; after the last token any valid offset
    const T *next_keys, *next_values;
    const int64_t* next_at;
    int tokens;

    // step: [0, kTileTokens) while scores are computed, up to 2 * kTileTokens for values. The steps alternate between
    // keys and values, and between the first and the second half of the next tile: memory is faster with several
    // streams.
    ALWAYS_INLINE void prefetch(int step, int d) const {
        const int token = step / 4 + step / 2 % 2 * (kTileTokens / 2);
        __builtin_prefetch((step % 2 ? next_values : next_keys) + next_at[token] + d);
    }
};

// The last step of a head may have fewer than kStep elements: those that follow in the cache are another token's.
template <bool IsWhole, class T>
ALWAYS_INLINE Two load_step(const T* from, int count) {
    if constexpr (IsWhole) {
        return load_two(from);
    } else {
        return load_two_partial(from, count);
    }
}

template <class T>
ALWAYS_INLINE Two load_step(const T* from, int count) {
    return count >= kStep ? load_two(from) : load_two_partial(from, count);
}

template <int Heads, int Tokens>
struct Products {
    Floats at[Heads][Tokens];

    ALWAYS_INLINE Products() {  // element by element, like Sums in panels.h
        for (int h = 0; h < Heads; h++) {
            for (int t = 0; t < Tokens; t++) at[h][t] = Floats{};
        }
    }
};

template <bool IsWhole, int Heads, int Tokens, class T>
ALWAYS_INLINE void add_products(const float* queries, int64_t stride, const Tile<T>& tile, int token, int d, int count,
                                Products<Heads, Tokens>& products) {
    Two query[Heads];
    for (int h = 0; h < Heads; h++) query[h] = load_two(queries + h * stride + d);
    for (int t = 0; t < Tokens; t++) {
        tile.prefetch(token + t, d);
        const Two key = load_step<IsWhole>(tile.keys + tile.at[token + t] + d, count);
        for (int h = 0; h < Heads; h++) {
            products.at[h][t] += query[h].first * key.first;
            products.at[h][t] += query[h].second * key.second;
        }
    }
}

// Lane-wise products of `Tokens` keys from `token` on with `Heads` queries.
template <int Heads, int Tokens, class T>
ALWAYS_INLINE void multiply_keys(const float* queries, int64_t stride, const Tile<T>& tile, int token, int head_dim,
                                 Products<Heads, Tokens>& products) {
    int d = 0;
    for (; d + kStep <= head_dim; d += kStep) {
        add_products<true>(queries, stride, tile, token, d, kStep, products);
    }
    if (d < head_dim) add_products<false>(queries, stride, tile, token, d, head_dim - d, products);
}

// sums += weights * values, for the steps from `d` on that fit in registers. Sums are in the order of load_two.
template <bool IsWhole, int Heads, int Steps, class T>
ALWAYS_INLINE void add_values(const float (*weights)[kTileTokens], const Tile<T>& tile, int d, int head_dim,
                              float* sums, int64_t stride) {
    Two registers[Heads][Steps];
    for (int h = 0; h < Heads; h++) {
        for (int s = 0; s < Steps; s++) registers[h][s] = load_two(sums + h * stride + d + s * kStep);
    }
    for (int t = 0; t < tile.tokens; t++) {
        Floats weight[Heads];
        for (int h = 0; h < Heads; h++) weight[h] = broadcast(weights[h][t]);
        for (int s = 0; s < Steps; s++) {
            const int step = d + s * kStep;
            tile.prefetch(kTileTokens + t, step);
            const Two value = load_step<IsWhole>(tile.values + tile.at[t] + step, head_dim - step);
            for (int h = 0; h < Heads; h++) {
                registers[h][s].first += weight[h] * value.first;
                registers[h][s].second += weight[h] * value.second;
            }
        }
    }
    for (int h = 0; h < Heads; h++) {
        for (int s = 0; s < Steps; s++) store_two(sums + h * stride + d + s * kStep, registers[h][s]);
    }
}

template <int Heads, class T>
void add_tile(const float (*weights)[kTileTokens], const Tile<T>& tile, int head_dim, float* sums, int64_t stride) {
    constexpr int steps = kSums / Heads / 2;
    int d = 0;
    for (; d + steps * kStep <= head_dim; d += steps * kStep) {
        add_values<true, Heads, steps>(weights, tile, d, head_dim, sums, stride);
    }
    for (; d + kStep <= head_dim; d += kStep) add_values<true, Heads, 1>(weights, tile, d, head_dim, sums, stride);
    if (d < head_dim) add_values<false, Heads, 1>(weights, tile, d, head_dim, sums, stride);
}

#if defined(STOKER_PAIR_PRODUCTS)
// 32 elements of a key or value, or the last `count` of the head.
ALWAYS_INLINE __m512i load_pairs(const BFloat16* from, int count) {
    return _mm512_maskz_loadu_epi16(count >= kStep ? ~__mmask32(0) : (__mmask32(1) << count) - 1, from);
}

template <int Heads, int Tokens>
ALWAYS_INLINE void multiply_keys(const BFloat16* queries, int64_t stride, const Tile<BFloat16>& tile, int token,
                                 int head_dim, Products<Heads, Tokens>& products) {
    for (int d = 0; d < head_dim; d += kStep) {
        __m512i query[Heads];
        for (int h = 0; h < Heads; h++) query[h] = _mm512_loadu_si512(queries + h * stride + d);
        for (int t = 0; t < Tokens; t++) {
            tile.prefetch(token + t, d);
            const __m512i key = load_pairs(tile.keys + tile.at[token + t] + d, head_dim - d);
            for (int h = 0; h < Heads; h++) products.at[h][t] = add_pair_products(products.at[h][t], query[h], key);
        }
    }
}

// Two tokens at a time: their interleaved values times the pair of their weights. The sums of a step are in the order
// of the unpack instructions, which work within 128 bits: elements 0-3, 8-11, ..., then 4-7, 12-15, ...
template <int Heads, int Steps>
ALWAYS_INLINE void add_values(const BFloat16 (*weights)[kTileTokens], const Tile<BFloat16>& tile, int d, int head_dim,
                              float* sums, int64_t stride) {
    Floats registers[Heads][2 * Steps];
    for (int h = 0; h < Heads; h++) {
        for (int s = 0; s < 2 * Steps; s++) registers[h][s] = load(sums + h * stride + d + s * kWidth);
    }
    for (int t = 0; t < tile.tokens; t += 2) {
        const int other = std::min(t + 1, tile.tokens - 1);  // an odd last token is its own partner, with weight 0
        __m512i pair[Heads];
        for (int h = 0; h < Heads; h++) {
            int32_t both;
            memcpy(&both, weights[h] + t, sizeof both);
            pair[h] = _mm512_set1_epi32(both);
        }
        for (int s = 0; s < Steps; s++) {
            const int step = d + s * kStep;
            tile.prefetch(kTileTokens + t, step);
            tile.prefetch(kTileTokens + t + 1, step);
            const __m512i one = load_pairs(tile.values + tile.at[t] + step, head_dim - step);
            const __m512i two = load_pairs(tile.values + tile.at[other] + step, head_dim - step);
            const __m512i first = _mm512_unpacklo_epi16(one, two), second = _mm512_unpackhi_epi16(one, two);
            for (int h = 0; h < Heads; h++) {
                registers[h][2 * s] = add_pair_products(registers[h][2 * s], pair[h], first);
                registers[h][2 * s + 1] = add_pair_products(registers[h][2 * s + 1], pair[h], second);
            }
        }
    }
    for (int h = 0; h < Heads; h++) {
        for (int s = 0; s < 2 * Steps; s++) store(sums + h * stride + d + s * kWidth, registers[h][s]);
    }
}

template <int Heads>
void add_tile(const float (*weights)[kTileTokens], const Tile<BFloat16>& tile, int head_dim, float* sums,
              int64_t stride) {
    BFloat16 rounded[Heads][kTileTokens];
    for (int h = 0; h < Heads; h++) {
        for (int t = 0; t < kTileTokens; t += kWidth) store(rounded[h] + t, load(weights[h] + t));
    }
    constexpr int steps = kSums / Heads / 2;
    int d = 0;
    for (; d + steps * kStep <= head_dim; d += steps * kStep) {
        add_values<Heads, steps>(rounded, tile, d, head_dim, sums, stride);
    }
    for (; d < head_dim; d += kStep) add_values<Heads, 1>(rounded, tile, d, head_dim, sums, stride);
}
#endif

// scores[head][token] of a tile, unscaled; the entries after the last token are not set.
template <int Heads, class T>
void score_tile(const Query<T>* queries, int64_t stride, const Tile<T>& tile, int head_dim,
                float (*scores)[kTileTokens]) {
    Floats partial[Heads][kWidth];
    for (int first = 0; first < tile.tokens; first += kWidth) {
        const int end = std::min(first + kWidth, tile.tokens);
        const auto multiply = [&](auto tokens, int t) {
            Products<Heads, tokens()> products;
            multiply_keys(queries, stride, tile, t, head_dim, products);
            for (int h = 0; h < Heads; h++) {
                for (int i = 0; i < tokens(); i++) partial[h][t - first + i] = products.at[h][i];
            }
        };
        int t = first;
        for (; t + kTokens <= end; t += kTokens) multiply(std::integral_constant<int, kTokens>{}, t);
        for (; t < end; t++) multiply(std::integral_constant<int, 1>{}, t);
        for (; t < first + kWidth; t++) {
            for (int h = 0; h < Heads; h++) partial[h][t - first] = Floats{};
        }
        for (int h = 0; h < Heads; h++) store(scores[h] + first, sum_each(partial[h]));
    }
}

// Loads a query in the layout of score_tile, padded with zeros to a multiple of kStep.
template <class T>
void load_query(const T* from, int head_dim, Query<T>* query) {
    for (int d = 0; d < head_dim; d += kStep) {
        if constexpr (kPairs<T>) {
            const int count = std::min(kStep, head_dim - d);
            memset(query + d, 0, kStep * sizeof(T));
            memcpy(query + d, from + d, count * sizeof(T));
        } else {
            store_two(query + d, load_step(from + d, head_dim - d));
        }
    }
}

// Writes sums * norm in the order of the head's elements.
template <class T>
void store_sums(const float* sums, float norm, int head_dim, T* to) {
    for (int d = 0; d < head_dim; d += kStep) {
        Two step = {load(sums + d), load(sums + d + kWidth)};
        step.first *= norm, step.second *= norm;
#if defined(STOKER_PAIR_PRODUCTS)
        if constexpr (kPairs<T>) {
            const __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
            const __m512i later = _mm512_add_epi32(order, _mm512_set1_epi32(8));
            const auto pick = [&](__m512i lanes) {
                return (Floats)_mm512_permutex2var_ps((__m512)step.first, lanes, (__m512)step.second);
            };
            store(to + d, pick(order));
            if (head_dim - d >= kStep) store(to + d + kWidth, pick(later));
            continue;
        }
#endif
        head_dim - d >= kStep ? store_two(to + d, step) : store_two_partial(to + d, step, head_dim - d);
    }
}
