// Linear layers over quantised weights and activations rounded to int8 (integer_products.h): y = x W^T + bias, x and y
// float32 or bfloat16.

#include <vector>

#include "captured_graph.h"
#include "integer_products.h"
#include "quantised_rows.h"

namespace {

constexpr float kSmallestRow = 1e-36f;  // rows of smaller magnitude are zero: 127 / magnitude would be infinite
constexpr int64_t kRowsPerThread = 8;   // at least, when rows are rounded

// Rounds the elements of a row of x to codes, each to the nearest multiple of the scale, and returns the scale: NaN if an
// element is infinite or NaN, so that the outputs are too.
template <class T>
float scale_of(const T* x, int64_t depth) {
    Floats magnitudes{}, wrong{};
    for (int64_t k = 0; k < depth; k += kWidth) {
        const Floats value = load(x + k);
        magnitudes = maximum(magnitudes, maximum(value, -value));
        wrong += value - value;
    }
    return largest(magnitudes) / 127 + sum(wrong);
}

// To nearest, ties to even. Not by adding 1.5 * 2**23 where the compiler could join the addition with a multiplication:
// elements of bfloat16 are often ties.
ALWAYS_INLINE Ints round_to_integers(Floats value) {
#if defined(__AVX512F__)
    return (Ints)_mm512_cvtps_epi32((__m512)value);
#elif defined(__AVX2__)
    return (Ints)_mm256_cvtps_epi32((__m256)value);
#else
    return (Ints)((Bits)(value + 12582912.0f) - 0x4b400000u);
#endif
}

ALWAYS_INLINE int32_t sum_of(Ints value) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)value);
#else
    int32_t total = 0;
    for (int i = 0; i < kWidth; i++) total += value[i];
    return total;
#endif
}

// Puts the second half of every eight bytes between the bytes of the first half.
ALWAYS_INLINE void interleave(int8_t* codes) {
#if defined(__AVX2__)
    const __m128i order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    for (int i = 0; i < kGroup; i += 16) {
        __m128i* at = reinterpret_cast<__m128i*>(codes + i);
        _mm_storeu_si128(at, _mm_shuffle_epi8(_mm_loadu_si128(at), order));
    }
#else
    for (int i = 0; i < kGroup; i += 8) {
        int8_t eight[8];
        memcpy(eight, codes + i, sizeof eight);
        for (int j = 0; j < 8; j++) codes[i + j] = eight[j / 2 + j % 2 * 4];
    }
#endif
}

// Rounds a row of x. offsets: [1], or one for each group of 64 elements, if the weights are Int4Panels.
template <class Weights, class T>
void round_row(const T* x, int64_t depth, int8_t* codes, float* scale, int32_t* offsets) {
    constexpr bool has_groups = std::is_same_v<Weights, Int4Panels>;
    typedef int8_t Bytes __attribute__((vector_size(kWidth)));
    *scale = scale_of(x, depth);
    const float inverse = *scale > kSmallestRow / 127 ? 1 / *scale : 0;
    offsets[0] = 0;
    for (int64_t first = 0; first < depth; first += kGroup) {
        Ints total{};
        for (int64_t k = first; k < first + kGroup; k += kWidth) {
            const Ints integers = round_to_integers(load(x + k) * inverse);
            const Bytes bytes = __builtin_convertvector(integers, Bytes);
            memcpy(codes + k, &bytes, sizeof bytes);
            total += integers << 24 >> 24;  // those bytes: gcc 12 would widen them one by one
        }
        if constexpr (has_groups) {
            offsets[first / kGroup] = -128 * sum_of(total);
            interleave(codes + first);
        } else {
            offsets[0] -= 128 * sum_of(total);
        }
    }
}

struct RowBuffers {
    Scratch codes, scales, offsets;
};

// Buffers of one thread for rounded rows, which threads that multiply may share.
class RoundedRows {
  public:
    RoundedRows(int64_t rows, int64_t depth, int64_t groups)
        : codes_(buffers_.codes.reserve<int8_t>(rows * depth)), scales_(buffers_.scales.reserve<float>(rows)),
          offsets_(buffers_.offsets.reserve<int32_t>(rows * groups)), depth_(depth), groups_(groups) {}

    template <class Weights, class T>
    void round(const T* x, int64_t begin, int64_t end) const {
        for (int64_t row = begin; row < end; row++) {
            round_row<Weights>(x + row * depth_, depth_, codes_ + row * depth_, scales_ + row, offsets_ + row * groups_);
        }
    }
    IntegerRows rows() const { return {codes_, scales_, offsets_, groups_}; }

  private:
    struct Buffers {
        Scratch codes, scales, offsets;
    };
    static inline thread_local Buffers buffers_;
    int8_t* codes_;
    float* scales_;
    int32_t* offsets_;
    int64_t depth_, groups_;
};

template <class T, class Weights>
void multiply_integers(const Layer<T>& layer, IntegerRows x, int64_t rows, Weights weights, int64_t begin, int64_t end,
                       T* y) {
#if defined(TILES)
    if (rows > max_vector_rows(weights)) return multiply_by_tiles(layer, x, rows, weights, begin, end, y);
#endif
    multiply_panels(layer, x, rows, weights, begin, end, y);
}

template <class T, class Weights>
void integer_linear(const Layer<T>& layer, const T* x, Weights all, int64_t groups, int64_t rows, T* y) {
    const RoundedRows rounded(rows, layer.depth, groups);
    parallel_ranges(rows, kRowsPerThread,
                    [&](int64_t begin, int64_t end) { rounded.round<Weights>(x, begin, end); });
    for_each_chunk(layer, num_chunks(rows, layer.depth), rounded.rows(), rows, y,
                   [&](IntegerRows x, int64_t rows, int64_t begin, int64_t end, T* y) {
                       multiply_integers(layer, x, rows, all.from(begin), begin, end, y);
                   });
}

// As panels_over in linear.h.
template <class T, class Weights>
void integer_panels(const Layer<T>& layer, const T* x, Weights all, int64_t groups, int64_t rows, int64_t begin,
                    int64_t end, T* y) {
    const RoundedRows rounded(rows, layer.depth, groups);
    rounded.round<Weights>(x, 0, rows);
    for_each_own_chunk(layer, num_chunks(rows, layer.depth), rounded.rows(), rows, y,
                       [&](IntegerRows x, int64_t rows, T* y) {
                           multiply_integers(layer, x, rows, all.from(begin), begin, end, y);
                       });
}

}  // namespace

// As linear_int8.cpp and linear_int4.cpp describe, with depth a multiple of 64. unpack_rows_bytes is for the embedding.
#define EXPORT_FOR(T, suffix)                                                                                        \
    EXPORT void integer_linear_int8_##suffix(const T* x, const uint8_t* codes, const float* scales, const T* bias,   \
                                             T* y, int64_t rows, int64_t width, int64_t depth) {                     \
        integer_linear(Layer<T>{bias, scales, width, depth, is_streamed(y, rows, width)}, x,                         \
                       BytePanels{codes, depth}, 1, rows, y);                                                        \
    }                                                                                                                \
    EXPORT void integer_linear_int4_##suffix(const T* x, const uint32_t* codes, const BFloat16* scales,              \
                                             const T* bias, T* y, int64_t rows, int64_t width, int64_t depth) {      \
        const Int4Panels all{codes, scales, depth};                                                                  \
        integer_linear(Layer<T>{bias, nullptr, width, depth, is_streamed(y, rows, width)}, x, all, all.num_groups(), \
                       rows, y);                                                                                     \
    }                                                                                                                \
    EXPORT void integer_panels_int8_##suffix(const Weight& weight, const T* x, int64_t rows, int64_t begin,          \
                                             int64_t end, T* y) {                                                    \
        integer_panels(weight.layer<T>(static_cast<const float*>(weight.scales)), x,                                 \
                       BytePanels{static_cast<const uint8_t*>(weight.panels), weight.depth}, 1, rows, begin, end,    \
                       y);                                                                                           \
    }                                                                                                                \
    EXPORT void integer_panels_int4_##suffix(const Weight& weight, const T* x, int64_t rows, int64_t begin,          \
                                             int64_t end, T* y) {                                                    \
        const Int4Panels all{static_cast<const uint32_t*>(weight.panels),                                            \
                             static_cast<const BFloat16*>(weight.scales), weight.depth};                             \
        integer_panels(weight.layer<T>(), x, all, all.num_groups(), rows, begin, end, y);                            \
    }                                                                                                                \
    EXPORT int unpack_rows_bytes_##suffix(const uint8_t* codes, const float* scales, const int64_t* rows, T* out,    \
                                          int64_t count, int64_t width, int64_t depth) {                             \
        return unpack_rows(rows, out, count, width, depth, [&](int64_t row, float* to) {                             \
            unpack_int8_row(BytePanels{codes, depth}, scales, row, to);                                              \
        });                                                                                                          \
    }                                                                                                                \
    CAPTURABLE(integer_linear_int8_##suffix)                                                                         \
    CAPTURABLE(integer_linear_int4_##suffix)                                                                         \
    CAPTURABLE(unpack_rows_bytes_##suffix)

EXPORT_FOR(BFloat16, bfloat16)
EXPORT_FOR(float, float32)

// As multiply_all_bfloat16 in machine.cpp.
EXPORT int64_t multiply_all_int8(int64_t rounds) {
    constexpr int64_t depth = 128;
    on_every_thread([&](int, int) {
        std::vector<int8_t> a(kMaxRows * depth, 1);
        std::vector<uint8_t> b(kMaxPanels * kPanelWidth * depth, 1);
        const std::vector<float> scales(kMaxRows, 1);
        const std::vector<int32_t> offsets(kMaxRows, 1);
        const IntegerRows rows{a.data(), scales.data(), offsets.data(), 1};
        Floats total{};
        for (int64_t round = 0; round < rounds; round++) {
            Sums<kMaxRows, kMaxPanels> sums;
            multiply<kMaxRows, kMaxPanels>(rows, depth, BytePanels{b.data(), depth}, depth, NoPrefetch{}, sums);
            for (const auto& row : sums.at) {
                for (const Floats& each : row) total += each;
            }
        }
        static volatile float sink;
        sink = sum(total);
    });
    return rounds * 2 * kMaxRows * kMaxPanels * kPanelWidth * depth;
}
