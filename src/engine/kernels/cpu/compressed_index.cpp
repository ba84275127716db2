// choose_compressed: the compressed vectors with the highest scores of an index. The reference is in
// ../compressed_attention.py.
//
// Keys are rows of the products, and the queries of all heads are columns: the queries are packed once, and the keys are
// read as they are in the cache. The score of a key and a query has one order of sums, and of equal scores the vector of
// the lower number is chosen: a result does not depend on who computes which keys. Scores are kept only of candidates.

#include <algorithm>
#include <atomic>
#include <new>

#include "block_products.h"
#include "captured_graph.h"
#include "packing.h"
#include "parallel.h"
#include "ring.h"
#include "scratch.h"

namespace {

constexpr int kQueries = 8;             // of a task, which share the keys in the second-level cache
constexpr int64_t kLeastKeys = 1024;    // of a task, where the keys of a query are shared out
constexpr int64_t kTasksPerThread = 4;  // enough that all threads end at about the same time

struct Candidate {
    float score;
    int32_t group;
};

ALWAYS_INLINE bool is_better(const Candidate& a, const Candidate& b) {
    return a.score > b.score || (a.score == b.score && a.group < b.group);
}

// The best of the groups that were added, in ascending order of their numbers.
class Best {
  public:
    static int64_t room(int64_t wanted) { return wanted + std::max<int64_t>(wanted, 1024); }

    Best() = default;
    Best(Candidate* memory, int64_t wanted) : candidates_(memory), wanted_(wanted) {}

    void add(const float* scores, int64_t count, int64_t first_group) {
        for_each_vector(count, [&](int64_t i, int64_t lanes) {
            if (!is_any_above(load_up_to(scores + i, lanes), least_)) return;
            if (count_ + kWidth > room(wanted_)) count_ = reduce(), least_ = candidates_[wanted_ - 1].score;
            for (int64_t j = i; j < i + lanes; j++) {
                if (scores[j] > least_) candidates_[count_++] = {scores[j], int32_t(first_group + j)};
            }
        });
    }

    void add_all(const Candidate* from, int64_t count) {
        for (int64_t i = 0; i < count; i++) candidates_[count_++] = from[i];
    }

    // Keeps the best, in any order. Returns their number.
    int64_t reduce() {
        if (count_ <= wanted_) return count_;
        std::nth_element(candidates_, candidates_ + wanted_ - 1, candidates_ + count_, is_better);
        return count_ = wanted_;
    }

    void store(int64_t* chosen) {
        const int64_t count = reduce();
        for (int64_t i = 0; i < count; i++) chosen[i] = candidates_[i].group;
        std::sort(chosen, chosen + count);
        std::fill(chosen + count, chosen + wanted_, -1);
    }

    const Candidate* candidates() const { return candidates_; }

  private:
    Candidate* candidates_ = nullptr;  // [room]
    int64_t wanted_ = 0, count_ = 0;
    float least_ = -__builtin_inff();  // what is not above it is not among the best
};

// All arrays are row-major; ../compressed_attention.py documents them.
template <class T>
struct Call {
    const T *queries, *weights;
    int64_t weights_stride;  // elements between the weights of two tokens
    const T* cache;
    int64_t* chosen;
    RecurrentRows rows;
    const int32_t* block_tables;
    int64_t table_stride, num_heads, dim, rate, wanted, block_size;
    int64_t place, group_stride;  // of a key among the elements of its group; elements between two groups

    const T* key(int64_t row, int64_t group) const {
        const int64_t first = group * rate, block = block_tables[row * table_stride + first / block_size];
        return cache + (block * block_size + first % block_size) / rate * group_stride + place;
    }
};

// Consecutive queries of a row.
struct Unit {
    int64_t row, query, count;
    int64_t complete;  // groups that the last query sees
    int64_t parts;     // in which the groups are shared out
    int64_t memory;    // offset of the candidates of the parts
};

struct Buffers {
    Scratch queries, weights, keys, products, candidates, merged;
};

template <class T>
class Choose {
    typedef typename Product<T>::A A;
    static constexpr int kRows = Product<T>::kRows;
    // Keys whose scores are computed together: whole blocks of rows, and whole registers of scores.
    static constexpr int kBlock = kRows % kWidth == 0 ? kRows : 4 * kRows;
    static constexpr int kKeys = 240 / kBlock * kBlock;  // that are read into the caches for all queries of a task
    static_assert(kBlock % kWidth == 0 && kKeys > 0);

  public:
    explicit Choose(const Call<T>& call)
        : call_(call),
          depth_(round_up(call.dim, Product<T>::kDepthStep)),
          columns_(round_up(call.num_heads, 2 * kPanelWidth)) {}

    void run() {
        clear_padding();
        cut();
        parallel_tasks(num_tasks_, [&](int64_t task) {
#if defined(TILES)
            TileRegisters tiles;
            if (std::is_same_v<T, BFloat16>) tiles.configure(kTileRows);
#endif
            choose(task);
        });
    }

  private:
    // Groups that query i of a unit sees.
    int64_t seen(const Unit& unit, int64_t i) const {
        const int64_t index = unit.query + i - call_.rows.first(unit.row);
        return (first_position(call_.rows, unit.row) + index + 1) / call_.rate;
    }
    int64_t* chosen(int64_t query) const { return call_.chosen + query * call_.wanted; }

    void clear_padding() const {
        for (int64_t row = 0; row < call_.rows.count; row++) {
            if (is_used(call_.rows, row)) continue;
            std::fill_n(chosen(call_.rows.first(row)), call_.rows.num_tokens(row) * call_.wanted, -1);
        }
    }

    void cut() {
        int64_t count = 0, keys = 0, room = 0, task = 0;
        each_unit([&](const Unit& unit) { count++, keys += unit.complete; });
        const int64_t wanted = kTasksPerThread * num_threads.load(std::memory_order_relaxed);
        const int64_t at_once = std::max(kLeastKeys, keys / wanted + 1);
        static thread_local Scratch units, owners, left, candidates, counts;
        units_ = units.reserve<Unit>(count);
        Unit* to = units_;
        each_unit([&](Unit unit) {
            const bool is_divided = count < wanted && unit.complete > call_.wanted;
            unit.parts = is_divided ? (unit.complete + at_once - 1) / at_once : 1;
            unit.memory = room;
            room += unit.parts * unit.count;
            num_tasks_ += unit.parts;
            *to++ = unit;
        });
        owners_ = owners.reserve<int32_t>(num_tasks_);
        left_ = left.reserve<std::atomic<int32_t>>(count);
        counts_ = counts.reserve<int64_t>(room);
        candidates_ = count < wanted ? candidates.reserve<Candidate>(room * call_.wanted) : nullptr;
        for (int64_t i = count - 1; i >= 0; i--) {  // late queries first: they take longest
            new (left_ + i) std::atomic<int32_t>(int32_t(units_[i].parts));
            for (int64_t part = 0; part < units_[i].parts; part++) owners_[task++] = int32_t(i);
        }
    }

    template <class Body>
    void each_unit(const Body& body) const {
        for (int64_t row = 0; row < call_.rows.count; row++) {
            if (!is_used(call_.rows, row)) continue;
            const int64_t first = call_.rows.first(row), end = first + call_.rows.num_tokens(row);
            for (int64_t query = first; query < end; query += kQueries) {
                Unit unit{row, query, std::min<int64_t>(kQueries, end - query), 0, 1, 0};
                unit.complete = seen(unit, unit.count - 1);
                body(unit);
            }
        }
    }

    void choose(int64_t task) {
        const int32_t owner = owners_[task];
        const Unit& unit = units_[owner];
        int64_t part = 0;  // among those of the unit
        while (part < task && owners_[task - part - 1] == owner) part++;
        int64_t few = 0;  // queries that see no more groups than are wanted
        for (; few < unit.count && seen(unit, few) <= call_.wanted; few++) {
            if (part) continue;
            int64_t* const to = chosen(unit.query + few);
            for (int64_t i = 0; i < call_.wanted; i++) to[i] = i < seen(unit, few) ? i : -1;
        }
        if (few == unit.count) return;
        const int64_t room = Best::room(call_.wanted);
        Candidate* memory = buffers().candidates.template reserve<Candidate>(kQueries * room);
        Best best[kQueries];
        for (int64_t i = few; i < unit.count; i++) best[i] = Best(memory + i * room, call_.wanted);
        add(unit, few, unit.complete * part / unit.parts, unit.complete * (part + 1) / unit.parts, best);
        if (unit.parts == 1) {
            for (int64_t i = few; i < unit.count; i++) best[i].store(chosen(unit.query + i));
            return;
        }
        for (int64_t i = few; i < unit.count; i++) {
            const int64_t at = unit.memory + part * unit.count + i;
            counts_[at] = best[i].reduce();
            std::copy_n(best[i].candidates(), counts_[at], candidates_ + at * call_.wanted);
        }
        // acq_rel: the task that ends last reads what the others have written.
        if (left_[owner].fetch_sub(1, std::memory_order_acq_rel) == 1) merge(unit, few);
    }

    void merge(const Unit& unit, int64_t few) const {
        for (int64_t i = few; i < unit.count; i++) {
            Best all(buffers().merged.template reserve<Candidate>(unit.parts * call_.wanted), call_.wanted);
            for (int64_t part = 0; part < unit.parts; part++) {
                const int64_t at = unit.memory + part * unit.count + i;
                all.add_all(candidates_ + at * call_.wanted, counts_[at]);
            }
            all.store(chosen(unit.query + i));
        }
    }

    static Buffers& buffers() {
        static thread_local Buffers buffers;
        return buffers;
    }

    // Adds the groups [begin, end) to those that are best for the queries from `few` on.
    void add(const Unit& unit, int64_t few, int64_t begin, int64_t end, Best* best) const {
        T* queries = buffers().queries.template reserve<T>(kQueries * columns_ * depth_);
        float* weights = buffers().weights.template reserve<float>(kQueries * columns_);
        A* keys = buffers().keys.template reserve<A>(kKeys * depth_);
        float* products = buffers().products.template reserve<float>(kBlock * columns_);
        for (int64_t i = few; i < unit.count; i++) {
            pack(unit.query + i, queries + i * columns_ * depth_, weights + i * columns_);
        }
        for (int64_t first = begin; first < end; first += kKeys) {
            const int64_t count = std::min<int64_t>(kKeys, end - first);
            for (int64_t key = 0; key < count; key++) load_key(unit.row, first + key, keys + key * depth_);
            memset(keys + count * depth_, 0, (kKeys - count) * depth_ * sizeof(A));
            for (int64_t i = few; i < unit.count; i++) {
                const int64_t own = std::min(count, seen(unit, i) - first);
                for (int64_t key = 0; key < own; key += kBlock) {
                    if (i == few) prefetch(unit.row, first + kKeys + key, std::min(end, first + kKeys + key + kBlock));
                    float scores[kBlock];
                    score(keys + key * depth_, queries + i * columns_ * depth_, weights + i * columns_, products, scores);
                    best[i].add(scores, std::min<int64_t>(kBlock, own - key), first + key);
                }
            }
        }
    }

    // The heads of a query become columns of panels, after the last of which are zeros.
    void pack(int64_t query, T* panels, float* weights) const {
        const T* from = call_.queries + query * call_.num_heads * call_.dim;
        for (int64_t head = 0; head < columns_; head += kPanelWidth) {
            const int heads = int(std::clamp<int64_t>(call_.num_heads - head, 0, kPanelWidth));
            pack_columns([&](int i) { return from + (head + i) * call_.dim; }, heads, call_.dim, depth_,
                         panels + head * depth_);
        }
        std::fill_n(weights, columns_, 0.0f);
        convert(call_.weights + query * call_.weights_stride, weights, call_.num_heads);
    }

    void load_key(int64_t row, int64_t group, A* to) const {
        const T* from = call_.key(row, group);
        if constexpr (std::is_same_v<A, T>) {
            memcpy(to, from, call_.dim * sizeof(T));
        } else {
            convert(from, to, call_.dim);
        }
        memset(to + call_.dim, 0, (depth_ - call_.dim) * sizeof(A));
    }

    // Keys are far from each other in the cache: those of the next block are on their way while this one is multiplied.
    void prefetch(int64_t row, int64_t begin, int64_t end) const {
        for (int64_t group = begin; group < end; group++) {
            const char* from = reinterpret_cast<const char*>(call_.key(row, group));
            for (int64_t at = 0; at < call_.dim * int64_t(sizeof(T)); at += kLine) __builtin_prefetch(from + at, 0, 2);
        }
    }

    void score(const A* keys, const T* queries, const float* weights, float* products, float* scores) const {
        for (int64_t row = 0; row < kBlock; row += kRows) {
            multiply_block(keys + row * depth_, depth_, queries, depth_ * kPanelWidth, depth_, columns_ / kPanelWidth,
                           false, products + row * columns_, columns_);
        }
        for (int64_t first = 0; first < kBlock; first += kWidth) {
            Floats totals[kWidth];
            for (int key = 0; key < kWidth; key++) {
                const float* own = products + (first + key) * columns_;
                totals[key] = Floats{};
                for (int64_t v = 0; v < columns_; v += kWidth) {
                    totals[key] = multiply_add(maximum(load(own + v), Floats{}), load(weights + v), totals[key]);
                }
            }
            store(scores + first, sum_each(totals));
        }
    }

    const Call<T>& call_;
    const int64_t depth_, columns_;  // of a key and of the heads, padded for the products
    Unit* units_ = nullptr;
    int64_t num_tasks_ = 0;
    int32_t* owners_ = nullptr;             // unit of each task
    std::atomic<int32_t>* left_ = nullptr;  // unfinished parts of each unit
    int64_t* counts_ = nullptr;             // candidates of each part and query
    Candidate* candidates_ = nullptr;       // of each part and query; null if no unit has several parts
};

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                          \
    EXPORT void choose_compressed_##suffix(                                                                            \
        const T* queries, const T* weights, int64_t weights_stride, const T* cache, int64_t* chosen,                   \
        const int32_t* query_start, const int32_t* context_lens, const int32_t* slots, int64_t num_rows,               \
        const int32_t* block_tables, int64_t table_stride, int64_t num_heads, int64_t dim, int64_t rate,               \
        int64_t wanted, int64_t block_size, int64_t place, int64_t group_stride) {                                     \
        const Call<T> call{queries,      weights,   weights_stride, cache, chosen, {query_start, context_lens, slots, num_rows}, \
                           block_tables, table_stride, num_heads, dim,  rate,   wanted, block_size, place, group_stride}; \
        Choose<T>(call).run();                                                                                         \
    }                                                                                                                  \
    CAPTURABLE(choose_compressed_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
