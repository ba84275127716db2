// The ops on several residual streams of a token, [tokens, streams * size]. The references are in ../gated_residual.py;
// arithmetic is float32 for every type. A thread computes whole tokens, so no order depends on the batch.

#include <cmath>

#include "captured_graph.h"
#include "parallel.h"
#include "vector.h"

namespace {

struct Streams {
    int64_t tokens, count, size;

    int64_t width() const { return count * size; }
};

// Calls body(token) of every token.
template <class Body>
void each_token(const Streams& streams, const Body& body) {
    parallel_ranges(streams.tokens, min_rows_per_thread(streams.width()), [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; token++) body(token);
    });
}

template <class T>
ALWAYS_INLINE float dot(const T* a, const T* b, int64_t size) {
    Floats total{};
    for_each_vector(size, [&](int64_t i, int64_t count) {
        total = multiply_add(load_up_to(a + i, count), load_up_to(b + i, count), total);
    });
    return sum(total);
}

ALWAYS_INLINE float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// to = sum + factor * from
template <class T>
ALWAYS_INLINE void add_multiple(const T* sum, float factor, const T* from, T* to, int64_t size) {
    for_each_vector(size, [&](int64_t i, int64_t count) {
        const Floats before = sum ? load_up_to(sum + i, count) : Floats{};
        store_up_to(to + i, multiply_add(load_up_to(from + i, count), broadcast(factor), before), count);
    });
}

template <class T>
void norm_streams(const T* x, const float* weight, T* out, const Streams& streams, float eps) {
    const int64_t size = streams.size;
    each_token(streams, [&](int64_t token) {
        for (int64_t at = 0; at < streams.width(); at += size) {
            const T* from = x + token * streams.width() + at;
            T* to = out + token * streams.width() + at;
            const float scale = 1.0f / std::sqrt(dot(from, from, size) / float(size) + eps);
            for_each_vector(size, [&](int64_t i, int64_t count) {
                store_up_to(to + i, load_up_to(from + i, count) * scale * load_up_to(weight + at + i, count), count);
            });
        }
    });
}

template <class T>
void average_streams(const T* gates, const T* x, T* out, const Streams& streams) {
    const float share = 1.0f / float(streams.count);
    each_token(streams, [&](int64_t token) {
        const T *gate = gates + token * streams.width(), *from = x + token * streams.width();
        for_each_vector(streams.size, [&](int64_t i, int64_t count) {
            Floats total{};
            for (int64_t at = i; at < streams.width(); at += streams.size) {
                total += load_up_to(from + at, count) / (exponential(-load_up_to(gate + at, count)) + 1.0f);
            }
            store_up_to(out + token * streams.size + i, total * share, count);
        });
    });
}

template <class T>
void add_to_streams(const T* x, const T* added, const T* weights, T* out, const Streams& streams, float scale) {
    each_token(streams, [&](int64_t token) {
        for (int64_t stream = 0; stream < streams.count; stream++) {
            const float weight = sum(load_up_to(weights + token * streams.count + stream, 1));
            const int64_t at = token * streams.width() + stream * streams.size;
            const T* from = added + token * streams.size;
            add_multiple(x + at, 2.0f * sigmoid(scale * weight), from, out + at, streams.size);
        }
    });
}

template <class T>
void gate_streams(const T* keys, const T* queries, const T* values, T* out, const Streams& streams) {
    const float scale = 1.0f / std::sqrt(float(streams.size));
    each_token(streams, [&](int64_t token) {
        for (int64_t at = token * streams.width(); at < (token + 1) * streams.width(); at += streams.size) {
            const float product = dot(keys + at, queries + at, streams.size) * scale;
            const float root = std::sqrt(std::fmax(std::fabs(product), 1e-6f));
            const float gate = sigmoid(product == 0.0f ? 0.0f : std::copysign(root, product));
            add_multiple<T>(nullptr, gate, values + token * streams.size, out + at, streams.size);
        }
    });
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                          \
    EXPORT void norm_streams_##suffix(const T* x, const float* weight, T* out, int64_t tokens, int64_t count,          \
                                      int64_t size, float eps) {                                                       \
        norm_streams(x, weight, out, Streams{tokens, count, size}, eps);                                               \
    }                                                                                                                  \
    EXPORT void average_streams_##suffix(const T* gates, const T* x, T* out, int64_t tokens, int64_t count,            \
                                         int64_t size) {                                                               \
        average_streams(gates, x, out, Streams{tokens, count, size});                                                  \
    }                                                                                                                  \
    EXPORT void add_to_streams_##suffix(const T* x, const T* added, const T* weights, T* out, int64_t tokens,          \
                                        int64_t count, int64_t size, float scale) {                                    \
        add_to_streams(x, added, weights, out, Streams{tokens, count, size}, scale);                                   \
    }                                                                                                                  \
    EXPORT void gate_streams_##suffix(const T* keys, const T* queries, const T* values, T* out, int64_t tokens,        \
                                      int64_t count, int64_t size) {                                                   \
        gate_streams(keys, queries, values, out, Streams{tokens, count, size});                                        \
    }                                                                                                                  \
    CAPTURABLE(norm_streams_##suffix)                                                                                  \
    CAPTURABLE(average_streams_##suffix)                                                                               \
    CAPTURABLE(add_to_streams_##suffix)                                                                                \
    CAPTURABLE(gate_streams_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
