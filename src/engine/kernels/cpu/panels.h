// Panels: the order in which a matrix product reads its right-hand side, and the product over them.
//
// A panel holds 16 columns of B in [K, N] (16 outputs of a linear layer, 16 keys of attention), K deep, contiguous:
//   bfloat16: [K / 2][16][2], two neighbours in k side by side, as vdpbf16ps and the AMX tiles want them;
//   float32:  [K][16].
// One layout serves every instruction set, so weights are stored once. Three products read it:
//   float32 x bfloat16, panels widened in registers;
//   bfloat16 x bfloat16 where vdpbf16ps is the faster way (STOKER_PAIR_PRODUCTS: AMD. On an Intel Xeon of the fifth
//   generation it does 87 GFLOP/s per core where widening and float32 multiply-adds do 153);
//   float32 x float32, for attention in float32.
#pragma once

#include <type_traits>

#include "vector.h"

constexpr int kPanelWidth = 16;
constexpr int kVectors = kPanelWidth / kWidth;  // registers across a panel

// Rows of A and panels of B whose sums stay in registers: 12 x 2 of 32 registers, 4 x 2 or 2 x 4 of 16.
#if defined(__AVX512F__)
constexpr int kMaxRows = 12, kMaxPanels = 2;
#elif defined(__AVX2__)
constexpr int kMaxRows = 4, kMaxPanels = 1;
#else
constexpr int kMaxRows = 2, kMaxPanels = 1;
#endif

// What the rows of A are held in while they are multiplied.
#if defined(STOKER_PAIR_PRODUCTS)
typedef BFloat16 Operand;
#else
typedef float Operand;
#endif

template <int Rows, int Panels>
struct Sums {
    Floats at[Rows][Panels * kVectors];

    ALWAYS_INLINE Sums() {  // one by one: gcc clears a whole array in memory, and keeps it there
        for (int row = 0; row < Rows; row++) {
            for (int v = 0; v < Panels * kVectors; v++) at[row][v] = Floats{};
        }
    }
};

constexpr int64_t kLine = 64;  // bytes: two numbers deep in a panel of bfloat16, one in a panel of float32

// What is brought into the cache with every line that is read of a panel. Nothing: panels are there already.
struct FetchNothing {
    ALWAYS_INLINE void fetch(const void*, int) const {}
    ALWAYS_INLINE void advance() {}
};

// What will be read so many bytes later.
template <int64_t Bytes>
struct FetchAhead {
    ALWAYS_INLINE void fetch(const void* line, int) const {
        __builtin_prefetch(static_cast<const char*>(line) + Bytes);
    }
    ALWAYS_INLINE void advance() {}
};

// Other memory, beginning at `from`, in as many parts as panels are read: `step` bytes of each per line of a panel.
struct FetchNext {
    const char* from;
    int64_t part_bytes, step;

    ALWAYS_INLINE void fetch(const void*, int panel) const { __builtin_prefetch(from + panel * part_bytes); }
    ALWAYS_INLINE void advance() { from += step; }
};

// sums += A[Rows, depth] * B. `a` has rows of stride `a_stride`; panel p of B begins at b + p * panel_size.
template <int Rows, int Panels, class Fetch>
ALWAYS_INLINE void multiply(const float* a, int64_t a_stride, const float* b, int64_t panel_size, int64_t depth,
                            Fetch fetch, Sums<Rows, Panels>& sums) {
    for (int64_t k = 0; k < depth; k++, fetch.advance()) {
        Floats columns[Panels * kVectors];
        for (int p = 0; p < Panels; p++) {
            const float* from = b + p * panel_size + k * kPanelWidth;
            fetch.fetch(from, p);
            for (int v = 0; v < kVectors; v++) columns[p * kVectors + v] = load(from + v * kWidth);
        }
        for (int row = 0; row < Rows; row++) {
            const Floats value = broadcast(a[row * a_stride + k]);
            for (int v = 0; v < Panels * kVectors; v++) sums.at[row][v] += value * columns[v];
        }
    }
}

// sums += two neighbours in k of every row of A times the same two of every column, side by side in `pairs`.
// float32 x bfloat16: a shift widens the first number of each pair, a mask the second.
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

template <int Rows, int Panels, class Fetch, class A>
ALWAYS_INLINE void multiply(const A* a, int64_t a_stride, const BFloat16* b, int64_t panel_size, int64_t depth,
                            Fetch fetch, Sums<Rows, Panels>& sums) {
    for (int64_t k = 0; k < depth; k += 2, fetch.advance()) {
        Bits pairs[Panels * kVectors];
        for (int p = 0; p < Panels; p++) {
            const BFloat16* from = b + p * panel_size + k * kPanelWidth;
            fetch.fetch(from, p);
            for (int v = 0; v < kVectors; v++) memcpy(&pairs[p * kVectors + v], from + v * 2 * kWidth, sizeof(Bits));
        }
        add_products<Rows, Panels>(a + k, a_stride, pairs, sums);
    }
}

// Calls body(std::integral_constant<int, rows>) for a number of rows known only at run time.
template <int Most, int Rows = 1, class Body>
ALWAYS_INLINE void with_rows(int rows, const Body& body) {
    if constexpr (Rows == Most) {
        body(std::integral_constant<int, Rows>{});
    } else {
        rows == Rows ? body(std::integral_constant<int, Rows>{}) : with_rows<Most, Rows + 1>(rows, body);
    }
}

template <int Most>
constexpr int64_t num_row_blocks(int64_t rows) {
    return (rows + Most - 1) / Most;
}

// Cuts `rows` into the fewest blocks of at most `Most`, as even as can be (13 is 7 + 6, not 12 + 1: a lone row leaves
// most registers idle), and calls body(block, first row, integral constant: rows in the block).
template <int Most, class Body>
ALWAYS_INLINE void for_each_row_block(int64_t rows, const Body& body) {
    const int64_t blocks = num_row_blocks<Most>(rows);
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = rows * block / blocks;
        with_rows<Most>(int(rows * (block + 1) / blocks - first), [&](auto count) { body(block, first, count); });
    }
}

// c[kMaxRows, num_panels * 16] = a[kMaxRows, depth] * B, or += with `accumulate`; c has rows of stride `c_stride`.
template <int Panels, class A, class T>
ALWAYS_INLINE void multiply_full_rows(const A* a, int64_t a_stride, const T* b, int64_t panel_size, int64_t depth,
                                      bool accumulate, float* c, int64_t c_stride) {
    Sums<kMaxRows, Panels> sums;
    multiply<kMaxRows, Panels>(a, a_stride, b, panel_size, depth, FetchNothing{}, sums);
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
