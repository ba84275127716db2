// AMX tiles: registers of 16 rows x 64 bytes, and the instruction that multiplies two of them: the fastest unit for
// bfloat16 on Xeons since Sapphire Rapids.
//
// With STOKER_EMULATED_TILES the same macros are plain C++, so that machines without AMX can test the code that uses
// them. TILES is defined if either is available.
#pragma once

#include <cstdint>
#include <cstring>

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
}  // namespace emulated

#define TILE_ZERO(tile) memset(&emulated::tiles[tile], 0, sizeof(emulated::Tile))
#define TILE_LOAD(tile, from, stride) emulated::load(tile, from, stride)
#define TILE_STORE(tile, to, stride) emulated::store(tile, to, stride)
#define TILE_MULTIPLY(sums, a, b) emulated::multiply(sums, a, b)

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
#endif

#if defined(TILES)
constexpr int kTileRows = 16, kTileDepth = 32;  // a tile of bfloat16 is 16 x 32, of sums 16 x 16

// The eight tiles: 0 to 3 are sums (0 and 1 of the upper rows, 2 and 3 of the lower rows), 4 and 5 rows of A (upper,
// lower), 6 and 7 panels of B. `upper` and `lower` are numbers of rows from 1 to 16; lower may be 0.
class TileRegisters {
  public:
    ~TileRegisters() { release(); }

    void configure(int upper, int lower) {
        if (upper == upper_ && lower == lower_) return;
        upper_ = upper, lower_ = lower;
        const int low = lower ? lower : 1;  // a tile must have a row
        const int rows[8] = {upper, upper, low, low, upper, low, kTileRows, kTileRows};
#if defined(STOKER_EMULATED_TILES)
        memcpy(emulated::rows, rows, sizeof rows);
#else
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t bytes_per_row[16] = {};
            uint8_t rows[16] = {};
        } configuration;
        for (int tile = 0; tile < 8; tile++) {
            configuration.bytes_per_row[tile] = 64;
            configuration.rows[tile] = uint8_t(rows[tile]);
        }
        __asm__ volatile("" ::"r"(&configuration) : "memory");  // it must be written before it is loaded
        _tile_loadconfig(&configuration);
#endif
    }

    // Configured tiles cost power, and every context switch has to save their 8 KiB.
    void release() {
#if !defined(STOKER_EMULATED_TILES)
        if (upper_) _tile_release();
#endif
        upper_ = lower_ = 0;
    }

  private:
    int upper_ = 0, lower_ = 0;
};

// c[rows as configured, 32] = a[rows, depth] * two panels, or += with `accumulate`; depth is a multiple of 32. The
// lower rows are skipped if `has_lower` is false. `prefetch` is described in panels.h.
template <class Prefetch>
ALWAYS_INLINE void multiply_tiles(const BFloat16* a, int64_t a_stride, const BFloat16* b, int64_t panel_size,
                                  int64_t depth, Prefetch&& prefetch, bool has_lower, bool accumulate, float* c,
                                  int64_t c_stride) {
    const int64_t a_bytes = a_stride * sizeof(BFloat16), c_bytes = c_stride * sizeof(float);
    const BFloat16* a_lower = a + kTileRows * a_stride;
    float* c_lower = c + kTileRows * c_stride;
    if (accumulate) {
        TILE_LOAD(0, c, c_bytes);
        TILE_LOAD(1, c + 16, c_bytes);
        if (has_lower) {
            TILE_LOAD(2, c_lower, c_bytes);
            TILE_LOAD(3, c_lower + 16, c_bytes);
        }
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t k = 0; k < depth; k += kTileDepth) {
        const BFloat16 *left = b + k * 16, *right = left + panel_size;
        for (int line = 0; line < kTileRows; line++, prefetch.advance()) {
            prefetch.prefetch(left + line * 32, 0);
            prefetch.prefetch(right + line * 32, 1);
        }
        TILE_LOAD(4, a + k, a_bytes);
        TILE_LOAD(6, left, 64);
        TILE_MULTIPLY(0, 4, 6);
        TILE_LOAD(7, right, 64);
        TILE_MULTIPLY(1, 4, 7);
        if (has_lower) {
            TILE_LOAD(5, a_lower + k, a_bytes);
            TILE_MULTIPLY(2, 5, 6);
            TILE_MULTIPLY(3, 5, 7);
        }
    }
    TILE_STORE(0, c, c_bytes);
    TILE_STORE(1, c + 16, c_bytes);
    if (has_lower) {
        TILE_STORE(2, c_lower, c_bytes);
        TILE_STORE(3, c_lower + 16, c_bytes);
    }
}
#endif
