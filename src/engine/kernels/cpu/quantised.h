// Panels (panels.h) of quantised weights, and the products over them: codes become numbers in registers.
//
//   int8: [K][16] bytes, each from -127 to 127, with one float32 scale per output, applied to the finished sum. Where
//         pairs of bfloat16 are multiplied: [K / 4][4][2][4][2], sign and size, which two table look-ups make bfloat16:
//         four outputs, two pairs of k, as unpacking puts them side by side.
//   int4: [K / 8][16] words of 32 bits, the eight codes of one output: k = 0, 2, 4, 6 from the lowest bits up in the
//         lower half, k = 1, 3, 5, 7 in the upper half, so that a shift brings a pair to where vpermw looks it up.
//         A code is an index into kLevels. One bfloat16 scale per output and 64 numbers: [K / 64][16].
//
// All codes stand for whole numbers up to 127, which bfloat16 holds exactly: the products are those of float32.
#pragma once

#include <algorithm>

#include "linear.h"

constexpr int kGroup = 64;     // numbers that share a scale of int4
constexpr int kCodesDeep = 8;  // k in a word of int4
// What the sixteen codes stand for: Lloyd's algorithm over groups of 64 normal numbers, scaled so that the largest in
// size is -127. Against sixteen even steps this takes 9 % off the error of normal weights and 15 % off heavy tails.
constexpr int8_t kLevels[16] = {-127, -100, -80, -62, -47, -33, -20, -7, 5, 18, 31, 44, 59, 74, 92, 115};

struct Int8Panels {
    static constexpr bool kUnpacksBetween = false;
    static constexpr int kRowsAtOnce = kMaxRows, kRowsAlone = 4;
    static constexpr Fetching kFetching = Fetching::kNext;  // 16 KiB for 1024 inputs
    const int8_t* codes;
    int64_t depth;

    Int8Panels from(int64_t panel) const { return {codes + panel * depth * kPanelWidth, depth}; }
    const char* address() const { return reinterpret_cast<const char*>(codes); }
    int64_t panel_bytes() const { return depth * kPanelWidth; }
};

struct Int4Panels {
    static constexpr bool kUnpacksBetween = false;
    static constexpr int kRowsAlone = 2;
    static constexpr int kRowsAtOnce = kMaxRows / 2;  // the sums of a group lie beside those of all groups
    static constexpr Fetching kFetching = Fetching::kNext;  // 8 KiB for 1024 inputs
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

// Where number k of an output lies in its panel, and what is written there.
ALWAYS_INLINE int64_t code_place(int64_t k, int column) {
#if defined(STOKER_PAIR_PRODUCTS)
    return k / 4 * 64 + column / 4 * 16 + k % 4 / 2 * 8 + column % 4 * 2 + k % 2;
#else
    return k * kPanelWidth + column;
#endif
}

ALWAYS_INLINE int8_t code_of(int32_t number) {
#if defined(STOKER_PAIR_PRODUCTS)
    return int8_t(number < 0 ? -number | 0x80 : number);
#else
    return int8_t(number);
#endif
}

ALWAYS_INLINE int number_of(int8_t code) {
#if defined(STOKER_PAIR_PRODUCTS)
    return code & 0x80 ? -(code & 0x7f) : code;
#else
    return code;
#endif
}

ALWAYS_INLINE float widen_one(BFloat16 value) {
    const uint32_t bits = uint32_t(value.bits) << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

// Two registers of whole numbers as pairs of bfloat16; nothing is lost.
ALWAYS_INLINE Bits pair_up(Floats even, Floats odd) { return (Bits)even >> 16 | (Bits)odd; }

// Four numbers of all outputs of a panel, as pairs of bfloat16.
struct FourOf16 {
    Bits pairs[2][kVectors];
};

#if defined(STOKER_PAIR_PRODUCTS)
// The bytes of the numbers 0 to 127 in bfloat16.
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
    ALWAYS_INLINE Int8Reader() {
        for (int half = 0; half < 2; half++) {
            low_[half] = _mm512_load_si512(kSizeBytes.low + 64 * half);
            high_[half] = _mm512_load_si512(kSizeBytes.high + 64 * half);
        }
    }

    ALWAYS_INLINE FourOf16 operator()(const int8_t* from) const {
        const __m512i codes = _mm512_loadu_si512(from);
        const __m512i low = _mm512_permutex2var_epi8(low_[0], codes, low_[1]);  // bit 7 is not looked at
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
                found.pairs[pair][v] = pair_up(widen(even), widen(even + kPanelWidth));
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

// The levels of a register of words, for the codes that begin at bit `shift`.
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

// The first bit of the code of number k.
constexpr int code_shift(int k) { return k % 2 * 16 + k / 2 * 4; }

// One row alone would wait for each sum before the next product can be added to it: few rows have two sums each, as
// far as there are registers for them.
template <int Rows>
constexpr int kWays = !kBatchInvariant && Rows <= (kMaxRows < 12 ? 1 : 4) ? 2 : 1;

template <int Ways, int Rows, int Panels>
ALWAYS_INLINE void join(const Sums<Rows * Ways, Panels>& ways, Sums<Rows, Panels>& sums) {
    for (int row = 0; row < Rows; row++) {
        for (int v = 0; v < Panels * kVectors; v++) {
            sums.at[row][v] = ways.at[row * Ways][v];
            for (int way = 1; way < Ways; way++) sums.at[row][v] += ways.at[row * Ways + way][v];
        }
    }
}

// As in panels.h.
template <int Rows, int Panels, class Fetch>
ALWAYS_INLINE void multiply(const float* a, int64_t a_stride, Int8Panels b, int64_t depth, Fetch fetch,
                            Sums<Rows, Panels>& sums) {
    const int64_t size = depth * kPanelWidth;
    [[maybe_unused]] const Int8Reader read;
    for (int64_t k = 0; k < depth; k += 4, fetch.advance()) {  // a line
        for (int p = 0; p < Panels; p++) fetch.fetch(b.codes + p * size + k * kPanelWidth, p);
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
            __builtin_prefetch(from + Panels * b.num_groups() * kPanelWidth);  // the next panels': no stream of their own
            const Floats scale = load(from);
            for (int row = 0; row < Rows; row++) {
                Floats& sum = sums.at[row][p * kVectors + v];
                sum = multiply_add(part.at[row][p * kVectors + v], scale, sum);
            }
        }
    }
}

template <int Rows, int Panels, class Fetch>
ALWAYS_INLINE void multiply(const float* a, int64_t a_stride, Int4Panels b, int64_t depth, Fetch fetch,
                            Sums<Rows, Panels>& sums) {
    constexpr int ways = kWays<Rows>;
    const Levels levels;
    for (int64_t group = 0; group * kGroup < depth; group++) {
        Sums<Rows * ways, Panels> apart;
        const int64_t end = std::min(depth, (group + 1) * kGroup);
        for (int64_t k = group * kGroup; k < end; k += kCodesDeep, fetch.advance()) {
            Bits words[Panels * kVectors];
            for (int p = 0; p < Panels; p++) {
                const uint32_t* from = b.codes + p * b.num_words() + k / kCodesDeep * kPanelWidth;
                fetch.fetch(from, p);
                for (int v = 0; v < kVectors; v++) memcpy(&words[p * kVectors + v], from + v * kWidth, sizeof(Bits));
            }
#pragma GCC unroll 8
            for (int i = 0; i < kCodesDeep; i++) {
                Floats columns[Panels * kVectors];
                for (int v = 0; v < Panels * kVectors; v++) columns[v] = levels(words[v], code_shift(i));
                for (int row = 0; row < Rows; row++) {
                    const Floats value = broadcast(a[row * a_stride + k + i]);
                    Floats* at = apart.at[row * ways + i % ways];
                    for (int v = 0; v < Panels * kVectors; v++) at[v] += value * columns[v];
                }
            }
        }
        Sums<Rows, Panels> part;
        join<ways>(apart, part);
        add_scaled(part, b, group, sums);
    }
}

#if defined(STOKER_PAIR_PRODUCTS)
// sums of the given way += a pair of numbers of every row times a pair of every column.
template <int Ways, int Rows, int Panels>
ALWAYS_INLINE void add_pairs(const BFloat16* a, int64_t a_stride, const __m512i (&pairs)[Panels], int way,
                             Sums<Rows * Ways, Panels>& sums) {
    for (int row = 0; row < Rows; row++) {
        int32_t pair;
        memcpy(&pair, a + row * a_stride, sizeof pair);
        const __m512i value = _mm512_set1_epi32(pair);
        for (int p = 0; p < Panels; p++) {
            Floats& sum = sums.at[row * Ways + way % Ways][p];
            sum = add_pair_products(sum, value, pairs[p]);
        }
    }
}

template <int Rows, int Panels, class Fetch>
ALWAYS_INLINE void multiply(const BFloat16* a, int64_t a_stride, Int8Panels b, int64_t depth, Fetch fetch,
                            Sums<Rows, Panels>& sums) {
    constexpr int ways = kWays<Rows>;
    const int64_t size = depth * kPanelWidth;
    const Int8Reader read;
    Sums<Rows * ways, Panels> apart;
    for (int64_t k = 0; k < depth; k += 4, fetch.advance()) {  // a line
        FourOf16 four[Panels];
        for (int p = 0; p < Panels; p++) {
            fetch.fetch(b.codes + p * size + k * kPanelWidth, p);
            four[p] = read(b.codes + p * size + k * kPanelWidth);
        }
        for (int i = 0; i < 2; i++) {
            __m512i pairs[Panels];
            for (int p = 0; p < Panels; p++) pairs[p] = (__m512i)four[p].pairs[i][0];
            add_pairs<ways, Rows>(a + k + 2 * i, a_stride, pairs, i, apart);
        }
    }
    join<ways>(apart, sums);
}

template <int Rows, int Panels, class Fetch>
ALWAYS_INLINE void multiply(const BFloat16* a, int64_t a_stride, Int4Panels b, int64_t depth, Fetch fetch,
                            Sums<Rows, Panels>& sums) {
    constexpr int ways = kWays<Rows>;
    // vpermw looks at five bits of a code: the table stands there twice, so that the fifth does not matter.
    uint16_t table[32];
    for (int i = 0; i < 32; i++) {
        const float level = kLevels[i % 16];
        memcpy(&table[i], reinterpret_cast<const char*>(&level) + 2, sizeof table[i]);
    }
    const __m512i levels = _mm512_loadu_si512(table);
    for (int64_t group = 0; group * kGroup < depth; group++) {
        Sums<Rows * ways, Panels> apart;
        const int64_t end = std::min(depth, (group + 1) * kGroup);
        for (int64_t k = group * kGroup; k < end; k += kCodesDeep, fetch.advance()) {
            __m512i words[Panels];
            for (int p = 0; p < Panels; p++) {
                const uint32_t* from = b.codes + p * b.num_words() + k / kCodesDeep * kPanelWidth;
                fetch.fetch(from, p);
                words[p] = _mm512_loadu_si512(from);
            }
#pragma GCC unroll 4
            for (int i = 0; i < kCodesDeep; i += 2) {
                __m512i pairs[Panels];
                for (int p = 0; p < Panels; p++) {
                    pairs[p] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words[p], i * 2), levels);
                }
                add_pairs<ways, Rows>(a + k + i, a_stride, pairs, i / 2, apart);
            }
        }
        Sums<Rows, Panels> part;
        join<ways>(apart, part);
        add_scaled(part, b, group, sums);
    }
}
#endif

// One unit into its place of a bfloat16 panel. int8 loses nothing, since its scales are left for the sums; int4 has its
// scales in them, and is rounded.
ALWAYS_INLINE void unpack_unit(const Int8Panels& panel, int64_t unit, BFloat16* to) {
    const Int8Reader read;
    const int8_t* from = panel.codes + unit * kUnitNumbers;
    to += unit * kUnitNumbers;
    for (int64_t i = 0; i < kUnitNumbers; i += 4 * kPanelWidth) {
        __builtin_prefetch(from + i + 2 * panel.panel_bytes());
        const FourOf16 four = read(from + i);
        memcpy(to + i, &four, sizeof four);
    }
}

ALWAYS_INLINE void unpack_unit(const Int4Panels& panel, int64_t unit, BFloat16* to) {
    const Levels levels;
    const uint32_t* from = panel.codes + unit * kPanelWidth;
    to += unit * kUnitNumbers;
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
ALWAYS_INLINE void complete(const Weights&, BFloat16*) {}

// As many rows multiply codes that are widened in registers; beyond, unpacking once for all is less work.
#if defined(TILES)
constexpr int64_t kMaxInt8Rows = kMaxVectorRows, kMaxInt4Rows = kMaxVectorRows;
#elif defined(__AVX512F__)
constexpr int64_t kMaxInt8Rows = 64, kMaxInt4Rows = 48;
#elif defined(__AVX2__)
constexpr int64_t kMaxInt8Rows = 64, kMaxInt4Rows = 8;
#else
constexpr int64_t kMaxInt8Rows = 2, kMaxInt4Rows = 2;
#endif

// Unpacked int4 weights are rounded, so their sums are not those of the codes; int8's are. Tiles take no codes.
#if defined(TILES)
constexpr bool kInt4IsDirect = false;
#else
constexpr bool kInt4IsDirect = kBatchInvariant;
#endif

constexpr int64_t max_direct_rows(const Int8Panels&) { return kMaxInt8Rows; }
constexpr int64_t max_direct_rows(const Int4Panels&) { return kInt4IsDirect ? INT64_MAX : kMaxInt4Rows; }
