// What the linear layers of all weight formats share: how rows and panels are cut up, and how sums become outputs.
//
// Few rows (decode) are bound by reading the weights once, many rows (prefill) by the multipliers; one loop serves
// both: x is cut into chunks, each group of panels is read from memory once per chunk, and from the cache for every
// block of rows after the first. While the first blocks of rows multiply one group, they fetch the next; the others
// fetch the rows of the block behind them.
#pragma once

#include <algorithm>

#include "panels.h"
#include "parallel.h"
#include "scratch.h"
#include "tiles.h"

// Bytes of x in a chunk, as it is multiplied, and the multiple of its rows. Tiles read it from the second-level cache,
// of 1 or 2 MiB. Vectors are slow enough to have rows fetched from the third, so that fewer chunks unpack the weights.
#if defined(TILES)
constexpr int64_t kChunkBytes = 1024 * 1024, kChunkStep = 2 * kTileRows;
#else
constexpr int64_t kChunkBytes = 2048 * 1024, kChunkStep = kMaxRows;
#endif
constexpr int64_t kUnitDepth = 8, kUnitNumbers = kUnitDepth * kPanelWidth;  // what is unpacked at once
constexpr int64_t kAhead = 4096;        // bytes of a panel fetched ahead of its only reader
constexpr int64_t kFetchingBlocks = 4;  // of rows, that fetch the next panels; enough to spread it out

// y = sums * scales + bias, rounded to T.
template <class T>
struct Layer {
    const T* bias;        // [width] or null
    const float* scales;  // [width rounded up to 16], or null for ones
    int64_t width, depth;

    int64_t num_panels() const { return (width + kPanelWidth - 1) / kPanelWidth; }
};

// How a lone block of rows brings two panels into the cache: not at all, since they are there; what it will read so many
// bytes later; or the panels behind those that it reads, line by line, which is right for short ones. kUnpack: they are
// there already, and the next ones are made of others meanwhile (unpacking.h). A panel that is read alone is always
// fetched ahead.
enum class Fetching { kNothing, kAhead, kNext, kUnpack };

// Neighbouring panels of plain numbers. Others (quantised.h) have the same members.
template <class T, bool IsCached = false>
struct PlainPanels {
    static constexpr int kRowsAtOnce = kMaxRows;
    // Up to so many rows, panels are read one by one: memory is the limit then, and one run of addresses comes faster
    // than two by turns. With more, panels in pairs spare loads of x.
    static constexpr int kRowsAlone = IsCached ? 0 : 8;
    static constexpr Fetching kFetching = IsCached ? Fetching::kNothing : Fetching::kAhead;
    const T* numbers;
    int64_t size;  // of one

    PlainPanels from(int64_t panel) const { return {numbers + panel * size, size}; }
    const char* address() const { return reinterpret_cast<const char*>(numbers); }
    int64_t panel_bytes() const { return size * int64_t(sizeof(T)); }
};

template <int Rows, int Panels, class Fetch, class A, class T, bool IsCached>
ALWAYS_INLINE void multiply(const A* a, int64_t a_stride, PlainPanels<T, IsCached> b, int64_t depth, Fetch fetch,
                            Sums<Rows, Panels>& sums) {
    multiply<Rows, Panels>(a, a_stride, b.numbers, b.size, depth, fetch, sums);
}

// Rounds one panel's sums of one row into y, which may have fewer columns left than a panel.
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

// Rounds a block's sums into y, whose first row is the block's.
template <int Rows, int Panels, class T>
ALWAYS_INLINE void finish_block(const Sums<Rows, Panels>& sums, const Layer<T>& layer, int64_t panel, T* y) {
    const bool is_plain = !layer.bias && !layer.scales && (panel + Panels) * kPanelWidth <= layer.width;
    for (int row = 0; row < Rows; row++) {
        T* to = y + row * layer.width;
        if (is_plain) {  // nearly always, and then a hundredth of a prefill faster
            for (int v = 0; v < Panels * kVectors; v++) store(to + panel * kPanelWidth + v * kWidth, sums.at[row][v]);
        } else {
            for (int p = 0; p < Panels; p++) finish(&sums.at[row][p * kVectors], layer, (panel + p) * kPanelWidth, to);
        }
    }
}

// All rows of a chunk by the first panels of `weights`, which are number `panel` of the layer and those behind it.
template <int Panels, class Weights, class A, class T>
void multiply_rows(const Layer<T>& layer, const A* x, int64_t rows, Weights weights, int64_t panel, T* y) {
    constexpr int most = Weights::kRowsAtOnce;
    const int64_t blocks = num_row_blocks<most>(rows), fetching = std::min(blocks, kFetchingBlocks);
    for_each_row_block<most>(rows, [&](int64_t block, int64_t first, auto count) {
        const auto multiply_block = [&](auto fetch) {
            Sums<count(), Panels> sums;
            multiply<count(), Panels>(x + first * layer.depth, layer.depth, weights, layer.depth, fetch, sums);
            finish_block(sums, layer, panel, y + first * layer.width);
        };
        const int64_t bytes = weights.panel_bytes();
        const auto fetch_rows = [&] {  // of the next block, spread over the lines that this one reads
            const A* next = x + (block + 1 < blocks ? first + count() : first) * layer.depth;
            const int64_t part = count() * layer.depth * int64_t(sizeof(A)) / Panels;
            return FetchNext{reinterpret_cast<const char*>(next), part, std::min(kLine, part * kLine / bytes)};
        };
        if constexpr (Weights::kFetching == Fetching::kNothing) {
            multiply_block(fetch_rows());
        } else if constexpr (Weights::kFetching == Fetching::kUnpack) {
            // Each of the first blocks its part of the units, spread over the lines that it reads.
            const int64_t units = weights.num_units() / fetching;
            if (block >= fetching) return multiply_block(fetch_rows());
            multiply_block(weights.unpack_from(2 * units * block, layer.depth / 2 / units));
        } else {
            if constexpr (Panels == 1 || Weights::kFetching == Fetching::kAhead) {
                if (blocks == 1) return multiply_block(FetchAhead<kAhead>{});
            }
            if (block >= fetching) return multiply_block(fetch_rows());
            // Each of the first blocks its part of the next panels.
            const char* next = weights.from(Panels).address() + bytes / fetching * block;
            multiply_block(FetchNext{next, bytes, kLine / fetching});
        }
    });
}

// `weights` begin at number `begin` of the layer.
template <class Weights, class A, class T>
void multiply_panels(const Layer<T>& layer, const A* x, int64_t rows, Weights weights, int64_t begin, int64_t end,
                     T* y) {
    int64_t panel = begin;
    if (rows > Weights::kRowsAlone) {
        for (; panel + kMaxPanels <= end; panel += kMaxPanels) {
            multiply_rows<kMaxPanels>(layer, x, rows, weights.from(panel - begin), panel, y);
        }
    }
    for (; panel < end; panel++) multiply_rows<1>(layer, x, rows, weights.from(panel - begin), panel, y);
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
// Up to this many rows the tiles would stand mostly empty, and vectors keep up with memory. But they add in another order.
constexpr int64_t kMaxVectorRows = kBatchInvariant ? 0 : 4;
// Depth of the part of two panels that every block of rows meets before the next part: 32 KiB, so that it stays in the
// first-level cache and the second level has only x to deliver.
constexpr int64_t kPartDepth = 512;

// Two panels by all rows of a chunk. `sums` has room for (rows + 32) * 32 numbers.
template <class T, class Panels>
void multiply_pair_by_tiles(const Layer<T>& layer, const BFloat16* x, int64_t rows, Panels panels, int64_t panel,
                            TileRegisters& tiles, float* sums, T* y) {
    constexpr int64_t block = 2 * kTileRows, columns = 2 * kPanelWidth;
    const int64_t part = rows <= block ? layer.depth : kPartDepth;
    const auto multiply_block = [&](int64_t k, int64_t row, auto& fetch) {
        const int upper = int(std::min<int64_t>(kTileRows, rows - row));
        const int lower = int(std::min<int64_t>(kTileRows, rows - row - upper));
        tiles.configure(upper, lower);
        multiply_tiles(x + row * layer.depth + k, layer.depth, panels.numbers + k * kPanelWidth, panels.size,
                       std::min(part, layer.depth - k), fetch, lower > 0, k > 0, sums + row * columns, columns);
    };
    const auto for_each_block = [&](auto& first, auto& others) {
        for (int64_t k = 0; k < layer.depth; k += part) {
            for (int64_t row = 0; row < rows; row += block) {
                row ? multiply_block(k, row, others) : multiply_block(k, row, first);
            }
        }
    };
    if constexpr (Panels::kFetching == Fetching::kUnpack) {
        auto unpack = panels.unpack_from(0, kUnitDepth / 2 * ((rows + block - 1) / block));
        for_each_block(unpack, unpack);
    } else {
        std::conditional_t<Panels::kFetching == Fetching::kAhead, FetchAhead<kAhead>, FetchNothing> first;
        FetchNothing others;
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
    return scratch.numbers<float>((rows + 2 * kTileRows) * 2 * kPanelWidth);
}
#endif

// Shares out rows and panels, and calls body(x, rows, first panel, last panel, y) for a chunk of x and neighbouring
// panels. Chunk by chunk, so that a thread's share is a run of neighbouring panels.
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
