// causal_convolution: each channel's last inputs times its taps. The reference is in ../causal_convolution.py;
// arithmetic is float32 for every type. A thread computes some channels of all tokens, so no order depends on the batch.

#include <cstring>

#include "parallel.h"
#include "captured_graph.h"
#include "recurrent.h"
#include "vector.h"

namespace {

constexpr int64_t kChannels = 64;  // shared between threads in such pieces: whole cache lines for every type

// In the order of KINDS in ../causal_convolution.py.
enum Kind { kSilu, kGated, kPlain };

// x: [tokens, stride]. kSilu: the inputs are the first `channels` columns, and the result is activated. kGated: the
// columns are a gate of the inputs, a gate of the result, and the inputs. kPlain: as kSilu, without the activation.
template <Kind kind, class T>
struct Inputs {
    const T* x;
    int64_t stride, channels;

    ALWAYS_INLINE Floats load(int64_t token, int64_t channel, int64_t count) const {
        const T* row = x + token * stride + channel;
        if constexpr (kind != kGated) return load_up_to(row, count);
        T rounded[kWidth];  // as the state holds it
        store(rounded, load_up_to(row, count) * load_up_to(row + 2 * channels, count));
        return ::load(rounded);
    }

    ALWAYS_INLINE Floats finished(Floats sum, int64_t token, int64_t channel, int64_t count) const {
        if constexpr (kind == kSilu) return sum / (exponential(-sum) + 1.0f);
        if constexpr (kind == kPlain) return sum;
        return sum * load_up_to(x + token * stride + channels + channel, count);
    }
};

// past: the inputs of the tokens before the row's, [width - 1, channels].
template <Kind kind, class T>
void convolve_row(const Inputs<kind, T>& inputs, const float* taps, const float* bias, T* past, T* out, int64_t first,
                  int64_t tokens, int64_t begin, int64_t end, int width) {
    const int64_t channels = inputs.channels;
    const int num_past = width - 1;
    const auto input = [&](int64_t token, int64_t channel, int64_t count) {  // a token below 0: of the past
        return token < 0 ? load_up_to(past + (num_past + token) * channels + channel, count)
                         : inputs.load(first + token, channel, count);
    };
    for (int64_t token = 0; token < tokens; token++) {
        for_each_vector(end - begin, [&](int64_t i, int64_t count) {
            const int64_t channel = begin + i;
            Floats sum = bias ? load_up_to(bias + channel, count) : Floats{};
            for (int tap = 0; tap < width; tap++) {
                const Floats weight = load_up_to(taps + tap * channels + channel, count);
                sum = multiply_add(input(token - num_past + tap, channel, count), weight, sum);
            }
            store_up_to(out + (first + token) * channels + channel,
                        inputs.finished(sum, first + token, channel, count), count);
        });
    }
    for (int kept = 0; kept < num_past; kept++) {  // ascending: an entry is read before it is overwritten
        for_each_vector(end - begin, [&](int64_t i, int64_t count) {
            store_up_to(past + kept * channels + begin + i, input(tokens - num_past + kept, begin + i, count), count);
        });
    }
}

template <Kind kind, class T>
void convolve(const Inputs<kind, T>& inputs, const float* taps, const float* bias, T* state, T* out,
              const RecurrentRows& rows, int width) {
    const int64_t channels = inputs.channels, tokens = rows.query_start[rows.count];
    const int64_t pieces = (channels + kChannels - 1) / kChannels;
    parallel_ranges(pieces, min_rows_per_thread(kChannels * tokens), [&](int64_t first, int64_t last) {
        const int64_t begin = first * kChannels, end = last * kChannels < channels ? last * kChannels : channels;
        for (int64_t row = 0; row < rows.count; row++) {
            T* past = state + rows.slot(row) * (width - 1) * channels;
            for (int kept = 0; kept < width - 1 && rows.is_new(row); kept++) {
                memset(past + kept * channels + begin, 0, (end - begin) * sizeof(T));
            }
            convolve_row(inputs, taps, bias, past, out, rows.first(row), rows.num_tokens(row), begin, end, width);
        }
    });
}

template <class T>
void causal_convolution(const T* x, int64_t stride, const float* taps, const float* bias, T* state, T* out,
                        const RecurrentRows& rows, int64_t channels, int width, int kind) {
    if (kind == kSilu) {
        convolve(Inputs<kSilu, T>{x, stride, channels}, taps, bias, state, out, rows, width);
    } else if (kind == kPlain) {
        convolve(Inputs<kPlain, T>{x, stride, channels}, taps, bias, state, out, rows, width);
    } else {
        convolve(Inputs<kGated, T>{x, stride, channels}, taps, bias, state, out, rows, width);
    }
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                          \
    EXPORT void causal_convolution_##suffix(const T* x, int64_t stride, const float* taps, const float* bias,          \
                                            T* state, T* out, const int32_t* query_start,                              \
                                            const int32_t* context_lens, const int32_t* slots, int64_t rows,           \
                                            int64_t channels, int width, int kind) {                                   \
        causal_convolution(x, stride, taps, bias, state, out, RecurrentRows{query_start, context_lens, slots, rows},   \
                           channels, width, kind);                                                                     \
    }                                                                                                                  \
    CAPTURABLE(causal_convolution_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
