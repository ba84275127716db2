// norm_and_turn: the RMS norm and the rotary embedding of heads; compress_tokens: one vector for each group of tokens. The
// references are in ../compressed_attention.py; arithmetic is float32 for every type.
//
// Each element of a vector is computed from the tokens of its group in their order, whether they are of this step or of
// earlier ones: results depend neither on the batch nor on how a prompt is divided into steps.

#include <cmath>

#include "captured_graph.h"
#include "parallel.h"
#include "ring.h"
#include "rotation.h"
#include "scratch.h"
#include "vector.h"

namespace {

// The norm of a vector; weight: null for ones.
struct Norm {
    const float* weight;
    float eps;

    void apply(float* values, int64_t dim) const {
        Floats squares{};
        for_each_vector(dim, [&](int64_t i, int64_t count) {
            const Floats value = load_up_to(values + i, count);
            squares = multiply_add(value, value, squares);
        });
        const float scale = 1.0f / std::sqrt(sum(squares) / float(dim) + eps);
        for_each_vector(dim, [&](int64_t i, int64_t count) {
            const Floats value = load_up_to(values + i, count) * scale;
            store_up_to(values + i, weight ? value * load_up_to(weight + i, count) : value, count);
        });
    }
};

// The rotation of a position, by a table [positions, rotary_dim].
Rotation rotation_of(const float* cos_sin, int64_t position, int64_t rotary_dim) {
    const float* cosines = cos_sin + position * rotary_dim;
    return {cosines, cosines + rotary_dim / 2, int(rotary_dim / 2)};
}

// x, out: [tokens, heads, dim]. norm: null if there is none.
template <class T>
void norm_and_turn(const T* x, const Norm* norm, const float* cos_sin, int64_t rotary_dim, const int64_t* positions,
                   T* out, int64_t tokens, int64_t heads, int64_t dim) {
    parallel_ranges(tokens * heads, min_rows_per_thread(dim), [&](int64_t begin, int64_t end) {
        static thread_local Scratch scratch;
        float* values = scratch.reserve<float>(dim);
        for (int64_t head = begin; head < end; head++) {
            convert(x + head * dim, values, dim);
            if (norm) norm->apply(values, dim);
            rotate(values + dim - rotary_dim, rotation_of(cos_sin, positions[head / heads], rotary_dim), true);
            convert(values, out + head * dim, dim);
        }
    });
}

struct Compression {
    int64_t rate, dim;
    bool overlaps;
    const float* bias;  // [rate, width]
    Norm norm;

    int64_t width() const { return dim * (1 + overlaps); }  // of the values of a token; as many gates follow them
};

template <class T, class S>
class Compress {
  public:
    // inputs: [tokens, 2 * width], whose rows are `stride` elements apart.
    Compress(const T* inputs, int64_t stride, const Compression& how, const Ring<S>& ring, const RecurrentRows& rows)
        : inputs_(inputs), stride_(stride), how_(how), ring_(ring), rows_(rows) {}

    // Where the vectors go: `place` elements into those of their group.
    struct Cache {
        T* at;
        int64_t place, group_stride;
        const int64_t* slots;
    };

    void run(const float* cos_sin, int64_t rotary_dim, const Cache& cache) {
        int64_t count = 0;
        each_group([&](int64_t, int64_t) { count++; });
        if (count) {
            static thread_local Scratch scratch;
            struct Group {
                int64_t row, number;
            };
            Group* groups = scratch.reserve<Group>(count);
            Group* to = groups;
            each_group([&](int64_t row, int64_t group) { *to++ = {row, group}; });
            parallel_tasks(count, [&](int64_t task) {
                const auto [row, group] = groups[task];
                const int64_t last = rows_.first(row) + (group + 1) * how_.rate - 1 - first_position(rows_, row);
                if (cache.slots[last] < 0) return;
                static thread_local Scratch memory;
                float* values = memory.reserve<float>(how_.dim);
                average(row, group, values);
                how_.norm.apply(values, how_.dim);
                rotate(values + how_.dim - rotary_dim, rotation_of(cos_sin, group * how_.rate, rotary_dim), true);
                convert(values, cache.at + cache.slots[last] / how_.rate * cache.group_stride + cache.place, how_.dim);
            });
        }
        keep_last(rows_, inputs_, stride_, 2 * how_.width(), ring_);  // after all tasks: they read what it replaces
    }

  private:
    // Those that the step completes.
    template <class Body>
    void each_group(const Body& body) const {
        for (int64_t row = 0; row < rows_.count; row++) {
            if (!is_used(rows_, row)) continue;
            const int64_t end = rows_.context_lens[row] / how_.rate;
            for (int64_t group = first_position(rows_, row) / how_.rate; group < end; group++) body(row, group);
        }
    }

    // The weighted means of the inputs of a group, before their norm.
    void average(int64_t row, int64_t group, float* values) const {
        const int64_t begin = group * how_.rate, before = first_position(rows_, row);
        const int64_t first = how_.overlaps ? std::max<int64_t>(0, begin - how_.rate) : begin;
        // body(inputs of the token, its bias), with the first element that the vector of the group has of both
        const auto each_token = [&](const auto& body) {
            for (int64_t position = first; position < begin + how_.rate; position++) {
                const int64_t own = how_.overlaps && position >= begin ? how_.dim : 0;
                const float* bias = how_.bias + position % how_.rate * how_.width() + own;
                if (position < before) {
                    body(ring_.row(rows_.slot(row), position) + own, bias);
                } else {
                    body(inputs_ + (rows_.first(row) + position - before) * stride_ + own, bias);
                }
            }
        };
        for_each_vector(how_.dim, [&](int64_t i, int64_t count) {
            const auto gate = [&](const auto* token, const float* bias) {
                return load_up_to(token + how_.width() + i, count) + load_up_to(bias + i, count);
            };
            Floats most = broadcast(-__builtin_inff()), total{}, mean{};
            each_token([&](const auto* token, const float* bias) { most = maximum(gate(token, bias), most); });
            each_token([&](const auto* token, const float* bias) {
                const Floats share = exponential(gate(token, bias) - most);
                total += share;
                mean = multiply_add(share, load_up_to(token + i, count), mean);
            });
            store_up_to(values + i, mean / total, count);
        });
    }

    const T* inputs_;
    const int64_t stride_;
    const Compression& how_;
    const Ring<S>& ring_;
    const RecurrentRows& rows_;
};

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                          \
    EXPORT void norm_and_turn_##suffix(const T* x, const float* weight, const float* cos_sin,                          \
                                       const int64_t* positions, T* out, int64_t tokens, int64_t heads, int64_t dim,   \
                                       int64_t rotary_dim, int has_norm, float eps) {                                  \
        const Norm norm{weight, eps};                                                                                  \
        norm_and_turn(x, has_norm ? &norm : nullptr, cos_sin, rotary_dim, positions, out, tokens, heads, dim);         \
    }                                                                                                                  \
    CAPTURABLE(norm_and_turn_##suffix)                                                                                 \
    EXPORT void compress_tokens_##suffix(                                                                              \
        const T* inputs, int64_t stride, const float* bias, const float* weight, const float* cos_sin, void* ring,     \
        int64_t slot_stride, int64_t row_stride, int64_t ring_size, T* cache, int64_t place, int64_t group_stride,     \
        const int64_t* slots, const int32_t* query_start, const int32_t* context_lens, const int32_t* seq_slots,       \
        int64_t num_rows, int64_t rate, int64_t dim, int64_t rotary_dim, int overlaps, int has_narrow_ring,            \
        float eps) {                                                                                                   \
        const Compression how{rate, dim, overlaps != 0, bias, {weight, eps}};                                          \
        const RecurrentRows rows{query_start, context_lens, seq_slots, num_rows};                                      \
        const auto compress = [&](auto* at) {                                                                          \
            typedef std::remove_pointer_t<decltype(at)> S;                                                             \
            const Ring<S> own{at, ring_size, slot_stride, row_stride};                                                 \
            Compress<T, S>(inputs, stride, how, own, rows).run(cos_sin, rotary_dim, {cache, place, group_stride, slots});  \
        };                                                                                                             \
        has_narrow_ring ? compress(static_cast<BFloat16*>(ring)) : compress(static_cast<float*>(ring));                \
    }                                                                                                                  \
    CAPTURABLE(compress_tokens_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
