// What both attention routines see of the call: the paged cache, its block tables and the shapes.
#pragma once

#include <algorithm>
#include <cstdint>

// All arrays are row-major; their meaning is said in ../paged_attention.py.
template <class T>
struct Attention {
    const T *queries, *k_cache, *v_cache;
    T* out;
    const int32_t *query_start, *context_lens, *block_tables;
    int64_t table_stride;  // entries per row of the block tables
    int num_heads, num_kv_heads, head_dim, block_size;
    int64_t window;  // tokens a query sees, itself included; larger than any context where there is none
    float scale;

    int group() const { return num_heads / num_kv_heads; }  // query heads that share a kv head

    // Where the key and the value of one token of a row's context are in their caches, by one kv head.
    int64_t offset(int row, int kv_head, int64_t token) const {
        const int64_t block = block_tables[row * table_stride + token / block_size];
        return ((block * num_kv_heads + kv_head) * block_size + token % block_size) * head_dim;
    }

    // Tokens from `token` on that lie behind each other in the cache, at most `limit`.
    int run_length(int64_t token, int64_t limit) const {
        return int(std::min<int64_t>(block_size - token % block_size, limit));
    }
};
