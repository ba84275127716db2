// Panels (panels.h) of quantised weights, and the products over them: codes are converted in registers.
//
//   int8: [K][16] bytes, each from -127 to 127, with one float32 scale per output, applied to the finished sum. Where
//         pairs of bfloat16 are multiplied: [K / 4][4][2][4][2], sign and magnitude, which two table look-ups
//         convert to bfloat16: four outputs, two pairs of k, in the order in which unpacking interleaves them.
//         For activations in int8 (integer_products.h): [K / 4][16][4] unsigned bytes, value + 128.
//   int4: [K / 8][16] words of 32 bits, the eight codes of one output: k = 0, 2, 4, 6 from the lowest bits up in the
//         lower half, k = 1, 3, 5, 7 in the upper half, so that a shift brings a pair to where vpermw looks it up.
//         A code is an index into kLevels. One bfloat16 scale per output and 64 elements: [K / 64][16].
//
// All codes represent integers from -127 to 127, which bfloat16 holds exactly: the products are those of float32.
#pragma once

#include <algorithm>

#include "batch_invariant.h"
#include "linear.h"

constexpr int kGroup = 64;     // elements that share a scale of int4
constexpr int kCodesDeep = 8;  // k in a word of int4
// The values of the sixteen codes: Lloyd's algorithm over groups of 64 normally distributed values, scaled so that the
// one of largest magnitude is -127. Compared with sixteen equal steps the error is 9 % smaller for normally distributed
// weights and 15 % smaller for heavy tails.
constexpr int8_t kLevels[16] = {-127, -100, -80, -62, -47, -33, -20, -7, 5, 18, 31, 44, 59, 74, 92, 115};

struct Int8Panels {
    static constexpr bool kUnpacksWhileMultiplying = false;
    static constexpr int kMaxBlockRows = kMaxRows, kMaxSinglePanelRows = 4;
    static constexpr PrefetchMode kPrefetch = PrefetchMode::kNext;  // 16 KiB for 1024 inputs
    const int8_t* codes;
    int64_t depth;

    Int8Panels from(int64_t panel) const { return {codes + panel * depth * kPanelWidth, depth}; }
    const char* address() const { return reinterpret_cast<const char*>(codes); }
    int64_t panel_bytes() const { return depth * kPanelWidth; }

    // The index of element k of an output in its panel, and the code that is stored there.
#if defined(STOKER_PAIR_PRODUCTS)
    static int64_t index(int64_t k, int column) {
        return k / 4 * 64 + column / 4 * 16 + k % 4 / 2 * 8 + column % 4 * 2 + k % 2;
    }
    static int8_t code_of(int32_t value) { return int8_t(value < 0 ? -value | 0x80 : value); }
    static int value_of(int8_t code) { return code & 0x80 ? -(code & 0x7f) : code; }
#else
    static int64_t index(int64_t k, int column) { return k * kPanelWidth + column; }
    static int8_t code_of(int32_t value) { return int8_t(value); }
    static int value_of(int8_t code) { return code; }
#endif
};

struct Int4Panels {
    static constexpr bool kUnpacksWhileMultiplying = false;
    static constexpr int kMaxSinglePanelRows = 2;
    static constexpr int kMaxBlockRows = kMaxRows / 2;  // registers hold the sums of a group and those of all groups
    static constexpr PrefetchMode kPrefetch = PrefetchMode::kNext;  // 8 KiB for 1024 inputs
    const uint32_t* codes;
    const BFloat16* scales;
    int64_t depth;

    int64_t num_groups() const { return (depth + kGroup - 1) / kGroup; }
    int64_t num_words() const { return depth / kCodesDeep * kPanelWidth; }  // of one panel
    Int4Panels from(int64_t panel) const {
        return {codes + panel * num_words(), scales + panel * num_groups() * kPanelWidth, depth};
    }
    const char* address() const { return reinterpret_cast<const char*>(codes); }
    int64_t panel_bytes() const { return num_words() * int64_t(sizeof(uint32_t)); }
};

ALWAYS_INLINE float widen_one(BFloat16 value) {
    const uint32_t bits = uint32_t(value.bits) << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

// Two registers of integers as pairs of bfloat16, exactly.
ALWAYS_INLINE Bits pack_pairs(Floats even, Floats odd) { return (Bits)even >> 16 | (Bits)odd; }

// Four k of all outputs of a panel, as pairs of bfloat16.
struct FourOf16 {
    Bits pairs[2][kVectors];
};

#if defined(STOKER_PAIR_PRODUCTS)
// The bytes of the integers 0 to 127 in bfloat16.
struct SizeBytes {
    alignas(64) uint8_t low[128], high[128];

    constexpr SizeBytes() : low{}, high{} {
        for (int i = 1; i < 128; i++) {
            int exponent = 0;
            while (i >> (exponent + 1)) exponent++;
            const int bits = (127 + exponent) << 7 | (i << (7 - exponent) & 0x7f);
            low[i] = uint8_t(bits);
            high[i] = uint8_t(bits >> 8);
        }
    }
};
inline constexpr SizeBytes kSizeBytes;

class Int8Reader {
  public:
    ALWAYS_INLINE Int8Reader() : Int8Reader(kSizeBytes.low, kSizeBytes.high) {}

    // The bytes in bfloat16 of what each magnitude stands for.
    ALWAYS_INLINE Int8Reader(const uint8_t* low, const uint8_t* high) {
        for (int half = 0; half < 2; half++) {
            low_[half] = _mm512_loadu_si512(low + 64 * half);
            high_[half] = _mm512_loadu_si512(high + 64 * half);
        }
    }

    ALWAYS_INLINE FourOf16 operator()(const int8_t* from) const {
        const __m512i codes = _mm512_loadu_si512(from);
        const __m512i low = _mm512_permutex2var_epi8(low_[0], codes, low_[1]);  // ignores bit 7
        const __m512i size = _mm512_permutex2var_epi8(high_[0], codes, high_[1]);
        const __m512i high = _mm512_ternarylogic_epi64(size, codes, _mm512_set1_epi8(-128), 0xf8);  // a | (b & c)
        return {{{(Bits)_mm512_unpacklo_epi8(low, high)}, {(Bits)_mm512_unpackhi_epi8(low, high)}}};
    }

  private:
    __m512i low_[2], high_[2];
};
#else
ALWAYS_INLINE Floats widen(const int8_t* from) {
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

struct Int8Reader {
    ALWAYS_INLINE FourOf16 operator()(const int8_t* from) const {
        FourOf16 found;
        for (int pair = 0; pair < 2; pair++) {
            for (int v = 0; v < kVectors; v++) {
                const int8_t* even = from + 2 * pair * kPanelWidth + v * kWidth;
                found.pairs[pair][v] = pack_pairs(widen(even), widen(even + kPanelWidth));
            }
        }
        return found;
    }
};
#endif

struct LevelTable {
    alignas(64) float level[16];

    constexpr LevelTable() : level{} {
        for (int i = 0; i < 16; i++) level[i] = kLevels[i];
    }
};
inline constexpr LevelTable kLevelTable;

// Looks up the values of a register of words, for the codes that start at bit `shift`.
struct Levels {
    ALWAYS_INLINE Floats operator()(Bits words, int shift) const {
#if defined(__AVX512F__)
        const __m512i codes = _mm512_srli_epi32((__m512i)words, shift);
        return (Floats)_mm512_permutexvar_ps(codes, _mm512_loadu_ps(kLevelTable.level));
#elif defined(__AVX2__)
        const __m256i codes = _mm256_srli_epi32((__m256i)words, shift);
        const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(kLevelTable.level), codes);
        const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(kLevelTable.level + 8), codes);
        return (Floats)_mm256_blendv_ps(low, high, (__m256)_mm256_slli_epi32(codes, 28));
#else
        Floats value;
        for (int i = 0; i < kWidth; i++) value[i] = kLevelTable.level[words[i] >> shift & 15];
        return value;
#endif
    }
};

// The first bit of the code of element k.
constexpr int code_shift(int k) { return k % 2 * 16 + k / 2 * 4; }

// With one row, each addition would wait for the previous one. Few rows therefore have two accumulators each, as far as
// there are registers for them.
template <int Rows>
constexpr int kAccumulators = !kBatchInvariant && Rows <= (kMaxRows < 12 ? 1 : 4) ? 2 : 1;

template <int Accumulators, int Rows, int Panels>
ALWAYS_INLINE void combine(const Sums<Rows * Accumulators, Panels>& partial, Sums<Rows, Panels>& sums) {
    for (int row = 0; row < Rows; row++) {
        for (int v = 0; v < Panels * kVectors; v++) {
            sums.at[row][v] = partial.at[row * Accumulators][v];
            for (int i = 1; i < Accumulators; i++) sums.at[row][v] += partial.at[row * Accumulators + i][v];
        }
    }
}

// As described in panels.h.
template <int Rows, int Panels, class Prefetch>
ALWAYS_INLINE void multiply(const float* a, int64_t a_stride, Int8Panels b, int64_t depth, Prefetch prefetch,
                            Sums<Rows, Panels>& sums) {
    const int64_t size = depth * kPanelWidth;
    [[maybe_unused]] const Int8Reader read;
    for (int64_t k = 0; k < depth; k += 4, prefetch.advance()) {  // a line
        for (int p = 0; p < Panels; p++) prefetch.prefetch(b.codes + p * size + k * kPanelWidth, p);
#if defined(STOKER_PAIR_PRODUCTS)
        FourOf16 four[Panels];
        for (int p = 0; p < Panels; p++) four[p] = read(b.codes + p * size + k * kPanelWidth);
#endif
        for (int i = 0; i < 4; i++) {
            Floats columns[Panels * kVectors];
            for (int p = 0; p < Panels; p++) {
                for (int v = 0; v < kVectors; v++) {
#if defined(STOKER_PAIR_PRODUCTS)
                    const Bits pairs = four[p].pairs[i / 2][v];
                    columns[p * kVectors + v] = (Floats)(i % 2 ? pairs & 0xffff0000u : pairs << 16);
#else
                    columns[p * kVectors + v] = widen(b.codes + p * size + (k + i) * kPanelWidth + v * kWidth);
#endif
                }
            }
            for (int row = 0; row < Rows; row++) {
                const Floats value = broadcast(a[row * a_stride + k + i]);
                for (int v = 0; v < Panels * kVectors; v++) sums.at[row][v] += value * columns[v];
            }
        }
    }
}

template <int Rows, int Panels>
ALWAYS_INLINE void add_scaled(const Sums<Rows, Panels>& part, Int4Panels b, int64_t group, Sums<Rows, Panels>& sums) {
    for (int p = 0; p < Panels; p++) {
        for (int v = 0; v < kVectors; v++) {
            const BFloat16* from = b.scales + (p * b.num_groups() + group) * kPanelWidth + v * kWidth;
            // The next panels' scales: too few for a hardware prefetcher.
            __builtin_prefetch(from + Panels * b.num_groups() * kPanelWidth);
            const Floats scale = load(from);
            for (int row = 0; row < Rows; row++) {
                Floats& sum = sums.at[row][p * kVectors + v];
                sum = multiply_add(part.at[row][p * kVectors + v], scale, sum);
            }
        }
    }
}

template <int Rows, int Panels, class Prefetch>
ALWAYS_INLINE void multiply(const float* a, int64_t a_stride, Int4Panels b, int64_t depth, Prefetch prefetch,
                            Sums<Rows, Panels>& sums) {
    constexpr int accumulators = kAccumulators<Rows>;
    const Levels levels;
    for (int64_t group = 0; group * kGroup < depth; group++) {
        Sums<Rows * accumulators, Panels> partial;
        const int64_t end = std::min(depth, (group + 1) * kGroup);
        for (int64_t k = group * kGroup; k < end; k += kCodesDeep, prefetch.advance()) {
            Bits words[Panels * kVectors];
            for (int p = 0; p < Panels; p++) {
                const uint32_t* from = b.codes + p * b.num_words() + k / kCodesDeep * kPanelWidth;
                prefetch.prefetch(from, p);
                for (int v = 0; v < kVectors; v++) memcpy(&words[p * kVectors + v], from + v * kWidth, sizeof(Bits));
            }
#pragma GCC unroll 8
            for (int i = 0; i < kCodesDeep; i++) {
                Floats columns[Panels * kVectors];
                for (int v = 0; v < Panels * kVectors; v++) columns[v] = levels(words[v], code_shift(i));
                for (int row = 0; row < Rows; row++) {
                    const Floats value = broadcast(a[row * a_stride + k + i]);
                    Floats* at = partial.at[row * accumulators + i % accumulators];
                    for (int v = 0; v < Panels * kVectors; v++) at[v] += value * columns[v];
                }
            }
        }
        Sums<Rows, Panels> part;
        combine<accumulators>(partial, part);
        add_scaled(part, b, group, sums);
    }
}

#if defined(STOKER_PAIR_PRODUCTS)
// sums of the given accumulator += a pair of elements of every row times a pair of every column.
template <int Accumulators, int Rows, int Panels>
ALWAYS_INLINE void add_pairs(const BFloat16* a, int64_t a_stride, const __m512i (&pairs)[Panels], int accumulator,
                             Sums<Rows * Accumulators, Panels>& sums) {
    for (int row = 0; row < Rows; row++) {
        int32_t pair;
        memcpy(&pair, a + row * a_stride, sizeof pair);
        const __m512i value = _mm512_set1_epi32(pair);
        for (int p = 0; p < Panels; p++) {
            Floats& sum = sums.at[row * Accumulators + accumulator % Accumulators][p];
            sum = add_pair_products(sum, value, pairs[p]);
        }
    }
}

template <int Rows, int Panels, class Prefetch>
ALWAYS_INLINE void multiply(const BFloat16* a, int64_t a_stride, Int8Panels b, int64_t depth, Prefetch prefetch,
                            Sums<Rows, Panels>& sums) {
    constexpr int accumulators = kAccumulators<Rows>;
    const int64_t size = depth * kPanelWidth;
    const Int8Reader read;
    Sums<Rows * accumulators, Panels> partial;
    for (int64_t k = 0; k < depth; k += 4, prefetch.advance()) {  // a line
        FourOf16 four[Panels];
        for (int p = 0; p < Panels; p++) {
            prefetch.prefetch(b.codes + p * size + k * kPanelWidth, p);
            four[p] = read(b.codes + p * size + k * kPanelWidth);
        }
        for (int i = 0; i < 2; i++) {
            __m512i pairs[Panels];
            for (int p = 0; p < Panels; p++) pairs[p] = (__m512i)four[p].pairs[i][0];
            add_pairs<accumulators, Rows>(a + k + 2 * i, a_stride, pairs, i, partial);
        }
    }
    combine<accumulators>(partial, sums);
}

template <int Rows, int Panels, class Prefetch>
ALWAYS_INLINE void multiply(const BFloat16* a, int64_t a_stride, Int4Panels b, int64_t depth, Prefetch prefetch,
                            Sums<Rows, Panels>& sums) {
    constexpr int accumulators = kAccumulators<Rows>;
    // vpermw uses five bits of a code: the table is stored twice, so that the fifth bit has no effect.
    uint16_t table[32];
    for (int i = 0; i < 32; i++) {
        const float level = kLevels[i % 16];
        memcpy(&table[i], reinterpret_cast<const char*>(&level) + 2, sizeof table[i]);
    }
    const __m512i levels = _mm512_loadu_si512(table);
    for (int64_t group = 0; group * kGroup < depth; group++) {
        Sums<Rows * accumulators, Panels> partial;
        const int64_t end = std::min(depth, (group + 1) * kGroup);
        for (int64_t k = group * kGroup; k < end; k += kCodesDeep, prefetch.advance()) {
            __m512i words[Panels];
            for (int p = 0; p < Panels; p++) {
                const uint32_t* from = b.codes + p * b.num_words() + k / kCodesDeep * kPanelWidth;
                prefetch.prefetch(from, p);
                words[p] = _mm512_loadu_si512(from);
            }
#pragma GCC unroll 4
            for (int i = 0; i < kCodesDeep; i += 2) {
                __m512i pairs[Panels];
                for (int p = 0; p < Panels; p++) {
                    pairs[p] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words[p], i * 2), levels);
                }
                add_pairs<accumulators, Rows>(a + k + i, a_stride, pairs, i / 2, partial);
            }
        }
        Sums<Rows, Panels> part;
        combine<accumulators>(partial, part);
        add_scaled(part, b, group, sums);
    }
}
#endif

// Unpacks one unit to its position in a bfloat16 panel. int8 is exact, since its scales are applied to the sums; int4
// elements are multiplied by their scales and rounded.
ALWAYS_INLINE void unpack_unit(const Int8Panels& panel, int64_t unit, BFloat16* to) {
    const Int8Reader read;
    const int8_t* from = panel.codes + unit * kUnitElements;
    to += unit * kUnitElements;
    for (int64_t i = 0; i < kUnitElements; i += 4 * kPanelWidth) {
        __builtin_prefetch(from + i + 2 * panel.panel_bytes());
        const FourOf16 four = read(from + i);
        memcpy(to + i, &four, sizeof four);
    }
}

ALWAYS_INLINE void unpack_unit(const Int4Panels& panel, int64_t unit, BFloat16* to) {
    const Levels levels;
    const uint32_t* from = panel.codes + unit * kPanelWidth;
    to += unit * kUnitElements;
    __builtin_prefetch(from + 2 * panel.num_words());
    for (int v = 0; v < kVectors; v++) {
        Bits words;
        memcpy(&words, from + v * kWidth, sizeof words);
        const Floats scale = load(panel.scales + unit * kUnitDepth / kGroup * kPanelWidth + v * kWidth);
#pragma GCC unroll 4
        for (int i = 0; i < kCodesDeep; i += 2) {
            store_two(to + i * kPanelWidth + v * 2 * kWidth,
                      {levels(words, code_shift(i)) * scale, levels(words, code_shift(i + 1)) * scale});
        }
    }
}

template <class Weights>
ALWAYS_INLINE void apply_all_exceptions(const Weights&, BFloat16*) {}

// Up to this number of rows multiply codes that are converted in registers; with more, unpacking once is less work.
#if defined(TILES)
constexpr int64_t kMaxInt8Rows = kMaxVectorRows, kMaxInt4Rows = kMaxVectorRows;
#elif defined(__AVX512F__)
constexpr int64_t kMaxInt8Rows = 64, kMaxInt4Rows = 48;
#elif defined(__AVX2__)
constexpr int64_t kMaxInt8Rows = 64, kMaxInt4Rows = 8;
#else
constexpr int64_t kMaxInt8Rows = 2, kMaxInt4Rows = 2;
#endif

// Unpacked int4 weights are rounded, so their sums differ from those of the codes; for int8 they are equal. Tiles
// cannot multiply codes.
#if defined(TILES)
constexpr bool kInt4IsDirect = false;
#else
constexpr bool kInt4IsDirect = kBatchInvariant;
#endif

constexpr int64_t max_direct_rows(const Int8Panels&) { return kMaxInt8Rows; }
constexpr int64_t max_direct_rows(const Int4Panels&) { return kInt4IsDirect ? INT64_MAX : kMaxInt4Rows; }
