// Products of activations and quantised weights in integers (`model.activation_quantization`).
//
// Each row of x is rounded to int8 with one scale, its largest magnitude / 127. Weights are unsigned bytes, value + 128,
// since the instructions multiply unsigned by signed bytes. The sum of (w + 128) x is that of w x plus 128 times the sum
// of x, which is known for each row. Sums of integers are exact: results depend neither on the order of additions nor on
// the other rows, and tiles and vectors give the same bits. A sum wraps around at 2**32, which has no effect for depths
// up to 2**17.
//
//   int8 weights: BytePanels.
//   int4 weights: those of quantised.h. A look-up in the lower halves of the bytes of a word gives k = 0, 4, 1, 5, in the
//   upper halves k = 2, 6, 3, 7, so each row of x is stored in this order. Every group of 64 k has a sum.
#pragma once

#include "quantised.h"

constexpr int64_t kIntegerDepthStep = 64;  // depths are a multiple: a tile of bytes, a group of int4
static_assert(kIntegerDepthStep == kGroup);

struct BytePanels {
    static constexpr int kMaxBlockRows = kMaxRows, kMaxSinglePanelRows = 4;
    static constexpr PrefetchMode kPrefetch = PrefetchMode::kNext;
    const uint8_t* codes;
    int64_t depth;

    BytePanels from(int64_t panel) const { return {codes + panel * depth * kPanelWidth, depth}; }
    const char* address() const { return reinterpret_cast<const char*>(codes); }
    int64_t panel_bytes() const { return depth * kPanelWidth; }

    static int64_t index(int64_t k, int column) { return k / 4 * 4 * kPanelWidth + column * 4 + k % 4; }
    static uint8_t code_of(int32_t value) { return uint8_t(value + 128); }
    static int value_of(uint8_t code) { return code - 128; }
};

// Rows of x as integers.
struct IntegerRows {
    const int8_t* codes;     // [rows, depth]
    const float* scales;     // [rows]
    const int32_t* offsets;  // [rows, groups]: -128 times the sum of the codes of a group
    int64_t groups;          // 1 for int8 weights

    ALWAYS_INLINE uint32_t offset(int64_t row, int64_t group) const { return uint32_t(offsets[row * groups + group]); }
};
ALWAYS_INLINE IntegerRows rows_from(IntegerRows x, int64_t row, int64_t depth) {
    return {x.codes + row * depth, x.scales + row, x.offsets + row * x.groups, x.groups};
}
ALWAYS_INLINE const char* address_of(IntegerRows x) { return reinterpret_cast<const char*>(x.codes); }
ALWAYS_INLINE int64_t bytes_of_row(IntegerRows, int64_t depth) { return depth; }

// Four k of a register of columns, and of a row.
#if defined(__AVX512VNNI__)
typedef Bits ByteColumns;
typedef int32_t FourBytes;

ALWAYS_INLINE ByteColumns columns_of(Bits bytes) { return bytes; }
ALWAYS_INLINE FourBytes four_bytes(const int8_t* from) {
    int32_t four;
    memcpy(&four, from, sizeof four);
    return four;
}
ALWAYS_INLINE Bits add_byte_products(Bits sums, ByteColumns columns, FourBytes four) {
    return (Bits)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)columns, _mm512_set1_epi32(four));
}
#else
// Bytes 0 and 2 of each lane, and bytes 1 and 3, as integers of 16 bits.
struct ByteColumns {
    Bits even, odd;
};
typedef ByteColumns FourBytes;
typedef int16_t Words __attribute__((vector_size(kWidth * 4)));

ALWAYS_INLINE ByteColumns columns_of(Bits bytes) { return {bytes & 0x00ff00ffu, bytes >> 8 & 0x00ff00ffu}; }
ALWAYS_INLINE FourBytes four_bytes(const int8_t* from) {
    uint32_t four;
    memcpy(&four, from, sizeof four);
    const Words words = (Words)(Bits{} + four);
    return {(Bits)((Words)((Bits)words << 8) >> 8), (Bits)(words >> 8)};
}
ALWAYS_INLINE Bits multiply_pairs(Bits a, Bits b) {  // the sums of the products of two words of 16 bits
#if defined(__AVX512BW__)
    return (Bits)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (Bits)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    const Ints low = ((Ints)a << 16 >> 16) * ((Ints)b << 16 >> 16), high = ((Ints)a >> 16) * ((Ints)b >> 16);
    return (Bits)low + (Bits)high;
#endif
}
ALWAYS_INLINE Bits add_byte_products(Bits sums, ByteColumns columns, FourBytes four) {
    return sums + multiply_pairs(columns.even, four.even) + multiply_pairs(columns.odd, four.odd);
}
#endif

template <int Rows, int Panels>
struct IntegerSums {
    Bits at[Rows][Panels * kVectors];

    ALWAYS_INLINE IntegerSums() {  // element by element, like Sums in panels.h
        for (int row = 0; row < Rows; row++) {
            for (int v = 0; v < Panels * kVectors; v++) at[row][v] = Bits{};
        }
    }
};

ALWAYS_INLINE Floats to_floats(Bits sums) { return __builtin_convertvector((Ints)sums, Floats); }

// Few rows have two accumulators each: an addition would wait for the previous one.
template <int Rows>
constexpr int kIntegerAccumulators = Rows <= (kMaxRows < 12 ? 1 : 4) ? 2 : 1;

// As described in panels.h, with the scale of the row applied.
template <int Rows, int Panels, class Prefetch>
ALWAYS_INLINE void multiply(IntegerRows a, int64_t a_stride, BytePanels b, int64_t depth, Prefetch prefetch,
                            Sums<Rows, Panels>& sums) {
    constexpr int accumulators = kIntegerAccumulators<Rows>;
    IntegerSums<Rows * accumulators, Panels> partial;
    for (int64_t k = 0; k < depth; k += 4 * accumulators) {
#pragma GCC unroll 2
        for (int i = 0; i < accumulators; i++, prefetch.advance()) {
            ByteColumns columns[Panels * kVectors];
            for (int p = 0; p < Panels; p++) {
                const uint8_t* from = b.codes + p * b.panel_bytes() + (k + 4 * i) * kPanelWidth;
                prefetch.prefetch(from, p);
                for (int v = 0; v < kVectors; v++) {
                    Bits bytes;
                    memcpy(&bytes, from + v * 4 * kWidth, sizeof bytes);
                    columns[p * kVectors + v] = columns_of(bytes);
                }
            }
            for (int row = 0; row < Rows; row++) {
                const FourBytes four = four_bytes(a.codes + row * a_stride + k + 4 * i);
                Bits* at = partial.at[row * accumulators + i];
                for (int v = 0; v < Panels * kVectors; v++) at[v] = add_byte_products(at[v], columns[v], four);
            }
        }
    }
    for (int row = 0; row < Rows; row++) {
        for (int v = 0; v < Panels * kVectors; v++) {
            Bits total = partial.at[row * accumulators][v] + a.offset(row, 0);
            for (int i = 1; i < accumulators; i++) total += partial.at[row * accumulators + i][v];
            sums.at[row][v] = to_floats(total) * a.scales[row];
        }
    }
}

struct ByteLevelTable {
    alignas(16) uint8_t level[16];

    constexpr ByteLevelTable() : level{} {
        for (int i = 0; i < 16; i++) level[i] = uint8_t(kLevels[i] + 128);
    }
};
inline constexpr ByteLevelTable kByteLevels;

// Looks up the lower half of every byte, the code of an int4 weight. Returns levels + 128.
ALWAYS_INLINE Bits look_up_levels(Bits codes) {
    const Bits lower = codes & 0x0f0f0f0fu;
#if defined(__AVX512BW__)
    const __m512i table = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)kByteLevels.level));
    return (Bits)_mm512_shuffle_epi8(table, (__m512i)lower);
#elif defined(__AVX2__)
    const __m256i table = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)kByteLevels.level));
    return (Bits)_mm256_shuffle_epi8(table, (__m256i)lower);
#else
    uint8_t bytes[sizeof lower];
    memcpy(bytes, &lower, sizeof lower);
    for (uint8_t& byte : bytes) byte = kByteLevels.level[byte];
    Bits found;
    memcpy(&found, bytes, sizeof found);
    return found;
#endif
}

template <int Rows, int Panels, class Prefetch>
ALWAYS_INLINE void multiply(IntegerRows a, int64_t a_stride, Int4Panels b, int64_t depth, Prefetch prefetch,
                            Sums<Rows, Panels>& sums) {
    constexpr int accumulators = kIntegerAccumulators<Rows>;
    for (int64_t group = 0; group * kGroup < depth; group++) {
        IntegerSums<Rows * accumulators, Panels> partial;
        for (int64_t k = group * kGroup; k < (group + 1) * kGroup; k += kCodesDeep, prefetch.advance()) {
            Bits words[Panels * kVectors];
            for (int p = 0; p < Panels; p++) {
                const uint32_t* from = b.codes + p * b.num_words() + k / kCodesDeep * kPanelWidth;
                prefetch.prefetch(from, p);
                for (int v = 0; v < kVectors; v++) memcpy(&words[p * kVectors + v], from + v * kWidth, sizeof(Bits));
            }
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                ByteColumns columns[Panels * kVectors];
                for (int v = 0; v < Panels * kVectors; v++) columns[v] = columns_of(look_up_levels(words[v] >> 4 * i));
                for (int row = 0; row < Rows; row++) {
                    const FourBytes four = four_bytes(a.codes + row * a_stride + k + 4 * i);
                    Bits* at = partial.at[row * accumulators + i % accumulators];
                    for (int v = 0; v < Panels * kVectors; v++) at[v] = add_byte_products(at[v], columns[v], four);
                }
            }
        }
        Sums<Rows, Panels> part;
        for (int row = 0; row < Rows; row++) {
            for (int v = 0; v < Panels * kVectors; v++) {
                Bits total = partial.at[row * accumulators][v] + a.offset(row, group);
                for (int i = 1; i < accumulators; i++) total += partial.at[row * accumulators + i][v];
                part.at[row][v] = to_floats(total);
            }
        }
        add_scaled(part, b, group, sums);
    }
    for (int row = 0; row < Rows; row++) {
        // Not `*`, which the compiler could join with the addition of a bias, differently for each number of rows.
        for (Floats& sum : sums.at[row]) sum = multiply_add(sum, broadcast(a.scales[row]), Floats{});
    }
}

#if defined(TILES)
// With at most this number of rows vectors multiply: most of a tile would be empty. Measured on a Sapphire Rapids; results
// do not depend on it. The groups of int4 are scaled by vectors after every tile, so tiles need more rows to win.
constexpr int64_t max_vector_rows(const BytePanels&) { return 7; }
constexpr int64_t max_vector_rows(const Int4Panels&) { return 24; }

ALWAYS_INLINE Bits load_bits(const float* from) {
    Bits bits;
    memcpy(&bits, from, sizeof bits);
    return bits;
}

template <class T>
void multiply_by_tiles(const Layer<T>& layer, IntegerRows x, int64_t rows, BytePanels weights, int64_t panel,
                       int64_t end, T* y) {
    TileRegisters tiles;
    for (; panel < end; panel += 2, weights = weights.from(2)) {
        const int64_t neighbour = panel + 1 < layer.num_panels() ? weights.panel_bytes() : 0;
        for_each_tile_block(tiles, rows, [&](int64_t row, int count) {
            const IntegerRows block = rows_from(x, row, layer.depth);
            BlockSums sums;
            const auto multiply_block = [&](auto&& meanwhile) {
                multiply_tiles<ByteTiles>(block.codes, layer.depth, weights.codes, neighbour,
                                          layer.depth / kTileRowBytes, meanwhile, count, false, sums.tiles(count));
            };
            row ? multiply_block(Nothing{}) : multiply_block(PrefetchPanels{});
            finish_tiles(count, layer, panel, y + layer.row(row), [&](int i, int p, int v) {
                const Bits total = load_bits(&sums.at[p][i][v * kWidth]);
                return to_floats(total + block.offset(i, 0)) * block.scales[i];
            });
        });
    }
}

// Two panels of int4 weights as levels + 128, in the order of the codes.
inline void unpack_levels(Int4Panels weights, int64_t count, uint32_t* to) {
    for (int64_t word = 0; word < count * weights.num_words(); word += kWidth, to += 2 * kWidth) {
        __builtin_prefetch(weights.codes + word + 2 * weights.num_words());
        Bits words;
        memcpy(&words, weights.codes + word, sizeof words);
        for (int i = 0; i < 2; i++) {
            const Bits levels = look_up_levels(words >> 4 * i);
            memcpy(to + i * kWidth, &levels, sizeof levels);
        }
    }
}

// A tile of depth is a group of 64 k, whose sums are scaled and added by vectors.
template <class T>
void multiply_by_tiles(const Layer<T>& layer, IntegerRows x, int64_t rows, Int4Panels weights, int64_t panel,
                       int64_t end, T* y) {
    static thread_local Scratch scratch;
    const int64_t panel_words = 2 * weights.num_words();
    uint32_t* levels = scratch.reserve<uint32_t>(2 * panel_words);
    TileRegisters tiles;
    for (; panel < end; panel += 2, weights = weights.from(2)) {
        const int64_t neighbour = panel + 1 < layer.num_panels() ? 1 : 0;
        unpack_levels(weights, 1 + neighbour, levels);
        for_each_tile_block(tiles, rows, [&](int64_t row, int count) {
            const IntegerRows block = rows_from(x, row, layer.depth);
            BlockSums totals{}, sums;
            for (int64_t group = 0; group < weights.num_groups(); group++) {
                multiply_tiles<ByteTiles>(block.codes + group * kGroup, layer.depth,
                                          levels + group * (kTileBytes / sizeof(uint32_t)),
                                          neighbour * panel_words * int64_t(sizeof(uint32_t)), 1, Nothing{}, count, false,
                                          sums.tiles(count));
                for (int p = 0; p < 2; p++) {
                    const Floats scale =
                        load(weights.scales + (p * neighbour * weights.num_groups() + group) * kPanelWidth);
                    for (int i = 0; i < count; i++) {
                        float* at = totals.at[p][i];
                        const Bits part = load_bits(sums.at[p][i]);
                        store(at, multiply_add(to_floats(part + block.offset(i, group)), scale, load(at)));
                    }
                }
            }
            finish_tiles(count, layer, panel, y + layer.row(row), [&](int i, int p, int v) {
                const Floats total = load(&totals.at[p][i][v * kWidth]);
                return multiply_add(total, broadcast(block.scales[i]), Floats{});
            });
        });
    }
}
#endif
