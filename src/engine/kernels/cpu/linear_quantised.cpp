// Linear layers over quantised panels (quantised.h): y = x W^T + bias, x and y float32 or bfloat16, sums float32.
//
// Few rows multiply with codes that are widened in registers. For many rows the codes of two panels become bfloat16
// panels in the second-level cache, once, and every block of rows reads those.

#include "linear.h"
#include "program.h"
#include "quantised.h"

namespace {

// As many rows multiply with codes directly; beyond, widening them once for all is less work.
template <class Weights>
#if defined(TILES)
constexpr int64_t kMaxDirectRows = kMaxVectorRows;
#elif defined(__AVX512F__)
constexpr int64_t kMaxDirectRows = std::is_same_v<Weights, Int8Panels> ? 64 : 48;
#elif defined(__AVX2__)
constexpr int64_t kMaxDirectRows = std::is_same_v<Weights, Int8Panels> ? 64 : 8;
#else
constexpr int64_t kMaxDirectRows = 2;
#endif

// Widened int4 weights are rounded, so their sums are not those of the codes; int8's are.
template <class Weights>
#if defined(TILES)
constexpr bool kDirectOnly = false;
#else
constexpr bool kDirectOnly = kBatchInvariant && std::is_same_v<Weights, Int4Panels>;
#endif

template <class T, class Weights>
void multiply_dequantised(const Layer<T>& layer, const T* x, int64_t rows, Weights weights, int64_t panel, int64_t end,
                          T* y) {
    static thread_local Scratch scratch;
    const int64_t size = layer.depth * kPanelWidth;
    BFloat16* numbers = scratch.numbers<BFloat16>(2 * size);
    const PlainPanels<BFloat16, true> plain{numbers, size};
#if defined(TILES)
    if constexpr (std::is_same_v<T, BFloat16>) {
        TileRegisters tiles;
        float* sums = tile_sums(rows);
        for (; panel + 2 <= end; panel += 2) {
            dequantise(weights, panel, 2, numbers);
            multiply_pair_by_tiles(layer, x, rows, plain, panel, tiles, sums, y);
        }
    }
#endif
    if (panel >= end) return;
    const auto* wide = operands(x, rows * layer.depth);
    for (; panel < end; panel += 2) {
        const int64_t count = std::min<int64_t>(2, end - panel);
        dequantise(weights, panel, count, numbers);
        multiply_panels(layer, wide, rows, plain, panel, panel + count, y);
    }
}

template <class T, class Weights>
void linear(const Layer<T>& layer, const T* x, Weights weights, int64_t rows, T* y) {
    for_each_chunk(layer, x, rows, y, [&](const T* x, int64_t rows, int64_t begin, int64_t end, T* y) {
        if (rows > kMaxDirectRows<Weights> && !kDirectOnly<Weights>) return multiply_dequantised(layer, x, rows, weights, begin, end, y);
        multiply_panels(layer, operands(x, rows * layer.depth), rows, weights.from(begin), begin, end, y);
    });
}

// Copies rows of the weight back out: the lookup of an embedding that is tied to the output layer.
template <class T>
int unpack_rows(Int8Panels weights, const float* scales, const int64_t* rows, T* out, int64_t count, int64_t width) {
    const int64_t depth = weights.depth;
    for (int64_t i = 0; i < count; i++) {
        if (rows[i] < 0 || rows[i] >= width) return 1;
    }
    parallel_ranges(count, 4, [&](int64_t begin, int64_t end) {
        static thread_local Scratch scratch;
        float* row = scratch.numbers<float>(depth);
        for (int64_t i = begin; i < end; i++) {
            const int8_t* panel = weights.from(rows[i] / kPanelWidth).codes;
            const int column = int(rows[i] % kPanelWidth);
            for (int64_t k = 0; k < depth; k++) row[k] = number_of(panel[code_place(k, column)]) * scales[rows[i]];
            for_each_vector(depth, [&](int64_t k, int64_t left) {
                store_up_to(out + i * depth + k, load_up_to(row + k, left), left);
            });
        }
    });
    return 0;
}

}  // namespace

// x: [rows, depth], y: [rows, width], bias: [width] or null; depth is a multiple of 32. int8's scales: [width rounded up
// to 16]. unpack_rows: out [count, depth]; returns 0, or 1 and nothing written if a row is not in [0, width).
#define LINEAR_QUANTISED(name, T)                                                                                    \
    EXPORT void linear_int8_##name(const T* x, const int8_t* codes, const float* scales, const T* bias, T* y,        \
                                   int64_t rows, int64_t width, int64_t depth) {                                     \
        linear(Layer<T>{bias, scales, width, depth}, x, Int8Panels{codes, depth}, rows, y);                          \
    }                                                                                                                \
    EXPORT void linear_int4_##name(const T* x, const uint32_t* codes, const BFloat16* scales, const T* bias, T* y,   \
                                   int64_t rows, int64_t width, int64_t depth) {                                     \
        linear(Layer<T>{bias, nullptr, width, depth}, x, Int4Panels{codes, scales, depth}, rows, y);                 \
    }                                                                                                                \
    EXPORT int unpack_rows_int8_##name(const int8_t* codes, const float* scales, const int64_t* rows, T* out,        \
                                       int64_t count, int64_t width, int64_t depth) {                                \
        return unpack_rows(Int8Panels{codes, depth}, scales, rows, out, count, width);                               \
    }                                                                                                                \
    IN_PROGRAMS(linear_int8_##name)                                                                                  \
    IN_PROGRAMS(linear_int4_##name)                                                                                  \
    IN_PROGRAMS(unpack_rows_int8_##name)

LINEAR_QUANTISED(bfloat16, BFloat16)
LINEAR_QUANTISED(float32, float)
