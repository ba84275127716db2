// Linear layers over bfloat16 weights in panels: y = x W^T + bias. x and y are bfloat16, sums are float32.

#include "linear.h"
#include "packing.h"

// x: [rows, depth], y: [rows, width], bias: [width] or null; depth is a multiple of 32.
EXPORT void linear_bfloat16(const BFloat16* x, const BFloat16* panels, const BFloat16* bias, BFloat16* y, int64_t rows,
                            int64_t width, int64_t depth) {
    const Layer<BFloat16> layer{bias, nullptr, width, depth};
    const PlainPanels all{panels, depth * kPanelWidth};
    for_each_chunk(layer, x, rows, y, [&](const BFloat16* x, int64_t rows, int64_t begin, int64_t end, BFloat16* y) {
        int64_t panel = begin;
#if defined(TILES)
        if (rows > kMaxVectorRows) {
            TileRegisters tiles;
            float* sums = tile_sums(rows);
            for (; panel + 2 <= end; panel += 2) {
                multiply_pair_by_tiles(layer, x, rows, all.from(panel), panel, kAhead, tiles, sums, y);
            }
        }
#endif
        if (panel < end) {
            multiply_panels(layer, operands(x, rows * depth), rows, all.from(panel), panel, end, kAhead, y);
        }
    });
}

// weight: [width, depth]; panels: room for width rounded up to 16, times depth. Rows that fill the last panel are zero.
EXPORT void pack_bfloat16(const BFloat16* weight, BFloat16* panels, int64_t width, int64_t depth) {
    const int64_t num_panels = (width + kPanelWidth - 1) / kPanelWidth;
    parallel_ranges(num_panels, 1, [&](int64_t begin, int64_t end) {
        for (int64_t panel = begin; panel < end; panel++) {
            const int64_t first = panel * kPanelWidth;
            pack_columns([&](int i) { return weight + (first + i) * depth; },
                         int(std::min<int64_t>(kPanelWidth, width - first)), depth, depth,
                         panels + panel * depth * kPanelWidth);
        }
    });
}

// Copies rows of the weight back out of the panels: the lookup of an embedding that is tied to the output layer.
// out: [count, depth]. Returns 0, or 1 and nothing written if a row is not in [0, width).
EXPORT int unpack_rows_bfloat16(const BFloat16* panels, const int64_t* rows, BFloat16* out, int64_t count,
                                int64_t width, int64_t depth) {
    for (int64_t i = 0; i < count; i++) {
        if (rows[i] < 0 || rows[i] >= width) return 1;
    }
    parallel_ranges(count, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const BFloat16* from =
                panels + rows[i] / kPanelWidth * kPanelWidth * depth + rows[i] % kPanelWidth * 2;
            for (int64_t k = 0; k < depth; k += 2) {
                memcpy(out + i * depth + k, from + k * kPanelWidth, 2 * sizeof(BFloat16));
            }
        }
    });
    return 0;
}
