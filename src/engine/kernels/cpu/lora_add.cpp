// Deltas of adapters, added to the product of a fused linear layer. The reference is in ../lora_add.py.
//
// Two phases: y = x @ A.T for the rows of each adapter, in float32, then out = out * factors + y @ B.T. Each is divided
// into tasks of some rows and some ranks, or columns. A row's sums have the same order whatever the number of rows is, so
// its result does not depend on the batch. Where a part of the weight itself is the adapter's, y has a row of x after the
// products with A, and B is that part. Single columns that are the adapter's are rows of A, and copied from y at the end.

#include <vector>

#include "captured_graph.h"
#include "lora_products.h"
#include "parallel.h"
#include "scratch.h"

namespace {

constexpr int64_t kTaskPanels = 8;

struct Task {
    int32_t slot, part;
    int32_t row, rows;     // of the sorted tokens
    int32_t begin, count;  // ranks of all parts, or panels of one part
};

// What a line of the table begins with, before three numbers for each part (../lora_add.py).
enum { kIsSet, kA, kRanks, kBias, kFactors, kHasInputs, kSetColumns, kNumSet, kHead };

struct Lines {  // of the table: one for each slot
    const int64_t* table;
    int64_t parts;

    const int64_t* line(int64_t slot) const { return table + slot * (kHead + 3 * parts); }
    const int64_t* part(int64_t slot, int64_t index) const { return line(slot) + kHead + 3 * index; }
    bool is_empty(int64_t slot) const { return !line(slot)[kIsSet]; }
    template <class T>
    const T* a(int64_t slot) const { return reinterpret_cast<const T*>(line(slot)[kA]); }
    const float* bias(int64_t slot) const { return reinterpret_cast<const float*>(line(slot)[kBias]); }
    const float* factors(int64_t slot) const { return reinterpret_cast<const float*>(line(slot)[kFactors]); }
    const int32_t* set_columns(int64_t slot) const { return reinterpret_cast<const int32_t*>(line(slot)[kSetColumns]); }
    int64_t num_set(int64_t slot) const { return line(slot)[kNumSet]; }
    int64_t ranks(int64_t slot) const { return line(slot)[kRanks]; }
    bool has_inputs(int64_t slot) const { return line(slot)[kHasInputs]; }
    int64_t first_rank(int64_t slot, int64_t index) const { return part(slot, index)[0]; }
    int64_t rank(int64_t slot, int64_t index) const { return part(slot, index)[1]; }
    template <class T>
    const T* b(int64_t slot, int64_t index) const { return reinterpret_cast<const T*>(part(slot, index)[2]); }
};

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
        if (first == end || lines.is_empty(slot)) continue;
        const int64_t ranks = lines.ranks(slot), elements = ranks + (lines.has_inputs(slot) ? depth : 0);
        stride = std::max(stride, elements);
        operations += (end - first) * (ranks * depth + elements * width);
        for (int64_t row = first; row < end; row += kTaskRows) {
            const int32_t rows = int32_t(end - row < kTaskRows ? end - row : kTaskRows);
            for (int64_t rank = 0; rank < ranks; rank += kTaskRanks) {
                const int64_t count = ranks - rank < kTaskRanks ? ranks - rank : kTaskRanks;
                shrinking.push_back({int32_t(slot), 0, int32_t(row), rows, int32_t(rank), int32_t(count)});
            }
            for (int64_t part = 0; part < parts; part++) {
                if (!lines.rank(slot, part) && !lines.bias(slot) && !lines.factors(slot)) continue;
                const int64_t panels = (columns[part] + kLoraPanel - 1) / kLoraPanel;
                for (int64_t panel = 0; panel < panels; panel += kTaskPanels) {
                    const int64_t count = panels - panel < kTaskPanels ? panels - panel : kTaskPanels;
                    expanding.push_back(
                        {int32_t(slot), int32_t(part), int32_t(row), rows, int32_t(panel), int32_t(count)});
                }
            }
        }
    }
    if (expanding.empty() && shrinking.empty()) return;
    const int64_t num_rows = starts[slots] - starts[0];
    float* const y = memory.reserve<float>(num_rows * stride + 1);
    const int64_t origin = starts[0];

    for_each_task(shrinking, operations, [&](const Task& task) {
        shrink(lines.a<T>(task.slot) + task.begin * depth, depth, task.count, task.rows,
               [&](int64_t row) { return x + tokens[task.row + row] * depth; },
               [&](int64_t row) { return y + (task.row + row - origin) * stride + task.begin; });
    });
    const auto for_each_row = [&](auto has, const auto& body) {  // of the slots that have something
        for (int64_t slot = 0; slot < slots; slot++) {
            for (int64_t row = starts[slot]; row < starts[slot + 1] && !lines.is_empty(slot) && has(slot); row++) {
                body(slot, row, y + (row - origin) * stride + lines.ranks(slot));
            }
        }
    };
    for_each_row([&](int64_t slot) { return lines.has_inputs(slot); }, [&](int64_t, int64_t row, float* to) {
        const T* from = x + tokens[row] * depth;
        for_each_vector(depth, [&](int64_t i, int64_t count) {
            store_up_to(to + i, load_up_to(from + i, count), count);
        });
    });
    for_each_task(expanding, operations, [&](const Task& task) {
        int64_t first_column = 0;
        for (int64_t part = 0; part < task.part; part++) first_column += columns[part];
        const int64_t first_rank = lines.first_rank(task.slot, task.part);
        const int64_t rank = lines.rank(task.slot, task.part);
        const T* b = lines.b<T>(task.slot, task.part);
        const float *bias = lines.bias(task.slot), *factors = lines.factors(task.slot);
        for (int64_t panel = task.begin; panel < task.begin + task.count; panel++) {
            const int64_t column = first_column + panel * kLoraPanel;
            const int64_t left = columns[task.part] - panel * kLoraPanel, count = left < kLoraPanel ? left : kLoraPanel;
            for_each_tile(task.rows, [&](int64_t row, auto size) {
                constexpr int R = decltype(size)::value;
                const float* from[R];
                T* to[R];
                for (int r = 0; r < R; r++) {
                    const int64_t sorted = task.row + row + r;
                    from[r] = y + (sorted - origin) * stride + first_rank;
                    to[r] = out + tokens[sorted] * width + column;
                }
                expand_tile<R, kLoraPanel>(from, b + panel * kLoraPanel * rank, rank, bias ? bias + column : nullptr,
                                           factors ? factors + column : nullptr, to, count);
            });
        }
    });
    for_each_row([&](int64_t slot) { return lines.num_set(slot); }, [&](int64_t slot, int64_t row, float* end) {
        const int64_t count = lines.num_set(slot);
        for (int64_t i = 0; i < count; i++) {
            store_partial(out + tokens[row] * width + lines.set_columns(slot)[i], broadcast(end[i - count]), 1);
        }
    });
}

// panels [count, rank, kLoraPanel] = b [rows, rank] times a factor, padded with zeros. One thread: steps go on meanwhile.
template <class T>
void pack_lora(const T* b, T* panels, int64_t rows, int64_t rank, int64_t count, float factor) {
    static thread_local Scratch memory;
    T* block = memory.reserve<T>(kLoraPanel * rank);
    for (int64_t panel = 0; panel < count; panel++, panels += rank * kLoraPanel) {
        const int64_t first = panel * kLoraPanel, own = std::clamp<int64_t>(rows - first, 0, kLoraPanel);
        for_each_vector(own * rank, [&](int64_t i, int64_t left) {
            store_up_to(block + i, load_up_to(b + first * rank + i, left) * factor, left);
        });
        std::fill(block + own * rank, block + kLoraPanel * rank, T{});
        for (int64_t k = 0; k < rank; k++) {
            for (int64_t row = 0; row < kLoraPanel; row++) panels[k * kLoraPanel + row] = block[row * rank + k];
        }
    }
}

// Whether no element is infinite or not a number: such elements times 0 are not 0.
template <class T>
int are_finite(const T* values, int64_t count) {
    Floats sum{};
    for_each_vector(count, [&](int64_t i, int64_t left) { sum += load_up_to(values + i, left) * 0.0f; });
    float total = 0;
    for (int lane = 0; lane < kWidth; lane++) total += sum[lane];
    return total == 0;
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                         \
    EXPORT void lora_add_##suffix(const T* x, T* out, const int32_t* tokens, const int32_t* starts,                   \
                                  const int64_t* table, const int64_t* columns, int64_t parts, int64_t slots,         \
                                  int64_t depth, int64_t width) {                                                     \
        lora_add(x, out, tokens, starts, table, columns, parts, slots, depth, width);                                 \
    }                                                                                                                 \
    EXPORT void pack_lora_##suffix(const T* b, T* panels, int64_t rows, int64_t rank, int64_t count, float factor) {  \
        pack_lora(b, panels, rows, rank, count, factor);                                                              \
    }                                                                                                                 \
    EXPORT int are_finite_##suffix(const T* values, int64_t count) { return are_finite(values, count); }              \
    CAPTURABLE(lora_add_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
