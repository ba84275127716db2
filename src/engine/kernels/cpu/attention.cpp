// Paged attention of a step: divides it into tasks, which the threads take in order.

#include <new>

#include "attention_batch_invariant.h"
#include "attention_decode.h"
#include "attention_prefill.h"
#include "batch_invariant.h"
#include "parallel.h"
#include "captured_graph.h"
#include "scratch.h"

namespace {

// Enough tasks that all threads end at about the same time.
constexpr int64_t kTasksPerThread = 4;

struct PrefillTask {
    int row, kv_head, first_query, num_queries;
};

// One row and consecutive kv heads. Each of its segments is a task; they share the memory for partial results.
struct DecodeTask {
    int row, kv_head, num_kv_heads, segments;
    int64_t first_segment, memory;  // memory: offset of its partial results
};

template <class T, class C>
class Step {
  public:
    Step(const Attention<T, C>& call, int num_rows) : call_(call), num_rows_(num_rows) {}

    void run() {
        const int64_t prefills = cut_prefill(), decodes = cut_decode();
        parallel_tasks(prefills + decodes, [&](int64_t i) { i < prefills ? prefill(i) : decode(i - prefills); });
    }

  private:
    int num_queries(int row) const { return call_.query_start[row + 1] - call_.query_start[row]; }

    // Long tasks first, so that no thread starts one last: prefill before decode, late queries before early ones.
    int64_t cut_prefill() {
        // Many queries per task: the keys are packed once per task.
        const int max_queries =
            kBatchInvariant ? BatchInvariantPrefill<T, C>::kMaxQueries : std::max(1, kMaxTaskRows / call_.group());
        int64_t count = 0;
        for (int row = 0; row < num_rows_; row++) {
            if (num_queries(row) <= 1) continue;
            count += int64_t(num_queries(row) + max_queries - 1) / max_queries * call_.num_kv_heads;
        }
        static thread_local Scratch scratch;
        prefills_ = scratch.reserve<PrefillTask>(count);
        PrefillTask* task = prefills_;
        for (int row = 0; row < num_rows_; row++) {
            for (int end = num_queries(row); num_queries(row) > 1 && end > 0;) {
                const int first = (end - 1) / max_queries * max_queries;
                for (int head = 0; head < call_.num_kv_heads; head++) *task++ = {row, head, first, end - first};
                end = first;
            }
        }
        return count;
    }

    // Returns the number of tasks, one per segment.
    int64_t cut_decode() {
        int64_t rows = 0, segments = 0;
        for (int row = 0; row < num_rows_; row++) {
            if (num_queries(row) != 1) continue;
            rows++;
            segments += last_segment(row) - first_segment(row) + 1;
        }
        if (!rows) return 0;
        const int64_t wanted = kTasksPerThread * num_threads.load(std::memory_order_relaxed);
        const int64_t pieces = std::min<int64_t>(call_.num_kv_heads, (wanted + segments - 1) / segments);
        static thread_local Scratch tasks, owners, memory, counters;
        decodes_ = tasks.reserve<DecodeTask>(rows * pieces);
        owners_ = owners.reserve<int32_t>(segments * pieces);
        left_ = counters.reserve<std::atomic<int32_t>>(rows * pieces);
        stride_ = round_up(call_.head_dim, kStep);
        int64_t task = 0, count = 0, num_floats = 0;
        for (int row = 0; row < num_rows_; row++) {
            if (num_queries(row) != 1) continue;
            const int64_t first = first_segment(row);
            const int length = int(last_segment(row) - first + 1);
            for (int64_t piece = 0; piece < pieces; piece++, task++) {
                const int begin = int(call_.num_kv_heads * piece / pieces);
                const int end = int(call_.num_kv_heads * (piece + 1) / pieces);
                decodes_[task] = {row, begin, end - begin, length, first, num_floats};
                new (left_ + task) std::atomic<int32_t>(length);
                num_floats += length * Partial::num_floats((end - begin) * call_.group(), stride_);
                for (int i = 0; i < length; i++) owners_[count++] = int32_t(task);
            }
        }
        memory_ = memory.reserve<float>(num_floats);
        return count;
    }

    // Of the last query.
    int64_t first_token(int row) const { return call_.first_visible(call_.context_lens[row] - 1); }
    int64_t first_segment(int row) const { return first_token(row) / kSegment; }
    int64_t last_segment(int row) const { return (call_.context_lens[row] - 1) / kSegment; }

    void prefill(int64_t i) {
        const PrefillTask& task = prefills_[i];
        if constexpr (kBatchInvariant) {
            BatchInvariantPrefill<T, C>(call_, task.row, task.kv_head, task.first_query, task.num_queries).run();
        } else {
            Prefill<Attention<T, C>>(call_, task.row, task.kv_head, task.first_query, task.num_queries).run();
        }
    }

    void decode(int64_t i) {
        const int32_t owner = owners_[i];
        const DecodeTask& task = decodes_[owner];
        int64_t index = 0;  // of the segment among those of its task
        while (index < i && owners_[i - index - 1] == owner) index++;
        const int heads = task.num_kv_heads * call_.group();
        const int64_t segment = task.first_segment + index;
        Partial partial(memory_ + task.memory + index * Partial::num_floats(heads, stride_), heads, stride_);
        partial.clear(heads);
        const int64_t query = call_.query_start[task.row];
        Decode<T, C>(call_, task.row, query, 1, task.kv_head, task.num_kv_heads,
                  std::max(first_token(task.row), segment * kSegment),
                  std::min<int64_t>(call_.context_lens[task.row], (segment + 1) * kSegment),
                  partial)
            .run();
        // acq_rel: the task that ends last reads what the others have written.
        if (left_[owner].fetch_sub(1, std::memory_order_acq_rel) == 1) {
            Partial whole(memory_ + task.memory, heads, stride_);
            for (int64_t other = 1; other < task.segments; other++) {
                whole.add(Partial(memory_ + task.memory + other * Partial::num_floats(heads, stride_), heads, stride_),
                          heads, call_.scale);
            }
            store_heads(call_, query, task.kv_head * call_.group(), heads, whole);
        }
    }

    const Attention<T, C>& call_;
    const int num_rows_;
    PrefillTask* prefills_ = nullptr;
    DecodeTask* decodes_ = nullptr;
    int32_t* owners_ = nullptr;             // decode task of each segment
    std::atomic<int32_t>* left_ = nullptr;  // unfinished segments of each decode task
    float* memory_ = nullptr;               // partial results
    int64_t stride_ = 0;                    // elements of a head's sums
};

}  // namespace

#define EXPORT_FOR(T, C, suffix)                                                                                       \
    EXPORT void paged_attention_##suffix(                                                                              \
        const T* queries, const C* k_cache, const C* v_cache, const int32_t* query_start, const int32_t* lengths,      \
        const int32_t* block_tables, const float* sinks, const float* slopes, const int32_t* visible, T* out,          \
        float* log_totals, int num_rows, int64_t table_stride, int num_heads, int num_kv_heads, int head_dim,          \
        int block_size, int64_t window, int is_chunked, float scale, float softcap) {                                  \
        const Attention<T, C> call{queries,    k_cache,   v_cache,      out,      query_start,     lengths,            \
                                   block_tables, table_stride, num_heads, num_kv_heads, head_dim,  block_size,         \
                                   window,     is_chunked != 0, scale,  softcap,  sinks,           slopes,             \
                                   visible,    log_totals};                                                            \
        Step<T, C>(call, num_rows).run();                                                                              \
    }                                                                                                                  \
    CAPTURABLE(paged_attention_##suffix)

EXPORT_FOR(float, float, float32)
EXPORT_FOR(BFloat16, BFloat16, bfloat16)
EXPORT_FOR(float, Code, int8_float32)
EXPORT_FOR(BFloat16, Code, int8_bfloat16)
