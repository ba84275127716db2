// The two products of decode attention over a tile of 8-bit keys and values (kv_codes.h), in integers, for CPUs with
// VNNI: codes are multiplied as they are stored, so the time is that of reading them.
//
// A query becomes integers of 15 bits with one scale, the weights of a tile integers of 16 bits: finer than bfloat16.
// Each is multiplied in two parts of 8 bits. The instruction multiplies unsigned by signed bytes: keys become unsigned
// by adding 128, and the sum of the query times 128 is subtracted again.
#pragma once

#include "decode_products.h"
#include "kv_codes.h"

#if defined(__AVX512VNNI__)
constexpr bool kCodeProducts = true;
#else
constexpr bool kCodeProducts = false;  // they are unpacked
#endif
constexpr int kCodeStep = 64;         // codes of a register
constexpr int kLargestQuery = 16256;  // 127 * 128

// A tile with the places of its scales.
struct CodeTile {
    Tile<Code> codes;
    const int64_t *scales_at, *next_scales_at;  // [kTileTokens] each

    static ALWAYS_INLINE void gather(const Code* cache, const int64_t* at, float* scales) {
        for (int t = 0; t < kTileTokens; t++) memcpy(scales + t, cache + at[t], sizeof(float));
    }

    ALWAYS_INLINE void prefetch_scales() const {
        for (int t = 0; t < kTileTokens; t += 8) {  // blocks have at least 8 tokens
            __builtin_prefetch(codes.next_keys + next_scales_at[t]);
            __builtin_prefetch(codes.next_values + next_scales_at[t]);
        }
    }
};

// The codes of a query head: its scale, what to add to each lane of a product, and two parts of each element.
struct CodeQuery {
    uint8_t* memory;
    int64_t padded;

    static int64_t padded_dim(int head_dim) { return (head_dim + kCodeStep - 1) / kCodeStep * kCodeStep; }
    static int64_t num_bytes(int head_dim) { return 128 + 2 * padded_dim(head_dim); }
    CodeQuery(uint8_t* memory, int head_dim) : memory(memory), padded(padded_dim(head_dim)) {}

    float* scale() const { return (float*)memory; }
    int32_t* correction() const { return (int32_t*)(memory + 64); }
    int8_t* high() const { return (int8_t*)memory + 128; }
    int8_t* low() const { return high() + padded; }

    template <class T>
    void pack(const T* from, int head_dim) const {
        Floats maxima{}, not_finite{};
        for (int d = 0; d < head_dim; d += kWidth) {
            const Floats values = load(from + d);
            maxima = maximum(maxima, maximum(values, -values));
            not_finite += values * 0.0f;
        }
        *scale() = largest(maxima) / kLargestQuery + sum(not_finite);
        const float inverse = *scale() > kSmallestScale ? 1.0f / *scale() : 0.0f;
        memset(high(), 0, 2 * padded);
        memset(correction(), 0, kWidth * sizeof(int32_t));
        for (int d = 0; d < head_dim; d++) {
            float value;
            if constexpr (std::is_same_v<T, float>) {
                value = from[d];
            } else {
                const uint32_t bits = uint32_t(from[d].bits) << 16;
                memcpy(&value, &bits, sizeof value);
            }
            const float scaled = value * inverse;
            const int whole = scaled == scaled ? int(std::nearbyintf(scaled)) : 0, upper = (whole + 64) >> 7;
            high()[d] = int8_t(upper), low()[d] = int8_t(whole - upper * 128);
            correction()[d % kCodeStep / 4] -= 128 * whole;
        }
    }
};

#if defined(__AVX512VNNI__)
ALWAYS_INLINE __m512i load_codes(const Code* from, int count) {
    return count >= kCodeStep ? _mm512_loadu_si512(from)
                              : _mm512_maskz_loadu_epi8((__mmask64(1) << count) - 1, from);
}

// scores[head][token], times the scales of query and key. queries: consecutive CodeQuery.
template <int Heads>
void score_codes(const uint8_t* queries, const CodeTile& tile, int head_dim, float (*scores)[kTileTokens]) {
    constexpr int tokens = 8 / Heads;
    const __m512i to_unsigned = _mm512_set1_epi8(-128);
    const int64_t size = CodeQuery::num_bytes(head_dim);
    float key_scales[kTileTokens];
    CodeTile::gather(tile.codes.keys, tile.scales_at, key_scales);
    Floats partial[Heads][kWidth];
    for (int first = 0; first < tile.codes.tokens; first += kWidth) {
        for (int t = first; t < first + kWidth; t += tokens) {
            __m512i high[Heads][tokens], low[Heads][tokens];
            for (int h = 0; h < Heads; h++) {
                const __m512i correction = _mm512_loadu_si512(CodeQuery((uint8_t*)queries + h * size, head_dim).correction());
                for (int i = 0; i < tokens; i++) high[h][i] = _mm512_setzero_si512(), low[h][i] = correction;
            }
            for (int d = 0; d < head_dim; d += kCodeStep) {
                __m512i upper[Heads], lower[Heads];
                for (int h = 0; h < Heads; h++) {
                    const CodeQuery query((uint8_t*)queries + h * size, head_dim);
                    upper[h] = _mm512_loadu_si512(query.high() + d), lower[h] = _mm512_loadu_si512(query.low() + d);
                }
                for (int i = 0; i < tokens; i++) {
                    tile.codes.prefetch(t + i, d);
                    const __m512i key = _mm512_xor_si512(
                        load_codes(tile.codes.keys + tile.codes.at[t + i] + d, head_dim - d), to_unsigned);
                    for (int h = 0; h < Heads; h++) {
                        high[h][i] = _mm512_dpbusd_epi32(high[h][i], key, upper[h]);
                        low[h][i] = _mm512_dpbusd_epi32(low[h][i], key, lower[h]);
                    }
                }
            }
            for (int h = 0; h < Heads; h++) {
                for (int i = 0; i < tokens; i++) {
                    const __m512i whole = _mm512_add_epi32(_mm512_slli_epi32(high[h][i], 7), low[h][i]);
                    partial[h][t - first + i] = (Floats)_mm512_cvtepi32_ps(whole);
                }
            }
        }
        for (int h = 0; h < Heads; h++) {
            const float scale = *CodeQuery((uint8_t*)queries + h * size, head_dim).scale();
            store(scores[h] + first, sum_each(partial[h]) * load(key_scales + first) * scale);
        }
    }
}

// Weights times the scales of the values as integers of 16 bits, in two parts. Returns the value of 1.
ALWAYS_INLINE float round_weights(const float* weights, const float* scales, uint8_t* high, uint8_t* low) {
    typedef uint8_t Bytes __attribute__((vector_size(kWidth)));
    Floats products[kTileTokens / kWidth], maxima{}, not_finite{};
    for (int i = 0; i < kTileTokens / kWidth; i++) {
        products[i] = load(weights + i * kWidth) * load(scales + i * kWidth);
        maxima = maximum(maxima, products[i]);
        not_finite += products[i] * 0.0f;
    }
    const float unit = largest(maxima) / 65535.0f + sum(not_finite);
    const float inverse = unit > kSmallestScale ? 1.0f / unit : 0.0f;
    for (int i = 0; i < kTileTokens / kWidth; i++) {
        const __m512i whole = _mm512_cvtps_epi32((__m512)(products[i] * inverse));
        const Bytes upper = __builtin_convertvector((Ints)_mm512_srli_epi32(whole, 8), Bytes);
        const Bytes lower = __builtin_convertvector((Ints)whole, Bytes);
        memcpy(high + i * kWidth, &upper, sizeof upper), memcpy(low + i * kWidth, &lower, sizeof lower);
    }
    return unit;
}

ALWAYS_INLINE __m512i four_weights(const uint8_t* from) {
    int32_t four;
    memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
}

// sums += weights * values of `Heads` heads, four tokens at a time. Sums are in the order of the head's elements.
template <int Heads>
void add_codes_of(const float (*weights)[kTileTokens], const float* scales, const CodeTile& tile, bool prefetches,
                  int head_dim, float* sums, int64_t stride) {
    const Tile<Code>& codes = tile.codes;
    uint8_t high[Heads][kTileTokens], low[Heads][kTileTokens];
    float unit[Heads];
    for (int h = 0; h < Heads; h++) unit[h] = round_weights(weights[h], scales, high[h], low[h]);
    for (int d = 0; d < head_dim; d += kCodeStep) {
        const int count = head_dim - d;
        __m512i upper[Heads][4], lower[Heads][4];
        for (int h = 0; h < Heads; h++) {
            for (int j = 0; j < 4; j++) upper[h][j] = lower[h][j] = _mm512_setzero_si512();
        }
        for (int t = 0; t < codes.tokens; t += 4) {
            __m512i row[4];
            for (int i = 0; i < 4; i++) {
                if (prefetches) codes.prefetch(kTileTokens + t + i, d);
                row[i] = load_codes(codes.values + codes.at[t + i] + d, count);
            }
            // Four bytes of a lane: one element of four tokens.
            const __m512i a = _mm512_unpacklo_epi8(row[0], row[1]), b = _mm512_unpackhi_epi8(row[0], row[1]);
            const __m512i c = _mm512_unpacklo_epi8(row[2], row[3]), e = _mm512_unpackhi_epi8(row[2], row[3]);
            const __m512i fours[4] = {_mm512_unpacklo_epi16(a, c), _mm512_unpackhi_epi16(a, c),
                                      _mm512_unpacklo_epi16(b, e), _mm512_unpackhi_epi16(b, e)};
            for (int h = 0; h < Heads; h++) {
                const __m512i first = four_weights(high[h] + t), second = four_weights(low[h] + t);
                for (int j = 0; j < 4; j++) {
                    upper[h][j] = _mm512_dpbusd_epi32(upper[h][j], first, fours[j]);
                    lower[h][j] = _mm512_dpbusd_epi32(lower[h][j], second, fours[j]);
                }
            }
        }
        for (int h = 0; h < Heads; h++) {
            __m512i w[4];
            for (int j = 0; j < 4; j++) w[j] = _mm512_add_epi32(_mm512_slli_epi32(upper[h][j], 8), lower[h][j]);
            // Register j has elements 4 * j to 4 * j + 3 of each 16: a transposition of 128-bit parts.
            const __m512i p = _mm512_shuffle_i32x4(w[0], w[1], 0x44), q = _mm512_shuffle_i32x4(w[0], w[1], 0xee);
            const __m512i r = _mm512_shuffle_i32x4(w[2], w[3], 0x44), s = _mm512_shuffle_i32x4(w[2], w[3], 0xee);
            const __m512i ordered[4] = {_mm512_shuffle_i32x4(p, r, 0x88), _mm512_shuffle_i32x4(p, r, 0xdd),
                                        _mm512_shuffle_i32x4(q, s, 0x88), _mm512_shuffle_i32x4(q, s, 0xdd)};
            for (int j = 0; j < 4 && j * kWidth < count; j++) {
                float* to = sums + h * stride + d + j * kWidth;
                store(to, multiply_add((Floats)_mm512_cvtepi32_ps(ordered[j]), broadcast(unit[h]), load(to)));
            }
        }
    }
}

template <int Heads>
void add_codes(const float (*weights)[kTileTokens], const CodeTile& tile, int head_dim, float* sums, int64_t stride) {
    float scales[kTileTokens];
    CodeTile::gather(tile.codes.values, tile.scales_at, scales);
    tile.prefetch_scales();
    constexpr int at_once = Heads < 2 ? Heads : 2;  // their sums fit in registers
    for (int h = 0; h < Heads; h += at_once) {
        add_codes_of<at_once>(weights + h, scales, tile, h == 0, head_dim, sums + h * stride, stride);
    }
}
#endif
