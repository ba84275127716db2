// Keys and values in 8 bits: each head of a token has integers from -127 to 127 and one float32 scale.
//
// A block of a kv head has the codes of its tokens first, [block_size, head_dim], then their scales, [block_size].
// Attention multiplies codes by scales and rounds to the type of the activations, so its products are those of a cache
// in that type. ../kv_codes.py is the reference.
#pragma once

#include "vector.h"

struct Code {
    int8_t value;
};

// Bytes of a token's head after its codes; in a cache of C.
template <class C>
constexpr int kScaleElements = 0;
template <>
constexpr int kScaleElements<Code> = sizeof(float);

ALWAYS_INLINE Floats load(const Code* from) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#elif defined(__AVX2__)
    return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
    typedef int8_t Bytes __attribute__((vector_size(kWidth)));
    Bytes bytes;
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(__builtin_convertvector(bytes, Ints), Floats);
#endif
}

// One head of a token: codes times their scale, in T. head_dim is a multiple of 16.
template <class T>
ALWAYS_INLINE void unpack_codes(const Code* codes, float scale, int head_dim, T* to) {
    int d = 0;
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<T, BFloat16>) {
        for (; d + 2 * kWidth <= head_dim; d += 2 * kWidth) {
            const Floats first = load(codes + d) * scale, second = load(codes + d + kWidth) * scale;
            _mm512_storeu_si512(to + d, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
        }
    }
#endif
    for (; d < head_dim; d += kWidth) store(to + d, load(codes + d) * scale);
}

constexpr float kSmallestScale = 1e-30f;  // heads with a smaller one are stored as zeros: 1 / scale could overflow

// Writes the codes of one head of a token, and its scale. Values that are not finite make the scale so too.
template <class T>
void pack_codes(const T* from, int head_dim, Code* codes, Code* scale_at) {
    typedef int8_t Bytes __attribute__((vector_size(kWidth)));
    Floats maxima{}, not_finite{};
    for (int d = 0; d < head_dim; d += kWidth) {
        const Floats values = load(from + d);
        maxima = maximum(maxima, maximum(values, -values));
        not_finite += values * 0.0f;
    }
    const float scale = largest(maxima) / 127.0f + sum(not_finite);
    const float inverse = scale > kSmallestScale ? 1.0f / scale : 0.0f;  // 0 also for NaN
    memcpy(scale_at, &scale, sizeof scale);
    for (int d = 0; d < head_dim; d += kWidth) {
        // The last bits of 1.5 * 2 ** 23 + x are x, rounded to an integer.
        const Bytes bytes = __builtin_convertvector((Ints)(load(from + d) * inverse + 0x1.8p23f), Bytes);
        memcpy(codes + d, &bytes, sizeof bytes);
    }
}
