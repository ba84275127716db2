// Attention of several new tokens of a row, each computed like a single new token: with the segments, tiles and order
// of sums of attention_decode.h. For `model.batch_invariant`; attention_prefill.h is faster and adds in another order.
//
// A task is consecutive queries of a row and one kv head. It goes segment by segment, which stay in the second-level
// cache, and takes several queries at a time: tiles that are completely visible to all of them are read once.
#pragma once

#include "attention_decode.h"

template <class T, class C>
class BatchInvariantPrefill {
    static constexpr int kHeadsAtOnce = 16;  // their sums and a tile fit in the first-level cache

  public:
    static constexpr int kMaxQueries = 64;  // per task: their sums and a segment fit in the second-level cache

    // first_query: index among the queries of the row.
    BatchInvariantPrefill(const Attention<T, C>& call, int row, int kv_head, int first_query, int num_queries)
        : call_(call),
          row_(row),
          kv_head_(kv_head),
          num_queries_(num_queries),
          heads_(call.group()),
          at_once_(std::max(1, kHeadsAtOnce / heads_)),
          query_(call.query_start[row] + first_query),
          stride_((call.head_dim + kStep - 1) / kStep * kStep),
          whole_(memory((num_queries + at_once_) * heads_), num_queries * heads_, stride_),
          part_(whole_.sums + Partial::num_floats(num_queries * heads_, stride_), at_once_ * heads_, stride_) {}

    void run() {
        whole_.clear(num_queries_ * heads_);
        for (int64_t begin = first_visible(0) / kSegment * kSegment; begin < context(num_queries_ - 1);
             begin += kSegment) {
            for (int i = 0; i < num_queries_; i += at_once_) {
                attend(i, std::min(at_once_, num_queries_ - i), begin, begin + kSegment);
            }
        }
        for (int i = 0; i < num_queries_; i++) {
            store_heads(call_, query_ + i, kv_head_ * heads_, heads_, whole_.from(i * heads_));
        }
    }

  private:
    float* memory(int64_t heads) {
        static thread_local Scratch scratch;
        return scratch.reserve<float>(Partial::num_floats(heads, stride_));
    }

    int64_t context(int i) const { return call_.context(row_, query_ + i); }  // tokens up to the query's, included
    int64_t first_visible(int i) const { return call_.first_visible(context(i) - 1); }

    // Queries [first, first + count) and the segment [begin, end).
    void attend(int first, int count, int64_t begin, int64_t end) {
        part_.clear(count * heads_);
        // If a window starts within the segment, tiles start with it, and cannot be shared by several queries.
        const bool is_shared = first_visible(first + count - 1) <= begin && context(first) > begin;
        const int64_t whole_tiles = (std::min(end, context(first)) - begin) / kTileTokens;
        const int64_t shared = is_shared ? begin + whole_tiles * kTileTokens : begin;
        if (begin < shared) add(first, count, begin, shared, part_);
        for (int i = first; i < first + count; i++) {
            const int64_t visible = first_visible(i), last = std::min(end, context(i));
            if (std::max(begin, visible) >= last) continue;
            Partial part = part_.from((i - first) * heads_), whole = whole_.from(i * heads_);
            if (std::max(shared, visible) < last) add(i, 1, std::max(shared, visible), last, part);
            if (visible >= begin) {
                whole.copy(part, heads_);
            } else {
                whole.add(part, heads_, call_.scale);
            }
        }
    }

    void add(int first, int count, int64_t begin, int64_t end, Partial to) {
        Decode<T, C>(call_, row_, query_ + first, count, kv_head_, 1, begin, end, to).run();
    }

    const Attention<T, C>& call_;
    const int row_, kv_head_, num_queries_, heads_, at_once_;  // heads: those that share the kv head
    const int64_t query_, stride_;                             // query: the first
    Partial whole_, part_;  // of all queries; of some queries and the current segment
};
