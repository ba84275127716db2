// What the linear layers of all weight formats share: how rows and panels are cut up, and how sums become outputs.
//
// Few rows (decode) are bound by reading the weights once, many rows (prefill) by the multipliers; one loop serves
// both: x is cut into chunks that stay in the second-level cache, each pair of panels is read from memory once per
// chunk, and from the cache for every block of rows after the first.
#pragma once

#include <algorithm>

#include "panels.h"
#include "parallel.h"
#include "scratch.h"
#include "tiles.h"

// Numbers of x in a chunk, of 2 MiB of second-level cache: a quarter, widened to float32 half. Tiles multiply so fast
// that reading the weights again for every chunk counts, so their chunks are larger.
#if defined(TILES)
constexpr int64_t kChunkNumbers = 512 * 1024;
#else
constexpr int64_t kChunkNumbers = 256 * 1024;
#endif
constexpr int64_t kAhead = 2048;  // numbers of a panel fetched ahead: 4 KiB of bfloat16
#if defined(TILES)
// Up to this many rows the tiles would stand mostly empty, and vectors keep up with memory.
constexpr int64_t kMaxVectorRows = 4;
#endif

// y = sums * scales + bias, rounded to T.
template <class T>
struct Layer {
    const T* bias;        // [width] or null
    const float* scales;  // [width rounded up to 16], or null for ones
    int64_t width, depth;

    int64_t num_panels() const { return (width + kPanelWidth - 1) / kPanelWidth; }
};

// Neighbouring panels of bfloat16 weights.
struct PlainPanels {
    const BFloat16* numbers;
    int64_t size;  // of one

    static constexpr int kRowsAtOnce = kMaxRows;

    PlainPanels from(int64_t panel) const { return {numbers + panel * size, size}; }
};

template <int Rows, int Panels, class A>
ALWAYS_INLINE void multiply(const A* a, int64_t a_stride, PlainPanels b, int64_t depth, int64_t ahead,
                            Sums<Rows, Panels>& sums) {
    multiply<Rows, Panels>(a, a_stride, b.numbers, b.size, depth, ahead, sums);
}

// Rounds one panel's sums of one row into y, which may have fewer columns left than a panel.
template <class T>
ALWAYS_INLINE void finish(const Floats* sums, const Layer<T>& layer, int64_t column, T* y) {
    for (int v = 0; v < kVectors; v++, column += kWidth) {
        const int64_t count = std::min<int64_t>(kWidth, layer.width - column);
        if (count <= 0) return;
        const Floats bias = layer.bias ? load_up_to(layer.bias + column, count) : Floats{};
        const Floats scaled = layer.scales ? sums[v] * load(layer.scales + column) : sums[v];
        store_up_to(y + column, scaled + bias, count);
    }
}

// `panels` begin at number `panel` of the layer.
template <int Panels, class T, class A, class Weights>
void multiply_rows(const Layer<T>& layer, const A* x, int64_t rows, Weights panels, int64_t panel, int64_t ahead,
                   T* y) {
    for_each_row_block<Weights::kRowsAtOnce>(rows, [&](int64_t first, auto count) {
        Sums<count(), Panels> sums;
        // Later blocks find the panels in the cache.
        multiply<count(), Panels>(x + first * layer.depth, layer.depth, panels, layer.depth, first ? 0 : ahead, sums);
        for (int row = 0; row < count(); row++) {
            for (int p = 0; p < Panels; p++) {
                finish(&sums.at[row][p * kVectors], layer, (panel + p) * kPanelWidth,
                       y + (first + row) * layer.width);
            }
        }
    });
}

template <class T, class A, class Weights>
void multiply_panels(const Layer<T>& layer, const A* x, int64_t rows, Weights panels, int64_t begin, int64_t end,
                     int64_t ahead, T* y) {
    int64_t panel = begin;
    for (; panel + kMaxPanels <= end; panel += kMaxPanels) {
        multiply_rows<kMaxPanels>(layer, x, rows, panels.from(panel - begin), panel, ahead, y);
    }
    for (; panel < end; panel++) multiply_rows<1>(layer, x, rows, panels.from(panel - begin), panel, ahead, y);
}

// x as the vectors multiply it: bfloat16 where they take pairs of it, else widened to float32, once per chunk.
ALWAYS_INLINE const float* operands(const float* x, int64_t) { return x; }

ALWAYS_INLINE const Operand* operands(const BFloat16* x, int64_t count) {
#if defined(STOKER_PAIR_PRODUCTS)
    (void)count;
    return x;
#else
    static thread_local Scratch scratch;
    float* wide = scratch.numbers<float>(count);
    for_each_vector(count, [&](int64_t i, int64_t left) { store_up_to(wide + i, load_up_to(x + i, left), left); });
    return wide;
#endif
}

#if defined(TILES)
// Depth of the part of two panels that every block of rows meets before the next part: 32 KiB, so that it stays in the
// first-level cache and the second level has only x to deliver.
constexpr int64_t kPartDepth = 512;

// Two panels by all rows of a chunk. `sums` has room for (rows + 32) * 32 numbers.
template <class T>
void multiply_pair_by_tiles(const Layer<T>& layer, const BFloat16* x, int64_t rows, PlainPanels panels, int64_t panel,
                            int64_t ahead, TileRegisters& tiles, float* sums, T* y) {
    constexpr int64_t block = 2 * kTileRows, columns = 2 * kPanelWidth;
    const int64_t part = rows <= block ? layer.depth : kPartDepth;
    for (int64_t k = 0; k < layer.depth; k += part) {
        const BFloat16* weights = panels.numbers + k * kPanelWidth;
        for (int64_t row = 0; row < rows; row += block) {
            const int upper = int(std::min<int64_t>(kTileRows, rows - row));
            const int lower = int(std::min<int64_t>(kTileRows, rows - row - upper));
            tiles.configure(upper, lower);
            multiply_tiles(x + row * layer.depth + k, layer.depth, weights, panels.size,
                           std::min(part, layer.depth - k), row ? 0 : ahead, lower > 0, k > 0, sums + row * columns,
                           columns);
        }
    }
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t column = 0; column < columns; column += kPanelWidth) {
            Floats finished[kVectors];
            memcpy(finished, sums + row * columns + column, sizeof finished);
            finish(finished, layer, panel * kPanelWidth + column, y + row * layer.width);
        }
    }
}

inline float* tile_sums(int64_t rows) {
    static thread_local Scratch scratch;
    return scratch.numbers<float>((rows + 2 * kTileRows) * 2 * kPanelWidth);
}
#endif

// Shares out rows and panels, and calls body(x, rows, first panel, last panel, y) for a chunk of x and neighbouring
// panels. Chunk by chunk, so that a thread's share is a run of neighbouring panels.
template <class T, class Body>
void for_each_chunk(const Layer<T>& layer, const T* x, int64_t rows, T* y, const Body& body) {
    const int64_t chunks = (rows * layer.depth + kChunkNumbers - 1) / kChunkNumbers;
    const int64_t pairs = (layer.num_panels() + 1) / 2;
    parallel_ranges(chunks * pairs, 1, [&](int64_t begin, int64_t end) {
        while (begin < end) {
            const int64_t chunk = begin / pairs, stop = std::min(end, (chunk + 1) * pairs);
            const int64_t first = rows * chunk / chunks, last = rows * (chunk + 1) / chunks;
            body(x + first * layer.depth, last - first, (begin - chunk * pairs) * 2,
                 std::min((stop - chunk * pairs) * 2, layer.num_panels()), y + first * layer.width);
            begin = stop;
        }
    });
}
