// Floats: one SIMD register of float32 values, as wide as the instruction set that the library is compiled for, and the
// operations on it. Arithmetic uses the compiler's vector extensions (gcc and clang). Intrinsics are used where these
// compile to slow code: reductions and conversions to bfloat16.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))
#define ALWAYS_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

typedef float Floats __attribute__((vector_size(kWidth * 4)));
typedef int32_t Ints __attribute__((vector_size(kWidth * 4)));
typedef uint32_t Bits __attribute__((vector_size(kWidth * 4)));
typedef uint16_t HalfBits __attribute__((vector_size(kWidth * 2)));

struct BFloat16 {
    uint16_t bits;  // the upper half of a float32
};

ALWAYS_INLINE Floats broadcast(float value) { return value - Floats{}; }

ALWAYS_INLINE Floats ascending() {  // 0, 1, 2, ...
    Floats value{};
    for (int i = 0; i < kWidth; i++) value[i] = float(i);
    return value;
}

ALWAYS_INLINE Floats maximum(Floats a, Floats b) {  // b if either is NaN
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return a > b ? a : b;
#endif
}

// a * b + c with one rounding where the CPU has fused multiply-add. For the expression `a * b + c` the compiler would
// decide, possibly differently for each number of rows.
ALWAYS_INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

ALWAYS_INLINE Floats load(const float* from) {
    Floats value;
    memcpy(&value, from, sizeof value);
    return value;
}

ALWAYS_INLINE Bits widen(HalfBits halves) {
#if defined(__AVX512F__)
    return (Bits)_mm512_cvtepu16_epi32((__m256i)halves);  // gcc 12 makes five instructions of the conversion below
#else
    return __builtin_convertvector(halves, Bits);
#endif
}

ALWAYS_INLINE Floats load(const BFloat16* from) {
    HalfBits halves;
    memcpy(&halves, from, sizeof halves);
    return (Floats)(widen(halves) << 16);
}

// Rounds to nearest, ties to even; the result is in the upper half of each lane. NaN is handled separately: the
// addition would turn it into an infinity or wrap around.
ALWAYS_INLINE Bits round_to_bfloat16(Floats value) {
    const Bits bits = (Bits)value;
    return value == value ? bits + 0x7fff + ((bits >> 16) & 1) : Bits{} + 0x7fc00000;
}

ALWAYS_INLINE void store(float* to, Floats value) { memcpy(to, &value, sizeof value); }

ALWAYS_INLINE void store(BFloat16* to, Floats value) {
#if defined(__AVX512BF16__)
    const auto halves = _mm512_cvtneps_pbh((__m512)value);
#else
    const HalfBits halves = __builtin_convertvector(round_to_bfloat16(value) >> 16, HalfBits);
#endif
    memcpy(to, &halves, sizeof halves);
}

#if defined(__AVX512F__)
// Writes 32 elements to an aligned line without reading it first and without keeping it in the caches. Other threads see
// it after fence_streams.
ALWAYS_INLINE void stream_line(BFloat16* to, Floats first, Floats second) {
#if defined(__AVX512BF16__)
    const __m512i line = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
#else
    const auto rounded = [](Floats value) {
        return (__m256i)__builtin_convertvector(round_to_bfloat16(value) >> 16, HalfBits);
    };
    const __m512i line = _mm512_inserti64x4(_mm512_castsi256_si512(rounded(first)), rounded(second), 1);
#endif
    _mm512_stream_si512((__m512i*)to, line);
}
ALWAYS_INLINE void fence_streams() { _mm_sfence(); }
#endif

// Two registers of values in the order that is fastest to load: for bfloat16 `first` has the even and `second` the odd
// elements, which takes a shift and a mask instead of a conversion. store_two restores the order.
struct Two {
    Floats first, second;
};

ALWAYS_INLINE Two load_two(const float* from) { return {load(from), load(from + kWidth)}; }

ALWAYS_INLINE Two load_two(const BFloat16* from) {
    Bits pairs;
    memcpy(&pairs, from, sizeof pairs);
    return {(Floats)(pairs << 16), (Floats)(pairs & 0xffff0000u)};
}

ALWAYS_INLINE void store_two(float* to, Two value) {
    memcpy(to, &value.first, sizeof value.first);
    memcpy(to + kWidth, &value.second, sizeof value.second);
}

ALWAYS_INLINE void store_two(BFloat16* to, Two value) {
    const Bits pairs = (round_to_bfloat16(value.first) >> 16) | (round_to_bfloat16(value.second) & 0xffff0000u);
    memcpy(to, &pairs, sizeof pairs);
}

// The first `count` elements, fewer than kWidth, followed by zeros.
template <class T>
ALWAYS_INLINE Floats load_partial(const T* from, int64_t count) {
    T padded[kWidth] = {};
    memcpy(padded, from, count * sizeof(T));
    return load(padded);
}

template <class T>
ALWAYS_INLINE void store_partial(T* to, Floats value, int64_t count) {
    T padded[kWidth];
    store(padded, value);
    memcpy(to, padded, count * sizeof(T));
}

template <class T>
ALWAYS_INLINE Two load_two_partial(const T* from, int64_t count) {  // fewer than 2 * kWidth
    T padded[2 * kWidth] = {};
    memcpy(padded, from, count * sizeof(T));
    return load_two(padded);
}

template <class T>
ALWAYS_INLINE void store_two_partial(T* to, Two value, int64_t count) {
    T padded[2 * kWidth];
    store_two(padded, value);
    memcpy(to, padded, count * sizeof(T));
}

// Calls body(offset, count) over [0, size) in steps of one vector; only the last count can be less than kWidth.
template <class Body>
ALWAYS_INLINE void for_each_vector(int64_t size, const Body& body) {
    int64_t i = 0;
    for (; i + kWidth <= size; i += kWidth) body(i, int64_t(kWidth));
    if (i < size) body(i, size - i);
}

// The first `count` lanes; the others are zero.
ALWAYS_INLINE Floats first_lanes(Floats value, int64_t count) {
    float lanes[kWidth];
    store(lanes, value);
    return load_partial(lanes, count);
}

template <class T>
ALWAYS_INLINE Floats load_up_to(const T* from, int64_t count) {
    return count == kWidth ? load(from) : load_partial(from, count);
}

template <class T>
ALWAYS_INLINE void store_up_to(T* to, Floats value, int64_t count) {
    count == kWidth ? store(to, value) : store_partial(to, value, count);
}

ALWAYS_INLINE float sum(Floats value) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)value);
#else
    float total = 0;
    for (int i = 0; i < kWidth; i++) total += value[i];
    return total;
#endif
}

ALWAYS_INLINE float largest(Floats value) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)value);
#else
    float result = value[0];
    for (int i = 1; i < kWidth; i++) result = value[i] > result ? value[i] : result;
    return result;
#endif
}

ALWAYS_INLINE bool is_any_above(Floats value, float limit) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)value, _mm512_set1_ps(limit), _CMP_GT_OQ);
#else
    return largest(value) > limit;
#endif
}

// Lane i of the result is the sum of values[i], for kWidth vectors. One tree of additions replaces kWidth reductions.
ALWAYS_INLINE Floats sum_each(const Floats (&values)[kWidth]) {
#if defined(__AVX512F__)
    __m512 pairs[8], quads[4];
    for (int i = 0; i < 8; i++) {
        const __m512 a = (__m512)values[2 * i], b = (__m512)values[2 * i + 1];
        pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
    for (int i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
        quads[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) + _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
    // Every 128-bit lane of quads[i] now holds partial sums of values[4i .. 4i + 3]: add the four lanes.
    const __m512 low = _mm512_add_ps(_mm512_shuffle_f32x4(quads[0], quads[1], 0x88),
                                     _mm512_shuffle_f32x4(quads[0], quads[1], 0xdd));
    const __m512 high = _mm512_add_ps(_mm512_shuffle_f32x4(quads[2], quads[3], 0x88),
                                      _mm512_shuffle_f32x4(quads[2], quads[3], 0xdd));
    return (Floats)_mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
#elif defined(__AVX2__)
    __m256 quads[2];
    for (int i = 0; i < 2; i++) {
        quads[i] = _mm256_hadd_ps(_mm256_hadd_ps((__m256)values[4 * i], (__m256)values[4 * i + 1]),
                                  _mm256_hadd_ps((__m256)values[4 * i + 2], (__m256)values[4 * i + 3]));
    }
    return (Floats)_mm256_add_ps(_mm256_permute2f128_ps(quads[0], quads[1], 0x20),
                                 _mm256_permute2f128_ps(quads[0], quads[1], 0x31));
#else
    Floats totals;
    for (int i = 0; i < kWidth; i++) totals[i] = sum(values[i]);
    return totals;
#endif
}

// e ** x with an error of at most 2 units in the last place for |x| < 87; 0 for x < -87; e ** 88 for x > 88.
// Cephes' expf: x = n * ln 2 + r with |r| <= ln 2 / 2, a polynomial in r, n added to the exponent bits.
ALWAYS_INLINE Floats exponential(Floats x) {
#if defined(__AVX512F__)
    const __m512 clamped = _mm512_min_ps(_mm512_set1_ps(88.0f), (__m512)x);
    const Floats n = (Floats)_mm512_roundscale_ps((__m512)((Floats)clamped * 1.44269504088896341f), 8);  // to nearest
    const Floats r = ((Floats)clamped - n * 0.693359375f) - n * -2.12194440e-4f;
#else
    const Floats clamped = maximum(x < 88.0f ? x : broadcast(88.0f), broadcast(-87.0f));
    // Adding 1.5 * 2**23 leaves the nearest integer in the low mantissa bits. Needs strict float arithmetic:
    // -ffast-math would cancel the two additions.
    const float round_to_integer = 12582912.0f;
    const Floats n = (clamped * 1.44269504088896341f + round_to_integer) - round_to_integer;
    const Floats r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
#endif
    Floats polynomial = r * 1.9875691500e-4f + 1.3981999507e-3f;
    polynomial = polynomial * r + 8.3334519073e-3f;
    polynomial = polynomial * r + 4.1665795894e-2f;
    polynomial = polynomial * r + 1.6666665459e-1f;
    polynomial = polynomial * r + 5.0000001201e-1f;
    polynomial = polynomial * (r * r) + r + 1.0f;
#if defined(__AVX512F__)
    const __mmask16 is_not_zero = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    return (Floats)_mm512_maskz_scalef_ps(is_not_zero, (__m512)polynomial, (__m512)n);
#else
    const Floats scaled = (Floats)((Ints)polynomial + (__builtin_convertvector(n, Ints) << 23));
    return x < -87.0f ? Floats{} : scaled;
#endif
}

// tanh(x) with an error of at most 2 units in the last place. Cephes' tanhf: a polynomial below 0.625, where the formula
// with the exponential would lose the leading digits.
ALWAYS_INLINE Floats hyperbolic_tangent(Floats x) {
    const Floats size = maximum(x, -x), square = x * x;
    Floats polynomial = square * -5.70498872745e-3f + 2.06390887954e-2f;
    polynomial = polynomial * square - 5.37397155531e-2f;
    polynomial = polynomial * square + 1.33314422036e-1f;
    polynomial = polynomial * square - 3.33332819422e-1f;
    const Floats small = polynomial * square * x + x;
    const Floats large = 1.0f - 2.0f / (exponential(size + size) + 1.0f);
    return size < 0.625f ? small : x < 0.0f ? -large : large;
}

constexpr float kLog2E = 1.44269504088896341f;

// 2 ** x for x <= 127; 0 for -infinity. Faster than exponential; used for softmax weights. The error is at most 2 units in
// the last place of float32, or 2**-13.7 where the result will be rounded to bfloat16, which adds up to 2**-9.
template <class RoundedTo = float>
ALWAYS_INLINE Floats power_of_two(Floats x) {
#if defined(__AVX512F__)
    const Floats r = (Floats)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF);  // x - floor(x); 0 for infinity
    Floats polynomial;  // minimax on [0, 1) of the relative error
    if constexpr (std::is_same_v<RoundedTo, BFloat16>) {
        polynomial = r * 0.07802455f + 0.22606728f;
        polynomial = polynomial * r + 0.69583341f;
        polynomial = polynomial * r + 0.99992524f;
    } else {
        polynomial = r * 1.8671303e-3f + 9.0170298e-3f;
        polynomial = polynomial * r + 5.5799913e-2f;
        polynomial = polynomial * r + 2.4016444e-1f;
        polynomial = polynomial * r + 6.9315130e-1f;
        polynomial = polynomial * r + 1.0f;
    }
    return (Floats)_mm512_scalef_ps((__m512)polynomial, (__m512)x);  // times 2 ** floor(x)
#else
    return exponential(x * 0.693147180559945309f);
#endif
}
