// Panels (panels.h) of a checkpoint's own codes, with a scale for each group of inputs, and the products over them.
//
// Element [k] of an output is (level[code] - zero) * scale - minimum. Levels and zeros are numbers that bfloat16 holds
// exactly, so that products with x in bfloat16 are those of the checkpoint's numbers; with at most one of zero and minimum,
// what they subtract from a sum is their product with the sum of x over the group.
//
// A panel is a sequence of blocks, each with the following for 16 outputs, padded to whole lines:
//   codes: 4 bits: [K / 8][16] words, as int4 has them (quantised.h).
//          6 bits: [K / 16][3][16] words, whose lower halves have the codes of even k, the upper halves those of odd k:
//                  two codes of each of three halves and, from their highest four bits, two more.
//          8 bits: sign and 7 bits of magnitude, in the order of int8 (quantised.h).
//   scales: [groups][16]; zeros in bfloat16 or minima in the type of the scales: [groups][16];
//   outer factors of the scales, then of the minima: [16] each, in the type that the format says.
#pragma once

#include <climits>

#include "quantised.h"

// What pack_grouped.py writes: the same for all panels of a weight.
struct GroupedFormat {
    int64_t bits;      // 4, 6 or 8
    int64_t group;     // k that share a scale: a multiple of kStep
    int64_t block;     // k of a block: whole groups
    int64_t scale;     // a NumberType
    int64_t outer;     // a NumberType
    int64_t offset;    // an OffsetType
    const int32_t* order;  // [depth] k of x for each k of the weight; null: its own
    int64_t stride;        // elements from a row of y to the next
    float levels[128];     // of 8 bits those of the magnitudes
    uint16_t halves[64];   // the levels in bfloat16, those of 4 bits repeated
    uint8_t low[128], high[128];  // the bytes of the levels of 8 bits in bfloat16
};
enum NumberType : int64_t { kNone, kFloat32, kFloat16, kBFloat16, kUInt8, kInt8 };
enum OffsetType : int64_t { kNoOffset, kZeros, kMinima };

constexpr int64_t bytes_of_number(int64_t type) {
    return type == kNone ? 0 : type == kFloat32 ? 4 : type == kFloat16 || type == kBFloat16 ? 2 : 1;
}

// float16 by arithmetic on bits: the exponents of finite numbers differ by 112.
ALWAYS_INLINE Floats widen_float16(Bits halves) {
    const Floats size = (Floats)((halves & 0x7fffu) << 13) * 0x1p112f;
    return (Floats)((Bits)size | (halves & 0x8000u) << 16);
}

// Bytes as integers. Left to the compiler, each byte would be extracted by itself.
ALWAYS_INLINE Ints widen_bytes(const char* from) {
#if defined(__AVX512F__)
    return (Ints)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
    return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
    Ints wide;
    for (int i = 0; i < kWidth; i++) wide[i] = uint8_t(from[i]);
    return wide;
#endif
}

// A register of consecutive numbers of a type.
ALWAYS_INLINE Floats load_numbers(const char* from, int64_t type) {
    HalfBits halves;
    switch (type) {
        case kFloat32:
            return load(reinterpret_cast<const float*>(from));
        case kBFloat16:
            return load(reinterpret_cast<const BFloat16*>(from));
        case kFloat16:
            memcpy(&halves, from, sizeof halves);
            return widen_float16(widen(halves));
        case kUInt8:
            return __builtin_convertvector(widen_bytes(from), Floats);
        default:
            return __builtin_convertvector(widen_bytes(from) << 24 >> 24, Floats);
    }
}

ALWAYS_INLINE float widen_one_number(const char* from, int64_t type) {
    char padded[kWidth * sizeof(float)] = {};
    memcpy(padded, from, bytes_of_number(type));
    return load_numbers(padded, type)[0];
}

// The scales and offsets of one panel's blocks.
struct GroupedBlock {
    const char* at;  // the block's first byte

    static int64_t codes_bytes(const GroupedFormat& format) { return format.block * 2 * format.bits; }
    static int64_t row_bytes(const GroupedFormat& format) { return kPanelWidth * bytes_of_number(format.scale); }
    static int64_t offset_bytes(const GroupedFormat& format) {
        return format.offset == kNoOffset ? 0
               : format.offset == kZeros  ? kPanelWidth * bytes_of_number(kBFloat16)
                                          : row_bytes(format);
    }
    static int64_t outer_bytes(const GroupedFormat& format) { return kPanelWidth * bytes_of_number(format.outer); }
    static int64_t bytes(const GroupedFormat& format) {
        const int64_t groups = format.block / format.group, outers = format.offset == kMinima ? 2 : 1;
        const int64_t all = codes_bytes(format) + groups * (row_bytes(format) + offset_bytes(format)) +
                            outers * outer_bytes(format);
        return (all + kLine - 1) / kLine * kLine;
    }

    const char* scales(const GroupedFormat& format, int64_t group) const {
        return at + codes_bytes(format) + group * row_bytes(format);
    }
    const char* offsets(const GroupedFormat& format, int64_t group) const {
        return scales(format, format.block / format.group) + group * offset_bytes(format);
    }
    const char* outers(const GroupedFormat& format, int which) const {
        return offsets(format, format.block / format.group) + which * outer_bytes(format);
    }
};

template <int CodeBits>
struct GroupedPanels {
    static constexpr bool kUnpacksWhileMultiplying = false;
    static constexpr int kMaxSinglePanelRows = 2;
    static constexpr int kMaxBlockRows = kMaxRows / 2;  // registers hold the sums of a group and those of all groups
    static constexpr PrefetchMode kPrefetch = PrefetchMode::kNext;
    // k that are read in one step, and the bytes of their codes
    static constexpr int64_t kStep = CodeBits == 6 ? 16 : CodeBits == 4 ? 8 : 4;
    static constexpr int64_t kStepBytes = kStep * 2 * CodeBits;
    const char* panels;
    const GroupedFormat* format;
    int64_t depth;

    GroupedPanels from(int64_t panel) const { return {panels + panel * panel_bytes(), format, depth}; }
    const char* address() const { return panels; }
    int64_t block_bytes() const { return GroupedBlock::bytes(*format); }
    int64_t panel_bytes() const { return depth / format->block * block_bytes(); }
};

// Reads a step of codes: for each two consecutive k a register with the level of the first in the lower halves of its lanes
// and that of the second in the upper halves, in bfloat16.
template <int CodeBits>
class GroupedReader;

// The levels whose indices are the lowest bits of the halves of each lane.
template <int CodeBits>
class HalfLevels {
  public:
    explicit ALWAYS_INLINE HalfLevels(const GroupedFormat& format) {
#if defined(__AVX512BW__)
        low_ = _mm512_loadu_si512(format.halves);
        if constexpr (CodeBits == 6) high_ = _mm512_loadu_si512(format.halves + 32);
#else
        levels_ = format.levels;
#endif
    }

    ALWAYS_INLINE Bits operator()(Bits indices) const {
#if defined(__AVX512BW__)
        if constexpr (CodeBits == 6) return (Bits)_mm512_permutex2var_epi16(low_, (__m512i)indices, high_);
        return (Bits)_mm512_permutexvar_epi16((__m512i)indices, low_);
#else
        return pack_pairs(level(indices), level(indices >> 16));
#endif
    }

  private:
#if defined(__AVX512BW__)
    __m512i low_, high_;
#else
    ALWAYS_INLINE Floats level(Bits indices) const {
        constexpr uint32_t mask = (1 << CodeBits) - 1;
#if defined(__AVX2__)
        return (Floats)_mm256_i32gather_ps(levels_, (__m256i)(indices & mask), 4);
#else
        Floats found;
        for (int i = 0; i < kWidth; i++) found[i] = levels_[indices[i] & mask];
        return found;
#endif
    }
    const float* levels_;
#endif
};

ALWAYS_INLINE Bits load_words(const char* from) {
    Bits words;
    memcpy(&words, from, sizeof words);
    return words;
}

// A shift of both halves of each lane whose upper bits have no effect.
ALWAYS_INLINE Bits shift_halves(Bits words, int count) {
#if defined(__AVX512BW__)
    return (Bits)_mm512_srli_epi16((__m512i)words, count);
#else
    return words >> count;
#endif
}

template <>
class GroupedReader<4> {
  public:
    explicit ALWAYS_INLINE GroupedReader(const GroupedFormat& format) : levels_(format) {}

    ALWAYS_INLINE void operator()(const char* from, int v, Bits (&pairs)[4]) const {
        const Bits words = load_words(from + v * sizeof(Bits));
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) pairs[i] = levels_(shift_halves(words, 4 * i));
    }

  private:
    HalfLevels<4> levels_;
};

template <>
class GroupedReader<6> {
  public:
    explicit ALWAYS_INLINE GroupedReader(const GroupedFormat& format) : levels_(format) {}

    ALWAYS_INLINE void operator()(const char* from, int v, Bits (&pairs)[8]) const {
        Bits words[3];
        for (int i = 0; i < 3; i++) {
            words[i] = load_words(from + i * kLine + v * sizeof(Bits));
            pairs[2 * i] = levels_(words[i]);
            pairs[2 * i + 1] = levels_(shift_halves(words[i], 6));
        }
        const Bits rest =
            (words[0] >> 12 & 0x000f000fu) | (words[1] >> 8 & 0x00f000f0u) | (words[2] >> 4 & 0x0f000f00u);
        pairs[6] = levels_(rest);
        pairs[7] = levels_(shift_halves(rest, 6));
    }

  private:
    HalfLevels<6> levels_;
};

#if defined(STOKER_PAIR_PRODUCTS)
template <>
class GroupedReader<8> {
  public:
    explicit ALWAYS_INLINE GroupedReader(const GroupedFormat& format) : read_(format.low, format.high) {}

    ALWAYS_INLINE void operator()(const char* from, int, Bits (&pairs)[2]) const {
        const FourOf16 four = read_(reinterpret_cast<const int8_t*>(from));
        for (int i = 0; i < 2; i++) pairs[i] = four.pairs[i][0];
    }

  private:
    Int8Reader read_;
};
#else
template <>
class GroupedReader<8> {
  public:
    explicit ALWAYS_INLINE GroupedReader(const GroupedFormat& format) : levels_(format.levels) {}

    ALWAYS_INLINE void operator()(const char* from, int v, Bits (&pairs)[2]) const {
        for (int i = 0; i < 2; i++) {
            const char* even = from + 2 * i * kPanelWidth + v * kWidth;
            pairs[i] = pack_pairs(level(even), level(even + kPanelWidth));
        }
    }

  private:
    ALWAYS_INLINE Floats level(const char* from) const {
        const Bits codes = (Bits)widen_bytes(from), sizes = codes & 127u;
#if defined(__AVX512F__)
        const Bits found = (Bits)_mm512_i32gather_ps((__m512i)sizes, levels_, 4);
#elif defined(__AVX2__)
        const Bits found = (Bits)_mm256_i32gather_ps(levels_, (__m256i)sizes, 4);
#else
        Bits found;
        for (int i = 0; i < kWidth; i++) memcpy(&found[i], levels_ + sizes[i], sizeof(float));
#endif
        return (Floats)(found | (codes & 128u) << 24);
    }
    const float* levels_;
};
#endif

// Rows of x, and their negated sums over each group of k if the weights have offsets.
template <class A>
struct SummedRows {
    SpacedRows<A> rows;
    const float* sums;
    int64_t groups;
};
template <class A>
ALWAYS_INLINE SummedRows<A> rows_from(SummedRows<A> x, int64_t row, int64_t depth) {
    return {rows_from(x.rows, row, depth), x.sums + row * x.groups, x.groups};
}
template <class A>
ALWAYS_INLINE const char* address_of(SummedRows<A> x) {
    return address_of(x.rows);
}
template <class A>
ALWAYS_INLINE int64_t bytes_of_row(SummedRows<A> x, int64_t depth) {
    return bytes_of_row(x.rows, depth);
}

// sums += the products of two consecutive k of each row with the same k of a column, for one accumulator of each row.
template <int Accumulators, int Rows, int Panels, class A>
ALWAYS_INLINE void add_level_products(SpacedRows<A> a, int64_t k, const Bits (&pairs)[Panels * kVectors],
                                      int accumulator, Sums<Rows * Accumulators, Panels>& sums) {
    for (int row = 0; row < Rows; row++) {
        const A* from = a.first + row * a.stride + k;
        Floats* at = sums.at[row * Accumulators + accumulator % Accumulators];
#if defined(STOKER_PAIR_PRODUCTS)
        if constexpr (std::is_same_v<A, BFloat16>) {
            int32_t pair;
            memcpy(&pair, from, sizeof pair);
            const __m512i value = _mm512_set1_epi32(pair);
            for (int i = 0; i < Panels * kVectors; i++) at[i] = add_pair_products(at[i], value, (__m512i)pairs[i]);
            continue;
        }
#endif
        if constexpr (std::is_same_v<A, float>) {
            const Floats first = broadcast(from[0]), second = broadcast(from[1]);
            for (int i = 0; i < Panels * kVectors; i++) at[i] += first * (Floats)(pairs[i] << 16);
            for (int i = 0; i < Panels * kVectors; i++) at[i] += second * (Floats)(pairs[i] & 0xffff0000u);
        }
    }
}

// The types of scales and offsets: known to the compiler, or only at run time.
template <int64_t Scale, int64_t Offset>
struct FixedTypes {
    static constexpr int64_t scale = Scale, offset = Offset;
};
struct AnyTypes {
    int64_t scale, offset;
};

// Calls body(types, group) with types and the size of a group that are constants for K-quants of GGUF, whose groups are
// so short that finding these out for each of them would take a quarter of the time.
template <int CodeBits, class Body>
ALWAYS_INLINE void with_types(const GroupedFormat& format, const Body& body) {
    if (CodeBits == 4 && format.scale == kUInt8 && format.offset == kMinima && format.group == 32) {
        return body(FixedTypes<kUInt8, kMinima>{}, std::integral_constant<int64_t, 32>{});
    }
    if (CodeBits == 6 && format.scale == kInt8 && format.offset == kNoOffset && format.group == 16) {
        return body(FixedTypes<kInt8, kNoOffset>{}, std::integral_constant<int64_t, 16>{});
    }
    body(AnyTypes{format.scale, format.offset}, format.group);
}

template <int Rows, int Panels, class Prefetch, class A, int CodeBits, class Types, class Group>
ALWAYS_INLINE void multiply_groups(SummedRows<A> a, GroupedPanels<CodeBits> b, int64_t depth, Prefetch prefetch,
                                   Types types, Group group_size, Sums<Rows, Panels>& sums) {
    constexpr int accumulators = kAccumulators<Rows>, vectors = Panels * kVectors;
    constexpr int64_t step = GroupedPanels<CodeBits>::kStep, step_bytes = GroupedPanels<CodeBits>::kStepBytes;
    const GroupedFormat& format = *b.format;
    const GroupedReader<CodeBits> read(format);
    const int64_t panel_bytes = b.panel_bytes(), block_bytes = b.block_bytes(), groups = format.block / group_size;
    const int64_t codes_bytes = GroupedBlock::codes_bytes(format);
    int64_t k = 0, group = 0;
    for (const char* block = b.panels; k < depth; block += block_bytes) {
        Floats outers[2][vectors];
        for (int p = 0; p < Panels; p++) {
            const GroupedBlock own{block + p * panel_bytes};
            for (int v = 0; v < kVectors; v++) {
                const int64_t at = v * kWidth * bytes_of_number(format.outer);
                for (int i = 0; i < 2; i++) {
                    outers[i][p * kVectors + v] =
                        format.outer && (i == 0 || types.offset == kMinima)
                            ? load_numbers(own.outers(format, i) + at, format.outer)
                            : broadcast(1);
                }
            }
        }
        for (int64_t line = codes_bytes; line < block_bytes; line += kLine, prefetch.advance()) {
            for (int p = 0; p < Panels; p++) prefetch.prefetch(block + p * panel_bytes + line, p);
        }
        const char* codes = block;
        for (int64_t own = 0; own < groups; own++, group++) {
            Sums<Rows * accumulators, Panels> partial;
            for (const int64_t end = k + group_size; k < end; k += step, codes += step_bytes) {
                Bits pairs[step / 2][vectors];
                for (int64_t line = 0; line < step_bytes; line += kLine, prefetch.advance()) {
                    for (int p = 0; p < Panels; p++) prefetch.prefetch(codes + p * panel_bytes + line, p);
                }
                for (int p = 0; p < Panels; p++) {
                    for (int v = 0; v < kVectors; v++) {
                        Bits own_pairs[step / 2];
                        read(codes + p * panel_bytes, v, own_pairs);
                        for (int i = 0; i < step / 2; i++) pairs[i][p * kVectors + v] = own_pairs[i];
                    }
                }
#pragma GCC unroll 8
                for (int i = 0; i < step / 2; i++) {
                    add_level_products<accumulators, Rows, Panels>(a.rows, k + 2 * i, pairs[i], i, partial);
                }
            }
            Sums<Rows, Panels> part;
            combine<accumulators>(partial, part);
            const int64_t scale_bytes = bytes_of_number(types.scale);
            const char* scales = block + codes_bytes + own * kPanelWidth * scale_bytes;
            for (int p = 0; p < Panels; p++, scales += panel_bytes) {
                for (int v = 0; v < kVectors; v++) {
                    const int i = p * kVectors + v;
                    const char* at = scales + v * kWidth * scale_bytes;
                    const Floats scale = load_numbers(at, types.scale) * outers[0][i];
                    for (int row = 0; row < Rows; row++) {
                        sums.at[row][i] = multiply_add(part.at[row][i], scale, sums.at[row][i]);
                    }
                    if (types.offset == kNoOffset) continue;
                    const char* offsets = block + p * panel_bytes + codes_bytes + groups * kPanelWidth * scale_bytes;
                    const Floats offset =
                        types.offset == kZeros
                            ? load_numbers(offsets + (own * kPanelWidth + v * kWidth) * 2, kBFloat16) * scale
                            : load_numbers(at + groups * kPanelWidth * scale_bytes, types.scale) * outers[1][i];
                    for (int row = 0; row < Rows; row++) {
                        const Floats minus = broadcast(a.sums[row * a.groups + group]);
                        sums.at[row][i] = multiply_add(minus, offset, sums.at[row][i]);
                    }
                }
            }
        }
    }
}

// As described in panels.h.
template <int Rows, int Panels, class Prefetch, class A, int CodeBits>
ALWAYS_INLINE void multiply(SummedRows<A> a, int64_t, GroupedPanels<CodeBits> b, int64_t depth, Prefetch prefetch,
                            Sums<Rows, Panels>& sums) {
    with_types<CodeBits>(*b.format, [&](auto types, auto group) {
        multiply_groups<Rows, Panels>(a, b, depth, prefetch, types, group, sums);
    });
}

ALWAYS_INLINE Bits round_to_pairs(Floats even, Floats odd) {
#if defined(__AVX512BF16__)
    alignas(64) static constexpr uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    return (Bits)_mm512_permutexvar_epi16(_mm512_load_si512(order), halves);
#else
    return (round_to_bfloat16(even) >> 16) | (round_to_bfloat16(odd) & 0xffff0000u);
#endif
}

// Unpacks panels to bfloat16, each element rounded once. As described in unpacking.h, which calls it with unit 0.
template <int CodeBits>
void unpack(GroupedPanels<CodeBits> weights, int64_t count, int64_t, BFloat16* to) {
    constexpr int64_t step = GroupedPanels<CodeBits>::kStep, step_bytes = GroupedPanels<CodeBits>::kStepBytes;
    const GroupedFormat& format = *weights.format;
    const GroupedReader<CodeBits> read(format);
    const int64_t block_bytes = weights.block_bytes(), panel_bytes = weights.panel_bytes();
    const int64_t blocks = count * weights.depth / format.block;
    for (int64_t n = 0; n < blocks; n++) {
        const GroupedBlock block{weights.panels + n * block_bytes};
        const char* codes = block.at;
        for (int64_t group = 0; group < format.block / format.group; group++) {
            Floats scales[kVectors], offsets[kVectors];
            for (int v = 0; v < kVectors; v++) {
                const auto numbers = [&](const char* from, int64_t type) {
                    return load_numbers(from + v * kWidth * bytes_of_number(type), type);
                };
                const auto outer = [&](int which) {
                    return format.outer ? numbers(block.outers(format, which), format.outer) : broadcast(1);
                };
                scales[v] = numbers(block.scales(format, group), format.scale) * outer(0);
                offsets[v] = Floats{};
                if (format.offset == kZeros) offsets[v] = numbers(block.offsets(format, group), kBFloat16) * scales[v];
                if (format.offset == kMinima) {
                    offsets[v] = numbers(block.offsets(format, group), format.scale) * outer(1);
                }
            }
            for (int64_t k = 0; k < format.group; k += step, codes += step_bytes, to += step * kPanelWidth) {
                for (int64_t line = 0; line < step_bytes; line += kLine) {
                    __builtin_prefetch(codes + 2 * panel_bytes + line);
                }
                for (int v = 0; v < kVectors; v++) {
                    Bits pairs[step / 2];
                    read(codes, v, pairs);
                    for (int i = 0; i < step / 2; i++) {
                        const Bits rounded =
                            round_to_pairs((Floats)(pairs[i] << 16) * scales[v] - offsets[v],
                                           (Floats)(pairs[i] & 0xffff0000u) * scales[v] - offsets[v]);
                        memcpy(to + 2 * i * kPanelWidth + v * 2 * kWidth, &rounded, sizeof rounded);
                    }
                }
            }
        }
    }
}

// The code of element k of a column, in the codes of a block; and where packing stores it.
template <int CodeBits>
uint32_t code_at(const char* codes, int64_t k, int column) {
    constexpr int64_t step = GroupedPanels<CodeBits>::kStep;
    codes += k / step * GroupedPanels<CodeBits>::kStepBytes;
    k %= step;
    if constexpr (CodeBits == 8) return uint8_t(codes[Int8Panels::index(k, column)]);
    uint32_t words[3];
    for (int i = 0; i < (CodeBits == 6 ? 3 : 1); i++) {
        memcpy(words + i, codes + i * kLine + column * sizeof(uint32_t), sizeof(uint32_t));
        words[i] >>= k % 2 * 16;
    }
    const int64_t pair = k / 2;
    if constexpr (CodeBits == 4) return words[0] >> 4 * pair & 15;
    if (pair < 6) return words[pair / 2] >> pair % 2 * 6 & 63;
    const uint32_t rest = (words[0] >> 12 & 15) | (words[1] >> 12 & 15) << 4 | (words[2] >> 12 & 15) << 8;
    return rest >> (pair - 6) * 6 & 63;
}

// Up to this number of rows multiply codes that are converted in registers.
template <int CodeBits>
constexpr int64_t max_direct_rows(const GroupedPanels<CodeBits>&) {
    return kInt4IsDirect ? INT64_MAX : std::min<int64_t>(kMaxInt4Rows, 24);
}
