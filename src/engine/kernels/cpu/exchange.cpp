// Exchange between the processes of one machine that compute a model together, through memory that they share.
//
// Every rank has a counter of the pieces that it has written, and two places for them, which it uses in turn. A rank
// writes a piece once all others have written the one before: they have then read the one before that, whose place the
// new one takes. Sums are in float32 and in the order of the ranks, so that all ranks have the same result, bit by bit.
// The ranks of a group, which are consecutive, may exchange among themselves. All groups do so at the same time: a piece
// waits for all ranks to have written the one before, so that places are free in every group.
// Replicas that share the experts of a model are such ranks too, each with tokens of its own. A step of theirs begins with
// the number of tokens of each; 0 of one that has nothing to compute, which takes part with its experts.
// The references are in ../exchange.py.

#include <algorithm>
#include <cmath>

#include "activation.h"
#include "parallel.h"
#include "captured_graph.h"
#include "vector.h"

namespace {

constexpr int64_t kPlace = 1 << 20;  // bytes of one place: it stays in the caches; ../exchange.py has the same number
constexpr int kPatience = 2000;      // pauses, about 50 us
constexpr int kMaxRanks = 63;
constexpr int64_t kTokensAt = 64;  // bytes of a piece of tokens before the first one: their number

struct alignas(64) Counter {
    std::atomic<uint64_t> value;
};

struct Memory {
    alignas(64) std::atomic<uint32_t> is_closed;  // a rank has ended: the others must not wait for it
    Counter written[kMaxRanks];

    // After these 4096 bytes: two places of each rank.
    char* place(int rank, uint64_t piece) {
        return reinterpret_cast<char*>(this) + sizeof(Memory) + (2 * rank + piece % 2) * kPlace;
    }
};

static_assert(sizeof(Memory) == 4096, "as ../exchange.py reserves it");

class Exchange {
  public:
    Exchange(Memory* memory, int rank, int ranks) : memory_(*memory), rank_(rank), ranks_(ranks) {
        piece_ = memory_.written[rank].value.load(std::memory_order_relaxed);
    }

    // Begins a piece, and returns where this rank writes it; null if a rank has ended.
    char* begin() {
        if (!wait(piece_)) return nullptr;
        return memory_.place(rank_, ++piece_);
    }

    void publish() { memory_.written[rank_].value.store(piece_, std::memory_order_release); }

    // Returns whether the others have written the piece too.
    bool wait() { return wait(piece_); }
    bool wait_for(int first, int count) { return wait(piece_, first, count); }

    const char* of(int rank) { return memory_.place(rank, piece_); }

  private:
    bool wait(uint64_t piece) { return wait(piece, 0, ranks_); }

    bool wait(uint64_t piece, int first, int count) {
        for (int rank = first; rank < first + count; rank++) {
            for (int64_t turn = 1; memory_.written[rank].value.load(std::memory_order_acquire) < piece; turn++) {
                if (rank == rank_) break;
                if (memory_.is_closed.load(std::memory_order_relaxed)) return false;
                if (turn % kPatience == 0) {
                    sched_yield();  // a rank may need this core
                } else {
#if defined(__x86_64__)
                    _mm_pause();
#endif
                }
            }
        }
        return true;
    }

    Memory& memory_;
    const int rank_, ranks_;
    uint64_t piece_;
};

template <class Body>
void in_ranges(int64_t count, const Body& body) {
    parallel_ranges(count, kMinElementsPerThread, body);
}

template <class T>
void copy(T* to, const T* from, int64_t count) {
    in_ranges(count, [&](int64_t begin, int64_t end) { memcpy(to + begin, from + begin, (end - begin) * sizeof(T)); });
}

template <class T>
int sum_over_ranks(Memory* memory, int rank, int ranks, T* x, int64_t size) {
    constexpr int64_t most = kPlace / int64_t(sizeof(T));
    Exchange exchange(memory, rank, ranks);
    for (int64_t start = 0; start < size; start += most) {
        const int64_t count = size - start < most ? size - start : most;
        T* const own = reinterpret_cast<T*>(exchange.begin());
        if (!own) return 1;
        T* const values = x + start;
        copy(own, values, count);
        exchange.publish();
        if (!exchange.wait()) return 1;
        in_ranges(count, [&](int64_t begin, int64_t end) {
            for_each_vector(end - begin, [&](int64_t i, int64_t width) {
                const int64_t at = begin + i;
                auto sum = load_up_to(reinterpret_cast<const T*>(exchange.of(0)) + at, width);
                for (int other = 1; other < ranks; other++) {
                    sum = sum + load_up_to(reinterpret_cast<const T*>(exchange.of(other)) + at, width);
                }
                store_up_to(values + at, sum, width);
            });
        });
    }
    return 0;
}

// The columns of the ranks [first, first + count). out: [rows, all], null for a rank that does not need it; `all` may be
// less than count * own, the last columns are padding.
template <class T>
int gather_columns(
    Memory* memory, int rank, int ranks, int first, int count, const T* x, T* out, int64_t rows, int64_t own, int64_t all
) {
    constexpr int64_t most = kPlace / int64_t(sizeof(T));
    Exchange exchange(memory, rank, ranks);
    for (int64_t start = 0; start < rows * own; start += most) {
        const int64_t size = rows * own - start < most ? rows * own - start : most;
        T* const place = reinterpret_cast<T*>(exchange.begin());
        if (!place) return 1;
        copy(place, x + start, size);
        exchange.publish();
        if (!out) continue;
        if (!exchange.wait_for(first, count)) return 1;
        in_ranges(size, [&](int64_t begin, int64_t end) {
            for (int other = 0; other < count; other++) {
                const T* const from = reinterpret_cast<const T*>(exchange.of(first + other));
                for (int64_t at = begin; at < end;) {
                    const int64_t row = (start + at) / own, column = (start + at) % own;
                    const int64_t run = own - column < end - at ? own - column : end - at;
                    int64_t kept = all - (other * own + column);
                    kept = kept < 0 ? 0 : kept < run ? kept : run;
                    memcpy(out + row * all + other * own + column, from + at, kept * sizeof(T));
                    at += run;
                }
            }
        });
    }
    return 0;
}

// Attention over the tokens of all ranks of a group, of which each has computed all heads over its own tokens.
// parts: [rows, count * own, width]; log_totals: [rows, count * own], of each the logarithm of its sum of exponentials.
// out: [rows, own, width], the heads of this rank: the `own` from (rank - first) * own on.
template <class T>
int merge_parts(
    Memory* memory, int rank, int ranks, int first, int count, const T* parts, const float* log_totals, T* out,
    int64_t rows, int64_t own, int64_t width
) {
    const int64_t unit = width * int64_t(sizeof(T)) + int64_t(sizeof(float)), heads = count * own;  // unit: of a head
    const int64_t most = kPlace / unit, units = rows * heads, own_head = (rank - first) * own;
    Exchange exchange(memory, rank, ranks);
    for (int64_t start = 0; start < units; start += most) {
        const int64_t size = units - start < most ? units - start : most;
        char* const place = exchange.begin();
        if (!place) return 1;
        const int64_t to_values = size * int64_t(sizeof(float));
        memcpy(place, log_totals + start, to_values);
        copy(reinterpret_cast<T*>(place + to_values), parts + start * width, size * width);
        exchange.publish();
        if (!exchange.wait_for(first, count)) return 1;
        parallel_ranges(size, kMinElementsPerThread / width + 1, [&](int64_t begin, int64_t end) {
            for (int64_t at = begin; at < end; at++) {
                const int64_t row = (start + at) / heads, head = (start + at) % heads - own_head;
                if (head < 0 || head >= own) continue;
                float largest = -__builtin_inff(), total = 0, weights[kMaxRanks];
                for (int part = 0; part < count; part++) {
                    weights[part] = reinterpret_cast<const float*>(exchange.of(first + part))[at];
                    if (weights[part] > largest) largest = weights[part];
                }
                for (int part = 0; part < count; part++) {
                    const bool is_empty = weights[part] == -__builtin_inff();  // a NaN is not, and remains one
                    weights[part] = is_empty ? 0.0f : std::exp(weights[part] - largest);
                    total += weights[part];
                }
                const float norm = total == 0 ? 0.0f : 1.0f / total;
                for_each_vector(width, [&](int64_t i, int64_t step) {
                    Floats sum{};
                    for (int part = 0; part < count; part++) {
                        const T* const values = reinterpret_cast<const T*>(exchange.of(first + part) + to_values);
                        const Floats weight = broadcast(weights[part] * norm);
                        sum = multiply_add(load_up_to(values + at * width + i, step), weight, sum);
                    }
                    store_up_to(out + (row * own + head) * width + i, sum, step);
                });
            }
        });
    }
    return 0;
}

// Row t becomes that of rank ids[t] / rows_each, which is below `ranks`: ids are checked before a step.
template <class T>
int rows_of_owners(
    Memory* memory, int rank, int ranks, T* x, const int64_t* ids, int64_t rows, int64_t width, int64_t rows_each
) {
    constexpr int64_t most = kPlace / int64_t(sizeof(T));
    Exchange exchange(memory, rank, ranks);
    for (int64_t start = 0; start < rows * width; start += most) {
        const int64_t count = rows * width - start < most ? rows * width - start : most;
        T* const place = reinterpret_cast<T*>(exchange.begin());
        if (!place) return 1;
        T* const values = x + start;
        copy(place, values, count);
        exchange.publish();
        if (!exchange.wait()) return 1;
        in_ranges(count, [&](int64_t begin, int64_t end) {
            for (int64_t at = begin; at < end;) {
                const int64_t row = (start + at) / width, column = (start + at) % width;
                const int64_t run = width - column < end - at ? width - column : end - at;
                const T* const from = reinterpret_cast<const T*>(exchange.of(int(ids[row] / rows_each)));
                memcpy(values + at, from + at, run * sizeof(T));
                at += run;
            }
        });
    }
    return 0;
}

// The tokens of all ranks, one rank after the other; those of rank r take counts[r] rows. A rank may have fewer in a
// layer: the ids of the other rows, up to `capacity`, are -1. x: [rows, width]; ids, weights: [rows, per_token].
template <class T>
int gather_tokens(
    Memory* memory, int rank, int ranks, const int64_t* counts, const T* x, const int32_t* ids, const float* weights,
    T* all_x, int32_t* all_ids, float* all_weights, int64_t rows, int64_t capacity, int64_t width, int64_t per_token
) {
    const int64_t row_bytes = width * int64_t(sizeof(T)), choice_bytes = per_token * 4;
    const int64_t most = (kPlace - kTokensAt) / (row_bytes + 2 * choice_bytes);
    const int64_t largest = *std::max_element(counts, counts + ranks);
    std::fill(all_ids, all_ids + capacity * per_token, -1);
    Exchange exchange(memory, rank, ranks);
    for (int64_t start = 0; start < largest; start += most) {
        const int64_t own = std::clamp<int64_t>(rows - start, 0, most);
        char* const place = exchange.begin();
        if (!place) return 1;
        memcpy(place, &own, sizeof own);
        char* const to = place + kTokensAt;
        if (own) {
            copy(reinterpret_cast<T*>(to), x + start * width, own * width);
            memcpy(to + own * row_bytes, ids + start * per_token, own * choice_bytes);
            memcpy(to + own * (row_bytes + choice_bytes), weights + start * per_token, own * choice_bytes);
        }
        exchange.publish();
        if (!exchange.wait()) return 1;
        for (int64_t other = 0, first = start; other < ranks; first += counts[other++]) {
            const char* const from = exchange.of(int(other)) + kTokensAt;
            int64_t count;
            memcpy(&count, from - kTokensAt, sizeof count);
            copy(all_x + first * width, reinterpret_cast<const T*>(from), count * width);
            memcpy(all_ids + first * per_token, from + count * row_bytes, count * choice_bytes);
            memcpy(all_weights + first * per_token, from + count * (row_bytes + choice_bytes), count * choice_bytes);
        }
    }
    return 0;
}

// The sum over the ranks for each token of this rank. x: [tokens of all ranks, width], what this rank has computed for
// them, in the rows of gather_tokens; out: [rows, width]. base, base_gate: as of experts_reference, null for none.
template <class T>
int sum_of_tokens(
    Memory* memory, int rank, int ranks, const int64_t* counts, const T* x, const T* base, const T* base_gate, T* out,
    int64_t rows, int64_t width
) {
    constexpr int64_t most = kPlace / int64_t(sizeof(T));
    int64_t total = 0, first = 0;
    for (int other = 0; other < ranks; other++) {
        if (other == rank) first = total * width;
        total += counts[other];
    }
    Exchange exchange(memory, rank, ranks);
    for (int64_t start = 0; start < total * width; start += most) {
        const int64_t count = std::min(total * width - start, most);
        T* const place = reinterpret_cast<T*>(exchange.begin());
        if (!place) return 1;
        copy(place, x + start, count);
        exchange.publish();
        if (!exchange.wait()) return 1;
        const int64_t from = std::max(first, start), to = std::min(first + rows * width, start + count);
        if (from >= to) continue;
        in_ranges(to - from, [&](int64_t begin, int64_t end) {
            for (int64_t at = from + begin; at < from + end;) {
                const int64_t own = at - first, row = own / width;
                const int64_t run = std::min(width - own % width, from + end - at);
                const Floats share = base_gate ? broadcast(sigmoid(load_up_to(base_gate + row, 1))[0]) : broadcast(1.0f);
                for_each_vector(run, [&](int64_t i, int64_t step) {
                    Floats sum{};
                    if (base) sum = load_up_to(base + own + i, step) * share;
                    for (int other = 0; other < ranks; other++) {
                        const T* const values = reinterpret_cast<const T*>(exchange.of(other));
                        sum = sum + load_up_to(values + at - start + i, step);
                    }
                    store_up_to(out + own + i, sum, step);
                });
                at += run;
            }
        });
    }
    return 0;
}

}  // namespace

// Begins a step in which this rank has `count` tokens. Does not wait for ranks that have not begun it.
EXPORT int announce_tokens(Memory* memory, int rank, int ranks, int64_t count) {
    Exchange exchange(memory, rank, ranks);
    char* const place = exchange.begin();
    if (!place) return 1;
    memcpy(place, &count, sizeof count);
    exchange.publish();
    return 0;
}

// The tokens of each rank in the step that has begun. Waits for all of them to begin it.
EXPORT int await_tokens(Memory* memory, int rank, int ranks, int64_t* counts) {
    Exchange exchange(memory, rank, ranks);
    if (!exchange.wait()) return 1;
    for (int other = 0; other < ranks; other++) memcpy(counts + other, exchange.of(other), sizeof *counts);
    return 0;
}

// Ids as rows of this rank's part of a table, which begins with row `first`; 0 for rows of others.
EXPORT void own_rows(const int64_t* ids, int64_t* out, int64_t count, int64_t first, int64_t rows) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = ids[i] - first;
        out[i] = row >= 0 && row < rows ? row : 0;
    }
}
CAPTURABLE(own_rows)

#define EXPORT_FOR(T, suffix)                                                                                         \
    EXPORT int sum_over_ranks_##suffix(Memory* memory, int rank, int ranks, T* x, int64_t size) {                     \
        return sum_over_ranks(memory, rank, ranks, x, size);                                                          \
    }                                                                                                                 \
    CAPTURABLE(sum_over_ranks_##suffix)                                                                               \
    EXPORT int gather_columns_##suffix(                                                                               \
        Memory* memory, int rank, int ranks, int first, int count, const T* x, T* out, int64_t rows, int64_t own,     \
        int64_t all                                                                                                   \
    ) {                                                                                                               \
        return gather_columns(memory, rank, ranks, first, count, x, out, rows, own, all);                             \
    }                                                                                                                 \
    CAPTURABLE(gather_columns_##suffix)                                                                               \
    EXPORT int merge_parts_##suffix(                                                                                  \
        Memory* memory, int rank, int ranks, int first, int count, const T* parts, const float* log_totals, T* out,   \
        int64_t rows, int64_t own, int64_t width                                                                      \
    ) {                                                                                                               \
        return merge_parts(memory, rank, ranks, first, count, parts, log_totals, out, rows, own, width);              \
    }                                                                                                                 \
    CAPTURABLE(merge_parts_##suffix)                                                                                  \
    EXPORT int rows_of_owners_##suffix(                                                                               \
        Memory* memory, int rank, int ranks, T* x, const int64_t* ids, int64_t rows, int64_t width, int64_t rows_each \
    ) {                                                                                                               \
        return rows_of_owners(memory, rank, ranks, x, ids, rows, width, rows_each);                                   \
    }                                                                                                                 \
    CAPTURABLE(rows_of_owners_##suffix)                                                                               \
    EXPORT int gather_tokens_##suffix(                                                                                \
        Memory* memory, int rank, int ranks, const int64_t* counts, const T* x, const int32_t* ids,                   \
        const float* weights, T* all_x, int32_t* all_ids, float* all_weights, int64_t rows, int64_t capacity,         \
        int64_t width, int64_t per_token                                                                              \
    ) {                                                                                                               \
        return gather_tokens(                                                                                         \
            memory, rank, ranks, counts, x, ids, weights, all_x, all_ids, all_weights, rows, capacity, width,         \
            per_token                                                                                                 \
        );                                                                                                            \
    }                                                                                                                 \
    CAPTURABLE(gather_tokens_##suffix)                                                                                \
    EXPORT int sum_of_tokens_##suffix(                                                                                \
        Memory* memory, int rank, int ranks, const int64_t* counts, const T* x, const T* base, const T* base_gate,    \
        T* out, int64_t rows, int64_t width                                                                           \
    ) {                                                                                                               \
        return sum_of_tokens(memory, rank, ranks, counts, x, base, base_gate, out, rows, width);                      \
    }                                                                                                                 \
    CAPTURABLE(sum_of_tokens_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
