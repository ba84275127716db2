// Attention of many new tokens of a row: the time is that of the arithmetic, so both products use panels (panels.h,
// tiles.h).
//
// A task is consecutive queries of a row and one kv head; its rows are the queries times the heads that share the kv
// head. Keys and values are packed tile by tile, each tile is multiplied by all rows of the task, and an online softmax
// (FlashAttention, arXiv:2205.14135) keeps the scores of one tile only.
#pragma once

#include "attention.h"
#include "block_products.h"
#include "packing.h"
#include "scratch.h"

constexpr int kMaxTaskRows = 1024;  // rows of a task, which share one packing of the keys
constexpr int kKeys = 256;         // keys per tile
constexpr float kSlack = 8;        // weights may grow to 2 ** 8 before a row's sums are scaled down

// Call: the arguments, which say what a query sees and where keys and values are (Attention, WholeAttention).
template <class Call>
class Prefill {
    typedef typename Call::Element T;
    typedef typename Product<T>::A A;
    static constexpr int kRows = Product<T>::kRows;

  public:
    // first_query: index among the queries of the row.
    Prefill(const Call& call, int row, int kv_head, int first_query, int num_queries)
        : call_(call),
          row_(row),
          kv_head_(kv_head),
          group_(call.group()),
          rows_(num_queries * group_),
          depth_(round_up(call.head_dim, Product<T>::kDepthStep)) {
        first_token_ = call.query_start[row] + first_query;
        const int64_t padded_rows = round_up(rows_, kRows);
        queries_ = buffers().queries.template reserve<A>(padded_rows * depth_);
        keys_ = buffers().keys.template reserve<T>(kKeys * depth_);
        values_ = buffers().values.template reserve<T>(kKeys * depth_);
        scores_ = buffers().scores.template reserve<float>(kRows * kKeys);
        weights_ = buffers().weights.template reserve<A>(kRows * kKeys);
        sums_ = buffers().sums.template reserve<float>(padded_rows * depth_);
        load_queries(padded_rows);
        for (int row = 0; row < rows_; row++) zeros_[row] = -__builtin_inff();
        memset(totals_, 0, rows_ * kWidth * sizeof(float));
    }

    void run() {
#if defined(TILES)
        TileRegisters tiles;
        if (std::is_same_v<T, BFloat16>) tiles.configure(kTileRows);
#endif
        const int64_t end = end_visible(rows_ - 1);
        for (int64_t first = first_visible(0); first < end; first += kKeys) {
            const int keys = int(std::min<int64_t>(kKeys, end - first));
            pack(first, keys);
            for (int row = 0; row < rows_; row += kRows) {
                attend(row, std::min(kRows, rows_ - row), first, keys);
            }
        }
        store_out();
    }

  private:
    struct Buffers {
        Scratch queries, keys, values, scores, weights, sums, unpacked;
    };
    static Buffers& buffers() {
        static thread_local Buffers buffers;
        return buffers;
    }

    int64_t position(int row) const { return call_.context(row_, first_token_ + row / group_) - 1; }
    int64_t first_visible(int row) const { return call_.first_visible(position(row)); }
    int64_t end_visible(int row) const { return call_.end_visible(row_, position(row)); }

    int head(int row) const { return kv_head_ * group_ + row % group_; }

    int64_t at(int row) const {  // offset of the row's head in out
        return ((first_token_ + row / group_) * call_.num_heads + head(row)) * call_.head_dim;
    }

    void load_queries(int64_t padded_rows) {
        if (depth_ > call_.head_dim || padded_rows > rows_) memset(queries_, 0, padded_rows * depth_ * sizeof(A));
        for (int row = 0; row < rows_; row++) {
            const T* from = call_.query(first_token_ + row / group_, head(row));
            A* to = queries_ + row * depth_;
            if constexpr (std::is_same_v<A, T>) {
                memcpy(to, from, call_.head_dim * sizeof(T));
            } else {
                for (int d = 0; d < call_.head_dim; d += kWidth) store(to + d, load(from + d));
            }
        }
    }

    // Keys become columns of panels of 16 keys, values rows of panels of 16 elements of a head.
    void pack(int64_t first, int keys) {
        const T *key_rows[kKeys], *value_rows[kKeys];
        call_.find_rows(row_, kv_head_, first, keys, buffers().unpacked, key_rows, value_rows);
        const int padded_keys = int(round_up(keys, 2 * kPanelWidth));
        for (int key = 0; key < padded_keys; key += kPanelWidth) {
            pack_columns([&](int i) { return key_rows[key + i]; }, std::min(kPanelWidth, keys - key), call_.head_dim,
                         depth_, keys_ + key * depth_);
        }
        const auto value_row = [&](int i) { return value_rows[i]; };
        pack_rows(value_row, keys, padded_keys, call_.head_dim, values_, kKeys * kPanelWidth);
        const int padding = int(depth_) - call_.head_dim;
        pack_rows(value_row, 0, padded_keys, padding, values_ + call_.head_dim * kKeys, kKeys * kPanelWidth);
    }

    // Rows [row, row + rows) and the tile of keys that starts at `first`.
    void attend(int row, int rows, int64_t first, int keys) {
        const int64_t visible = std::min<int64_t>(keys, end_visible(row + rows - 1) - first);
        if (visible <= 0 || first_visible(row) >= first + keys) return;  // it sees none of the keys
        const int64_t padded = round_up(visible, 2 * kPanelWidth);
        multiply_block(queries_ + row * depth_, depth_, keys_, depth_ * kPanelWidth, depth_, padded / kPanelWidth,
                       false, scores_, kKeys);
        // The first tile that is visible to the block's first row is the first of the block: there are no sums yet.
        const bool has_sums = zeros_[row] > -__builtin_inff();
        for (int i = 0; i < rows; i++) compute_weights(row + i, i, first, visible, padded);
        multiply_block(weights_, kKeys, values_, kKeys * kPanelWidth, padded, depth_ / kPanelWidth, has_sums,
                       sums_ + row * depth_, depth_);
    }

    // Replaces the scores of row `row`, the i-th of the block, by weights: zero for keys that are not visible.
    void compute_weights(int row, int i, int64_t first, int64_t visible, int64_t padded) {
        const int64_t begin = std::max<int64_t>(0, first_visible(row) - first);
        const int64_t end = std::min<int64_t>(visible, end_visible(row) - first);
        float* scores = scores_ + i * kKeys;
        A* weights = weights_ + i * kKeys;
        if (call_.softcap) {
            for (int64_t key = 0; key < padded; key += kWidth) store(scores + key, call_.capped(load(scores + key)));
        }
        call_.add_slopes(head(row), position(row), first, padded, scores);
        for (int64_t key = 0; key < std::min(begin, padded); key++) scores[key] = -__builtin_inff();
        for (int64_t key = std::max<int64_t>(0, end); key < padded; key++) scores[key] = -__builtin_inff();
        if (begin >= end) {
            memset(weights, 0, padded * sizeof(A));
            return;
        }
        const float scale = call_.scale * kLog2E;
        Floats maxima = load(scores);
        for (int64_t key = kWidth; key < padded; key += kWidth) maxima = maximum(maxima, load(scores + key));
        if (is_any_above(maxima * scale, zeros_[row] + kSlack)) rescale(row, largest(maxima) * scale);
        const float zero = zeros_[row];
        Floats total = load(totals_ + row * kWidth);
        for (int64_t key = 0; key < padded; key += kWidth) {
            const Floats weight = power_of_two<A>(load(scores + key) * scale - zero);
            store(weights + key, weight);
            total += weight;
        }
        store(totals_ + row * kWidth, total);
    }

    // Scales the sums of the row to weights relative to 2 ** `zero`.
    void rescale(int row, float zero) {
        const float shrink = power_of_two(broadcast(zeros_[row] - zero))[0];
        float *sums = sums_ + row * depth_, *totals = totals_ + row * kWidth;
        if (zeros_[row] > -__builtin_inff()) {  // otherwise there are no sums yet
            for (int64_t d = 0; d < depth_; d += kWidth) store(sums + d, load(sums + d) * shrink);
        }
        store(totals, load(totals) * shrink);
        zeros_[row] = zero;
    }

    void store_out() {
        for (int row = 0; row < rows_; row++) {
            const float sink = call_.sink_weight(head(row), zeros_[row] / kLog2E);
            const float total = sum(load(totals_ + row * kWidth)), norm = 1.0f / (total + sink);
            if (call_.log_totals) {
                call_.log_totals[at(row) / call_.head_dim] = zeros_[row] / kLog2E + std::log(total);
            }
            if (total == 0) {  // no tokens, and no sums
                memset(call_.out + at(row), 0, call_.head_dim * sizeof(T));
                continue;
            }
            for (int d = 0; d < call_.head_dim; d += kWidth) {
                store(call_.out + at(row) + d, load(sums_ + row * depth_ + d) * norm);
            }
        }
    }

    const Call& call_;
    const int row_, kv_head_, group_, rows_;
    const int64_t depth_;  // head_dim, padded for the products
    int64_t first_token_;
    A *queries_, *weights_;  // [rows, depth], [kRows, kKeys]
    T *keys_, *values_;      // panels
    float *scores_, *sums_;  // [kRows, kKeys], [rows, depth]
    float zeros_[kMaxTaskRows];             // the weights of a row are relative to 2 ** zeros_
    float totals_[kMaxTaskRows * kWidth];  // sums of weights, lane by lane
};
