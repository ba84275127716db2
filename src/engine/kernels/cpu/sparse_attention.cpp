// sparse_attention: attention of each query over the tokens that were chosen for it. The reference is in
// ../block_index.py; arithmetic is float32 for every type.
//
// A task is one query and the heads that share a key, so a result depends neither on the batch nor on how a prompt is
// divided into steps.

#include <algorithm>
#include <cmath>

#include "captured_graph.h"
#include "parallel.h"
#include "scratch.h"
#include "vector.h"

namespace {

// All arrays are row-major; ../block_index.py documents them.
template <class T>
struct Chosen {
    const T *queries, *keys, *values;
    T* out;
    const int64_t* places;  // [queries, num_chosen]
    const int32_t *query_start, *block_tables;
    int64_t num_chosen, num_rows, table_stride, num_heads, num_kv_heads, head_dim, block_size;
    float scale;

    int64_t group() const { return num_heads / num_kv_heads; }

    // Offsets of the keys and values of a query's tokens. Returns their number.
    int64_t locate(int64_t query, int64_t kv_head, int64_t* offsets) const {
        const int32_t* table = block_tables + table_stride * (std::upper_bound(query_start, query_start + num_rows + 1,
                                                                              int32_t(query)) - query_start - 1);
        int64_t count = 0;
        for (int64_t i = 0; i < num_chosen; i++) {
            const int64_t place = places[query * num_chosen + i];
            if (place < 0) continue;
            const int64_t block = table[place / block_size] * num_kv_heads + kv_head;
            offsets[count++] = (block * block_size + place % block_size) * head_dim;
        }
        return count;
    }
};

template <class T>
ALWAYS_INLINE float dot(const T* a, const T* b, int64_t size) {
    Floats total{};
    for_each_vector(size, [&](int64_t i, int64_t count) {
        total = multiply_add(load_up_to(a + i, count), load_up_to(b + i, count), total);
    });
    return sum(total);
}

// Replaces the scores by the exponentials of their distances from the largest. Returns the sum of these.
ALWAYS_INLINE float exponentials(float* scores, int64_t size) {
    const float most = *std::max_element(scores, scores + size);
    Floats total{};
    for_each_vector(size, [&](int64_t i, int64_t count) {
        const Floats weights = exponential(load_up_to(scores + i, count) - most);
        store_up_to(scores + i, weights, count);
        total += count == kWidth ? weights : first_lanes(weights, count);
    });
    return sum(total);
}

template <class T>
void attend(const Chosen<T>& step, int64_t query, int64_t kv_head) {
    static thread_local Scratch scratch;
    const int64_t group = step.group(), most = step.num_chosen, dim = step.head_dim;
    int64_t* const offsets = reinterpret_cast<int64_t*>(scratch.reserve<float>((2 + group) * most));
    float* const scores = reinterpret_cast<float*>(offsets + most);  // [group, most]
    const int64_t count = step.locate(query, kv_head, offsets);
    const int64_t first = (query * step.num_heads + kv_head * group) * dim;
    for (int64_t i = 0; i < count; i++) {
        for (int64_t head = 0; head < group; head++) {
            scores[head * most + i] = dot(step.queries + first + head * dim, step.keys + offsets[i], dim) * step.scale;
        }
    }
    for (int64_t head = 0; head < group; head++) {
        float* const weights = scores + head * most;
        const float share = 1.0f / exponentials(weights, count);
        for_each_vector(dim, [&](int64_t j, int64_t lanes) {
            Floats total{};
            for (int64_t i = 0; i < count; i++) {
                total = multiply_add(load_up_to(step.values + offsets[i] + j, lanes), broadcast(weights[i]), total);
            }
            store_up_to(step.out + first + head * dim + j, total * share, lanes);
        });
    }
}

template <class T>
void sparse_attention(const Chosen<T>& step) {
    parallel_tasks(step.query_start[step.num_rows] * step.num_kv_heads, [&](int64_t task) {
        attend(step, task / step.num_kv_heads, task % step.num_kv_heads);
    });
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                          \
    EXPORT void sparse_attention_##suffix(const T* queries, const T* keys, const T* values, T* out,                    \
                                          const int64_t* places, const int32_t* query_start,                           \
                                          const int32_t* block_tables, int64_t num_chosen, int64_t num_rows,           \
                                          int64_t table_stride, int64_t num_heads, int64_t num_kv_heads,               \
                                          int64_t head_dim, int64_t block_size, float scale) {                         \
        sparse_attention(Chosen<T>{queries, keys, values, out, places, query_start, block_tables, num_chosen,          \
                                   num_rows, table_stride, num_heads, num_kv_heads, head_dim, block_size, scale});     \
    }                                                                                                                  \
    CAPTURABLE(sparse_attention_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
