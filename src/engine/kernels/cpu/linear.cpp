// Linear layers over weights in panels: y = x W^T + bias. All of one type, float32 or bfloat16; sums are float32.
//
// Few rows (decode) are bound by reading the weights once, many rows (prefill) by the multipliers; one loop serves
// both: x is cut into chunks that stay in the second-level cache, each group of panels is read from memory once per
// chunk, and from the cache for every block of rows after the first. While the blocks of rows multiply one group, they
// fetch the next.

#include <algorithm>

#include "packing.h"
#include "panels.h"
#include "parallel.h"
#include "scratch.h"
#include "tiles.h"

namespace {

// Bytes of x in a chunk, as it is multiplied, of 1 or 2 MiB of second-level cache. Tiles multiply so fast that reading
// the weights again for every chunk counts, so their chunks are larger.
#if defined(TILES)
constexpr int64_t kChunkBytes = 1024 * 1024;
#else
constexpr int64_t kChunkBytes = 512 * 1024;
#endif
constexpr int64_t kAhead = 4096;        // bytes of a panel fetched ahead of its only reader
constexpr int64_t kFetchingBlocks = 4;  // of rows, that fetch the next panels; enough to spread it out

template <class T>
struct Layer {
    const T *panels, *bias;  // bias: [width] or null
    int64_t width, depth;

    int64_t num_panels() const { return (width + kPanelWidth - 1) / kPanelWidth; }
    int64_t panel_size() const { return depth * kPanelWidth; }
    int64_t panel_bytes() const { return panel_size() * int64_t(sizeof(T)); }
    const char* address(int64_t panel) const { return reinterpret_cast<const char*>(panels + panel * panel_size()); }
};

// Rounds one panel's sums of one row into y, which may have fewer columns left than a panel.
template <class T>
ALWAYS_INLINE void finish(const Floats* sums, const Layer<T>& layer, int64_t column, T* y) {
    for (int v = 0; v < kVectors; v++, column += kWidth) {
        const int64_t count = std::min<int64_t>(kWidth, layer.width - column);
        if (count <= 0) return;
        const Floats bias = layer.bias ? load_up_to(layer.bias + column, count) : Floats{};
        store_up_to(y + column, sums[v] + bias, count);
    }
}

template <int Rows, int Panels, class Fetch, class A, class T>
void multiply_block(const Layer<T>& layer, const A* x, int64_t panel, Fetch fetch, T* y) {
    Sums<Rows, Panels> sums;
    multiply<Rows, Panels>(x, layer.depth, layer.panels + panel * layer.panel_size(), layer.panel_size(), layer.depth,
                           fetch, sums);
    for (int row = 0; row < Rows; row++) {
        for (int p = 0; p < Panels; p++) {
            finish(&sums.at[row][p * kVectors], layer, (panel + p) * kPanelWidth, y + row * layer.width);
        }
    }
}

// All rows of a chunk by the panels [panel, panel + Panels).
template <int Panels, class A, class T>
void multiply_rows(const Layer<T>& layer, const A* x, int64_t rows, int64_t panel, T* y) {
    const int64_t blocks = num_row_blocks(rows), fetching = std::min(blocks, kFetchingBlocks);
    for_each_row_block(rows, [&](int64_t block, int64_t first, auto count) {
        const auto multiply = [&](auto fetch) {
            multiply_block<count(), Panels>(layer, x + first * layer.depth, panel, fetch, y + first * layer.width);
        };
        if (blocks == 1) return multiply(FetchAhead<kAhead>{});
        // Each of the first blocks its part of the next panels.
        const char* next = layer.address(panel + Panels) + layer.panel_bytes() / fetching * block;
        multiply(FetchNext{next, layer.panel_bytes(), block < fetching ? kLine / fetching : 0});
    });
}

template <class A, class T>
void multiply_panels(const Layer<T>& layer, const A* x, int64_t rows, int64_t begin, int64_t end, T* y) {
    int64_t panel = begin;
    for (; panel + kMaxPanels <= end; panel += kMaxPanels) multiply_rows<kMaxPanels>(layer, x, rows, panel, y);
    for (; panel < end; panel++) multiply_rows<1>(layer, x, rows, panel, y);
}

void multiply_by_vectors(const Layer<float>& layer, const float* x, int64_t rows, int64_t begin, int64_t end,
                         float* y) {
    multiply_panels(layer, x, rows, begin, end, y);
}

void multiply_by_vectors(const Layer<BFloat16>& layer, const BFloat16* x, int64_t rows, int64_t begin, int64_t end,
                         BFloat16* y) {
#if defined(STOKER_PAIR_PRODUCTS)
    multiply_panels(layer, x, rows, begin, end, y);
#else
    static thread_local Scratch scratch;
    float* wide = scratch.numbers<float>(rows * layer.depth);
    for_each_vector(rows * layer.depth, [&](int64_t i, int64_t count) {
        store_up_to(wide + i, load_up_to(x + i, count), count);
    });
    multiply_panels(layer, wide, rows, begin, end, y);
#endif
}

#if defined(TILES)
// Up to this many rows the tiles would stand mostly empty, and vectors keep up with memory.
constexpr int64_t kMaxVectorRows = 4;
// Depth of the part of two panels that every block of rows meets before the next part: 32 KiB, so that it stays in the
// first-level cache and the second level has only x to deliver.
constexpr int64_t kPartDepth = 512;

void multiply_by_tiles(const Layer<BFloat16>& layer, const BFloat16* x, int64_t rows, int64_t begin, int64_t end,
                       BFloat16* y) {
    constexpr int64_t block = 2 * kTileRows, columns = 2 * kPanelWidth;
    static thread_local Scratch scratch;
    float* sums = scratch.numbers<float>((rows + block) * columns);
    const int64_t part = rows <= block ? layer.depth : kPartDepth;
    TileRegisters tiles;
    int64_t panel = begin;
    for (; panel + 2 <= end; panel += 2) {
        for (int64_t k = 0; k < layer.depth; k += part) {
            const BFloat16* weights = layer.panels + panel * layer.panel_size() + k * kPanelWidth;
            for (int64_t row = 0; row < rows; row += block) {
                const int upper = int(std::min<int64_t>(kTileRows, rows - row));
                const int lower = int(std::min<int64_t>(kTileRows, rows - row - upper));
                tiles.configure(upper, lower);
                multiply_tiles(x + row * layer.depth + k, layer.depth, weights, layer.panel_size(),
                               std::min(part, layer.depth - k), row ? 0 : kAhead / int64_t(sizeof(BFloat16)), lower > 0,
                               k > 0, sums + row * columns, columns);
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
    if (panel < end) multiply_by_vectors(layer, x, rows, panel, end, y);
}
#endif

// One chunk of x by the panels [begin, end).
template <class T>
void multiply_chunk(const Layer<T>& layer, const T* x, int64_t rows, int64_t begin, int64_t end, T* y) {
#if defined(TILES)
    if constexpr (std::is_same_v<T, BFloat16>) {
        if (rows > kMaxVectorRows) return multiply_by_tiles(layer, x, rows, begin, end, y);
    }
#endif
    multiply_by_vectors(layer, x, rows, begin, end, y);
}

template <class T>
void linear(const Layer<T>& layer, const T* x, T* y, int64_t rows) {
    const int64_t depth = layer.depth;
    const int64_t bytes = std::is_same_v<T, float> ? sizeof(float) : sizeof(Operand);
    const int64_t chunks = (rows * depth * bytes + kChunkBytes - 1) / kChunkBytes;
    const int64_t pairs = (layer.num_panels() + 1) / 2;
    // Chunk by chunk, so that a thread's share is a run of neighbouring panels.
    parallel_ranges(chunks * pairs, 1, [&](int64_t begin, int64_t end) {
        while (begin < end) {
            const int64_t chunk = begin / pairs, stop = std::min(end, (chunk + 1) * pairs);
            const int64_t first = rows * chunk / chunks, last = rows * (chunk + 1) / chunks;
            multiply_chunk(layer, x + first * depth, last - first, (begin - chunk * pairs) * 2,
                           std::min((stop - chunk * pairs) * 2, layer.num_panels()), y + first * layer.width);
            begin = stop;
        }
    });
}

// Rows that fill the last panel are zero.
template <class T>
void pack(const T* weight, T* panels, int64_t width, int64_t depth) {
    const Layer<T> layer{panels, nullptr, width, depth};
    parallel_ranges(layer.num_panels(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t panel = begin; panel < end; panel++) {
            const int64_t first = panel * kPanelWidth;
            pack_columns([&](int i) { return weight + (first + i) * depth; },
                         int(std::min<int64_t>(kPanelWidth, width - first)), depth, depth,
                         panels + panel * layer.panel_size());
        }
    });
}

template <class T>
int unpack_rows(const T* panels, const int64_t* rows, T* out, int64_t count, int64_t width, int64_t depth) {
    constexpr int64_t deep = 4 / sizeof(T);  // neighbours in k that stand side by side
    for (int64_t i = 0; i < count; i++) {
        if (rows[i] < 0 || rows[i] >= width) return 1;
    }
    parallel_ranges(count, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const T* from = panels + rows[i] / kPanelWidth * kPanelWidth * depth + rows[i] % kPanelWidth * deep;
            for (int64_t k = 0; k < depth; k += deep) memcpy(out + i * depth + k, from + k * kPanelWidth, 4);
        }
    });
    return 0;
}

}  // namespace

// linear: x [rows, depth], y [rows, width], bias [width] or null. pack: weight [width, depth], panels with room for
// width rounded up to 16, times depth. unpack_rows copies rows of the weight back out of the panels, the lookup of an
// embedding that is tied to the output layer: out [count, depth]; returns 0, or 1 and nothing written if a row is not
// in [0, width). In bfloat16 depth is a multiple of 32.
#define EXPORT_FOR(T, suffix)                                                                                        \
    EXPORT void linear_##suffix(const T* x, const T* panels, const T* bias, T* y, int64_t rows, int64_t width,       \
                                int64_t depth) {                                                                     \
        linear(Layer<T>{panels, bias, width, depth}, x, y, rows);                                                    \
    }                                                                                                                \
    EXPORT void pack_##suffix(const T* weight, T* panels, int64_t width, int64_t depth) {                            \
        pack(weight, panels, width, depth);                                                                          \
    }                                                                                                                \
    EXPORT int unpack_rows_##suffix(const T* panels, const int64_t* rows, T* out, int64_t count, int64_t width,      \
                                    int64_t depth) {                                                                 \
        return unpack_rows(panels, rows, out, count, width, depth);                                                  \
    }

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
