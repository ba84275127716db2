// A layer of experts: every token goes through the feed-forward blocks of the few experts chosen for it, and the outputs
// are added, weighted.
//
// Tokens are sorted by expert, and the rows of each expert are multiplied by the functions of the linear layers
// (linear.h), which a table names for each expert: the formats of the weights are no concern of this file. There are
// two regions of parallel work:
//   1. gates and ups, which are stored panel by panel in turns, or ups alone, so that a thread that has multiplied a pair
//      of panels computes the activations from it. Work is divided among the threads by the time that it takes: with few rows the
//      time of reading the panels, with many rows that of the arithmetic.
//   2. the output of all experts. Each thread has some columns and goes through the experts in ascending order, so that
//      the sum of a token has the same order with any batch and any number of threads.
// Deltas of adapters (lora_products.h) have a region before each of them, for the products with A. The threads add the
// products with B to the columns that they have multiplied, before the activation and before the weighted sum.

#include "activation.h"
#include "captured_graph.h"
#include "linear.h"
#include "lora_products.h"
#include "scratch.h"

namespace {

// Rows whose multiplication by a panel takes as long as reading it.
#if defined(TILES)
constexpr int64_t kRowsWhileReading = 64;
#elif defined(__AVX512F__)
constexpr int64_t kRowsWhileReading = 10;
#else
constexpr int64_t kRowsWhileReading = 4;
#endif

// One matrix of one expert: a row of the table that experts.py makes.
template <class T>
struct Matrix {
    void (*multiply)(const Weight& weight, const T* x, int64_t rows, int64_t begin, int64_t end, T* y);
    const void *panels, *scales, *bias;

    // Columns of the panels from `begin` to `end` of y [rows, width].
    void operator()(const T* x, int64_t rows, int64_t width, int64_t depth, int64_t begin, int64_t end, T* y) const {
        multiply(Weight{panels, scales, bias, width, depth}, x, rows, begin, end, y);
    }
};

// The kinds of gates in the order of GATES in ../experts.py: the activations, and one more.
constexpr int kClampedSwiglu = kRelu2 + 1;

ALWAYS_INLINE Floats at_most(Floats value, float limit) { return value > limit ? broadcast(limit) : value; }  // or NaN
ALWAYS_INLINE Floats at_least(Floats value, float limit) { return value < limit ? broadcast(limit) : value; }

template <int kGate>
ALWAYS_INLINE Floats gated_by(Floats gate, Floats up, float alpha, float limit, float offset) {
    if constexpr (kGate == kClampedSwiglu) {
        const Floats clamped = at_most(gate, limit);
        return clamped * sigmoid(clamped * alpha) * (at_least(at_most(up, limit), -limit) + offset);
    } else {
        return activated<Activation(kGate)>(gate) * up;
    }
}

// The rows of an expert, in the order of tokens.
struct Group {
    int64_t expert, first, rows;  // first: index of its first row among all rows
};

// Tokens sorted by expert.
struct Sorted {
    const Group* groups;  // of the experts that have rows, in ascending order
    int64_t count;
    const int32_t* places;  // [rows], index of a row in ids
};

// Adapters of the rows of a step.
struct Adapters {
    const int32_t* slots;  // [tokens], of each token's adapter, below 0 without one; null: no token has one
    const int64_t* table;  // [slots, experts, kLine]: what the adapter of a slot adds to an expert
    int64_t num_experts, inner;  // inner: without the padding of Layers
};

// A line of the table. A part of the first product has its first row of A, its rank and B. Addresses are 0 without a delta.
enum { kA, kRanks, kGate, kUp = kGate + 3, kDownA = kUp + 3, kDownRank, kDownB, kLine };
enum { kFirst, kRank, kB };  // of a part

// The rows of an expert that have the same adapter.
struct Segment {
    const int64_t* line;
    int64_t first, rows;  // in `order`

    template <class T>
    const T* at(int64_t index) const { return reinterpret_cast<const T*>(line[index]); }
};

struct ShrinkTask {
    const Segment* segment;
    int64_t row, rows, rank, ranks;
};

struct Segments {
    std::vector<Segment> all;     // by expert, then by slot
    std::vector<int64_t> starts;  // [groups + 1], the first segment of each group
    std::vector<int64_t> order;   // slot and sorted row of each row with an adapter
    std::vector<ShrinkTask> tasks;
    Scratch sums;

    int64_t row(int64_t place) const { return order[place] & 0xffffffff; }
    int64_t num_rows() const { return int64_t(order.size()); }
};

struct Buffers {
    Scratch starts, groups, places, gated;
    Segments segments;
};

// Rows with an id below 0 are of experts elsewhere, and left out. Returns false if an id is not below num_experts.
bool sort_by_expert(const int32_t* ids, int64_t rows, int64_t num_experts, Buffers& buffers, Sorted& sorted) {
    int64_t* starts = buffers.starts.reserve<int64_t>(num_experts + 1);
    Group* groups = buffers.groups.reserve<Group>(num_experts);
    int32_t* places = buffers.places.reserve<int32_t>(rows);
    std::fill(starts, starts + num_experts + 1, 0);
    for (int64_t i = 0; i < rows; i++) {
        if (ids[i] >= num_experts) return false;
        if (ids[i] >= 0) starts[ids[i] + 1]++;
    }
    int64_t count = 0;
    for (int64_t expert = 0; expert < num_experts; expert++) {
        if (starts[expert + 1]) groups[count++] = {expert, starts[expert], starts[expert + 1]};
        starts[expert + 1] += starts[expert];
    }
    for (int64_t i = 0; i < rows; i++) {
        if (ids[i] >= 0) places[starts[ids[i]]++] = int32_t(i);
    }
    sorted = {groups, count, places};
    return true;
}

template <class T>
struct Layers {
    const Matrix<T>*gate_ups, *downs;  // [experts]
    int64_t hidden, inner;             // inner: a multiple of the width of two panels
    int gate;
    bool is_gated;  // a gate_up has gates
    float alpha, limit, offset;

    int64_t columns() const { return is_gated ? 2 * inner : inner; }  // of a gate_up
    int64_t pairs() const { return columns() / (2 * kPanelWidth); }
};

// The rows of x for a group: a pointer to them if they are consecutive, else to a copy of this thread.
template <class T>
const T* rows_of(const T* x, const Group& group, const int32_t* places, int64_t per_token, int64_t depth) {
    const int32_t* own = places + group.first;
    const int64_t first = own[0] / per_token;
    if (own[group.rows - 1] / per_token - first == group.rows - 1) return x + first * depth;
    static thread_local Scratch scratch;
    T* copy = scratch.reserve<T>(group.rows * depth);
    for (int64_t row = 0; row < group.rows; row++) {
        memcpy(copy + row * depth, x + own[row] / per_token * depth, depth * sizeof(T));
    }
    return copy;
}

// The activations of the pairs of panels from `begin` to `end`, of which gate_up has the rows.
template <int kGate, class T>
void activate(const T* gate_up, int64_t rows, int64_t begin, int64_t end, const Layers<T>& layers, T* gated) {
    for (int64_t row = 0; row < rows; row++, gate_up += layers.columns(), gated += layers.inner) {
        for (int64_t pair = begin; pair < end && layers.is_gated; pair++) {
            const T *gates = gate_up + pair * 2 * kPanelWidth, *ups = gates + kPanelWidth;
            for (int v = 0; v < kPanelWidth; v += kWidth) {
                store(gated + pair * kPanelWidth + v,
                      gated_by<kGate>(load(gates + v), load(ups + v), layers.alpha, layers.limit, layers.offset));
            }
        }
        if constexpr (kGate != kClampedSwiglu) {
            const int64_t last = layers.is_gated ? 0 : end * 2 * kPanelWidth;
            for (int64_t i = begin * 2 * kPanelWidth; i < last; i += kWidth) {
                store(gated + i, activated<Activation(kGate)>(load(gate_up + i)));
            }
        }
    }
}

template <class T>
void activate(const T* gate_up, int64_t rows, int64_t begin, int64_t end, const Layers<T>& layers, T* gated) {
    switch (layers.gate) {
        case kSilu: return activate<kSilu>(gate_up, rows, begin, end, layers, gated);
        case kGelu: return activate<kGelu>(gate_up, rows, begin, end, layers, gated);
        case kGeluTanh: return activate<kGeluTanh>(gate_up, rows, begin, end, layers, gated);
        case kRelu: return activate<kRelu>(gate_up, rows, begin, end, layers, gated);
        case kRelu2: return activate<kRelu2>(gate_up, rows, begin, end, layers, gated);
        case kClampedSwiglu: return activate<kClampedSwiglu>(gate_up, rows, begin, end, layers, gated);
    }
}

// The segments of a step.
void find_segments(const Adapters& adapters, const Sorted& sorted, int64_t per_token, Segments& segments) {
    segments.all.clear();
    segments.starts.assign(1, 0);
    segments.order.clear();
    for (int64_t i = 0; i < sorted.count; i++) {
        const Group& group = sorted.groups[i];
        const auto line_of = [&](int64_t slot) {
            return adapters.table + (slot * adapters.num_experts + group.expert) * kLine;
        };
        int64_t first = segments.num_rows();
        for (int64_t row = group.first; row < group.first + group.rows; row++) {
            const int64_t slot = adapters.slots[sorted.places[row] / per_token];
            if (slot >= 0 && (line_of(slot)[kA] || line_of(slot)[kDownA])) segments.order.push_back(slot << 32 | row);
        }
        std::sort(segments.order.begin() + first, segments.order.end());
        while (first < segments.num_rows()) {
            const int64_t slot = segments.order[first] >> 32;
            int64_t end = first + 1;
            while (end < segments.num_rows() && segments.order[end] >> 32 == slot) end++;
            segments.all.push_back({line_of(slot), first, end - first});
            first = end;
        }
        segments.starts.push_back(int64_t(segments.all.size()));
    }
}

// Sums of the rows of all segments: `stride` elements of each, in their order.
struct Shrunk {
    float* sums;
    int64_t stride;

    float* of(int64_t place) const { return sums + place * stride; }
};

// from(sorted row): where its inputs begin. a, ranks: of a line of the table. width: columns of the products with B.
template <class T, class From>
Shrunk shrink_segments(Segments& segments, int a, int ranks, int64_t depth, int64_t width, const From& from) {
    int64_t stride = 0, operations = 0;
    segments.tasks.clear();
    for (const Segment& segment : segments.all) {
        if (!segment.line[a]) continue;
        const int64_t own = segment.line[ranks];
        stride = std::max(stride, own);
        operations += segment.rows * own * (depth + width);
        for (int64_t row = 0; row < segment.rows; row += kTaskRows) {
            for (int64_t rank = 0; rank < own; rank += kTaskRanks) {
                segments.tasks.push_back({&segment, row, std::min(segment.rows - row, kTaskRows), rank,
                                          std::min(own - rank, kTaskRanks)});
            }
        }
    }
    const Shrunk shrunk{segments.sums.reserve<float>(segments.num_rows() * stride + 1), stride};
    for_each_task(segments.tasks, operations, [&](const ShrinkTask& task) {
        const int64_t first = task.segment->first + task.row;
        shrink(task.segment->at<T>(a) + task.rank * depth, depth, task.ranks, task.rows,
               [&](int64_t row) { return from(segments.row(first + row)); },
               [&](int64_t row) { return shrunk.of(first + row) + task.rank; });
    });
    return shrunk;
}

// Adds `Columns` columns of y @ B.T to the rows of a segment. b: the first of them. y: from the first row of A.
// to(sorted row): where these columns of a row begin, of which `count` exist.
template <int64_t Columns, class T, class To>
void expand_segment(const Segments& segments, const Segment& segment, const Shrunk& shrunk, int64_t first_rank,
                    int64_t rank, const T* b, int64_t count, const To& to) {
    for_each_tile(segment.rows, [&](int64_t row, auto size) {
        constexpr int R = decltype(size)::value;
        const float* y[R];
        T* out[R];
        for (int r = 0; r < R; r++) {
            const int64_t place = segment.first + row + r;
            y[r] = shrunk.of(place) + first_rank;
            out[r] = to(segments.row(place));
        }
        expand_tile<R, Columns>(y, b, rank, nullptr, nullptr, out, count);
    });
}

// Adds the deltas of a group to the pairs of panels from `begin` to `end`, of which gate_up has the rows.
template <class T>
void add_to_gate_up(const Segments& segments, int64_t index, const Group& group, const Shrunk& shrunk, int64_t inner,
                    const Layers<T>& layers, int64_t begin, int64_t end, T* gate_up) {
    const auto to = [&](int64_t column) {
        return [=, &group](int64_t row) { return gate_up + (row - group.first) * layers.columns() + column; };
    };
    for (int64_t i = segments.starts[index]; i < segments.starts[index + 1]; i++) {
        const Segment& segment = segments.all[i];
        for (int part : {kGate, kUp}) {
            const int64_t first = segment.line[part + kFirst], rank = segment.line[part + kRank];
            const T* b = segment.at<T>(part + kB);
            for (int64_t pair = begin; pair < end && rank; pair++) {
                if (!layers.is_gated) {
                    if (pair * kLoraPanel >= inner) break;
                    expand_segment<kLoraPanel>(segments, segment, shrunk, first, rank, b + pair * rank * kLoraPanel,
                                               kLoraPanel, to(pair * kLoraPanel));
                    continue;
                }
                constexpr int64_t kPanels = kLoraPanel / kPanelWidth;  // of a gate_up in one of B
                if (pair * kPanelWidth >= inner) break;
                const int64_t column = pair * 2 * kPanelWidth + (part == kUp ? kPanelWidth : 0);
                expand_segment<kPanelWidth>(segments, segment, shrunk, first, rank,
                                            b + pair / kPanels * rank * kLoraPanel + pair % kPanels * kPanelWidth,
                                            kPanelWidth, to(column));
            }
        }
    }
}

// Adds the deltas of a group to the columns from `first` to `last` of y, its outputs. first: a multiple of kLoraPanel.
template <class T>
void add_to_outputs(const Segments& segments, int64_t index, const Group& group, const Shrunk& shrunk, int64_t hidden,
                    int64_t first, int64_t last, T* y) {
    for (int64_t i = segments.starts[index]; i < segments.starts[index + 1]; i++) {
        const Segment& segment = segments.all[i];
        if (!segment.line[kDownA]) continue;
        const int64_t rank = segment.line[kDownRank];
        for (int64_t column = first; column < last; column += kLoraPanel) {
            expand_segment<kLoraPanel>(segments, segment, shrunk, 0, rank, segment.at<T>(kDownB) + column * rank,
                                       std::min(last - column, kLoraPanel),
                                       [&](int64_t row) { return y + (row - group.first) * hidden + column; });
        }
    }
}

// gated [rows, inner]: the activations of all rows, sorted by expert.
template <class T>
void multiply_gates(const T* x, const Layers<T>& layers, const Sorted& sorted, int64_t per_token,
                    const Segments* segments, const Shrunk& shrunk, int64_t inner, T* gated) {
    const int64_t pairs = layers.pairs(), columns = layers.columns();
    const auto cost_of = [](const Group& group) { return group.rows + kRowsWhileReading; };  // of a pair of panels
    int64_t total = 0;
    for (int64_t i = 0; i < sorted.count; i++) total += cost_of(sorted.groups[i]) * pairs;
    on_every_thread([&](int thread, int threads) {
        static thread_local Scratch scratch;
        const int64_t from = total * thread / threads, to = total * (thread + 1) / threads;
        int64_t before = 0;  // cost of the groups before this one
        for (int64_t i = 0; i < sorted.count; i++) {
            const Group& group = sorted.groups[i];
            const int64_t cost = cost_of(group);
            const auto pair_at = [&](int64_t at) {  // the first that begins there or later
                return std::clamp<int64_t>((at - before + cost - 1) / cost, 0, pairs);
            };
            const int64_t begin = pair_at(from), end = pair_at(to);
            before += cost * pairs;
            if (begin >= end) continue;
            T* gate_up = scratch.reserve<T>(group.rows * columns);
            layers.gate_ups[group.expert](rows_of(x, group, sorted.places, per_token, layers.hidden), group.rows,
                                          columns, layers.hidden, 2 * begin, 2 * end, gate_up);
            if (segments) add_to_gate_up(*segments, i, group, shrunk, inner, layers, begin, end, gate_up);
            activate(gate_up, group.rows, begin, end, layers, gated + group.first * layers.inner);
        }
    });
}

// Adds the rows of y, columns from `first` to `last`, to the sums of their tokens.
template <class T>
void add_weighted(const T* y, const Group& group, const int32_t* places, const float* weights, int64_t per_token,
                  int64_t hidden, int64_t first, int64_t last, float* sums, int64_t stride) {
    for (int64_t row = 0; row < group.rows; row++, y += hidden) {
        const int32_t place = places[group.first + row];
        const float weight = weights[place];
        float* sum = sums + place / per_token * stride - first;
        for_each_vector(last - first, [&](int64_t i, int64_t count) {
            float* to = sum + first + i;
            store(to, multiply_add(load_up_to(y + first + i, count), broadcast(weight), load(to)));  // to is padded
        });
    }
}

// out [tokens, hidden] = the weighted sums of the experts' outputs, and `base` times the sigmoid of its gate.
template <class T>
void multiply_downs(const T* gated, const Layers<T>& layers, const Sorted& sorted, const float* weights, const T* base,
                    const T* base_gate, const Segments* segments, const Shrunk& shrunk, T* out, int64_t tokens,
                    int64_t per_token) {
    const int64_t hidden = layers.hidden, panels = (hidden + kPanelWidth - 1) / kPanelWidth;
    parallel_ranges((panels + 1) / 2, 1, [&](int64_t begin, int64_t end) {
        static thread_local Scratch sum_scratch, scratch;
        const int64_t first = begin * 2 * kPanelWidth, last = std::min(end * 2 * kPanelWidth, hidden);
        const int64_t stride = (end - begin) * 2 * kPanelWidth;
        float* sums = sum_scratch.reserve<float>(tokens * stride);
        for (int64_t token = 0; token < tokens; token++) {
            const float factor = base_gate ? sigmoid(load_partial(base_gate + token, 1))[0] : 1;
            for_each_vector(last - first, [&](int64_t i, int64_t count) {
                store(sums + token * stride + i,
                      base ? load_up_to(base + token * hidden + first + i, count) * factor : Floats{});
            });
        }
        for (int64_t i = 0; i < sorted.count; i++) {
            const Group& group = sorted.groups[i];
            T* y = scratch.reserve<T>(group.rows * hidden);
            layers.downs[group.expert](gated + group.first * layers.inner, group.rows, hidden, layers.inner, 2 * begin,
                                       std::min(2 * end, panels), y);
            if (segments) add_to_outputs(*segments, i, group, shrunk, hidden, first, last, y);
            add_weighted(y, group, sorted.places, weights, per_token, hidden, first, last, sums, stride);
        }
        for (int64_t token = 0; token < tokens; token++) {
            for_each_vector(last - first, [&](int64_t i, int64_t count) {
                store_up_to(out + token * hidden + first + i, load(sums + token * stride + i), count);
            });
        }
    });
}

template <class T>
int experts(const T* x, const int32_t* ids, const float* weights, const Layers<T>& layers, const T* base,
            const T* base_gate, T* out, int64_t tokens, int64_t per_token, int64_t num_experts,
            const Adapters& adapters) {
    static thread_local Buffers buffers;
    Sorted sorted;
    if (!sort_by_expert(ids, tokens * per_token, num_experts, buffers, sorted)) return 1;
    T* gated = buffers.gated.reserve<T>(tokens * per_token * layers.inner);
    const Segments* segments = nullptr;
    Shrunk shrunk{};
    if (adapters.slots) {
        find_segments(adapters, sorted, per_token, buffers.segments);
        if (buffers.segments.num_rows()) segments = &buffers.segments;
    }
    if (segments) {
        shrunk = shrink_segments<T>(buffers.segments, kA, kRanks, layers.hidden, layers.columns(), [&](int64_t row) {
            return x + sorted.places[row] / per_token * layers.hidden;
        });
    }
    multiply_gates(x, layers, sorted, per_token, segments, shrunk, adapters.inner, gated);
    if (segments) {
        shrunk = shrink_segments<T>(buffers.segments, kDownA, kDownRank, adapters.inner, layers.hidden,
                                    [&](int64_t row) { return gated + row * layers.inner; });
    }
    multiply_downs(gated, layers, sorted, weights, base, base_gate, segments, shrunk, out, tokens, per_token);
    return 0;
}

}  // namespace

// x, out: [tokens, hidden]; ids, weights: [tokens, per_token]; gate_ups, downs: [num_experts]; base: [tokens, hidden] or
// null; base_gate: [tokens] or null. A gate_up has 2 * inner columns, panels of gates and of ups in turns, or inner columns
// of ups. Rows with an id below 0 are left out. Returns 0, or 1 without writing anything if one is not below num_experts.
// The second function also takes the adapter of each token, and what adapters add: see Adapters.
#define EXPORT_FOR(T, suffix)                                                                                         \
    EXPORT int experts_##suffix(const T* x, const int32_t* ids, const float* weights, const Matrix<T>* gate_ups,      \
                                const Matrix<T>* downs, const T* base, const T* base_gate, T* out, int64_t tokens,    \
                                int64_t per_token, int64_t num_experts, int64_t hidden, int64_t inner, int gate,      \
                                int is_gated, float alpha, float limit, float offset) {                               \
        const Layers<T> layers{gate_ups, downs, hidden, inner, gate, is_gated != 0, alpha, limit, offset};            \
        return experts(x, ids, weights, layers, base, base_gate, out, tokens, per_token, num_experts, Adapters{});    \
    }                                                                                                                 \
    EXPORT int adapted_experts_##suffix(                                                                              \
        const T* x, const int32_t* ids, const float* weights, const Matrix<T>* gate_ups, const Matrix<T>* downs,      \
        const T* base, const T* base_gate, T* out, int64_t tokens, int64_t per_token, int64_t num_experts,            \
        int64_t hidden, int64_t inner, int gate, int is_gated, float alpha, float limit, float offset,                \
        const int32_t* slots, const int64_t* table, int64_t own_inner) {                                              \
        const Layers<T> layers{gate_ups, downs, hidden, inner, gate, is_gated != 0, alpha, limit, offset};            \
        return experts(x, ids, weights, layers, base, base_gate, out, tokens, per_token, num_experts,                 \
                       Adapters{slots, table, num_experts, own_inner});                                               \
    }                                                                                                                 \
    CAPTURABLE(experts_##suffix)                                                                                      \
    CAPTURABLE(adapted_experts_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
