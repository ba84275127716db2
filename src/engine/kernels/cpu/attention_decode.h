// Attention of one new token per row: the time is that of reading the row's keys and values once.
//
// If results must not depend on the batch, several new tokens of a row are computed in the same way
// (attention_batch_invariant.h).
//
// A task is a segment of a row's context and consecutive kv heads of it: all of them if there are many rows, because
// they are contiguous in a block, and long sequences of addresses are read faster than short ones. Every key and value
// is read once for all query heads that share it. Segments start at fixed positions, so that a row's result does not
// depend on the batch composition; if a row has several segments, the task that ends last adds them up in order.
#pragma once

#include <atomic>

#include "decode_codes.h"
#include "decode_products.h"
#include "scratch.h"

constexpr int64_t kSegment = 512;  // tokens

// 0 for the total of no tokens, so that their result is zeros.
inline float inverse(float total) { return total == 0 ? 0.0f : 1.0f / total; }

// Softmax-weighted values of some heads over a part of a context, before the division by the total weight.
// max_score, total: [num_heads]; sums: [num_heads, stride].
struct Partial {
    float *sums, *max_score, *total;
    int64_t stride;

    static constexpr int64_t num_floats(int64_t heads, int64_t stride) { return heads * (stride + 2); }

    Partial(float* memory, int64_t heads, int64_t stride)
        : sums(memory), max_score(memory + heads * stride), total(max_score + heads), stride(stride) {}

    // The heads from `head` on.
    Partial from(int64_t head) const {
        Partial part = *this;
        part.sums += head * stride, part.max_score += head, part.total += head;
        return part;
    }

    // Sets the heads [0, heads) to the result of no tokens.
    void clear(int heads) {
        memset(sums, 0, heads * stride * sizeof(float));
        for (int head = 0; head < heads; head++) max_score[head] = -__builtin_inff(), total[head] = 0;
    }

    // Scales the sums of `head` to the new maximum score `to`. scale: of the scores, in units of log 2.
    void rescale(int64_t head, float to, float scale) {
        if (!(to > max_score[head])) return;
        const float shrink = power_of_two(broadcast((max_score[head] - to) * scale))[0];
        for (int64_t d = 0; d < stride; d += kWidth) {
            store(sums + head * stride + d, load(sums + head * stride + d) * shrink);
        }
        total[head] *= shrink;
        max_score[head] = to;
    }

    // Replaces the scores of `head` for the next `tokens` tokens, at most kTileTokens, by weights relative to the maximum
    // score so far, and adds these to the total. scale: of the scores.
    void weigh(int64_t head, int tokens, float scale, float* scores) {
        for (int t = tokens; t < kTileTokens; t++) scores[t] = -__builtin_inff();
        Floats maxima = broadcast(max_score[head]);
        for (int t = 0; t < kTileTokens; t += kWidth) maxima = maximum(maxima, load(scores + t));
        const float to = largest(maxima);
        scale *= kLog2E;
        rescale(head, to, scale);
        Floats added{};
        for (int t = 0; t < kTileTokens; t += kWidth) {
            const Floats weights = power_of_two((load(scores + t) - to) * scale);
            store(scores + t, weights);
            added += weights;
        }
        total[head] += sum(added);
    }

    void copy(Partial other, int heads) {
        memcpy(sums, other.sums, heads * stride * sizeof(float));
        memcpy(max_score, other.max_score, heads * sizeof(float));
        memcpy(total, other.total, heads * sizeof(float));
    }

    // Minus infinity without tokens. scale: of the scores.
    float log_total(int64_t head, float scale) const { return max_score[head] * scale + std::log(total[head]); }

    // Adds the result of the following part of the context. scale: of the scores.
    void add(Partial part, int heads, float scale) {
        for (int head = 0; head < heads; head++) {
            const float to = std::max(max_score[head], part.max_score[head]);
            rescale(head, to, scale * kLog2E);
            part.rescale(head, to, scale * kLog2E);
            for (int64_t d = head * stride; d < (head + 1) * stride; d += kWidth) {
                store(sums + d, load(sums + d) + load(part.sums + d));
            }
            total[head] += part.total[head];
        }
    }
};

template <class T, class C>
class Decode {
    static constexpr bool kHasCodes = !std::is_same_v<C, T>, kMultipliesCodes = kHasCodes && kCodeProducts;

    // Of a tile's tokens in the caches, for the first kv head of the task.
    struct Places {
        int64_t at[kTileTokens], scales_at[kTileTokens];
    };

  public:
    // Adds to `result` the attention of consecutive queries over the tokens [first, end) of the row, for the query
    // heads of kv heads [kv_head, kv_head + num_kv_heads), ordered by kv head, query, head. query: index of the first
    // query in the step.
    Decode(const Attention<T, C>& call, int row, int64_t query, int num_queries, int kv_head, int num_kv_heads,
           int64_t first, int64_t end, Partial result)
        : call_(call),
          row_(row),
          kv_head_(kv_head),
          num_kv_heads_(num_kv_heads),
          num_heads_(num_queries * call.group()),
          query_(query),
          first_(first),
          end_(end),
          result_(result) {}

    void run() {
        load_queries();
        if constexpr (kHasCodes && !kMultipliesCodes) {
            static thread_local Scratch unpacked;
            unpacked_ = unpacked.reserve<T>(2 * kTileTokens * call_.head_dim);
            for (int t = 0; t < kTileTokens; t++) unpacked_at_[t] = t * call_.head_dim;
        }
        Places places[2];
        int tokens = locate(first_, places[0]);
        const int64_t next_head = call_.block_elements();
        for (int current = 0; first_ < end_; first_ += kTileTokens, current ^= 1) {
            const int next_tokens = locate(first_ + kTileTokens, places[current ^ 1]);
            for (int h = 0; h < num_kv_heads_; h++) {
                const bool is_last = h + 1 == num_kv_heads_;
                const int64_t head = h * next_head, next = is_last ? 0 : head + next_head;
                const Places &here = places[current], &there = places[is_last ? current ^ 1 : current];
                const Tile<C> tile = {call_.k_cache + head, call_.v_cache + head, here.at,
                                      call_.k_cache + next, call_.v_cache + next, there.at, tokens};
                if constexpr (!kHasCodes) {
                    attend_group(h * num_heads_, tile);
                } else if constexpr (!kMultipliesCodes) {
                    attend_group(h * num_heads_, unpacked(tile, here));
                } else {
                    attend_group(h * num_heads_, CodeTile{tile, here.scales_at, there.scales_at});
                }
            }
            tokens = next_tokens;
        }
    }

  private:
    void load_queries() {
        static thread_local Scratch scratch;
        if constexpr (kMultipliesCodes) {
            query_bytes_ = CodeQuery::num_bytes(call_.head_dim);
        } else {
            query_bytes_ = result_.stride * sizeof(Query<T>);
        }
        queries_ = scratch.reserve<uint8_t>(num_kv_heads_ * num_heads_ * query_bytes_);
        const int group = call_.group();
        uint8_t* to = queries_;
        for (int kv_head = kv_head_; kv_head < kv_head_ + num_kv_heads_; kv_head++) {
            for (int64_t query = query_; query < query_ + num_heads_ / group; query++) {
                const T* from = call_.queries + (query * call_.num_heads + kv_head * group) * call_.head_dim;
                for (int head = 0; head < group; head++, to += query_bytes_, from += call_.head_dim) {
                    if constexpr (kMultipliesCodes) {
                        CodeQuery(to, call_.head_dim).pack(from, call_.head_dim);
                    } else {
                        load_query(from, call_.head_dim, (Query<T>*)to);
                    }
                }
            }
        }
    }

    // The tile in T, unpacked once for all query heads while the next tile is prefetched.
    Tile<T> unpacked(const Tile<C>& tile, const Places& places) {
        T *keys = unpacked_, *values = unpacked_ + kTileTokens * call_.head_dim;
        for (int t = 0; t < tile.tokens; t++) {
            for (int d = 0; d < call_.head_dim; d += kLine) {
                __builtin_prefetch(tile.next_keys + tile.next_at[t] + d);
                __builtin_prefetch(tile.next_values + tile.next_at[t] + d);
            }
            call_.unpack(tile.keys + places.at[t], tile.keys + places.scales_at[t], keys + unpacked_at_[t]);
            call_.unpack(tile.values + places.at[t], tile.values + places.scales_at[t], values + unpacked_at_[t]);
        }
        return {keys, values, unpacked_at_, keys, values, unpacked_at_, tile.tokens};
    }

    // The places of the tokens from `first` on. Returns the number of tokens.
    int locate(int64_t first, Places& places) const {
        const int tokens = int(std::max<int64_t>(0, std::min<int64_t>(kTileTokens, end_ - first)));
        for (int t = 0; t < tokens;) {
            int64_t at = call_.offset(row_, kv_head_, first + t);
            int64_t scale_at = at + call_.to_scale((first + t) % call_.block_size);
            for (int left = call_.run_length(first + t, tokens - t); left > 0; left--, t++) {
                places.at[t] = at, places.scales_at[t] = scale_at;
                at += call_.head_dim, scale_at += kScaleElements<C>;
            }
        }
        const int last = std::max(0, tokens - 1);
        if (!tokens) places.at[0] = places.scales_at[0] = 0;
        for (int t = tokens; t < kTileTokens; t++) {
            places.at[t] = places.at[last], places.scales_at[t] = places.scales_at[last];
        }
        return tokens;
    }

    // The query heads of one kv head. head: index of the first among those of the task.
    template <class AnyTile>
    void attend_group(int head, const AnyTile& tile) {
        int left = num_heads_;
        for (; left >= kHeads; left -= kHeads, head += kHeads) attend<kHeads>(head, tile);
        if constexpr (kHeads > 2) {
            for (; left >= 2; left -= 2, head += 2) attend<2>(head, tile);
        }
        for (; left > 0; left--, head++) attend<1>(head, tile);
    }

    template <int Heads>
    void attend(int head, const Tile<T>& tile) {
        const int64_t stride = result_.stride;
        float scores[Heads][kTileTokens];
        score_tile<Heads>((const Query<T>*)(queries_ + head * query_bytes_), stride, tile, call_.head_dim, scores);
        for (int h = 0; h < Heads; h++) compute_weights(head + h, tile.tokens, scores[h]);
        add_tile<Heads>(scores, tile, call_.head_dim, result_.sums + head * stride, stride);
    }

#if defined(__AVX512VNNI__)
    template <int Heads>
    void attend(int head, const CodeTile& tile) {
        const int64_t stride = result_.stride;
        float scores[Heads][kTileTokens];
        score_codes<Heads>(queries_ + head * query_bytes_, tile, call_.head_dim, scores);
        for (int h = 0; h < Heads; h++) compute_weights(head + h, tile.codes.tokens, scores[h]);
        add_codes<Heads>(scores, tile, call_.head_dim, result_.sums + head * stride, stride);
    }
#endif

    // Replaces a head's scores by weights relative to the maximum score so far.
    void compute_weights(int head, int tokens, float* scores) {
        if (call_.softcap) {
            for (int t = 0; t < tokens; t += kWidth) store(scores + t, call_.capped(load(scores + t)));
        }
        call_.add_slopes(query_head(head), position(head), first_, tokens, scores);
        result_.weigh(head, tokens, call_.scale, scores);
    }

    // The query head of the model, and the position of its query. head: among those of the task.
    int query_head(int head) const {
        return (kv_head_ + head / num_heads_) * call_.group() + head % num_heads_ % call_.group();
    }
    int64_t position(int head) const {
        const int64_t query = query_ + head % num_heads_ / call_.group();
        return call_.context_lens[row_] - call_.query_start[row_ + 1] + query;
    }

    const Attention<T, C>& call_;
    const int row_, kv_head_, num_kv_heads_, num_heads_;  // num_heads: of all queries, per kv head
    const int64_t query_;
    int64_t first_;
    const int64_t end_;
    Partial result_;
    uint8_t* queries_;  // [heads, query_bytes_]: Query<T>, or CodeQuery
    int64_t query_bytes_;
    T* unpacked_ = nullptr;  // keys and values of a tile, if it has codes
    int64_t unpacked_at_[kTileTokens];
};

// Writes the output of the heads [first_head, first_head + heads) of a query.
template <class T, class C>
void store_heads(const Attention<T, C>& call, int64_t query, int first_head, int heads, const Partial& whole) {
    T* out = call.out + (query * call.num_heads + first_head) * call.head_dim;
    for (int head = 0; head < heads; head++) {
        const float sink = call.sink_weight(first_head + head, whole.max_score[head] * call.scale);
        const float* sums = whole.sums + head * whole.stride;
        const float norm = inverse(whole.total[head] + sink);
        T* to = out + head * call.head_dim;
        if (call.log_totals) {
            call.log_totals[query * call.num_heads + first_head + head] = whole.log_total(head, call.scale);
        }
        if constexpr (kCodeProducts && !std::is_same_v<C, T>) {
            for (int d = 0; d < call.head_dim; d += kWidth) store(to + d, load(sums + d) * norm);
        } else {
            store_sums(sums, norm, call.head_dim, to);
        }
    }
}
