// Deltas of adapters, added to the product of a fused linear layer. The reference is in ../lora_add.py.
//
// Two phases: y = x @ A.T for the rows of each adapter, in float32, then out += y @ B.T. Each is divided into tasks of
// some rows and some ranks, or columns. A row's sums have the same order whatever the number of rows is, so its result
// does not depend on the batch.

#include <type_traits>
#include <vector>

#include "captured_graph.h"
#include "parallel.h"
#include "scratch.h"
#include "vector.h"

namespace {

constexpr int64_t kPanel = 32;     // columns of B that are stored together
constexpr int64_t kRows = 4;       // of a tile
constexpr int64_t kRanks = 4;      // of a tile of the first product
constexpr int64_t kTaskRows = 64;  // at most
constexpr int64_t kTaskRanks = 8;
constexpr int64_t kTaskPanels = 8;
constexpr int64_t kAloneOperations = 1 << 15;  // below, other threads cost more than they save


struct Task {
    int32_t slot, part;
    int32_t row, rows;     // of the sorted tokens
    int32_t begin, count;  // ranks of all parts, or panels of one part
};

struct Lines {  // of the table: one for each slot
    const int64_t* table;
    int64_t parts;

    const int64_t* line(int64_t slot) const { return table + slot * (3 + 3 * parts); }
    const int64_t* part(int64_t slot, int64_t index) const { return line(slot) + 3 + 3 * index; }
    template <class T>
    const T* a(int64_t slot) const { return reinterpret_cast<const T*>(line(slot)[0]); }
    const float* bias(int64_t slot) const { return reinterpret_cast<const float*>(line(slot)[1]); }
    int64_t ranks(int64_t slot) const { return line(slot)[2]; }
    int64_t first_rank(int64_t slot, int64_t index) const { return part(slot, index)[0]; }
    int64_t rank(int64_t slot, int64_t index) const { return part(slot, index)[1]; }
    template <class T>
    const T* b(int64_t slot, int64_t index) const { return reinterpret_cast<const T*>(part(slot, index)[2]); }
};

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
    for (; k + kRanks <= ranks; k += kRanks) {
        shrink_tile<R, kRanks>(x, a + k * depth, depth, at);
        for (int r = 0; r < R; r++) at[r] += kRanks;
    }
    for (; k < ranks; k++) {
        shrink_tile<R, 1>(x, a + k * depth, depth, at);
        for (int r = 0; r < R; r++) at[r] += 1;
    }
}

// ---- out += y @ B.T

// R rows and one panel, of which `count` columns exist.
template <int R, class T>
void expand_tile(const float* const* y, const T* b, int64_t rank, const float* bias, T* const* out, int64_t count) {
    constexpr int kVectors = kPanel / kWidth;
    Floats sums[R][kVectors];
    for (int v = 0; v < kVectors; v++) {
        Floats first{};
        if (bias && count == kPanel) first = load(bias + v * kWidth);
        if (bias && count < kPanel) {
            const int64_t left = count - v * kWidth;
            if (left > 0) first = left >= kWidth ? load(bias + v * kWidth) : load_partial(bias + v * kWidth, left);
        }
        for (int r = 0; r < R; r++) sums[r][v] = first;
    }
    for (int64_t k = 0; k < rank; k++) {
        for (int v = 0; v < kVectors; v++) {
            const Floats column = load(b + k * kPanel + v * kWidth);
            for (int r = 0; r < R; r++) sums[r][v] = multiply_add(broadcast(y[r][k]), column, sums[r][v]);
        }
    }
    for (int r = 0; r < R; r++) {
        for (int v = 0; v < kVectors; v++) {
            const int64_t left = count - v * kWidth;
            T* at = out[r] + v * kWidth;
            if (left >= kWidth) {
                store(at, load(at) + sums[r][v]);
            } else if (left > 0) {
                store_partial(at, load_partial(at, left) + sums[r][v], left);
            }
        }
    }
}

// Calls body with the number of rows of each tile as a constant.
template <class Body>
ALWAYS_INLINE void for_each_tile(int64_t rows, const Body& body) {
    int64_t row = 0;
    for (; row + kRows <= rows; row += kRows) body(row, std::integral_constant<int, kRows>{});
    switch (rows - row) {
        case 3: return body(row, std::integral_constant<int, 3>{});
        case 2: return body(row, std::integral_constant<int, 2>{});
        case 1: return body(row, std::integral_constant<int, 1>{});
    }
}

template <class Body>
void run(const std::vector<Task>& tasks, bool alone, const Body& body) {
    if (alone) {
        for (const Task& task : tasks) body(task);
        return;
    }
    parallel_tasks(int64_t(tasks.size()), [&](int64_t index) { body(tasks[index]); });
}

template <class T>
void lora_add(const T* x, T* out, const int32_t* tokens, const int32_t* starts, const int64_t* table,
              const int64_t* columns, int64_t parts, int64_t slots, int64_t depth, int64_t width) {
    static thread_local Scratch memory;
    static thread_local std::vector<Task> shrinking, expanding;
    shrinking.clear();
    expanding.clear();
    const Lines lines{table, parts};
    int64_t stride = 0, operations = 0;  // of a row of y; multiplications
    for (int64_t slot = 0; slot < slots; slot++) {
        const int64_t first = starts[slot], end = starts[slot + 1];
        if (first == end || !lines.line(slot)[0]) continue;
        const int64_t ranks = lines.ranks(slot);
        stride = ranks > stride ? ranks : stride;
        operations += (end - first) * ranks * (depth + width);
        for (int64_t row = first; row < end; row += kTaskRows) {
            const int32_t rows = int32_t(end - row < kTaskRows ? end - row : kTaskRows);
            for (int64_t rank = 0; rank < ranks; rank += kTaskRanks) {
                const int64_t count = ranks - rank < kTaskRanks ? ranks - rank : kTaskRanks;
                shrinking.push_back({int32_t(slot), 0, int32_t(row), rows, int32_t(rank), int32_t(count)});
            }
            for (int64_t part = 0; part < parts; part++) {
                if (!lines.rank(slot, part) && !lines.bias(slot)) continue;
                const int64_t panels = (columns[part] + kPanel - 1) / kPanel;
                for (int64_t panel = 0; panel < panels; panel += kTaskPanels) {
                    const int64_t count = panels - panel < kTaskPanels ? panels - panel : kTaskPanels;
                    expanding.push_back(
                        {int32_t(slot), int32_t(part), int32_t(row), rows, int32_t(panel), int32_t(count)});
                }
            }
        }
    }
    if (expanding.empty()) return;
    const int64_t num_rows = starts[slots] - starts[0];
    float* const y = memory.reserve<float>(num_rows * stride + 1);
    const bool alone = operations < kAloneOperations;
    const int64_t origin = starts[0];

    run(shrinking, alone, [&](const Task& task) {
        const T* a = lines.a<T>(task.slot) + task.begin * depth;
        for_each_tile(task.rows, [&](int64_t row, auto size) {
            constexpr int R = decltype(size)::value;
            const T* from[R];
            float* to[R];
            for (int r = 0; r < R; r++) {
                const int64_t sorted = task.row + row + r;
                from[r] = x + tokens[sorted] * depth;
                to[r] = y + (sorted - origin) * stride + task.begin;
            }
            shrink_rows<R>(from, a, depth, to, task.count);
        });
    });
    run(expanding, alone, [&](const Task& task) {
        int64_t first_column = 0;
        for (int64_t part = 0; part < task.part; part++) first_column += columns[part];
        const int64_t first_rank = lines.first_rank(task.slot, task.part);
        const int64_t rank = lines.rank(task.slot, task.part);
        const T* b = lines.b<T>(task.slot, task.part);
        const float* bias = lines.bias(task.slot);
        for (int64_t panel = task.begin; panel < task.begin + task.count; panel++) {
            const int64_t column = first_column + panel * kPanel;
            const int64_t left = columns[task.part] - panel * kPanel, count = left < kPanel ? left : kPanel;
            for_each_tile(task.rows, [&](int64_t row, auto size) {
                constexpr int R = decltype(size)::value;
                const float* from[R];
                T* to[R];
                for (int r = 0; r < R; r++) {
                    const int64_t sorted = task.row + row + r;
                    from[r] = y + (sorted - origin) * stride + first_rank;
                    to[r] = out + tokens[sorted] * width + column;
                }
                expand_tile<R>(from, b + panel * kPanel * rank, rank, bias ? bias + column : nullptr, to, count);
            });
        }
    });
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                         \
    EXPORT void lora_add_##suffix(const T* x, T* out, const int32_t* tokens, const int32_t* starts,                   \
                                  const int64_t* table, const int64_t* columns, int64_t parts, int64_t slots,         \
                                  int64_t depth, int64_t width) {                                                     \
        lora_add(x, out, tokens, starts, table, columns, parts, slots, depth, width);                                 \
    }                                                                                                                 \
    CAPTURABLE(lora_add_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
