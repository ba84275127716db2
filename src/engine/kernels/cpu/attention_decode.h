// Attention of one new token per row: bound by reading the row's keys and values once.
//
// Where the numbers must not depend on the batch, several new tokens of a row go this way too
// (attention_queries.h).
//
// A task is a segment of a row's context and a run of its kv heads, as many as there are when rows are plenty: they lie
// behind each other in a block, and memory gives long runs faster than short ones. Every key and value is read once for
// all query heads that share it. Segments begin at fixed places whatever else is in the step, so that a row's result
// does not depend on its company; where a row has several, the task that ends last adds them up in order.
#pragma once

#include <atomic>

#include "decode_products.h"
#include "scratch.h"

constexpr int64_t kSegment = 512;  // tokens

// Softmax and weighted values of some heads over a part of a context, before the division by the total.
// [num_heads] each, sums [num_heads, stride].
struct Partial {
    float *sums, *highest, *total;
    int64_t stride;

    static constexpr int64_t numbers(int64_t heads, int64_t stride) { return heads * (stride + 2); }

    Partial(float* memory, int64_t heads, int64_t stride)
        : sums(memory), highest(memory + heads * stride), total(highest + heads), stride(stride) {}

    // The heads from `head` on.
    Partial from(int64_t head) const {
        Partial part = *this;
        part.sums += head * stride, part.highest += head, part.total += head;
        return part;
    }

    // The heads [0, heads), as after no token.
    void clear(int heads) {
        memset(sums, 0, heads * stride * sizeof(float));
        for (int head = 0; head < heads; head++) highest[head] = -__builtin_inff(), total[head] = 0;
    }

    // Sums of `head` count relative to `to`, the greatest score from now on; scale as power_of_two wants it.
    void raise(int64_t head, float to, float scale) {
        if (!(to > highest[head])) return;
        const float shrink = power_of_two(broadcast((highest[head] - to) * scale))[0];
        for (int64_t d = 0; d < stride; d += kWidth) {
            store(sums + head * stride + d, load(sums + head * stride + d) * shrink);
        }
        total[head] *= shrink;
        highest[head] = to;
    }

    void copy(Partial other, int heads) {
        memcpy(sums, other.sums, heads * stride * sizeof(float));
        memcpy(highest, other.highest, heads * sizeof(float));
        memcpy(total, other.total, heads * sizeof(float));
    }

    // Adds the part of the context that comes next. scale: of the scores.
    void add(Partial part, int heads, float scale) {
        for (int head = 0; head < heads; head++) {
            const float to = std::max(highest[head], part.highest[head]);
            raise(head, to, scale * kLog2E);
            part.raise(head, to, scale * kLog2E);
            for (int64_t d = head * stride; d < (head + 1) * stride; d += kWidth) {
                store(sums + d, load(sums + d) + load(part.sums + d));
            }
            total[head] += part.total[head];
        }
    }
};

template <class T>
class Decode {
  public:
    // The heads of neighbouring queries that belong to kv heads [kv_head, kv_head + num_kv_heads), query by query within
    // a kv head, over tokens [first, end) of the row: added to `result`. query: the first, counted from the step's first.
    Decode(const Attention<T>& call, int row, int64_t query, int num_queries, int kv_head, int num_kv_heads,
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
        const int64_t stride = result_.stride;
        static thread_local Scratch scratch;
        queries_ = scratch.numbers<Query<T>>(num_kv_heads_ * num_heads_ * stride);
        const int group = call_.group();
        Query<T>* to = queries_;
        for (int kv_head = kv_head_; kv_head < kv_head_ + num_kv_heads_; kv_head++) {
            for (int64_t query = query_; query < query_ + num_heads_ / group; query++) {
                const T* from = call_.queries + (query * call_.num_heads + kv_head * group) * call_.head_dim;
                for (int head = 0; head < group; head++, to += stride) {
                    load_query(from + head * call_.head_dim, call_.head_dim, to);
                }
            }
        }

        int64_t places[2][kTile];
        int tokens = locate(first_, places[0]);
        const int64_t next_head = int64_t(call_.block_size) * call_.head_dim;
        for (int turn = 0; first_ < end_; first_ += kTile, turn ^= 1) {
            const int next_tokens = locate(first_ + kTile, places[turn ^ 1]);
            for (int h = 0; h < num_kv_heads_; h++) {
                const bool is_last = h + 1 == num_kv_heads_;
                const int64_t head = h * next_head, next = is_last ? 0 : head + next_head;
                const Tile<T> tile = {call_.k_cache + head, call_.v_cache + head, places[turn],
                                      call_.k_cache + next, call_.v_cache + next, places[is_last ? turn ^ 1 : turn],
                                      tokens};
                attend_group(h * num_heads_, tile);
            }
            tokens = next_tokens;
        }
    }

  private:
    // Where tokens from `first` on are for the first kv head of the task; returns how many there are.
    int locate(int64_t first, int64_t* places) const {
        const int tokens = int(std::max<int64_t>(0, std::min<int64_t>(kTile, end_ - first)));
        for (int t = 0; t < tokens;) {
            int64_t at = call_.offset(row_, kv_head_, first + t);
            for (int left = call_.run_length(first + t, tokens - t); left > 0; left--, at += call_.head_dim) {
                places[t++] = at;
            }
        }
        std::fill(places + tokens, places + kTile, tokens ? places[tokens - 1] : 0);
        return tokens;
    }

    // The query heads of one kv head; the first is `head`, counted from the task's first.
    void attend_group(int head, const Tile<T>& tile) {
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
        float scores[Heads][kTile];
        score_tile<Heads>(queries_ + head * stride, stride, tile, call_.head_dim, scores);
        for (int h = 0; h < Heads; h++) weigh(head + h, tile.tokens, scores[h]);
        add_tile<Heads>(scores, tile, call_.head_dim, result_.sums + head * stride, stride);
    }

    // Turns a head's scores into weights relative to the greatest score so far.
    void weigh(int head, int tokens, float* scores) {
        for (int t = tokens; t < kTile; t++) scores[t] = -__builtin_inff();
        Floats most = broadcast(result_.highest[head]);
        for (int t = 0; t < kTile; t += kWidth) most = maximum(most, load(scores + t));
        const float highest = largest(most), scale = call_.scale * kLog2E;
        result_.raise(head, highest, scale);
        Floats total{};
        for (int t = 0; t < kTile; t += kWidth) {
            const Floats weights = power_of_two((load(scores + t) - highest) * scale);
            store(scores + t, weights);
            total += weights;
        }
        result_.total[head] += sum(total);
    }

    const Attention<T>& call_;
    const int row_, kv_head_, num_kv_heads_, num_heads_;  // num_heads: of all queries, by a kv head
    const int64_t query_;
    int64_t first_;
    const int64_t end_;
    Partial result_;
    Query<T>* queries_;  // [heads, stride]
};

// Writes the heads [first_head, first_head + heads) of a query.
template <class T>
void store_heads(const Attention<T>& call, int64_t query, int first_head, int heads, const Partial& whole) {
    T* out = call.out + (query * call.num_heads + first_head) * call.head_dim;
    for (int head = 0; head < heads; head++) {
        store_sums(whole.sums + head * whole.stride, 1.0f / whole.total[head], call.head_dim,
                   out + head * call.head_dim);
    }
}
