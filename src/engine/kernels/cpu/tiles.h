// AMX tiles: registers of 16 rows x 64 bytes, and the instructions that multiply two of them: the fastest unit for
// bfloat16 and int8 on Xeons since Sapphire Rapids.
//
// With STOKER_EMULATED_TILES the same macros are plain C++, so that machines without AMX can test the code that uses
// them. TILES is defined if either is available.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "vector.h"

#if defined(STOKER_EMULATED_TILES)
#define TILES 1

namespace emulated {
static_assert(kWidth == 16, "one register holds a row of a tile");
struct Tile {
    uint8_t row[16][64];
};
inline thread_local Tile tiles[8];
inline thread_local int rows[8];

inline void load(int tile, const void* from, int64_t stride) {
    for (int r = 0; r < rows[tile]; r++) memcpy(tiles[tile].row[r], (const uint8_t*)from + r * stride, 64);
}
inline void store(int tile, void* to, int64_t stride) {
    for (int r = 0; r < rows[tile]; r++) memcpy((uint8_t*)to + r * stride, tiles[tile].row[r], 64);
}

// Subnormal values become zeros of the same sign.
inline Floats flush(Floats value) {
    const Bits bits = (Bits)value;
    return (bits & 0x7f800000u) != 0 ? value : (Floats)(bits & 0x80000000u);
}

// TDPBF16PS as its pseudocode in Intel's Software Developer's Manual, volume 2, defines it: the products of the even k
// and those of the odd k have a sum each, which begins at zero with every instruction; each product is added by a fused
// multiply-add, rounded to nearest even; at the end the two are added, and their sum is added to the tile. Subnormal
// operands and results are zero, whatever MXCSR says. Vectors add in another order, so that a sum that depends on which
// of the two computed it differs here as it does on the hardware.
inline void multiply(int sums, int a, int b) {
    for (int r = 0; r < rows[sums]; r++) {
        Floats even{}, odd{};
        for (int k = 0; k < 16; k++) {
            uint32_t left;
            Bits right;
            memcpy(&left, tiles[a].row[r] + 4 * k, sizeof left);
            memcpy(&right, tiles[b].row[k], sizeof right);
            const Bits pair = Bits{} + left;
            even = flush(multiply_add(flush((Floats)(pair << 16)), flush((Floats)(right << 16)), even));
            odd = flush(multiply_add(flush((Floats)(pair & 0xffff0000u)), flush((Floats)(right & 0xffff0000u)), odd));
        }
        Floats total;
        memcpy(&total, tiles[sums].row[r], sizeof total);
        total = flush(flush(total) + flush(even + odd));
        memcpy(tiles[sums].row[r], &total, sizeof total);
    }
}

// TDPBSUD: signed bytes of `a` times unsigned bytes of `b`. Integers: the order of the additions has no effect.
inline void multiply_bytes(int sums, int a, int b) {
    for (int r = 0; r < rows[sums]; r++) {
        Bits total;
        memcpy(&total, tiles[sums].row[r], sizeof total);
        for (int k = 0; k < 16; k++) {
            Bits right;
            memcpy(&right, tiles[b].row[k], sizeof right);
            for (int i = 0; i < 4; i++) {
                const int32_t left = int8_t(tiles[a].row[r][4 * k + i]);
                total += (right >> (8 * i) & 0xffu) * uint32_t(left);
            }
        }
        memcpy(tiles[sums].row[r], &total, sizeof total);
    }
}
}  // namespace emulated

#define TILE_ZERO(tile) memset(&emulated::tiles[tile], 0, sizeof(emulated::Tile))
#define TILE_LOAD(tile, from, stride) emulated::load(tile, from, stride)
#define TILE_STORE(tile, to, stride) emulated::store(tile, to, stride)
#define TILE_MULTIPLY(sums, a, b) emulated::multiply(sums, a, b)
#define TILE_MULTIPLY_BYTES(sums, a, b) emulated::multiply_bytes(sums, a, b)

#elif defined(__AMX_BF16__)
#define TILES 1

// gcc's intrinsics are not declared to read memory: the barrier keeps earlier stores before them.
#define TILE_ZERO(tile) _tile_zero(tile)
#define TILE_LOAD(tile, from, stride)    \
    do {                                 \
        __asm__ volatile("" ::: "memory"); \
        _tile_loadd(tile, from, stride); \
    } while (0)
#define TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)
#define TILE_MULTIPLY(sums, a, b) _tile_dpbf16ps(sums, a, b)
#define TILE_MULTIPLY_BYTES(sums, a, b) _tile_dpbsud(sums, a, b)
#endif

#if defined(TILES)
constexpr int kTileRows = 16, kTileDepth = 32;  // a tile of bfloat16 is 16 x 32, of bytes 16 x 64, of sums 16 x 16
constexpr int64_t kTileBytes = 1024, kTileRowBytes = 64;
constexpr int kTileBlock = 2 * kTileRows;  // rows that are multiplied together by two panels

// The tiles: 0 to 3 are sums (0 and 1 of the upper rows, 2 and 3 of the lower rows), 4 is rows of A, 5 a panel of B.
// Two tiles are never in use, and A and B have one each: when the other hyperthread of a core is busy, few registers are
// left to rename tiles to, and each tile in use costs time. Panels of a pair are loaded three times instead of two then,
// which costs 2 to 4 % when the other hyperthread is idle, and saves a third when it is busy.
class TileRegisters {
  public:
    ~TileRegisters() { release(); }

    // rows: of A and of the sums, 1 to 16.
    void configure(int rows) {
        if (rows == rows_) return;
        rows_ = rows;
#if defined(STOKER_EMULATED_TILES)
        for (int tile = 0; tile < 8; tile++) emulated::rows[tile] = tile == kPanelTile ? kTileRows : rows;
#else
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t bytes_per_row[16] = {};
            uint8_t rows[16] = {};
        } configuration;
        for (int tile = 0; tile <= kPanelTile; tile++) {
            configuration.bytes_per_row[tile] = 64;
            configuration.rows[tile] = uint8_t(tile == kPanelTile ? kTileRows : rows);
        }
        __asm__ volatile("" ::"r"(&configuration) : "memory");  // it must be written before it is loaded
        _tile_loadconfig(&configuration);
#endif
    }

    // Configured tiles cost power, and every context switch has to save their 8 KiB.
    void release() {
#if !defined(STOKER_EMULATED_TILES)
        if (rows_) _tile_release();
#endif
        rows_ = 0;
    }

  private:
    static constexpr int kPanelTile = 5;
    int rows_ = 0;
};

// Where the sums of a block are: four tiles. Distances in bytes: between rows, from the left tile to the right one, from
// the upper to the lower.
struct TileSums {
    void* at;
    int64_t row, right, lower;

    char* tile(bool is_lower, bool is_right) const {
        return static_cast<char*>(at) + is_lower * lower + is_right * right;
    }
};

// The products of two types of elements; 64 bytes of a row of A are multiplied at a time.
struct BFloat16Tiles {
    static ALWAYS_INLINE void multiply_upper_left() { TILE_MULTIPLY(0, 4, 5); }
    static ALWAYS_INLINE void multiply_upper_right() { TILE_MULTIPLY(1, 4, 5); }
    static ALWAYS_INLINE void multiply_lower_left() { TILE_MULTIPLY(2, 4, 5); }
    static ALWAYS_INLINE void multiply_lower_right() { TILE_MULTIPLY(3, 4, 5); }
};
struct ByteTiles {  // signed A, unsigned B
    static ALWAYS_INLINE void multiply_upper_left() { TILE_MULTIPLY_BYTES(0, 4, 5); }
    static ALWAYS_INLINE void multiply_upper_right() { TILE_MULTIPLY_BYTES(1, 4, 5); }
    static ALWAYS_INLINE void multiply_lower_left() { TILE_MULTIPLY_BYTES(2, 4, 5); }
    static ALWAYS_INLINE void multiply_lower_right() { TILE_MULTIPLY_BYTES(3, 4, 5); }
};

// c[rows, 32] = a * two panels, or += with `accumulate`, over `steps` tiles of depth. Rows of `a` are `a_row` bytes
// apart, the panels `panel_bytes`. `rows`: 1 to 32; tiles are configured for all of them, or for 16. With more than 16,
// the lower tiles have the last 16 rows, some of which may be in the upper tiles too. c.lower must be the distance of
// these; rows that are in both get the same sums, but cannot accumulate.
// meanwhile(left panel, right panel) is called with every step: what vectors do while the tiles multiply.
template <class Product, class Meanwhile>
ALWAYS_INLINE void multiply_tiles(const void* a, int64_t a_row, const void* b, int64_t panel_bytes, int64_t steps,
                                  Meanwhile&& meanwhile, int rows, bool accumulate, TileSums c) {
    const bool has_lower = rows > kTileRows;
    const char *upper = static_cast<const char*>(a), *lower = upper + (has_lower ? rows - kTileRows : 0) * a_row;
    const char *left = static_cast<const char*>(b), *right = left + panel_bytes;
    if (accumulate) {
        TILE_LOAD(0, c.tile(false, false), c.row);
        TILE_LOAD(1, c.tile(false, true), c.row);
        if (has_lower) {
            TILE_LOAD(2, c.tile(true, false), c.row);
            TILE_LOAD(3, c.tile(true, true), c.row);
        }
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        if (has_lower) {
            TILE_ZERO(2);
            TILE_ZERO(3);
        }
    }
    for (int64_t step = 0; step < steps; step++) {
        meanwhile(left, right);
        TILE_LOAD(4, upper, a_row);
        TILE_LOAD(5, left, kTileRowBytes);
        Product::multiply_upper_left();
        TILE_LOAD(5, right, kTileRowBytes);
        Product::multiply_upper_right();
        if (has_lower) {
            TILE_LOAD(4, lower, a_row);
            Product::multiply_lower_right();
            TILE_LOAD(5, left, kTileRowBytes);
            Product::multiply_lower_left();
        }
        upper += kTileRowBytes, lower += kTileRowBytes, left += kTileBytes, right += kTileBytes;
    }
    TILE_STORE(0, c.tile(false, false), c.row);
    TILE_STORE(1, c.tile(false, true), c.row);
    if (has_lower) {
        TILE_STORE(2, c.tile(true, false), c.row);
        TILE_STORE(3, c.tile(true, true), c.row);
    }
}

struct Nothing {
    ALWAYS_INLINE void operator()(const char*, const char*) const {}
};

// `steps` times four products of registers, the peak of the unit. Returns the number of operations.
template <class Product>
inline int64_t multiply_tile_registers(int64_t steps) {
    TileRegisters tiles;
    tiles.configure(kTileRows);
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    TILE_ZERO(4);
    TILE_ZERO(5);
    for (int64_t step = 0; step < steps; step++) {
        Product::multiply_upper_left();
        Product::multiply_upper_right();
        Product::multiply_lower_left();
        Product::multiply_lower_right();
    }
    return steps * 4 * 2 * kTileRows * kTileRows * (std::is_same_v<Product, BFloat16Tiles> ? kTileDepth : 2 * kTileDepth);
}
#endif
