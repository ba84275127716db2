// Panels: the memory layout of the right-hand side B of a matrix product, and the product that reads it.
//
// A panel holds 16 columns of B [K, N] (16 outputs of a linear layer, or 16 keys in attention), contiguous:
//   bfloat16: [K / 2][16][2], pairs of consecutive k, the layout that vdpbf16ps and the AMX tiles require;
//   float32:  [K][16].
// All instruction sets use the same layout, so weights are stored once. Three products read it:
//   float32 x bfloat16: panels are converted to float32 in registers;
//   bfloat16 x bfloat16: where vdpbf16ps is faster (STOKER_PAIR_PRODUCTS: AMD. On a fifth-generation Intel Xeon it does
//   87 GFLOP/s per core; conversion and float32 multiply-adds do 153);
//   float32 x float32: attention in float32.
#pragma once

#include <type_traits>

#include "vector.h"

constexpr int kPanelWidth = 16;
constexpr int kVectors = kPanelWidth / kWidth;  // registers across a panel

// Rows of A and panels of B whose sums fit in registers: 12 x 2 of 32 registers, 4 x 2 or 2 x 4 of 16.
#if defined(__AVX512F__)
constexpr int kMaxRows = 12, kMaxPanels = 2;
#elif defined(__AVX2__)
constexpr int kMaxRows = 4, kMaxPanels = 1;
#else
constexpr int kMaxRows = 2, kMaxPanels = 1;
#endif

// The type of the rows of A during the multiplication.
#if defined(STOKER_PAIR_PRODUCTS)
typedef BFloat16 Operand;
#else
typedef float Operand;
#endif

template <int Rows, int Panels>
struct Sums {
    Floats at[Rows][Panels * kVectors];

    ALWAYS_INLINE Sums() {  // element by element: gcc would clear the whole array in memory and keep it there
        for (int row = 0; row < Rows; row++) {
            for (int v = 0; v < Panels * kVectors; v++) at[row][v] = Floats{};
        }
    }
};

constexpr int64_t kLine = 64;  // bytes of a cache line: two k of a bfloat16 panel, one k of a float32 panel

// What to prefetch whenever one line of a panel is read. Nothing: the panels are in the cache.
struct NoPrefetch {
    ALWAYS_INLINE void prefetch(const void*, int) const {}
    ALWAYS_INLINE void advance() {}
};

// The line that is `Bytes` further in the same panel.
template <int64_t Bytes>
struct PrefetchAhead {
    ALWAYS_INLINE void prefetch(const void* line, int) const {
        __builtin_prefetch(static_cast<const char*>(line) + Bytes);
    }
    ALWAYS_INLINE void advance() {}
};

// The same in two steps: from memory to the second-level cache, which can wait for more lines at a time than the first, and
// from there to the first.
template <int64_t ToFirst, int64_t ToSecond>
struct PrefetchInSteps {
    ALWAYS_INLINE void prefetch(const void* line, int) const {
        __builtin_prefetch(static_cast<const char*>(line) + ToFirst);
        __builtin_prefetch(static_cast<const char*>(line) + ToSecond, 0, 2);
    }
    ALWAYS_INLINE void advance() {}
};

// Other memory, starting at `from` and divided into one part per panel: `step` bytes of each part per line of a panel.
struct PrefetchOther {
    const char* from;
    int64_t part_bytes, step;

    ALWAYS_INLINE void prefetch(const void*, int panel) const { __builtin_prefetch(from + panel * part_bytes); }
    ALWAYS_INLINE void advance() { from += step; }
};

// sums += A[Rows, depth] * B. Rows of `a` are `a_stride` elements apart; panel p of B starts at b + p * panel_size.
template <int Rows, int Panels, class Prefetch>
ALWAYS_INLINE void multiply(const float* a, int64_t a_stride, const float* b, int64_t panel_size, int64_t depth,
                            Prefetch prefetch, Sums<Rows, Panels>& sums) {
    for (int64_t k = 0; k < depth; k++, prefetch.advance()) {
        Floats columns[Panels * kVectors];
        for (int p = 0; p < Panels; p++) {
            const float* from = b + p * panel_size + k * kPanelWidth;
            prefetch.prefetch(from, p);
            for (int v = 0; v < kVectors; v++) columns[p * kVectors + v] = load(from + v * kWidth);
        }
        for (int row = 0; row < Rows; row++) {
            const Floats value = broadcast(a[row * a_stride + k]);
            for (int v = 0; v < Panels * kVectors; v++) sums.at[row][v] += value * columns[v];
        }
    }
}

// sums += the products of two consecutive k of every row of A with the same two k of every column, stored as `pairs`.
// float32 x bfloat16: a shift converts the first element of each pair to float32, a mask the second.
template <int Rows, int Panels>
ALWAYS_INLINE void add_products(const float* a, int64_t a_stride, const Bits (&pairs)[Panels * kVectors],
                                Sums<Rows, Panels>& sums) {
    for (int row = 0; row < Rows; row++) {
        const Floats value = broadcast(a[row * a_stride]);
        for (int v = 0; v < Panels * kVectors; v++) sums.at[row][v] += value * (Floats)(pairs[v] << 16);
    }
    for (int row = 0; row < Rows; row++) {
        const Floats value = broadcast(a[row * a_stride + 1]);
        for (int v = 0; v < Panels * kVectors; v++) sums.at[row][v] += value * (Floats)(pairs[v] & 0xffff0000u);
    }
}

#if defined(STOKER_PAIR_PRODUCTS)
ALWAYS_INLINE Floats add_pair_products(Floats sums, __m512i a, __m512i b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b);
}

template <int Rows, int Panels>
ALWAYS_INLINE void add_products(const BFloat16* a, int64_t a_stride, const Bits (&pairs)[Panels],
                                Sums<Rows, Panels>& sums) {
    for (int row = 0; row < Rows; row++) {
        int32_t pair;
        memcpy(&pair, a + row * a_stride, sizeof pair);
        const __m512i value = _mm512_set1_epi32(pair);
        for (int p = 0; p < Panels; p++) {
            sums.at[row][p] = add_pair_products(sums.at[row][p], value, (__m512i)pairs[p]);
        }
    }
}
#endif

template <int Rows, int Panels, class Prefetch, class A>
ALWAYS_INLINE void multiply(const A* a, int64_t a_stride, const BFloat16* b, int64_t panel_size, int64_t depth,
                            Prefetch prefetch, Sums<Rows, Panels>& sums) {
    for (int64_t k = 0; k < depth; k += 2, prefetch.advance()) {
        Bits pairs[Panels * kVectors];
        for (int p = 0; p < Panels; p++) {
            const BFloat16* from = b + p * panel_size + k * kPanelWidth;
            prefetch.prefetch(from, p);
            for (int v = 0; v < kVectors; v++) memcpy(&pairs[p * kVectors + v], from + v * 2 * kWidth, sizeof(Bits));
        }
        add_products<Rows, Panels>(a + k, a_stride, pairs, sums);
    }
}

// Calls body(std::integral_constant<int, rows>) for a number of rows that is known only at run time.
template <int Max, int Rows = 1, class Body>
ALWAYS_INLINE void with_rows(int rows, const Body& body) {
    if constexpr (Rows == Max) {
        body(std::integral_constant<int, Rows>{});
    } else {
        rows == Rows ? body(std::integral_constant<int, Rows>{}) : with_rows<Max, Rows + 1>(rows, body);
    }
}

template <int Max>
constexpr int64_t num_row_blocks(int64_t rows) {
    return (rows + Max - 1) / Max;
}

// Divides `rows` into the minimum number of blocks of at most `Max` rows, of nearly equal size (13 rows are 7 + 6, not
// 12 + 1: a block of one row leaves most registers unused), and calls body(block, first row, integral constant: rows in
// the block).
template <int Max, class Body>
ALWAYS_INLINE void for_each_row_block(int64_t rows, const Body& body) {
    const int64_t blocks = num_row_blocks<Max>(rows);
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = rows * block / blocks;
        with_rows<Max>(int(rows * (block + 1) / blocks - first), [&](auto count) { body(block, first, count); });
    }
}

// c[kMaxRows, num_panels * 16] = a[kMaxRows, depth] * B, or += with `accumulate`. Rows of `c` are `c_stride` elements
// apart.
template <int Panels, class A, class T>
ALWAYS_INLINE void multiply_full_rows(const A* a, int64_t a_stride, const T* b, int64_t panel_size, int64_t depth,
                                      bool accumulate, float* c, int64_t c_stride) {
    Sums<kMaxRows, Panels> sums;
    multiply<kMaxRows, Panels>(a, a_stride, b, panel_size, depth, NoPrefetch{}, sums);
    for (int row = 0; row < kMaxRows; row++) {
        for (int v = 0; v < Panels * kVectors; v++) {
            float* at = c + row * c_stride + v * kWidth;
            store(at, accumulate ? load(at) + sums.at[row][v] : sums.at[row][v]);
        }
    }
}

template <class A, class T>
void multiply_full_rows(const A* a, int64_t a_stride, const T* b, int64_t panel_size, int64_t depth,
                        int64_t num_panels, bool accumulate, float* c, int64_t c_stride) {
    int64_t panel = 0;
    for (; panel + kMaxPanels <= num_panels; panel += kMaxPanels) {
        multiply_full_rows<kMaxPanels>(a, a_stride, b + panel * panel_size, panel_size, depth, accumulate,
                                       c + panel * kPanelWidth, c_stride);
    }
    for (; panel < num_panels; panel++) {
        multiply_full_rows<1>(a, a_stride, b + panel * panel_size, panel_size, depth, accumulate,
                              c + panel * kPanelWidth, c_stride);
    }
}
