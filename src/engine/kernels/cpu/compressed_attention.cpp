// attend_compressed: attention over the tokens of a window and over compressed vectors. The reference is in
// ../compressed_attention.py.
//
// With many heads per key the time is that of the arithmetic, so both products are those of blocks (block_products.h).
// Keys are taken in segments that begin at fixed positions; each segment has a softmax of its own, and the results of a
// query are added in the order of the segments. So a result depends neither on the batch, nor on how a prompt is divided into
// steps, nor on who computes which segment: a task is a few queries of a row over all segments, or, where there are few
// rows, over one.

#include <atomic>
#include <cmath>
#include <new>

#include "attention_decode.h"
#include "block_products.h"
#include "captured_graph.h"
#include "packing.h"
#include "parallel.h"
#include "ring.h"
#include "rotation.h"
#include "scratch.h"

namespace {

constexpr int kKeys = 256;                 // keys of a segment
constexpr int kColumns = 2 * kPanelWidth;  // keys of two panels, the least that is multiplied
constexpr int kMaxTaskRows = 512;          // queries times heads, which share one packing of the keys
constexpr int64_t kTasksPerThread = 4;     // enough that all threads end at about the same time

// Consecutive queries of a row, and some of their heads. Rows of products are ordered by query, then head.
struct Unit {
    int64_t row, query, count, head, heads;
    int64_t near, segments;  // the first segment of positions; the number of all segments
    int64_t memory;          // offset of the partial results, if a segment is a task

    int64_t num_rows() const { return count * heads; }
};

// All arrays are row-major; ../compressed_attention.py documents them.
template <class T>
struct Call {
    const T *queries, *keys;
    const float* sinks;
    Ring<T> window;
    const T* cache;         // null: there are no compressed vectors
    const int64_t* chosen;  // [tokens, num_chosen], or null
    const float* cos_sin;
    const int64_t* positions;
    T* out;
    RecurrentRows rows;
    const int32_t* block_tables;
    int64_t table_stride, num_heads, dim, rotary_dim, rate, num_chosen, block_size;
    int64_t group_stride;  // elements between the vectors of two groups

    // The position of query i of a unit, the groups that are complete there, and the first token that it sees.
    int64_t position(const Unit& unit, int64_t i) const {
        return first_position(rows, unit.row) + unit.query + i - rows.first(unit.row);
    }
    int64_t num_complete(const Unit& unit, int64_t i) const { return cache ? (position(unit, i) + 1) / rate : 0; }
    int64_t first_visible(const Unit& unit, int64_t i) const {
        return std::max<int64_t>(0, position(unit, i) - window.size + 1);
    }
    // Segments of positions; those of vectors follow.
    int64_t num_near(const Unit& unit) const { return position(unit, unit.count - 1) / kKeys - unit.near + 1; }

    const T* vector(int64_t row, int64_t group) const {
        const int64_t first = group * rate, block = block_tables[row * table_stride + first / block_size];
        return cache + (block * block_size + first % block_size) / rate * group_stride;
    }
};

struct Buffers {
    Scratch queries, keys, values, scores, weights, part;
};

// What a task computes of a unit.
template <class T>
class Work {
    typedef typename Product<T>::A A;
    static constexpr int kRows = Product<T>::kRows;

  public:
    static int64_t depth(const Call<T>& call) { return round_up(call.dim, Product<T>::kDepthStep); }
    static Partial partial(const Call<T>& call, const Unit& unit, float* memory) {
        return Partial(memory, unit.num_rows(), depth(call));
    }
    static int64_t num_floats(const Call<T>& call, const Unit& unit) {
        return Partial::num_floats(unit.num_rows(), depth(call));
    }

    Work(const Call<T>& call, const Unit& unit)
        : call_(call), unit_(unit), depth_(depth(call)), scale_(kLog2E / std::sqrt(float(call.dim))) {
        static thread_local Buffers buffers;
        queries_ = buffers.queries.reserve<A>((unit.num_rows() + kRows) * depth_);
        keys_ = buffers.keys.reserve<T>(kKeys * depth_);
        values_ = buffers.values.reserve<T>(kKeys * depth_);
        scores_ = buffers.scores.reserve<float>(kRows * kKeys);
        weights_ = buffers.weights.reserve<A>(kRows * kKeys);
        part_ = buffers.part.reserve<float>(Partial::num_floats(kRows, depth_));
        load_queries();
    }

    // Adds a segment to the results. Sums of a row that has seen no key are undefined.
    void add_segment(int64_t segment, const Partial& whole) {
        const int64_t near = call_.num_near(unit_);
        if (segment < near) return add_near((unit_.near + segment) * kKeys, whole);
        const int64_t first = (segment - near) * kKeys;
        const T* found[kKeys];
        if (!call_.chosen) {
            const int64_t end = std::min(first + kKeys, call_.num_complete(unit_, unit_.count - 1));
            for (int64_t group = first; group < end; group++) found[group - first] = call_.vector(unit_.row, group);
            pack(found, 0, end - first);
            return add_rows(0, unit_.num_rows(), whole,
                            [&](int64_t i) { return Range{0, call_.num_complete(unit_, i) - first}; });
        }
        for (int64_t i = 0; i < unit_.count; i++) {
            const int64_t* chosen = call_.chosen + (unit_.query + i) * call_.num_chosen;
            int64_t count = 0;
            for (int64_t pick = first; pick < std::min<int64_t>(first + kKeys, call_.num_chosen); pick++) {
                if (chosen[pick] >= 0) found[count++] = call_.vector(unit_.row, chosen[pick]);
            }
            if (!count) continue;
            pack(found, 0, count);
            add_rows(i * unit_.heads, (i + 1) * unit_.heads, whole, [&](int64_t) { return Range{0, count}; });
        }
    }

    // Adds the results of segments that another call has computed.
    void add(const Partial& whole, const Partial& part) const {
        for (int64_t row = 0; row < unit_.num_rows(); row++) add_row(whole, row, part, row);
    }

    // Divides by the totals, with the sinks, and rotates back by the position of the query.
    void store(const Partial& whole) const {
        const int half = int(call_.rotary_dim / 2);
        float sines[kMaxPackedWidth / 2];
        for (int64_t row = 0; row < unit_.num_rows(); row++) {
            float* values = whole.sums + row * depth_;
            const int64_t token = unit_.query + row / unit_.heads, head = row % unit_.heads;
            const float* cosines = call_.cos_sin + call_.positions[token] * call_.rotary_dim;
            if (!head) {
                for (int i = 0; i < half; i++) sines[i] = -cosines[half + i];
            }
            const float sink = call_.sinks[unit_.head + head] * kLog2E - whole.max_score[row] * scale_;
            const float share = 1.0f / (whole.total[row] + std::exp2(sink));
            for (int64_t d = 0; d < depth_; d += kWidth) ::store(values + d, load(values + d) * share);
            rotate(values + call_.dim - call_.rotary_dim, {cosines, sines, half}, true);
            convert(values, call_.out + offset(row), call_.dim);
        }
    }

  private:
    struct Range {
        int64_t begin, end;
    };

    int64_t offset(int64_t row) const {  // in queries and out
        return ((unit_.query + row / unit_.heads) * call_.num_heads + unit_.head + row % unit_.heads) * call_.dim;
    }

    // Whole blocks of rows are read from each row on, so that zeros follow the last.
    void load_queries() {
        const int64_t rows = unit_.num_rows();
        for (int64_t row = 0; row < rows; row++) {
            const T* from = call_.queries + offset(row);
            A* to = queries_ + row * depth_;
            if constexpr (std::is_same_v<A, T>) {
                memcpy(to, from, call_.dim * sizeof(T));
            } else {
                convert(from, to, call_.dim);
            }
            memset(to + call_.dim, 0, (depth_ - call_.dim) * sizeof(A));
        }
        memset(queries_ + rows * depth_, 0, kRows * depth_ * sizeof(A));
    }

    // The keys of the positions [first, first + kKeys) that the queries see.
    void add_near(int64_t first, const Partial& whole) {
        const int64_t before = first_position(call_.rows, unit_.row), slot = call_.rows.slot(unit_.row);
        const T* own = call_.keys + call_.rows.first(unit_.row) * call_.dim;
        const int64_t visible = std::max<int64_t>(0, call_.first_visible(unit_, 0) - first);
        const int64_t begin = visible / kColumns * kColumns;
        const int64_t end = std::min<int64_t>(kKeys, call_.position(unit_, unit_.count - 1) + 1 - first);
        const T* found[kKeys];
        // Nothing is read before the window: another sequence may have left it there.
        for (int64_t i = begin; i < visible; i++) found[i] = zeros();
        for (int64_t i = visible; i < end; i++) {
            const int64_t at = first + i;
            found[i] = at < before ? call_.window.row(slot, at) : own + (at - before) * call_.dim;
        }
        pack(found, begin, end);
        add_rows(0, unit_.num_rows(), whole, [&](int64_t i) {
            return Range{call_.first_visible(unit_, i) - first, call_.position(unit_, i) + 1 - first};
        });
    }

    static const T* zeros() {
        static constexpr T zeros[kMaxPackedWidth] = {};
        return zeros;
    }

    // Keys become columns of panels of 16 keys, and, as values, rows of panels of 16 elements. begin: of kColumns.
    void pack(const T* const* found, int64_t begin, int64_t end) {
        begin_ = begin, end_ = begin + round_up(end - begin, kColumns);
        for (int64_t first = begin_; first < end_; first += kPanelWidth) {
            const int count = int(std::clamp<int64_t>(end - first, 0, kPanelWidth));
            pack_columns([&](int i) { return found[first + i]; }, count, call_.dim, depth_, keys_ + first * depth_);
        }
        const auto row = [&](int i) { return found[begin + i]; };
        const int rows = int(end - begin), padded = int(end_ - begin_), padding = int(depth_ - call_.dim);
        T* values = values_ + begin_ * kPanelWidth;
        pack_rows(row, rows, padded, int(call_.dim), values, kKeys * kPanelWidth);
        pack_rows(row, 0, padded, padding, values + call_.dim * kKeys, kKeys * kPanelWidth);
    }

    // Adds the packed keys to the rows [row, end). seen(i): the columns that query i of the unit sees.
    template <class Seen>
    void add_rows(int64_t row, int64_t end, const Partial& whole, const Seen& seen) {
        const int64_t width = end_ - begin_;
        Partial part(part_, kRows, depth_);
        for (; row < end; row += kRows) {
            const int64_t rows = std::min<int64_t>(kRows, end - row);
            multiply_block(queries_ + row * depth_, depth_, keys_ + begin_ * depth_, depth_ * kPanelWidth, depth_,
                           width / kPanelWidth, false, scores_ + begin_, kKeys);
            bool is_seen = false;
            for (int64_t i = 0; i < rows; i++) is_seen |= compute_weights(i, seen((row + i) / unit_.heads), part);
            if (!is_seen) continue;
            multiply_block(weights_ + begin_, kKeys, values_ + begin_ * kPanelWidth, kKeys * kPanelWidth, width,
                           depth_ / kPanelWidth, false, part.sums, depth_);
            for (int64_t i = 0; i < rows; i++) add_row(whole, row + i, part, i);
        }
    }

    // Replaces the scores of row i of a block by weights relative to the largest. Returns whether it sees a key.
    bool compute_weights(int64_t i, Range seen, const Partial& part) {
        const int64_t begin = std::clamp(seen.begin, begin_, end_), end = std::clamp(seen.end, begin_, end_);
        float* scores = scores_ + i * kKeys;
        A* weights = weights_ + i * kKeys;
        part.max_score[i] = -__builtin_inff(), part.total[i] = 0;
        if (begin >= end) {
            memset(weights + begin_, 0, (end_ - begin_) * sizeof(A));
            return false;
        }
        std::fill(scores + begin_, scores + begin, -__builtin_inff());
        std::fill(scores + end, scores + end_, -__builtin_inff());
        Floats maxima = load(scores + begin_);
        for (int64_t key = begin_; key < end_; key += kWidth) maxima = maximum(maxima, load(scores + key));
        const float most = largest(maxima);
        Floats total{};
        for (int64_t key = begin_; key < end_; key += kWidth) {
            const Floats weight = power_of_two<A>((load(scores + key) - most) * scale_);
            ::store(weights + key, weight);
            total += weight;
        }
        part.max_score[i] = most, part.total[i] = sum(total);
        return true;
    }

    // Adds a row of one result to a row of another.
    void add_row(const Partial& whole, int64_t row, const Partial& part, int64_t other) const {
        float *sums = whole.sums + row * depth_, *added = part.sums + other * depth_;
        const float before = whole.max_score[row], most = part.max_score[other];
        if (most == -__builtin_inff()) return;
        if (before == -__builtin_inff()) {
            memcpy(sums, added, depth_ * sizeof(float));
            whole.max_score[row] = most, whole.total[row] = part.total[other];
            return;
        }
        const float to = std::max(before, most);
        const Floats own = power_of_two(broadcast((before - to) * scale_));
        const Floats its = power_of_two(broadcast((most - to) * scale_));
        for (int64_t d = 0; d < depth_; d += kWidth) {
            ::store(sums + d, multiply_add(load(added + d), its, load(sums + d) * own));
        }
        whole.max_score[row] = to;
        whole.total[row] = multiply_add(broadcast(part.total[other]), its, broadcast(whole.total[row]) * own)[0];
    }

    const Call<T>& call_;
    const Unit& unit_;
    const int64_t depth_;  // of a vector, padded for the products
    const float scale_;    // of the scores, in units of log 2
    A *queries_, *weights_;  // [rows and a block, depth], [kRows, kKeys]
    T *keys_, *values_;      // panels
    float *scores_, *part_;  // [kRows, kKeys], of a block of rows
    int64_t begin_ = 0, end_ = 0;  // columns of the packed keys
};

template <class T>
class Step {
  public:
    explicit Step(const Call<T>& call) : call_(call) {}

    void run() {
        clear_padding();
        cut();
        parallel_tasks(num_tasks_, [&](int64_t task) {
#if defined(TILES)
            TileRegisters tiles;
            if (std::is_same_v<T, BFloat16>) tiles.configure(kTileRows);
#endif
            is_divided_ ? one_segment(task) : all_segments(units_[num_units_ - 1 - task]);  // late queries first
        });
        keep_last(call_.rows, call_.keys, call_.dim, call_.dim, call_.window);
    }

  private:
    // The results of tokens that belong to no sequence are zeros.
    void clear_padding() const {
        const int64_t width = call_.num_heads * call_.dim;
        for (int64_t row = 0; row < call_.rows.count; row++) {
            if (is_used(call_.rows, row)) continue;
            memset(call_.out + call_.rows.first(row) * width, 0, call_.rows.num_tokens(row) * width * sizeof(T));
        }
    }

    void cut() {
        const int64_t threads = num_threads.load(std::memory_order_relaxed);
        const int64_t at_once = std::max<int64_t>(1, kMaxTaskRows / call_.num_heads);
        int64_t runs = 0, segments = 0;
        each_unit(at_once, call_.num_heads, [&](const Unit& unit) { runs++, segments += unit.segments; });
        is_divided_ = runs < 2 * threads;
        int64_t heads = call_.num_heads, pieces = 1;
        while (is_divided_ && heads > Product<T>::kRows && segments * pieces < kTasksPerThread * threads) {
            heads = (heads + 1) / 2, pieces = (call_.num_heads + heads - 1) / heads;
        }
        static thread_local Scratch units, owners, left, memory;
        units_ = units.reserve<Unit>(runs * pieces);
        each_unit(at_once, heads, [&](const Unit& unit) { units_[num_units_++] = unit; });
        num_tasks_ = num_units_;
        if (!is_divided_) return;
        num_tasks_ = segments * pieces;
        owners_ = owners.reserve<int32_t>(num_tasks_);
        left_ = left.reserve<std::atomic<int32_t>>(num_units_);
        int64_t floats = 0, task = 0;
        for (int64_t i = 0; i < num_units_; i++) {
            units_[i].memory = floats;
            floats += units_[i].segments * Work<T>::num_floats(call_, units_[i]);
            new (left_ + i) std::atomic<int32_t>(int32_t(units_[i].segments));
            for (int64_t segment = 0; segment < units_[i].segments; segment++) owners_[task++] = int32_t(i);
        }
        memory_ = memory.reserve<float>(floats);
    }

    template <class Body>
    void each_unit(int64_t at_once, int64_t heads, const Body& body) const {
        for (int64_t row = 0; row < call_.rows.count; row++) {
            if (!is_used(call_.rows, row)) continue;
            const int64_t first = call_.rows.first(row), end = first + call_.rows.num_tokens(row);
            for (int64_t query = first; query < end; query += at_once) {
                Unit unit{row, query, std::min(at_once, end - query), 0, 0, 0, 0, 0};
                unit.near = call_.first_visible(unit, 0) / kKeys;
                const int64_t complete = call_.num_complete(unit, unit.count - 1);
                const int64_t far = call_.chosen && complete ? call_.num_chosen : complete;
                unit.segments = call_.num_near(unit) + (far + kKeys - 1) / kKeys;
                for (; unit.head < call_.num_heads; unit.head += heads) {
                    unit.heads = std::min(heads, call_.num_heads - unit.head);
                    body(unit);
                }
            }
        }
    }

    static void clear(const Partial& whole, int64_t rows) {
        std::fill(whole.max_score, whole.max_score + rows, -__builtin_inff());
        std::fill(whole.total, whole.total + rows, 0.0f);
    }

    void all_segments(const Unit& unit) {
        static thread_local Scratch memory;
        const Partial whole = Work<T>::partial(call_, unit, memory.reserve<float>(Work<T>::num_floats(call_, unit)));
        clear(whole, unit.num_rows());
        Work<T> work(call_, unit);
        for (int64_t segment = 0; segment < unit.segments; segment++) work.add_segment(segment, whole);
        work.store(whole);
    }

    void one_segment(int64_t task) {
        const int32_t owner = owners_[task];
        const Unit& unit = units_[owner];
        int64_t segment = 0;  // among those of the unit
        while (segment < task && owners_[task - segment - 1] == owner) segment++;
        float* memory = memory_ + unit.memory;
        const int64_t size = Work<T>::num_floats(call_, unit);
        const Partial part = Work<T>::partial(call_, unit, memory + segment * size);
        clear(part, unit.num_rows());
        Work<T> work(call_, unit);
        work.add_segment(segment, part);
        // acq_rel: the task that ends last reads what the others have written.
        if (left_[owner].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
        const Partial whole = Work<T>::partial(call_, unit, memory);
        for (int64_t other = 1; other < unit.segments; other++) {
            work.add(whole, Work<T>::partial(call_, unit, memory + other * size));
        }
        work.store(whole);
    }

    const Call<T>& call_;
    bool is_divided_ = false;  // a task is one segment of a unit
    Unit* units_ = nullptr;
    int64_t num_units_ = 0, num_tasks_ = 0;
    int32_t* owners_ = nullptr;             // unit of each segment
    std::atomic<int32_t>* left_ = nullptr;  // unfinished segments of each unit
    float* memory_ = nullptr;               // partial results
};

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                          \
    EXPORT void attend_compressed_##suffix(                                                                            \
        const T* queries, const T* keys, const float* sinks, T* window, const T* cache, const int64_t* chosen,         \
        const float* cos_sin, const int64_t* positions, T* out, const int32_t* query_start,                            \
        const int32_t* context_lens, const int32_t* slots, int64_t num_rows, const int32_t* block_tables,              \
        int64_t table_stride, int64_t num_heads, int64_t dim, int64_t rotary_dim, int64_t window_size, int64_t rate,   \
        int64_t num_chosen, int64_t block_size, int64_t group_stride) {                                                \
        const Call<T> call{queries,                                                                                    \
                           keys,                                                                                       \
                           sinks,                                                                                      \
                           {window, window_size, window_size * dim, dim},                                              \
                           cache,                                                                                      \
                           chosen,                                                                                     \
                           cos_sin,                                                                                    \
                           positions,                                                                                  \
                           out,                                                                                        \
                           {query_start, context_lens, slots, num_rows},                                               \
                           block_tables,                                                                               \
                           table_stride,                                                                               \
                           num_heads,                                                                                  \
                           dim,                                                                                        \
                           rotary_dim,                                                                                 \
                           rate,                                                                                       \
                           num_chosen,                                                                                 \
                           block_size,                                                                                 \
                           group_stride};                                                                              \
        Step<T>(call).run();                                                                                           \
    }                                                                                                                  \
    CAPTURABLE(attend_compressed_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
