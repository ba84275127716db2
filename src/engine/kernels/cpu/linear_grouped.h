// Linear layers over grouped weights (grouped.h), for each number of bits of a code in a file of its own.
#pragma once

#include "grouped.h"
#include "unpacking.h"

// The negated sums of each group of k, for rows that codes multiply.
template <class A>
SummedRows<A> summed(SpacedRows<A> x, int64_t rows, const GroupedFormat& format, int64_t depth) {
    static thread_local Scratch scratch;
    const int64_t groups = depth / format.group;
    if (format.offset == kNoOffset) return {x, nullptr, 0};
    float* sums = scratch.reserve<float>(rows * groups);
    for (int64_t row = 0; row < rows; row++) {
        const A* from = x.first + row * x.stride;
        for (int64_t group = 0; group < groups; group++, from += format.group) {
            Floats total{};
            for_each_vector(format.group, [&](int64_t k, int64_t left) { total += load_up_to(from + k, left); });
            sums[row * groups + group] = -sum(total);
        }
    }
    return {x, sums, groups};
}

template <class T, int CodeBits>
void multiply_chunk(const Layer<T>& layer, const T* x, int64_t rows, GroupedPanels<CodeBits> weights, int64_t begin,
                    int64_t end, T* y) {
    if constexpr (!std::is_same_v<T, float>) {  // unpacked weights are rounded to bfloat16
        if (rows > max_direct_rows(weights)) return multiply_unpacked(layer, x, rows, weights, begin, end, y);
    }
    const auto own = summed(operands(x, rows, layer.depth), rows, *weights.format, layer.depth);
    multiply_panels(layer, own, rows, weights, begin, end, y);
}

// Exported functions without the switch on the number of bits.
template <class T, int CodeBits>
void linear_over_grouped(const Layer<T>& layer, const T* x, const void* panels, const GroupedFormat& format,
                         int64_t rows, T* y) {
    linear_over(layer, x, GroupedPanels<CodeBits>{static_cast<const char*>(panels), &format, layer.depth}, rows, y);
}

template <class T, int CodeBits>
void panels_over_grouped(const Layer<T>& layer, const T* x, const void* panels, const GroupedFormat& format,
                         int64_t rows, int64_t begin, int64_t end, T* y) {
    panels_over(layer, x, GroupedPanels<CodeBits>{static_cast<const char*>(panels), &format, layer.depth}, rows, begin,
                end, y);
}

#define GROUPED_FUNCTIONS(declared, T, bits)                                                                        \
    declared template void linear_over_grouped<T, bits>(const Layer<T>&, const T*, const void*, const GroupedFormat&, \
                                                        int64_t, T*);                                               \
    declared template void panels_over_grouped<T, bits>(const Layer<T>&, const T*, const void*, const GroupedFormat&, \
                                                        int64_t, int64_t, int64_t, T*);
