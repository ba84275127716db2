// Products of blocks of rows with panels (panels.h), by tiles where there are any (tiles.h): those of attention.
//
// All rows of a block are computed, however many are needed, so that the sums of a row have one order in any block.
#pragma once

#include "panels.h"
#include "tiles.h"

// How rows of T are multiplied: their type, the rows of a block (buffers hold whole blocks; the rows after the last are
// not read), and the multiple to which a head is padded.
template <class T>
struct Product {
    typedef float A;
    static constexpr int kRows = kMaxRows, kDepthStep = kPanelWidth;
};
template <>
struct Product<BFloat16> {
#if defined(TILES)
    typedef BFloat16 A;
    static constexpr int kRows = 2 * kTileRows, kDepthStep = kTileDepth;
#else
    typedef Operand A;
    static constexpr int kRows = kMaxRows, kDepthStep = kPanelWidth;
#endif
};

// c[Product::kRows, num_panels * 16] = or += a * B. With tiles, panels come in pairs.
template <class A, class T>
void multiply_block(const A* a, int64_t a_stride, const T* b, int64_t panel_size, int64_t depth, int64_t num_panels,
                    bool accumulate, float* c, int64_t c_stride) {
#if defined(TILES)
    if constexpr (std::is_same_v<T, BFloat16>) {
        // 16 rows at a time: few tiles in use (tiles.h), and both operands are in the first-level cache anyway.
        const int64_t row_bytes = c_stride * int64_t(sizeof(float)), a_bytes = a_stride * int64_t(sizeof(A));
        for (int64_t panel = 0; panel < num_panels; panel += 2) {
            for (int64_t row = 0; row < Product<T>::kRows; row += kTileRows) {
                multiply_tiles<BFloat16Tiles>(a + row * a_stride, a_bytes, b + panel * panel_size,
                                              panel_size * int64_t(sizeof(T)), depth / kTileDepth, Nothing{}, kTileRows,
                                              accumulate,
                                              {c + row * c_stride + panel * kPanelWidth, row_bytes,
                                               kPanelWidth * sizeof(float), 0});
            }
        }
        return;
    }
#endif
    if constexpr (Product<T>::kRows == kMaxRows) {
        multiply_full_rows(a, a_stride, b, panel_size, depth, num_panels, accumulate, c, c_stride);
    }
}

constexpr int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }
