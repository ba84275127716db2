// read_streams, write_streams: the input of a block as a weighted sum of several residual streams, and its output added to
// all of them. The reference is in ../hyper_connections.py; arithmetic is float32 for every type.

#include <algorithm>
#include <cmath>

#include "captured_graph.h"
#include "parallel.h"
#include "scratch.h"
#include "vector.h"

namespace {

constexpr int64_t kColumns = 512;   // of a task: its part of the matrix stays in the second-level cache for all its tokens
constexpr int64_t kTokens = 16;     // of a task
constexpr int kRows = 4;            // of the matrix that are multiplied together
constexpr int kMaxStreams = 16;     // as LIMITS of ../../../model/config_json.py

struct Connection {
    const float *matrix, *base, *scale;
    int64_t streams, hidden, rows;
    float norm_eps, eps, output_scale, output_eps;
    int iterations;

    int64_t width() const { return streams * hidden; }
    int64_t chunks() const { return (width() + kColumns - 1) / kColumns; }
    int64_t sums() const { return rows + 1; }  // of a chunk: products with all rows, and squares
};

// The products of x with `Count` rows of the matrix, of `size` columns of both.
template <int Count, class T>
void multiply(const T* x, const float* matrix, int64_t width, int64_t size, float* to) {
    Floats sums[Count] = {};
    for_each_vector(size, [&](int64_t i, int64_t count) {
        const Floats value = load_up_to(x + i, count);
        for (int row = 0; row < Count; row++) {
            sums[row] = multiply_add(value, load_up_to(matrix + row * width + i, count), sums[row]);
        }
    });
    for (int row = 0; row < Count; row++) to[row] = sum(sums[row]);
}

template <class T>
float squares(const T* x, int64_t size) {
    Floats total{};
    for_each_vector(size, [&](int64_t i, int64_t count) {
        const Floats value = load_up_to(x + i, count);
        total = multiply_add(value, value, total);
    });
    return sum(total);
}

// Sums of each chunk of columns, [tokens, chunks, sums()]: the order of additions depends on nothing else.
template <class T>
void multiply_chunks(const T* streams, const Connection& call, int64_t tokens, float* parts) {
    const int64_t width = call.width(), chunks = call.chunks(), groups = (tokens + kTokens - 1) / kTokens;
    parallel_tasks(chunks * groups, [&](int64_t task) {
        const int64_t chunk = task % chunks, first = chunk * kColumns, size = std::min(kColumns, width - first);
        const int64_t begin = task / chunks * kTokens, end = std::min(tokens, begin + kTokens);
        for (int64_t token = begin; token < end; token++) {
            const T* x = streams + token * width + first;
            const float* matrix = call.matrix + first;
            float* to = parts + (token * chunks + chunk) * call.sums();
            int64_t row = 0;
            for (; row + kRows <= call.rows; row += kRows) {
                multiply<kRows>(x, matrix + row * width, width, size, to + row);
            }
            for (; row < call.rows; row++) multiply<1>(x, matrix + row * width, width, size, to + row);
            to[row] = squares(x, size);
        }
    });
}

float sigmoid_of(float x) { return 1.0f / (1.0f + std::exp(-x)); }

void divide_rows(float* matrix, int64_t n, float eps) {
    for (int64_t i = 0; i < n; i++) {
        float total = eps;
        for (int64_t j = 0; j < n; j++) total += matrix[i * n + j];
        for (int64_t j = 0; j < n; j++) matrix[i * n + j] /= total;
    }
}

void divide_columns(float* matrix, int64_t n, float eps) {
    for (int64_t j = 0; j < n; j++) {
        float total = eps;
        for (int64_t i = 0; i < n; i++) total += matrix[i * n + j];
        for (int64_t i = 0; i < n; i++) matrix[i * n + j] /= total;
    }
}

// The softmax of each row, then the Sinkhorn-Knopp algorithm.
void balance(float* matrix, const Connection& call) {
    const int64_t n = call.streams;
    for (int64_t i = 0; i < n; i++) {
        float* row = matrix + i * n;
        const float most = *std::max_element(row, row + n);
        float total = 0;
        for (int64_t j = 0; j < n; j++) total += row[j] = std::exp(row[j] - most);
        for (int64_t j = 0; j < n; j++) row[j] = row[j] / total + call.eps;
    }
    divide_columns(matrix, n, call.eps);
    for (int i = 1; i < call.iterations; i++) {
        divide_rows(matrix, n, call.eps);
        divide_columns(matrix, n, call.eps);
    }
}

// The weights of the sum to `weights`, what follows to `gains`. parts: of all chunks of one token.
void finish(const float* parts, const Connection& call, float* weights, float* gains) {
    const int64_t n = call.streams, sums = call.sums();
    float total[(kMaxStreams + 2) * kMaxStreams + 1] = {};
    for (int64_t chunk = 0; chunk < call.chunks(); chunk++) {
        for (int64_t row = 0; row < sums; row++) total[row] += parts[chunk * sums + row];
    }
    const float norm = 1.0f / std::sqrt(total[call.rows] / float(call.width()) + call.norm_eps);
    for (int64_t row = 0; row < call.rows; row++) {
        const float x = total[row] * norm * call.scale[std::min<int64_t>(row / n, 2)] + call.base[row];
        if (row < n) {
            weights[row] = sigmoid_of(x) + call.eps;
        } else {
            gains[row - n] = row < 2 * n ? call.output_scale * sigmoid_of(x) + call.output_eps : x;
        }
    }
    if (call.rows > 2 * n) balance(gains + n, call);
}

// streams: [tokens, n * hidden]. out: [tokens, hidden]. gains: [tokens, rows - n].
template <class T>
void read_streams(const T* streams, const Connection& call, T* out, float* gains, int64_t tokens) {
    static thread_local Scratch scratch;
    float* parts = scratch.reserve<float>(tokens * call.chunks() * call.sums());
    multiply_chunks(streams, call, tokens, parts);
    parallel_ranges(tokens, min_rows_per_thread(call.width()), [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; token++) {
            float weights[kMaxStreams];
            finish(parts + token * call.chunks() * call.sums(), call, weights,
                   gains + token * (call.rows - call.streams));
            const T* from = streams + token * call.width();
            for_each_vector(call.hidden, [&](int64_t i, int64_t count) {
                Floats total{};
                for (int64_t s = 0; s < call.streams; s++) {
                    total = multiply_add(load_up_to(from + s * call.hidden + i, count), broadcast(weights[s]), total);
                }
                store_up_to(out + token * call.hidden + i, total, count);
            });
        }
    });
}

// One token. streams: null before the first layer. gains: weights of what is added, then the matrix, if `is_mixed`.
template <class T>
void write_token(const T* added, const T* streams, const float* gains, T* out, int64_t n, int64_t hidden, bool is_mixed) {
    const float* matrix = gains + n;
    for_each_vector(hidden, [&](int64_t i, int64_t count) {
        const Floats value = load_up_to(added + i, count);
        Floats before[kMaxStreams];
        for (int64_t s = 0; s < n && streams; s++) before[s] = load_up_to(streams + s * hidden + i, count);
        for (int64_t s = 0; s < n; s++) {
            Floats total = value;
            if (streams && is_mixed) {
                total = value * gains[s];
                for (int64_t j = 0; j < n; j++) total = multiply_add(before[j], broadcast(matrix[j * n + s]), total);
            } else if (streams) {
                total = multiply_add(value, broadcast(gains[s]), before[s]);
            }
            store_up_to(out + s * hidden + i, total, count);
        }
    });
}

template <class T>
void write_streams(const T* added, const T* streams, const float* gains, int64_t num_gains, T* out, int64_t tokens,
                   int64_t n, int64_t hidden) {
    parallel_ranges(tokens, min_rows_per_thread(n * hidden), [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; token++) {
            write_token(added + token * hidden, streams ? streams + token * n * hidden : nullptr,
                        gains + token * num_gains, out + token * n * hidden, n, hidden, num_gains > n);
        }
    });
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                          \
    EXPORT void read_streams_##suffix(const T* streams, const float* matrix, const float* base, const float* scale,    \
                                      T* out, float* gains, int64_t tokens, int64_t num_streams, int64_t hidden,       \
                                      int64_t rows, float norm_eps, float eps, float output_scale, float output_eps,   \
                                      int iterations) {                                                                \
        const Connection call{matrix, base,     scale, num_streams,  hidden,     rows,                                 \
                              norm_eps, eps, output_scale, output_eps, iterations};                                    \
        read_streams(streams, call, out, gains, tokens);                                                               \
    }                                                                                                                  \
    CAPTURABLE(read_streams_##suffix)                                                                                  \
    EXPORT void write_streams_##suffix(const T* added, const T* streams, const float* gains, int64_t num_gains,        \
                                       T* out, int64_t tokens, int64_t num_streams, int64_t hidden) {                  \
        write_streams(added, streams, gains, num_gains, out, tokens, num_streams, hidden);                             \
    }                                                                                                                  \
    CAPTURABLE(write_streams_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
