// Attention within whole sequences that is not causal and has no cache: each sequence and kv head is a task, or several
// if the sequence is long. What is added in which order depends on the sequence only, whatever others are in the step.

#include "attention_prefill.h"
#include "captured_graph.h"
#include "parallel.h"

namespace {

// All arrays are row-major; ../attend_whole.py documents them.
template <class T>
struct WholeAttention {
    typedef T Element;

    const T *queries, *keys, *values;
    int64_t query_stride, key_stride, value_stride;  // elements from one token to the next
    T* out;
    const int32_t* query_start;
    int num_heads, num_kv_heads, head_dim;
    int64_t window;  // tokens that a query sees on each side; larger than any sequence if there is no window
    float scale;
    const float* slopes;  // [num_heads], or null
    const float* biases;  // [num_heads, 2 * span + 1], or null
    int64_t span;

    static constexpr float* log_totals = nullptr;
    static constexpr float softcap = 0;

    int group() const { return num_heads / num_kv_heads; }
    int64_t length(int row) const { return query_start[row + 1] - query_start[row]; }
    int64_t context(int row, int64_t query) const { return query - query_start[row] + 1; }
    int64_t first_visible(int64_t position) const { return std::max<int64_t>(0, position - window); }
    int64_t end_visible(int row, int64_t position) const { return std::min(length(row), position + window + 1); }
    const T* query(int64_t token, int head) const { return queries + token * query_stride + head * head_dim; }
    Floats capped(Floats products) const { return products; }
    float sink_weight(int, float) const { return 0; }

    // Subtracts the distances of the keys from the query, times the slope of the head, and adds its biases of them.
    void add_slopes(int head, int64_t position, int64_t first, int64_t count, float* products) const {
        if (biases) add_biases(head, first - position, count, products);
        if (!slopes) return;
        const Floats slope = broadcast(-slopes[head] / scale);
        for (int64_t key = 0; key < count; key += kWidth) {
            const Floats distance = ascending() + float(first + key - position);
            store(products + key, multiply_add(maximum(distance, -distance), slope, load(products + key)));
        }
    }

    // distance: of the first key. Those beyond the span have the bias of its end.
    void add_biases(int head, int64_t distance, int64_t count, float* products) const {
        const float* middle = biases + head * (2 * span + 1) + span;
        const Floats inverse = broadcast(1 / scale);
        for (int64_t key = 0; key < count; key += kWidth, distance += kWidth) {
            float chosen[kWidth];
            const float* added = middle + distance;
            if (distance < -span || distance + kWidth - 1 > span) {
                for (int i = 0; i < kWidth; i++) chosen[i] = middle[std::clamp(distance + i, -span, span)];
                added = chosen;
            }
            store(products + key, multiply_add(load(added), inverse, load(products + key)));
        }
    }

    void find_rows(int row, int kv_head, int64_t first, int count, Scratch&, const T** key_rows,
                   const T** value_rows) const {
        const int64_t token = query_start[row] + first;
        for (int i = 0; i < count; i++) {
            key_rows[i] = keys + (token + i) * key_stride + kv_head * head_dim;
            value_rows[i] = values + (token + i) * value_stride + kv_head * head_dim;
        }
    }
};

struct Task {
    int row, kv_head, first_query, num_queries;
};

template <class T>
void run(const WholeAttention<T>& call, int num_rows) {
    const int max_queries = std::max(1, kMaxTaskRows / call.group());
    const auto num_parts = [&](int row) { return (call.length(row) + max_queries - 1) / max_queries; };
    int64_t count = 0;
    for (int row = 0; row < num_rows; row++) count += num_parts(row) * call.num_kv_heads;
    static thread_local Scratch scratch;
    Task *tasks = scratch.reserve<Task>(count), *task = tasks;
    for (int row = 0; row < num_rows; row++) {
        const int64_t parts = num_parts(row), length = call.length(row);
        for (int64_t part = 0; part < parts; part++) {  // of about the same size
            const int begin = int(length * part / parts), end = int(length * (part + 1) / parts);
            for (int head = 0; head < call.num_kv_heads; head++) *task++ = {row, head, begin, end - begin};
        }
    }
    parallel_tasks(count, [&](int64_t i) {
        Prefill<WholeAttention<T>>(call, tasks[i].row, tasks[i].kv_head, tasks[i].first_query, tasks[i].num_queries)
            .run();
    });
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                          \
    EXPORT void attend_whole_##suffix(const T* queries, const T* keys, const T* values, int64_t query_stride,          \
                                      int64_t key_stride, int64_t value_stride, T* out, const int32_t* query_start,    \
                                      const float* slopes, const float* biases, int64_t span, int num_rows,            \
                                      int num_heads, int num_kv_heads, int head_dim, int64_t window, float scale) {    \
        run(WholeAttention<T>{queries, keys, values, query_stride, key_stride, value_stride, out, query_start,         \
                              num_heads, num_kv_heads, head_dim, window, scale, slopes, biases, span},                 \
            num_rows);                                                                                                 \
    }                                                                                                                  \
    CAPTURABLE(attend_whole_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
