// gate_outputs: the outputs of attention times the sigmoid of a gate. The reference is in ../output_gate.py; arithmetic
// is float32 for every type.

#include "parallel.h"
#include "captured_graph.h"
#include "vector.h"

namespace {

template <class T>
void gate_outputs(const T* x, const T* gates, int64_t gates_stride, T* out, int64_t rows, int64_t num_gates,
                  int64_t size) {
    const int64_t width = num_gates * size;
    parallel_ranges(rows, min_rows_per_thread(width), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const T *in = x + row * width, *gate = gates + row * gates_stride;
            T* to = out + row * width;
            if (size == 1) {
                for_each_vector(width, [&](int64_t i, int64_t count) {
                    const Floats value = load_up_to(in + i, count) / (exponential(-load_up_to(gate + i, count)) + 1.0f);
                    store_up_to(to + i, value, count);
                });
                continue;
            }
            for (int64_t each = 0; each < num_gates; each++) {
                const Floats divisor = exponential(-broadcast(load_up_to(gate + each, 1)[0])) + 1.0f;
                const int64_t first = each * size;
                for_each_vector(size, [&](int64_t i, int64_t count) {
                    store_up_to(to + first + i, load_up_to(in + first + i, count) / divisor, count);
                });
            }
        }
    });
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                          \
    EXPORT void gate_outputs_##suffix(const T* x, const T* gates, int64_t gates_stride, T* out, int64_t rows,          \
                                      int64_t num_gates, int64_t size) {                                               \
        gate_outputs(x, gates, gates_stride, out, rows, num_gates, size);                                              \
    }                                                                                                                  \
    CAPTURABLE(gate_outputs_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
