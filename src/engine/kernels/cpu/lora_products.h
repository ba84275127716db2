// The two products of adapters (LoRA): y = x @ A.T in float32, and columns of y @ B.T that are added to an output.
//
// A is [ranks, depth], and B has panels of kLoraPanel columns, each [rank, kLoraPanel] (../lora_add.py). Every row has
// sums of its own, in the same order whatever the number of rows is, so its result does not depend on the batch.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "parallel.h"
#include "vector.h"

constexpr int64_t kLoraPanel = 32;  // columns of B that are stored together
constexpr int64_t kLoraRows = 4;    // of a tile
constexpr int64_t kLoraRanks = 4;   // of a tile of the first product
constexpr int64_t kTaskRows = 64;   // at most
constexpr int64_t kTaskRanks = 8;
constexpr int64_t kAloneOperations = 1 << 15;  // below, other threads cost more than they save

// Calls body with the number of rows of each tile as a constant.
template <class Body>
ALWAYS_INLINE void for_each_tile(int64_t rows, const Body& body) {
    int64_t row = 0;
    for (; row + kLoraRows <= rows; row += kLoraRows) body(row, std::integral_constant<int, kLoraRows>{});
    switch (rows - row) {
        case 3: return body(row, std::integral_constant<int, 3>{});
        case 2: return body(row, std::integral_constant<int, 2>{});
        case 1: return body(row, std::integral_constant<int, 1>{});
    }
}

// Calls body for every task. operations: multiplications of all of them.
template <class Task, class Body>
void for_each_task(const std::vector<Task>& tasks, int64_t operations, const Body& body) {
    if (operations < kAloneOperations) {
        for (const Task& task : tasks) body(task);
        return;
    }
    parallel_tasks(int64_t(tasks.size()), [&](int64_t index) { body(tasks[index]); });
}

// ---- y = x @ A.T

#if defined(__AVX512BF16__)
typedef Bits Pairs;  // 2 * kWidth elements of bfloat16

ALWAYS_INLINE void add_products(Floats& sums, Pairs a, Pairs b) {
    sums = (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b);
}
ALWAYS_INLINE Pairs load_step(const BFloat16* from) {
    Pairs pairs;
    memcpy(&pairs, from, sizeof pairs);
    return pairs;
}
ALWAYS_INLINE Pairs load_step_partial(const BFloat16* from, int64_t count) {
    BFloat16 padded[2 * kWidth] = {};
    memcpy(padded, from, count * sizeof(BFloat16));
    return load_step(padded);
}
#else
ALWAYS_INLINE Two load_step(const BFloat16* from) { return load_two(from); }
ALWAYS_INLINE Two load_step_partial(const BFloat16* from, int64_t count) { return load_two_partial(from, count); }
#endif
ALWAYS_INLINE Two load_step(const float* from) { return load_two(from); }
ALWAYS_INLINE Two load_step_partial(const float* from, int64_t count) { return load_two_partial(from, count); }
ALWAYS_INLINE void add_products(Floats& sums, Two a, Two b) {
    sums = multiply_add(a.first, b.first, sums);
    sums = multiply_add(a.second, b.second, sums);
}

// y[r][k] of R rows and K ranks.
template <int R, int K, class T>
void shrink_tile(const T* const* x, const T* a, int64_t depth, float* const* y) {
    Floats sums[R][K] = {};
    int64_t i = 0;
    for (; i + 2 * kWidth <= depth; i += 2 * kWidth) {
        decltype(load_step(a)) rows[R];
        for (int r = 0; r < R; r++) rows[r] = load_step(x[r] + i);
        for (int k = 0; k < K; k++) {
            const auto column = load_step(a + k * depth + i);
            for (int r = 0; r < R; r++) add_products(sums[r][k], rows[r], column);
        }
    }
    if (i < depth) {
        for (int k = 0; k < K; k++) {
            const auto column = load_step_partial(a + k * depth + i, depth - i);
            for (int r = 0; r < R; r++) add_products(sums[r][k], load_step_partial(x[r] + i, depth - i), column);
        }
    }
    for (int r = 0; r < R; r++) {
        for (int k = 0; k < K; k++) y[r][k] = sum(sums[r][k]);
    }
}

template <int R, class T>
void shrink_rows(const T* const* x, const T* a, int64_t depth, float* const* y, int64_t ranks) {
    float* at[R];
    for (int r = 0; r < R; r++) at[r] = y[r];
    int64_t k = 0;
    for (; k + kLoraRanks <= ranks; k += kLoraRanks) {
        shrink_tile<R, kLoraRanks>(x, a + k * depth, depth, at);
        for (int r = 0; r < R; r++) at[r] += kLoraRanks;
    }
    for (; k < ranks; k++) {
        shrink_tile<R, 1>(x, a + k * depth, depth, at);
        for (int r = 0; r < R; r++) at[r] += 1;
    }
}

// y of some rows and `ranks` rows of A. from(row), to(row): where the row of x and that of y begin.
template <class T, class From, class To>
void shrink(const T* a, int64_t depth, int64_t ranks, int64_t rows, const From& from, const To& to) {
    for_each_tile(rows, [&](int64_t row, auto size) {
        constexpr int R = decltype(size)::value;
        const T* x[R];
        float* y[R];
        for (int r = 0; r < R; r++) x[r] = from(row + r), y[r] = to(row + r);
        shrink_rows<R>(x, a, depth, y, ranks);
    });
}

// ---- out += y @ B.T

// R rows and `Columns` columns of one panel, of which `count` exist. b, bias, factors: the first of them.
// out = out * factors + bias + y @ B.T; without factors they are 1, without a bias it is 0.
template <int R, int64_t Columns, class T>
void expand_tile(const float* const* y, const T* b, int64_t rank, const float* bias, const float* factors,
                 T* const* out, int64_t count) {
    constexpr int kVectors = Columns / kWidth;
    Floats sums[R][kVectors];
    for (int v = 0; v < kVectors; v++) {
        Floats first{};
        const int64_t left = count - v * kWidth;
        if (bias && left > 0) first = load_up_to(bias + v * kWidth, std::min<int64_t>(left, kWidth));
        for (int r = 0; r < R; r++) sums[r][v] = first;
    }
    for (int64_t k = 0; k < rank; k++) {
        for (int v = 0; v < kVectors; v++) {
            const Floats column = load(b + k * kLoraPanel + v * kWidth);
            for (int r = 0; r < R; r++) sums[r][v] = multiply_add(broadcast(y[r][k]), column, sums[r][v]);
        }
    }
    for (int v = 0; v < kVectors; v++) {
        const int64_t left = std::min<int64_t>(count - v * kWidth, kWidth);
        if (left <= 0) return;
        const Floats factor = factors ? load_up_to(factors + v * kWidth, left) : broadcast(1);
        for (int r = 0; r < R; r++) {
            T* at = out[r] + v * kWidth;
            store_up_to(at, multiply_add(load_up_to(at, left), factor, sums[r][v]), left);
        }
    }
}
