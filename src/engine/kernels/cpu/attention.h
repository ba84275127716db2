// The arguments of an attention call: the paged cache, its block tables and the shapes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kv_codes.h"
#include "scratch.h"
#include "vector.h"

// All arrays are row-major; ../paged_attention.py documents them. C: of the caches.
template <class T, class C>
struct Attention {
    typedef T Element;

    const T* queries;
    const C *k_cache, *v_cache;
    T* out;
    const int32_t *query_start, *context_lens, *block_tables;
    int64_t table_stride;  // entries per row of the block tables
    int num_heads, num_kv_heads, head_dim, block_size;
    int64_t window;  // tokens visible to a query, including its own; larger than any context if there is no window
    bool is_chunked;  // a query sees its own chunk of `window` tokens; false: the last `window` tokens
    float scale, softcap;  // softcap: 0 if there is none
    const float* sinks;    // [num_heads], or null
    const float* slopes;   // [num_heads], times the distance of a key from the query; or null
    // Of a cache that has some tokens of each context, in their order, or null:
    const int32_t* visible;  // [T], tokens that each query sees
    float* log_totals;       // [T, num_heads], logarithms of the sums of exponentials of the scores

    int group() const { return num_heads / num_kv_heads; }  // query heads that share a kv head

    // Tokens that a query sees if there is no window. query: index in the step, of this row.
    int64_t context(int row, int64_t query) const {
        return visible ? visible[query] : context_lens[row] - (query_start[row + 1] - 1 - query);
    }

    // The first token that a query at this position sees.
    int64_t first_visible(int64_t position) const {
        return is_chunked ? position / window * window : std::max<int64_t>(0, position - window + 1);
    }

    // The end of the tokens that a query of a row at this position sees.
    int64_t end_visible(int, int64_t position) const { return position + 1; }

    // The query of a head. token: index in the step.
    const T* query(int64_t token, int head) const { return queries + (token * num_heads + head) * head_dim; }

    // Products of queries and keys with the cap, still to be multiplied by the scale.
    ALWAYS_INLINE Floats capped(Floats products) const {
        return hyperbolic_tangent(products * (scale / softcap)) * (softcap / scale);
    }

    // Adds ALiBi to the products of a head's query at `position` with the keys from `first` on.
    void add_slopes(int head, int64_t position, int64_t first, int64_t count, float* products) const {
        if (!slopes) return;
        const float slope = slopes[head] / scale;
        for (int64_t key = 0; key < count; key += kWidth) {
            const Floats distances = ascending() + float(first + key - position);
            store(products + key, multiply_add(distances, broadcast(slope), load(products + key)));
        }
    }

    // The part of a head's sink in its total of weights, which are relative to e ** `zero`.
    float sink_weight(int head, float zero) const { return sinks ? std::exp(sinks[head] - zero) : 0.0f; }

    // Offset of one token's key (and value) of one kv head in its cache.
    int64_t offset(int row, int kv_head, int64_t token) const {
        const int64_t block = block_tables[row * table_stride + token / block_size];
        return (block * num_kv_heads + kv_head) * block_elements() + token % block_size * head_dim;
    }

    // Of one kv head in a block.
    int64_t block_elements() const { return int64_t(block_size) * (head_dim + kScaleElements<C>); }

    // From the codes of the token in a slot of a block to its scale.
    int64_t to_scale(int64_t slot) const { return (block_size - slot) * head_dim + slot * kScaleElements<C>; }

    // Where the keys and the values of consecutive tokens of one kv head are. unpacked: memory for those in codes.
    void find_rows(int row, int kv_head, int64_t first, int keys, Scratch& unpacked, const T** key_rows,
                   const T** value_rows) const {
        [[maybe_unused]] T* memory = nullptr;
        if constexpr (!std::is_same_v<C, T>) memory = unpacked.reserve<T>(int64_t(2) * keys * head_dim);
        for (int i = 0; i < keys;) {
            int64_t at = offset(row, kv_head, first + i);
            [[maybe_unused]] int64_t scale_at = at + to_scale((first + i) % block_size);
            for (int left = run_length(first + i, keys - i); left > 0; left--, i++, at += head_dim) {
                if constexpr (std::is_same_v<C, T>) {
                    key_rows[i] = k_cache + at, value_rows[i] = v_cache + at;
                } else {
                    T *key = memory + int64_t(2) * i * head_dim, *value = key + head_dim;
                    unpack(k_cache + at, k_cache + scale_at, key);
                    unpack(v_cache + at, v_cache + scale_at, value);
                    scale_at += kScaleElements<C>;
                    key_rows[i] = key, value_rows[i] = value;
                }
            }
        }
    }

    // Writes one token's key or value of one kv head to `to`.
    ALWAYS_INLINE void unpack(const C* codes, const C* scale_at, T* to) const {
        float scale;
        memcpy(&scale, scale_at, sizeof scale);
        unpack_codes(codes, scale, head_dim, to);
    }

    // Number of tokens from `token` on that are contiguous in the cache, at most `limit`.
    int run_length(int64_t token, int64_t limit) const {
        return int(std::min<int64_t>(block_size - token % block_size, limit));
    }
};
