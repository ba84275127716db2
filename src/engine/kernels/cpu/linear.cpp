// Linear layers over plain panels: y = x W^T + bias. All of one type, float32 or bfloat16; sums are float32.

#include "linear.h"
#include "packing.h"
#include "captured_graph.h"

namespace {

template <class T>
PlainPanels<T> all_panels(const T* panels, int64_t depth) {
    return {panels, depth * kPanelWidth};
}

// Rows that pad the last panel are zero.
template <class T>
void pack(const T* weight, T* panels, int64_t width, int64_t depth) {
    parallel_ranges((width + kPanelWidth - 1) / kPanelWidth, 1, [&](int64_t begin, int64_t end) {
        for (int64_t panel = begin; panel < end; panel++) {
            const int64_t first = panel * kPanelWidth;
            pack_columns([&](int i) { return weight + (first + i) * depth; },
                         int(std::min<int64_t>(kPanelWidth, width - first)), depth, depth,
                         panels + panel * depth * kPanelWidth);
        }
    });
}

template <class T>
int unpack_rows(const T* panels, const int64_t* rows, T* out, int64_t count, int64_t width, int64_t depth) {
    constexpr int64_t deep = 4 / sizeof(T);  // consecutive k that are stored together
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

// linear: x [rows, depth], y [rows, width], bias [width] or null. panels: those columns of y alone, see experts.h. pack: weight [width, depth], panels with room for
// width rounded up to 16, times depth. unpack_rows copies rows of the weight back out of the panels, for an embedding
// that is tied to the output layer: out [count, depth]; returns 0, or 1 without writing anything if a row is not in
// [0, width). In bfloat16 depth is a multiple of 32.
#define EXPORT_FOR(T, suffix)                                                                                        \
    EXPORT void linear_##suffix(const T* x, const T* panels, const T* bias, T* y, int64_t rows, int64_t width,       \
                                int64_t depth) {                                                                     \
        linear_over(Layer<T>{bias, nullptr, width, depth, is_streamed(y, rows, width)}, x,                           \
                    all_panels(panels, depth), rows, y);                                                             \
    }                                                                                                                \
    EXPORT void panels_##suffix(const Weight& weight, const T* x, int64_t rows, int64_t begin, int64_t end, T* y) {  \
        panels_over(weight.layer<T>(), x, all_panels(static_cast<const T*>(weight.panels), weight.depth), rows,      \
                    begin, end, y);                                                                                  \
    }                                                                                                                \
    EXPORT void pack_##suffix(const T* weight, T* panels, int64_t width, int64_t depth) {                            \
        pack(weight, panels, width, depth);                                                                          \
    }                                                                                                                \
    EXPORT int unpack_rows_##suffix(const T* panels, const int64_t* rows, T* out, int64_t count, int64_t width,      \
                                    int64_t depth) {                                                                 \
        return unpack_rows(panels, rows, out, count, width, depth);                                                  \
    }                                                                                                                \
    CAPTURABLE(linear_##suffix)                                                                                     \
    CAPTURABLE(unpack_rows_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
