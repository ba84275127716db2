// Attention over latents: one vector per token of the cache is the key of all heads, and its first elements their value.
// The reference is in ../latent_attention.py.
//
// Every query is computed like a single new token, by the tiles and segments of attention_decode.h: a row's result
// depends neither on the batch nor on how a prompt is divided into steps. With many heads per key the time is that of
// the arithmetic, so a task is a few heads of a query, whose tiles stay in the caches, over a segment of the context;
// or, for several queries of a row, over all segments.

#include <new>

#include "attention_decode.h"
#include "captured_graph.h"
#include "parallel.h"
#include "scratch.h"

namespace {

constexpr int64_t kTasksPerThread = 4;  // enough that all threads end at about the same time
constexpr int kMaxHeads = 16;           // of a task: their queries and sums fit in the second-level cache with a tile
constexpr int kMinHeads = kHeads;       // fewer would not be multiplied together
constexpr int kQueries = 4;             // of a task, which share a segment in the second-level cache

// All arrays are row-major; ../latent_attention.py documents them.
template <class T>
struct Latents {
    const T *queries, *cache;
    T* out;
    const int32_t *query_start, *context_lens, *block_tables;
    int64_t table_stride;  // entries per row of the block tables
    int num_heads, width, rank, block_size;
    int64_t token_stride;  // elements between two tokens of a block
    int64_t window;        // tokens that a query sees at most
    float scale;
    const float* sinks;  // [num_heads], or null
    // Of a cache that has some tokens of each context, in their order, or null:
    const int32_t* visible;  // [T], tokens that each query sees
    float* log_totals;       // [T, num_heads], logarithms of the sums of exponentials of the scores

    int64_t context(int row, int64_t query) const {
        return visible ? visible[query] : context_lens[row] - (query_start[row + 1] - 1 - query);
    }
    // The first token that a query with this context sees.
    int64_t first_seen(int64_t context) const { return std::max<int64_t>(0, context - window); }
    // The part of a head's sink in its total of weights, which are relative to e ** `zero`.
    float sink_weight(int head, float zero) const { return sinks ? std::exp(sinks[head] - zero) : 0.0f; }
    int num_queries(int row) const { return query_start[row + 1] - query_start[row]; }
    int64_t query_stride() const { return (width + kStep - 1) / kStep * kStep; }
    int64_t sums_stride() const { return (rank + kStep - 1) / kStep * kStep; }

    // Offsets of the tokens [first, end), at most kTileTokens of them. Returns their number.
    int locate(int row, int64_t first, int64_t end, int64_t* offsets) const {
        const int tokens = int(std::max<int64_t>(0, std::min<int64_t>(kTileTokens, end - first)));
        for (int t = 0; t < tokens; t++) {
            const int64_t block = block_tables[row * table_stride + (first + t) / block_size];
            offsets[t] = (block * block_size + (first + t) % block_size) * token_stride;
        }
        std::fill(offsets + tokens, offsets + kTileTokens, tokens ? offsets[tokens - 1] : 0);
        return tokens;
    }
};

// Some heads of one query.
template <class T>
class Heads {
  public:
    // query: index in the step. memory: query_stride() elements for each head.
    Heads(const Latents<T>& call, int row, int64_t query, int head, int count, Query<T>* memory)
        : call_(call), row_(row), query_(query), head_(head), count_(count), queries_(memory) {
        const T* from = call.queries + (query * call.num_heads + head) * call.width;
        for (int h = 0; h < count; h++) {
            load_query(from + h * call.width, call.width, queries_ + h * call.query_stride());
        }
    }

    // Adds to `result` the attention over the tokens [first, end).
    void add(int64_t first, int64_t end, Partial result) const {
        int64_t offsets[2][kTileTokens];
        int tokens = call_.locate(row_, first, end, offsets[0]);
        for (int current = 0; first < end; first += kTileTokens, current ^= 1) {
            const int next = call_.locate(row_, first + kTileTokens, end, offsets[current ^ 1]);
            const Tile<T> tile = {call_.cache, call_.cache, offsets[current], call_.cache, call_.cache,
                                  offsets[current ^ 1], tokens};
            int head = 0;
            for (; head + kHeads <= count_; head += kHeads) attend<kHeads>(head, tile, result);
            for (; head < count_; head++) attend<1>(head, tile, result);
            tokens = next;
        }
    }

    void store(const Partial& whole) const {
        T* to = call_.out + (query_ * call_.num_heads + head_) * call_.rank;
        for (int h = 0; h < count_; h++) {
            const float total = whole.total[h] + call_.sink_weight(head_ + h, whole.max_score[h] * call_.scale);
            store_sums(whole.sums + h * whole.stride, inverse(total), call_.rank, to + h * call_.rank);
            if (call_.log_totals) {
                call_.log_totals[query_ * call_.num_heads + head_ + h] = whole.log_total(h, call_.scale);
            }
        }
    }

  private:
    template <int Count>
    void attend(int head, const Tile<T>& tile, Partial& result) const {
        float scores[Count][kTileTokens];
        const int64_t stride = call_.query_stride();
        score_tile<Count>(queries_ + head * stride, stride, tile, call_.width, scores);
        for (int h = 0; h < Count; h++) result.weigh(head + h, tile.tokens, call_.scale, scores[h]);
        add_tile<Count>(scores, tile, call_.rank, result.sums + head * result.stride, result.stride);
    }

    const Latents<T>& call_;
    const int row_;
    const int64_t query_;
    const int head_, count_;
    Query<T>* queries_;
};

// Consecutive queries of a row with more than one, over its whole context.
struct ChunkTask {
    int row, first_query, num_queries, head;
};

// The only query of a row. Each of its segments is a task; they share the memory for partial results.
struct DecodeTask {
    int row, head, segments;
    int64_t memory;  // offset of its partial results
};

template <class T>
class Step {
  public:
    Step(const Latents<T>& call, int num_rows) : call_(call), num_rows_(num_rows) {}

    void run() {
        const int64_t chunks = cut_chunks(), decodes = cut_decodes();
        parallel_tasks(chunks + decodes, [&](int64_t i) { i < chunks ? chunk(chunks_[i]) : decode(i - chunks); });
    }

  private:
    int num_heads(int head, int at_once) const { return std::min(at_once, call_.num_heads - head); }
    // The first segment with tokens that a query with this context sees. Segments have the same tokens for all queries.
    int64_t first_segment(int64_t context) const { return call_.first_seen(context) / kSegment; }
    int64_t num_segments(int row) const {  // one of no tokens, so that its result is written
        const int64_t context = call_.context_lens[row];
        return std::max<int64_t>(1, (context + kSegment - 1) / kSegment - first_segment(context));
    }

    // Late queries first: they take longest.
    int64_t cut_chunks() {
        int64_t count = 0;
        const int pieces = (call_.num_heads + kMaxHeads - 1) / kMaxHeads;
        for (int row = 0; row < num_rows_; row++) {
            const int queries = call_.num_queries(row);
            if (queries > 1) count += int64_t(queries + kQueries - 1) / kQueries * pieces;
        }
        static thread_local Scratch scratch;
        chunks_ = scratch.reserve<ChunkTask>(count);
        ChunkTask* task = chunks_;
        for (int row = 0; row < num_rows_; row++) {
            const int queries = call_.num_queries(row);
            for (int end = queries; queries > 1 && end > 0;) {
                const int first = (end - 1) / kQueries * kQueries;
                for (int head = 0; head < call_.num_heads; head += kMaxHeads) *task++ = {row, first, end - first, head};
                end = first;
            }
        }
        return count;
    }

    // Returns the number of tasks, one per segment.
    int64_t cut_decodes() {
        int64_t segments = 0;
        for (int row = 0; row < num_rows_; row++) segments += call_.num_queries(row) == 1 ? num_segments(row) : 0;
        if (!segments) return 0;
        const int64_t wanted = kTasksPerThread * num_threads.load(std::memory_order_relaxed);
        at_once_ = kMaxHeads;
        while (at_once_ > kMinHeads && segments * ((call_.num_heads + at_once_ - 1) / at_once_) < wanted) at_once_ /= 2;
        const int64_t pieces = (call_.num_heads + at_once_ - 1) / at_once_;
        static thread_local Scratch tasks, owners, memory, counters;
        decodes_ = tasks.reserve<DecodeTask>(num_rows_ * pieces);
        left_ = counters.reserve<std::atomic<int32_t>>(num_rows_ * pieces);
        owners_ = owners.reserve<int32_t>(segments * pieces);
        int64_t task = 0, count = 0, num_floats = 0;
        for (int row = 0; row < num_rows_; row++) {
            if (call_.num_queries(row) != 1) continue;
            const int length = int(num_segments(row));
            for (int head = 0; head < call_.num_heads; head += at_once_, task++) {
                decodes_[task] = {row, head, length, num_floats};
                new (left_ + task) std::atomic<int32_t>(length);
                num_floats += length * part_floats(num_heads(head, at_once_));
                for (int i = 0; i < length; i++) owners_[count++] = int32_t(task);
            }
        }
        memory_ = memory.reserve<float>(num_floats);
        return count;
    }

    int64_t part_floats(int heads) const { return Partial::num_floats(heads, call_.sums_stride()); }

    void chunk(const ChunkTask& task) {
        const int heads = num_heads(task.head, kMaxHeads), count = task.num_queries;
        const int64_t stride = call_.sums_stride(), size = part_floats(heads);
        static thread_local Scratch queries, sums;
        Query<T>* to = queries.reserve<Query<T>>(kMaxHeads * kQueries * call_.query_stride());
        float* memory = sums.reserve<float>(size * (count + 1));
        Partial part(memory + size * count, heads, stride);
        const int64_t query = call_.query_start[task.row] + task.first_query;
        alignas(Heads<T>) unsigned char room[kQueries * sizeof(Heads<T>)];
        Heads<T>* own = reinterpret_cast<Heads<T>*>(room);
        for (int i = 0; i < count; i++) {
            new (own + i) Heads<T>(call_, task.row, query + i, task.head, heads, to + i * heads * call_.query_stride());
            Partial(memory + size * i, heads, stride).clear(heads);
        }
        int64_t begin = first_segment(call_.context(task.row, query)) * kSegment;
        for (; begin < call_.context(task.row, query + count - 1); begin += kSegment) {
            for (int i = 0; i < count; i++) {
                const int64_t context = call_.context(task.row, query + i), seen = call_.first_seen(context);
                const int64_t from = std::max(begin, seen), end = std::min(context, begin + kSegment);
                if (from >= end) continue;
                const bool is_first = begin <= seen;
                Partial whole(memory + size * i, heads, stride);
                if (!is_first) part.clear(heads);
                own[i].add(from, end, is_first ? whole : part);
                if (!is_first) whole.add(part, heads, call_.scale);
            }
        }
        for (int i = 0; i < count; i++) own[i].store(Partial(memory + size * i, heads, stride));
    }

    void decode(int64_t i) {
        const int32_t owner = owners_[i];
        const DecodeTask& task = decodes_[owner];
        int64_t index = 0;  // of the segment among those of its task
        while (index < i && owners_[i - index - 1] == owner) index++;
        const int heads = num_heads(task.head, at_once_);
        const int64_t stride = call_.sums_stride(), size = part_floats(heads);
        static thread_local Scratch queries;
        const Heads<T> own(call_, task.row, call_.query_start[task.row], task.head, heads,
                           queries.reserve<Query<T>>(kMaxHeads * call_.query_stride()));
        float* memory = memory_ + task.memory;
        Partial part(memory + index * size, heads, stride);
        part.clear(heads);
        const int64_t context = call_.context_lens[task.row], begin = (first_segment(context) + index) * kSegment;
        own.add(std::max(begin, call_.first_seen(context)), std::min(context, begin + kSegment), part);
        // acq_rel: the task that ends last reads what the others have written.
        if (left_[owner].fetch_sub(1, std::memory_order_acq_rel) == 1) {
            Partial whole(memory, heads, stride);
            for (int64_t other = 1; other < task.segments; other++) {
                whole.add(Partial(memory + other * size, heads, stride), heads, call_.scale);
            }
            own.store(whole);
        }
    }

    const Latents<T>& call_;
    const int num_rows_;
    int at_once_ = kMaxHeads;  // heads of a decode task
    ChunkTask* chunks_ = nullptr;
    DecodeTask* decodes_ = nullptr;
    int32_t* owners_ = nullptr;             // decode task of each segment
    std::atomic<int32_t>* left_ = nullptr;  // unfinished segments of each decode task
    float* memory_ = nullptr;               // partial results
};

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                          \
    EXPORT void latent_attention_##suffix(const T* queries, const T* cache, const int32_t* query_start,                \
                                          const int32_t* lengths, const int32_t* block_tables, const float* sinks,     \
                                          const int32_t* visible, T* out, float* log_totals, int num_rows,             \
                                          int64_t table_stride, int num_heads, int width, int rank, int block_size,    \
                                          int64_t token_stride, int64_t window, float scale) {                         \
        const Latents<T> call{queries,      cache,     out,   query_start, lengths,    block_tables,                   \
                              table_stride, num_heads, width, rank,        block_size, token_stride,                   \
                              window,       scale,     sinks, visible,     log_totals};                                \
        Step<T>(call, num_rows).run();                                                                                 \
    }                                                                                                                  \
    CAPTURABLE(latent_attention_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
