// Linear layers over bfloat16 weights in 12 bits (twelve_bits.h): y = x W^T + bias. The results equal those of plain
// panels bit by bit.

#include "captured_graph.h"
#include "twelve_bits.h"
#include "unpacking.h"

#if defined(TWELVE_BITS)
namespace {

TwelveBitPanels all_panels(const char* panels, int64_t width, int64_t depth) {
    const int64_t count = (width + kPanelWidth - 1) / kPanelWidth;
    const TwelveBitPanels all{panels, nullptr, depth};
    return {panels, reinterpret_cast<const Exception*>(all.from(count).panels), depth};
}

int unpack_rows(TwelveBitPanels weights, const int64_t* rows, BFloat16* out, int64_t count, int64_t width) {
    const int64_t depth = weights.depth;
    for (int64_t i = 0; i < count; i++) {
        if (rows[i] < 0 || rows[i] >= width) return 1;
    }
    parallel_ranges(count, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            unpack_row(weights.from(rows[i] / kPanelWidth), int(rows[i] % kPanelWidth), out + i * depth);
        }
    });
    return 0;
}

}  // namespace

// x: [rows, depth], y: [rows, width], bias: [width] or null, panels: followed by their exceptions; depth is a multiple
// of 32. unpack_rows: out [count, depth]; returns 0, or 1 without writing anything if a row is not in [0, width).
EXPORT void linear_twelve_bits(const BFloat16* x, const char* panels, const BFloat16* bias, BFloat16* y, int64_t rows,
                               int64_t width, int64_t depth) {
    linear_over(Layer<BFloat16>{bias, nullptr, width, depth, is_streamed(y, rows, width)}, x,
                all_panels(panels, width, depth), rows, y);
}

EXPORT void panels_twelve_bits(const Weight& weight, const BFloat16* x, int64_t rows, int64_t begin, int64_t end,
                               BFloat16* y) {
    panels_over(weight.layer<BFloat16>(), x,
                all_panels(static_cast<const char*>(weight.panels), weight.width, weight.depth), rows, begin, end, y);
}

EXPORT int unpack_rows_twelve_bits(const char* panels, const int64_t* rows, BFloat16* out, int64_t count,
                                   int64_t width, int64_t depth) {
    return unpack_rows(all_panels(panels, width, depth), rows, out, count, width);
}

CAPTURABLE(linear_twelve_bits)
CAPTURABLE(unpack_rows_twelve_bits)
#endif
