// Paged attention of a step: cuts it into tasks that threads take as they are free.

#include "attention_decode.h"
#include "attention_prefill.h"
#include "parallel.h"
#include "scratch.h"

namespace {

struct Task {
    int row, kv_head, first_query, num_queries;
};

template <class T>
void attend(const Attention<T>& call, int num_rows) {
    // Enough rows of queries per task to spread the packing of keys over, in whole queries.
    const int queries_per_task = std::max(1, kMaxTaskRows / call.group());
    int64_t count = 0;
    for (int row = 0; row < num_rows; row++) {
        const int queries = call.query_start[row + 1] - call.query_start[row];
        count += int64_t(queries + queries_per_task - 1) / queries_per_task * call.num_kv_heads;
    }
    static thread_local Scratch scratch;
    Task* tasks = scratch.numbers<Task>(count);
    Task* task = tasks;
    // Long tasks first, so that no thread is left alone with one: prefill before decode, late queries before early.
    for (int row = 0; row < num_rows; row++) {
        const int queries = call.query_start[row + 1] - call.query_start[row];
        for (int end = queries; queries > 1 && end > 0;) {
            const int first = (end - 1) / queries_per_task * queries_per_task;
            for (int head = 0; head < call.num_kv_heads; head++) *task++ = {row, head, first, end - first};
            end = first;
        }
    }
    for (int row = 0; row < num_rows; row++) {
        if (call.query_start[row + 1] - call.query_start[row] != 1) continue;
        for (int head = 0; head < call.num_kv_heads; head++) *task++ = {row, head, 0, 0};
    }
    parallel_tasks(count, [&](int64_t i) {
        const Task& mine = tasks[i];
        if (mine.num_queries) {
            Prefill<T>(call, mine.row, mine.kv_head, mine.first_query, mine.num_queries).run();
        } else {
            decode_row(call, mine.row, mine.kv_head);
        }
    });
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                       \
    EXPORT void paged_attention_##suffix(                                                                           \
        const T* queries, const T* k_cache, const T* v_cache, const int32_t* query_start, const int32_t* lengths,   \
        const int32_t* block_tables, T* out, int num_rows, int64_t table_stride, int num_heads, int num_kv_heads,   \
        int head_dim, int block_size, int64_t window, float scale) {                                                \
        attend(Attention<T>{queries, k_cache, v_cache, out, query_start, lengths, block_tables, table_stride,       \
                            num_heads, num_kv_heads, head_dim, block_size, window, scale},                          \
               num_rows);                                                                                           \
    }

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
