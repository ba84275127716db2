// Common to the linear layers of all weight formats: how rows and panels are divided, and how sums become outputs.
//
// With few rows (decode) the time is that of reading the weights once, with many rows (prefill) that of the arithmetic.
// One loop serves both: x is divided into chunks; each group of panels is read from memory once per chunk, and from the
// cache by every block of rows after the first. While the first blocks of rows multiply one group, they prefetch the
// next group; the other blocks prefetch the rows of the following block.
#pragma once

#include <algorithm>
#include <climits>

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

// Bytes of y from which whole lines of it are written past the caches: it would displace x and the weights, and each
// line would be read before it is written.
constexpr int64_t kStreamedBytes = 1024 * 1024;

// y = sums * scales + bias, rounded to T.
template <class T>
struct Layer {
    const T* bias;        // [width] or null
    const float* scales;  // [width rounded up to 16], or null: all 1
    int64_t width, depth;
    bool streams;  // whole lines of y are written past the caches
    int64_t stride = 0;  // elements from a row of y to the next; 0: width

    int64_t num_panels() const { return (width + kPanelWidth - 1) / kPanelWidth; }
    int64_t row(int64_t row) const { return row * (stride ? stride : width); }  // where it begins in y
};

// Whether to write `rows` rows of y past the caches. Two panels of a row must be a line.
template <class T>
bool is_streamed(const T* y, int64_t rows, int64_t width) {
#if defined(__AVX512F__)
    return std::is_same_v<T, BFloat16> && width % (2 * kPanelWidth) == 0 && uintptr_t(y) % kLine == 0 &&
           rows * width * int64_t(sizeof(T)) > kStreamedBytes;
#else
    (void)y, (void)rows, (void)width;
    return false;
#endif
}

// x from a row on, and how much memory a row takes. Rows of integers (integer_products.h) have the same functions.
template <class A>
ALWAYS_INLINE const A* rows_from(const A* x, int64_t row, int64_t depth) {
    return x + row * depth;
}
template <class A>
ALWAYS_INLINE const char* address_of(const A* x) {
    return reinterpret_cast<const char*>(x);
}
template <class A>
constexpr int64_t bytes_of_row(const A*, int64_t depth) {
    return depth * int64_t(sizeof(A));
}

// Rows of x as vectors multiply them, `stride` elements apart.
template <class A>
struct SpacedRows {
    const A* first;
    int64_t stride;
};
template <class A>
ALWAYS_INLINE SpacedRows<A> rows_from(SpacedRows<A> x, int64_t row, int64_t) {
    return {x.first + row * x.stride, x.stride};
}
template <class A>
ALWAYS_INLINE const char* address_of(SpacedRows<A> x) {
    return address_of(x.first);
}
template <class A>
constexpr int64_t bytes_of_row(SpacedRows<A> x, int64_t) {
    return x.stride * int64_t(sizeof(A));
}
template <int Rows, int Panels, class Prefetch, class A, class Weights>
ALWAYS_INLINE void multiply(SpacedRows<A> a, int64_t, Weights b, int64_t depth, Prefetch prefetch,
                            Sums<Rows, Panels>& sums) {
    multiply<Rows, Panels>(a.first, a.stride, b, depth, prefetch, sums);
}

// What a single block of rows prefetches. kNothing: its panels are in the cache already. kAhead: the lines that it will
// read kPrefetchDistance bytes later. kOnce: the same, and other blocks of rows find the panels in the cache. kNext: the
// panels after those that it reads, line by line, which suits short panels. kUnpack: its panels are in the cache, and the
// next ones are unpacked meanwhile (unpacking.h). A panel that is read alone is always prefetched with kAhead or kOnce.
enum class PrefetchMode { kNothing, kAhead, kOnce, kNext, kUnpack };

// Prefetching of a panel that is read once. With few rows one step reads faster; with more, products and reading overlap
// only in two steps.
constexpr int kMaxOneStepRows = 3;
template <int Rows>
using PrefetchOnce = std::conditional_t<Rows <= kMaxOneStepRows, PrefetchAhead<kPrefetchDistance>,
                                        PrefetchInSteps<2048, 16384>>;

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

template <class T>
ALWAYS_INLINE Floats finished(Floats sum, const Layer<T>& layer, int64_t column, int64_t count) {
    const Floats bias = layer.bias ? load_up_to(layer.bias + column, count) : Floats{};
    return layer.scales ? multiply_add(sum, load(layer.scales + column), bias) : sum + bias;
}

// Stores the outputs of one row and one panel to y, which may have fewer columns left than a panel.
template <class T>
ALWAYS_INLINE void finish(const Floats* sums, const Layer<T>& layer, int64_t column, T* y) {
    for (int v = 0; v < kVectors; v++, column += kWidth) {
        const int64_t count = std::min<int64_t>(kWidth, layer.width - column);
        if (count <= 0) return;
        store_up_to(y + column, finished(sums[v], layer, column, count), count);
    }
}

// As finish, for two panels of a layer that streams.
template <class T>
ALWAYS_INLINE void stream(const Floats* sums, const Layer<T>& layer, int64_t column, T* y) {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, BFloat16>) {
        stream_line(y + column, finished(sums[0], layer, column, kWidth),
                    finished(sums[1], layer, column + kPanelWidth, kWidth));
    }
#else
    (void)sums, (void)layer, (void)column, (void)y;
#endif
}

// Stores the outputs of a block of rows; y points to the first of them.
template <int Rows, int Panels, class T>
ALWAYS_INLINE void finish_block(const Sums<Rows, Panels>& sums, const Layer<T>& layer, int64_t panel, T* y) {
    const bool is_plain = !layer.bias && !layer.scales && (panel + Panels) * kPanelWidth <= layer.width;
    for (int row = 0; row < Rows; row++) {
        T* to = y + layer.row(row);
        if (Panels == 2 && layer.streams) {
            stream(sums.at[row], layer, panel * kPanelWidth, to);
        } else if (is_plain) {  // the usual case; makes a prefill 1 % faster
            for (int v = 0; v < Panels * kVectors; v++) store(to + panel * kPanelWidth + v * kWidth, sums.at[row][v]);
        } else {
            for (int p = 0; p < Panels; p++) finish(&sums.at[row][p * kVectors], layer, (panel + p) * kPanelWidth, to);
        }
    }
}

// Multiplies all rows of a chunk by the first `Panels` panels of `weights`, which start at panel `panel` of the layer.
template <int Panels, class Weights, class A, class T>
void multiply_rows(const Layer<T>& layer, A x, int64_t rows, Weights weights, int64_t panel, T* y) {
    constexpr int max_rows = Weights::kMaxBlockRows;
    const int64_t blocks = num_row_blocks<max_rows>(rows), prefetching = std::min(blocks, kPrefetchingBlocks);
    for_each_row_block<max_rows>(rows, [&](int64_t block, int64_t first, auto count) {
        const auto multiply_block = [&](auto prefetch) {
            Sums<count(), Panels> sums;
            multiply<count(), Panels>(rows_from(x, first, layer.depth), layer.depth, weights, layer.depth, prefetch,
                                      sums);
            finish_block(sums, layer, panel, y + layer.row(first));
        };
        const int64_t bytes = weights.panel_bytes();
        const auto prefetch_rows = [&] {  // those of the next block, spread over the lines that this block reads
            const A next = rows_from(x, block + 1 < blocks ? first + count() : first, layer.depth);
            const int64_t part = count() * bytes_of_row(x, layer.depth) / Panels;
            return PrefetchOther{address_of(next), part, std::min(kLine, part * kLine / bytes)};
        };
        if constexpr (Weights::kPrefetch == PrefetchMode::kNothing) {
            multiply_block(prefetch_rows());
        } else if constexpr (Weights::kPrefetch == PrefetchMode::kOnce) {
            block == 0 ? multiply_block(PrefetchOnce<count()>{}) : multiply_block(NoPrefetch{});
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
void multiply_panels(const Layer<T>& layer, A x, int64_t rows, Weights weights, int64_t begin, int64_t end, T* y) {
    int64_t panel = begin;
    if constexpr (Weights::kMaxSinglePanelRows < INT_MAX) {
        for (; rows > Weights::kMaxSinglePanelRows && panel + kMaxPanels <= end; panel += kMaxPanels) {
            multiply_rows<kMaxPanels>(layer, x, rows, weights.from(panel - begin), panel, y);
        }
    }
    for (; panel < end; panel++) multiply_rows<1>(layer, x, rows, weights.from(panel - begin), panel, y);
}

// Lines of memory at this distance share a set of a first-level cache, which holds 8 to 12 lines: if all rows of a block
// did, they would displace each other with every line.
constexpr int64_t kSetDistance = 4096;  // bytes
constexpr int64_t kMaxRowsOfSet = 8;

template <class A>
constexpr bool rows_share_sets(int64_t rows, int64_t depth) {
    return rows > kMaxRowsOfSet && depth * int64_t(sizeof(A)) % kSetDistance == 0;
}

// x in the type in which vectors multiply it: bfloat16 with pair products, else converted to float32 once per chunk.
ALWAYS_INLINE SpacedRows<float> operands(const float* x, int64_t, int64_t depth) { return {x, depth}; }

ALWAYS_INLINE SpacedRows<Operand> operands(const BFloat16* x, int64_t rows, int64_t depth) {
    static thread_local Scratch scratch;
    const bool share = rows_share_sets<Operand>(rows, depth);
    const int64_t stride = share ? depth + kLine / int64_t(sizeof(Operand)) : depth;
#if defined(STOKER_PAIR_PRODUCTS)
    if (!share) return {x, depth};
    Operand* copy = scratch.reserve<Operand>(rows * stride);
    for (int64_t row = 0; row < rows; row++) memcpy(copy + row * stride, x + row * depth, depth * sizeof(Operand));
#else
    Operand* copy = scratch.reserve<Operand>(rows * stride);
    for (int64_t row = 0; row < rows; row++, x += depth) {
        for_each_vector(depth, [&](int64_t i, int64_t left) {
            store_up_to(copy + row * stride + i, load_up_to(x + i, left), left);
        });
    }
#endif
    return {copy, stride};
}

#if defined(TILES)
#include "batch_invariant.h"

// With at most this number of rows most of a tile would be empty, and vectors are as fast as memory. They add in
// another order than tiles, so batch-invariant kernels use tiles always.
constexpr int64_t kMaxVectorRows = kBatchInvariant ? 0 : 4;
// Plain weights that all rows are multiplied by before the next ones are unpacked, if x is too large for the caches.
constexpr int64_t kGroupBytes = 1024 * 1024;

// Whether every group of panels is read and unpacked once for all rows. Otherwise each chunk of rows reads all panels,
// which is faster while there are few chunks.
inline bool has_rows_inside(int64_t rows, int64_t depth) {
    return depth >= 2048 && rows * depth * int64_t(sizeof(BFloat16)) > 2 * kChunkBytes;
}

// Calls body(first row, number of rows) for every block of rows, with tiles configured for it.
template <class Body>
ALWAYS_INLINE void for_each_tile_block(TileRegisters& tiles, int64_t rows, const Body& body) {
    for (int64_t row = 0; row < rows; row += kTileBlock) {
        const int count = int(std::min<int64_t>(kTileBlock, rows - row));
        tiles.configure(std::min(count, kTileRows));
        body(row, count);
    }
}

// The sums of a block of rows and two panels: four tiles.
struct alignas(64) BlockSums {
    static constexpr int64_t kRow = kPanelWidth * sizeof(float);
    float at[2][kTileBlock][kPanelWidth];  // left and right

    TileSums tiles(int rows) { return {at, kRow, kTileBlock * kRow, (rows - kTileRows) * kRow}; }
};

// Stores the outputs of a block; y points to its first row. sums_of(row, panel, vector) returns a register of sums.
template <class T, class SumsOf>
ALWAYS_INLINE void finish_tiles(int rows, const Layer<T>& layer, int64_t panel, T* y, const SumsOf& sums_of) {
    for (int row = 0; row < rows; row++) {
        Floats sums[2 * kVectors];
        for (int v = 0; v < 2 * kVectors; v++) sums[v] = sums_of(row, v / kVectors, v % kVectors);
        T* to = y + layer.row(row);
        if (layer.streams) {
            stream(sums, layer, panel * kPanelWidth, to);
        } else {
            for (int p = 0; p < 2; p++) finish(sums + p * kVectors, layer, (panel + p) * kPanelWidth, to);
        }
    }
}

// A last panel without a neighbour is multiplied twice and stored once: vectors would add in another order, and a
// column's sum would depend on how many columns the layer has.
template <class T, class Panels, class Meanwhile>
ALWAYS_INLINE void multiply_block_by_tiles(const Layer<T>& layer, const BFloat16* x, int rows, Panels panels,
                                           int64_t panel, Meanwhile&& meanwhile, T* y) {
    BlockSums sums;
    const int64_t neighbour = panel + 1 < layer.num_panels() ? panels.panel_bytes() : 0;
    multiply_tiles<BFloat16Tiles>(x, bytes_of_row(x, layer.depth), panels.elements, neighbour,
                                  layer.depth / kTileDepth, meanwhile, rows, false, sums.tiles(rows));
    finish_tiles(rows, layer, panel, y, [&](int row, int p, int v) {
        return load(&sums.at[p][row][v * kWidth]);
    });
}

struct PrefetchPanels {  // the lines that are kPrefetchDistance further
    ALWAYS_INLINE void operator()(const char* left, const char* right) const {
        for (int64_t line = 0; line < kTileBytes; line += kLine) {
            __builtin_prefetch(left + line + kPrefetchDistance);
            __builtin_prefetch(right + line + kPrefetchDistance);
        }
    }
};

// Multiplies all rows of a chunk by two panels, and unpacks the next two meanwhile if there are any.
template <class T, class Panels>
void multiply_pair_by_tiles(const Layer<T>& layer, const BFloat16* x, int64_t rows, Panels panels, int64_t panel,
                            TileRegisters& tiles, T* y) {
    [[maybe_unused]] auto next = [&] {
        if constexpr (Panels::kPrefetch == PrefetchMode::kUnpack) {
            return panels.unpack_pair();
        } else {
            return Nothing{};
        }
    }();
    [[maybe_unused]] const int64_t steps = (rows + kTileBlock - 1) / kTileBlock * layer.depth / kTileDepth;
    for_each_tile_block(tiles, rows, [&](int64_t row, int count) {
        const auto multiply_block = [&](auto&& meanwhile) {
            multiply_block_by_tiles(layer, rows_from(x, row, layer.depth), count, panels, panel, meanwhile,
                                    y + layer.row(row));
        };
        if constexpr (Panels::kPrefetch == PrefetchMode::kUnpack) {
            if (!next.is_done()) return next.unpack_during(steps, multiply_block);
        } else if constexpr (Panels::kPrefetch == PrefetchMode::kAhead) {
            if (row == 0) return multiply_block(PrefetchPanels{});
        }
        multiply_block(Nothing{});
    });
}

template <class T, class Weights>
void multiply_by_tiles(const Layer<T>& layer, const BFloat16* x, int64_t rows, Weights weights, int64_t begin,
                       int64_t end, T* y) {
    TileRegisters tiles;
    if (!has_rows_inside(rows, layer.depth)) {
        return for_each_pair(weights, begin, end, 1, [&](int64_t panel, auto panels) {
            multiply_pair_by_tiles(layer, x, rows, panels, panel, tiles, y);
        });
    }
    const int64_t pair_bytes = 2 * kPanelWidth * bytes_of_row(x, layer.depth);
    const int64_t most = 2 * std::max<int64_t>(1, kGroupBytes / pair_bytes);
    for_each_group(weights, begin, end, most, [&](int64_t first, int64_t last, auto panels) {
        for_each_tile_block(tiles, rows, [&](int64_t row, int count) {
            for (int64_t panel = first; panel < last; panel += 2) {
                multiply_block_by_tiles(layer, rows_from(x, row, layer.depth), count, panels.from(panel - first),
                                        panel, Nothing{}, y + layer.row(row));
            }
        });
    });
}
#endif

// Plain panels need not be unpacked. See unpacking.h.
template <class T, class Body>
void for_each_pair(PlainPanels<T> weights, int64_t panel, int64_t end, int64_t, const Body& body) {
    for (; panel < end; panel += 2, weights = weights.from(2)) body(panel, weights);
}
template <class T, class Body>
void for_each_group(PlainPanels<T> weights, int64_t panel, int64_t end, int64_t most, const Body& body) {
    for (; panel < end; panel += most, weights = weights.from(most)) body(panel, std::min(end, panel + most), weights);
}

// row_bytes: of a row of x when it is multiplied.
inline int64_t num_chunks(int64_t rows, int64_t row_bytes) {
    const int64_t steps = (rows + kChunkStep - 1) / kChunkStep;
    return std::min(steps, (rows * row_bytes + kChunkBytes - 1) / kChunkBytes);
}

template <class T>
int64_t num_chunks(const Layer<T>& layer, int64_t rows) {
    if constexpr (std::is_same_v<T, float>) return num_chunks(rows, layer.depth * int64_t(sizeof(float)));
#if defined(TILES)
    if (has_rows_inside(rows, layer.depth)) return 1;
#endif
    return num_chunks(rows, layer.depth * int64_t(sizeof(Operand)));
}

// A weight in any format, without its type: what a table of experts holds (experts.h).
struct Weight {
    const void *panels, *scales, *bias;  // scales and bias may be null
    int64_t width, depth;

    template <class T>
    Layer<T> layer(const float* scales = nullptr) const {
        return {static_cast<const T*>(bias), scales, width, depth, false};
    }
};

// The first row of a chunk, in [0, chunks].
inline int64_t chunk_start(int64_t rows, int64_t chunk, int64_t chunks) {
    const int64_t steps = (rows + kChunkStep - 1) / kChunkStep;
    return std::min(rows, steps * chunk / chunks * kChunkStep);
}

// Divides the rows into chunks and the panels among the threads, and calls body(x, rows, first panel, end panel, y) for
// one chunk of x and consecutive panels.
template <class T, class X, class Body>
void for_each_chunk(const Layer<T>& layer, int64_t chunks, X x, int64_t rows, T* y, const Body& body) {
    const int64_t pairs = (layer.num_panels() + 1) / 2;
    parallel_ranges(chunks * pairs, 1, [&](int64_t begin, int64_t end) {
        while (begin < end) {
            const int64_t chunk = begin / pairs, stop = std::min(end, (chunk + 1) * pairs);
            const int64_t first = chunk_start(rows, chunk, chunks), last = chunk_start(rows, chunk + 1, chunks);
            body(rows_from(x, first, layer.depth), last - first, (begin - chunk * pairs) * 2,
                 std::min((stop - chunk * pairs) * 2, layer.num_panels()), y + layer.row(first));
            begin = stop;
        }
#if defined(__AVX512F__)
        if (layer.streams) fence_streams();
#endif
    });
}

// The rows of one chunk times plain panels; `weights` start at panel `begin` of the layer. Other formats have the same
// function (unpacking.h).
template <class T>
void multiply_chunk(const Layer<T>& layer, const T* x, int64_t rows, PlainPanels<T> weights, int64_t begin, int64_t end,
                    T* y) {
#if defined(TILES)
    if constexpr (std::is_same_v<T, BFloat16>) {
        if (rows > kMaxVectorRows) return multiply_by_tiles(layer, x, rows, weights, begin, end, y);
    }
#endif
    multiply_panels(layer, operands(x, rows, layer.depth), rows, weights, begin, end, y);
}

// y = x W^T + bias over all panels of a layer.
template <class T, class Weights>
void linear_over(const Layer<T>& layer, const T* x, Weights all, int64_t rows, T* y) {
    for_each_chunk(layer, num_chunks(layer, rows), x, rows, y,
                   [&](const T* x, int64_t rows, int64_t begin, int64_t end, T* y) {
                       multiply_chunk(layer, x, rows, all.from(begin), begin, end, y);
                   });
}

// The same for the panels from `begin`, even, to `end`, by one thread: calls body(x, rows, y) for every chunk of rows.
// The chunks are those of for_each_chunk, so that the results are too.
template <class T, class X, class Body>
void for_each_own_chunk(const Layer<T>& layer, int64_t chunks, X x, int64_t rows, T* y, const Body& body) {
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        const int64_t first = chunk_start(rows, chunk, chunks), last = chunk_start(rows, chunk + 1, chunks);
        body(rows_from(x, first, layer.depth), last - first, y + layer.row(first));
    }
}

template <class T, class Weights>
void panels_over(const Layer<T>& layer, const T* x, Weights all, int64_t rows, int64_t begin, int64_t end, T* y) {
    for_each_own_chunk(layer, num_chunks(layer, rows), x, rows, y, [&](const T* x, int64_t rows, T* y) {
        multiply_chunk(layer, x, rows, all.from(begin), begin, end, y);
    });
}
