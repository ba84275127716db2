// Common to the linear layers of all weight formats: how rows and panels are divided, and how sums become outputs.
//
// With few rows (decode) the time is that of reading the weights once, with many rows (prefill) that of the arithmetic.
// One loop serves both: x is divided into chunks; each group of panels is read from memory once per chunk, and from the
// cache by every block of rows after the first. While the first blocks of rows multiply one group, they prefetch the
// next group; the other blocks prefetch the rows of the following block.
#pragma once

#include <algorithm>

#include "panels.h"
#include "parallel.h"
#include "scratch.h"
#include "tiles.h"

// Bytes of a chunk of x in the type in which it is multiplied; its rows are a multiple of kChunkStep. Tiles read it
// from the second-level cache of 1 or 2 MiB. Vectors are slower, so rows can be prefetched from the third level: larger
// chunks mean that weights are unpacked less often.
#if defined(TILES)
constexpr int64_t kChunkBytes = 1024 * 1024, kChunkStep = 2 * kTileRows;
#else
constexpr int64_t kChunkBytes = 2048 * 1024, kChunkStep = kMaxRows;
#endif
constexpr int64_t kUnitDepth = 8, kUnitElements = kUnitDepth * kPanelWidth;  // unpacked in one step
constexpr int64_t kPrefetchDistance = 4096;        // bytes, in a panel that is read once
constexpr int64_t kPrefetchingBlocks = 4;  // blocks of rows over which prefetching the next panels is spread

// y = sums * scales + bias, rounded to T.
template <class T>
struct Layer {
    const T* bias;        // [width] or null
    const float* scales;  // [width rounded up to 16], or null: all 1
    int64_t width, depth;

    int64_t num_panels() const { return (width + kPanelWidth - 1) / kPanelWidth; }
};

// What a single block of rows prefetches. kNothing: its panels are in the cache already. kAhead: the lines that it will
// read kPrefetchDistance bytes later. kNext: the panels after those that it reads, line by line, which suits short
// panels. kUnpack: its panels are in the cache, and the next ones are unpacked meanwhile (unpacking.h). A panel that is
// read alone is always prefetched with kAhead.
enum class PrefetchMode { kNothing, kAhead, kNext, kUnpack };

// Consecutive panels of float32 or bfloat16 weights. Panels of other formats (quantised.h) have the same members.
template <class T, bool IsCached = false>
struct PlainPanels {
    static constexpr int kMaxBlockRows = kMaxRows;
    // Up to this number of rows, panels are read one by one: reading memory takes the time then, and one sequence of
    // addresses is read faster than two interleaved ones. With more rows, pairs of panels save loads of x.
    static constexpr int kMaxSinglePanelRows = IsCached ? 0 : 8;
    static constexpr PrefetchMode kPrefetch = IsCached ? PrefetchMode::kNothing : PrefetchMode::kAhead;
    const T* elements;
    int64_t size;  // elements of one panel

    PlainPanels from(int64_t panel) const { return {elements + panel * size, size}; }
    const char* address() const { return reinterpret_cast<const char*>(elements); }
    int64_t panel_bytes() const { return size * int64_t(sizeof(T)); }
};

template <int Rows, int Panels, class Prefetch, class A, class T, bool IsCached>
ALWAYS_INLINE void multiply(const A* a, int64_t a_stride, PlainPanels<T, IsCached> b, int64_t depth, Prefetch prefetch,
                            Sums<Rows, Panels>& sums) {
    multiply<Rows, Panels>(a, a_stride, b.elements, b.size, depth, prefetch, sums);
}

// Stores the outputs of one row and one panel to y, which may have fewer columns left than a panel.
template <class T>
ALWAYS_INLINE void finish(const Floats* sums, const Layer<T>& layer, int64_t column, T* y) {
    for (int v = 0; v < kVectors; v++, column += kWidth) {
        const int64_t count = std::min<int64_t>(kWidth, layer.width - column);
        if (count <= 0) return;
        const Floats bias = layer.bias ? load_up_to(layer.bias + column, count) : Floats{};
        const Floats finished =
            layer.scales ? multiply_add(sums[v], load(layer.scales + column), bias) : sums[v] + bias;
        store_up_to(y + column, finished, count);
    }
}

// Stores the outputs of a block of rows; y points to the first of them.
template <int Rows, int Panels, class T>
ALWAYS_INLINE void finish_block(const Sums<Rows, Panels>& sums, const Layer<T>& layer, int64_t panel, T* y) {
    const bool is_plain = !layer.bias && !layer.scales && (panel + Panels) * kPanelWidth <= layer.width;
    for (int row = 0; row < Rows; row++) {
        T* to = y + row * layer.width;
        if (is_plain) {  // the usual case; makes a prefill 1 % faster
            for (int v = 0; v < Panels * kVectors; v++) store(to + panel * kPanelWidth + v * kWidth, sums.at[row][v]);
        } else {
            for (int p = 0; p < Panels; p++) finish(&sums.at[row][p * kVectors], layer, (panel + p) * kPanelWidth, to);
        }
    }
}

// Multiplies all rows of a chunk by the first `Panels` panels of `weights`, which start at panel `panel` of the layer.
template <int Panels, class Weights, class A, class T>
void multiply_rows(const Layer<T>& layer, const A* x, int64_t rows, Weights weights, int64_t panel, T* y) {
    constexpr int max_rows = Weights::kMaxBlockRows;
    const int64_t blocks = num_row_blocks<max_rows>(rows), prefetching = std::min(blocks, kPrefetchingBlocks);
    for_each_row_block<max_rows>(rows, [&](int64_t block, int64_t first, auto count) {
        const auto multiply_block = [&](auto prefetch) {
            Sums<count(), Panels> sums;
            multiply<count(), Panels>(x + first * layer.depth, layer.depth, weights, layer.depth, prefetch, sums);
            finish_block(sums, layer, panel, y + first * layer.width);
        };
        const int64_t bytes = weights.panel_bytes();
        const auto prefetch_rows = [&] {  // those of the next block, spread over the lines that this block reads
            const A* next = x + (block + 1 < blocks ? first + count() : first) * layer.depth;
            const int64_t part = count() * layer.depth * int64_t(sizeof(A)) / Panels;
            return PrefetchOther{reinterpret_cast<const char*>(next), part, std::min(kLine, part * kLine / bytes)};
        };
        if constexpr (Weights::kPrefetch == PrefetchMode::kNothing) {
            multiply_block(prefetch_rows());
        } else if constexpr (Weights::kPrefetch == PrefetchMode::kUnpack) {
            // Each of the first blocks unpacks its share of the units, spread over the lines that it reads.
            const int64_t units = weights.num_units() / prefetching;
            if (block >= prefetching) return multiply_block(prefetch_rows());
            multiply_block(weights.unpack_from(2 * units * block, layer.depth / 2 / units));
        } else {
            if constexpr (Panels == 1 || Weights::kPrefetch == PrefetchMode::kAhead) {
                if (blocks == 1) return multiply_block(PrefetchAhead<kPrefetchDistance>{});
            }
            if (block >= prefetching) return multiply_block(prefetch_rows());
            // Each of the first blocks prefetches its share of the next panels.
            const char* next = weights.from(Panels).address() + bytes / prefetching * block;
            multiply_block(PrefetchOther{next, bytes, kLine / prefetching});
        }
    });
}

// `weights` start at panel `begin` of the layer.
template <class Weights, class A, class T>
void multiply_panels(const Layer<T>& layer, const A* x, int64_t rows, Weights weights, int64_t begin, int64_t end,
                     T* y) {
    int64_t panel = begin;
    if (rows > Weights::kMaxSinglePanelRows) {
        for (; panel + kMaxPanels <= end; panel += kMaxPanels) {
            multiply_rows<kMaxPanels>(layer, x, rows, weights.from(panel - begin), panel, y);
        }
    }
    for (; panel < end; panel++) multiply_rows<1>(layer, x, rows, weights.from(panel - begin), panel, y);
}

// x in the type in which vectors multiply it: bfloat16 with pair products, else converted to float32 once per chunk.
ALWAYS_INLINE const float* operands(const float* x, int64_t) { return x; }

ALWAYS_INLINE const Operand* operands(const BFloat16* x, int64_t count) {
#if defined(STOKER_PAIR_PRODUCTS)
    (void)count;
    return x;
#else
    static thread_local Scratch scratch;
    float* wide = scratch.reserve<float>(count);
    for_each_vector(count, [&](int64_t i, int64_t left) { store_up_to(wide + i, load_up_to(x + i, left), left); });
    return wide;
#endif
}

#if defined(TILES)
#include "batch_invariant.h"

// With at most this number of rows most of a tile would be empty, and vectors are as fast as memory. They add in
// another order than tiles, so batch-invariant kernels use tiles always.
constexpr int64_t kMaxVectorRows = kBatchInvariant ? 0 : 4;
// Depth of the part of two panels that all blocks of rows multiply before the next part: 32 KiB, which stays in the
// first-level cache, so that only x is read from the second level.
constexpr int64_t kPartDepth = 512;

// Multiplies all rows of a chunk by two panels. `sums` has room for (rows + 32) * 32 elements. A last panel without a
// neighbour is multiplied twice and stored once: vectors would add in another order, and a column's sum would depend on
// how many columns the layer has.
template <class T, class Panels>
void multiply_pair_by_tiles(const Layer<T>& layer, const BFloat16* x, int64_t rows, Panels panels, int64_t panel,
                            TileRegisters& tiles, float* sums, T* y) {
    constexpr int64_t block = 2 * kTileRows, columns = 2 * kPanelWidth;
    const int64_t part = rows <= block ? layer.depth : kPartDepth;
    const int64_t neighbour = panel + 1 < layer.num_panels() ? panels.size : 0;
    const auto multiply_block = [&](int64_t k, int64_t row, auto& prefetch) {
        const int upper = int(std::min<int64_t>(kTileRows, rows - row));
        const int lower = int(std::min<int64_t>(kTileRows, rows - row - upper));
        tiles.configure(upper, lower);
        multiply_tiles(x + row * layer.depth + k, layer.depth, panels.elements + k * kPanelWidth, neighbour,
                       std::min(part, layer.depth - k), prefetch, lower > 0, k > 0, sums + row * columns, columns);
    };
    const auto for_each_block = [&](auto& first, auto& others) {
        for (int64_t k = 0; k < layer.depth; k += part) {
            for (int64_t row = 0; row < rows; row += block) {
                row ? multiply_block(k, row, others) : multiply_block(k, row, first);
            }
        }
    };
    if constexpr (Panels::kPrefetch == PrefetchMode::kUnpack) {
        auto unpack = panels.unpack_from(0, kUnitDepth / 2 * ((rows + block - 1) / block));
        for_each_block(unpack, unpack);
    } else {
        constexpr bool is_ahead = Panels::kPrefetch == PrefetchMode::kAhead;
        std::conditional_t<is_ahead, PrefetchAhead<kPrefetchDistance>, NoPrefetch> first;
        NoPrefetch others;
        for_each_block(first, others);
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
    return scratch.reserve<float>((rows + 2 * kTileRows) * 2 * kPanelWidth);
}
#endif

// Divides the rows into chunks and the panels among the threads, and calls body(x, rows, first panel, end panel, y) for
// one chunk of x and consecutive panels.
template <class T, class Body>
void for_each_chunk(const Layer<T>& layer, const T* x, int64_t rows, T* y, const Body& body) {
    const int64_t bytes = std::is_same_v<T, float> ? sizeof(float) : sizeof(Operand);
    const int64_t steps = (rows + kChunkStep - 1) / kChunkStep;
    const int64_t chunks = std::min(steps, (rows * layer.depth * bytes + kChunkBytes - 1) / kChunkBytes);
    const int64_t pairs = (layer.num_panels() + 1) / 2;
    parallel_ranges(chunks * pairs, 1, [&](int64_t begin, int64_t end) {
        const auto start = [&](int64_t chunk) { return std::min(rows, steps * chunk / chunks * kChunkStep); };
        while (begin < end) {
            const int64_t chunk = begin / pairs, stop = std::min(end, (chunk + 1) * pairs);
            const int64_t first = start(chunk), last = start(chunk + 1);
            body(x + first * layer.depth, last - first, (begin - chunk * pairs) * 2,
                 std::min((stop - chunk * pairs) * 2, layer.num_panels()), y + first * layer.width);
            begin = stop;
        }
    });
}
