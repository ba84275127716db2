// What adapters (LoRA) change in rows of the embedding. The reference is in ../adapt_rows.py.

#include <algorithm>

#include "captured_graph.h"
#include "lora_products.h"
#include "scratch.h"

namespace {

// A line of the table: what the adapter of a slot has. Addresses are 0 without it.
enum { kRows, kIds, kCount, kA, kRank, kB, kLine };

// Index of the row that takes the place of a token's, or -1. Without ids the adapter has a row for each token.
int64_t row_of(const int64_t* line, int64_t token) {
    if (!line[kRows]) return -1;
    const int32_t* ids = reinterpret_cast<const int32_t*>(line[kIds]);
    if (!ids) return token < line[kCount] ? token : -1;
    const int32_t *end = ids + line[kCount], *found = std::lower_bound(ids, end, int32_t(token));
    return found < end && *found == token ? found - ids : -1;
}

template <class T>
void adapt_rows(T* rows, const int64_t* tokens, const int32_t* slots, const int64_t* table, int64_t count,
                int64_t width) {
    parallel_ranges(count, min_rows_per_thread(width), [&](int64_t begin, int64_t end) {
        static thread_local Scratch memory;
        for (int64_t i = begin; i < end; i++) {
            if (slots[i] < 0) continue;
            const int64_t* line = table + slots[i] * kLine;
            T* row = rows + i * width;
            if (const int64_t own = row_of(line, tokens[i]); own >= 0) {
                memcpy(row, reinterpret_cast<const T*>(line[kRows]) + own * width, width * sizeof(T));
            }
            const int64_t rank = line[kRank];
            if (!rank) continue;
            float* y = memory.reserve<float>(rank);
            const T* a = reinterpret_cast<const T*>(line[kA]) + tokens[i] * rank;
            for (int64_t k = 0; k < rank; k++) y[k] = load_partial(a + k, 1)[0];
            const T* b = reinterpret_cast<const T*>(line[kB]);
            for (int64_t column = 0; column < width; column += kLoraPanel) {
                T* out = row + column;
                expand_tile<1, kLoraPanel>(&y, b + column * rank, rank, nullptr, nullptr, &out,
                                           std::min(width - column, kLoraPanel));
            }
        }
    });
}

}  // namespace

// rows: [count, width]; tokens, slots: [count]; table: [slots, kLine].
#define EXPORT_FOR(T, suffix)                                                                                         \
    EXPORT void adapt_rows_##suffix(T* rows, const int64_t* tokens, const int32_t* slots, const int64_t* table,       \
                                    int64_t count, int64_t width) {                                                   \
        adapt_rows(rows, tokens, slots, table, count, width);                                                         \
    }                                                                                                                 \
    CAPTURABLE(adapt_rows_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
