// Quantises weights into panels (quantised.h), once, while the model loads.

#include "integer_products.h"
#include "parallel.h"
#include "quantised.h"
#include "scratch.h"

namespace {

// Factors on the scale that represents a group's element of largest magnitude: smaller ones clip it, larger ones move
// the other levels. The scale with the smallest squared error is chosen; the error is 5 % smaller than with the first
// alone.
constexpr float kStretches[] = {1.0f, 0.8f, 0.85f, 0.9f, 0.95f, 1.05f, 1.1f, 1.15f};
constexpr float kSmallestSize = 1e-36f;  // smaller weights are zero: 127 / size would be infinite
constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2**23: after the addition the lowest byte is the integer

float max_size_of(const float* values, int64_t count) {
    Floats max_size{};
    for (int64_t k = 0; k < count; k += kWidth) {
        const Floats value = load(values + k);
        max_size = maximum(max_size, maximum(value, -value));
    }
    return largest(max_size);
}

// Quantises one row into its column of a panel. Returns the scale.
template <class Panels, class Code>
float quantise_int8(const float* row, int64_t depth, int column, Code* panel) {
    const float max_size = max_size_of(row, depth);
    const float inverse = max_size > kSmallestSize ? 127 / max_size : 0;
    for (int64_t k = 0; k < depth; k += kWidth) {
        const Ints rounded = (Ints)(load(row + k) * inverse + kRoundToInteger);
        for (int i = 0; i < kWidth; i++) panel[Panels::index(k + i, column)] = Panels::code_of(int8_t(rounded[i]));
    }
    return max_size / 127;
}

struct Nearest {
    Ints codes;
    Floats levels;
};

ALWAYS_INLINE Nearest nearest(Floats value) {
    Nearest found{Ints{}, broadcast(kLevels[0])};
    for (int i = 1; i < 16; i++) {
        const Ints is_above = value > 0.5f * (kLevels[i - 1] + kLevels[i]);
        found.codes -= is_above;
        found.levels = is_above ? broadcast(kLevels[i]) : found.levels;
    }
    return found;
}

float error_of(const float* values, int64_t count, float scale) {
    Floats total{};
    const float inverse = scale != 0 ? 1 / scale : 0;
    for (int64_t k = 0; k < count; k += kWidth) {
        const Floats value = load(values + k), left = value - nearest(value * inverse).levels * scale;
        total += left * left;
    }
    return sum(total);
}

BFloat16 round_one(float value) { return {uint16_t(round_to_bfloat16(broadcast(value))[0] >> 16)}; }

// Quantises at most 64 elements of one row: word i goes to words[16 i]. Returns the scale.
BFloat16 quantise_int4(const float* values, int64_t count, uint32_t* words) {
    const float max_size = max_size_of(values, count);
    float signed_max = -max_size;
    for (int64_t k = 0; k < count; k++) {
        if (values[k] == max_size) signed_max = max_size;
    }
    BFloat16 best = round_one(signed_max / kLevels[0]);
    float least_error = error_of(values, count, widen_one(best));
    for (float stretch : kStretches) {
        const BFloat16 scale = round_one(signed_max / kLevels[0] * stretch);
        const float error = error_of(values, count, widen_one(scale));
        if (error < least_error) best = scale, least_error = error;
    }
    const float scale = widen_one(best), inverse = scale != 0 ? 1 / scale : 0;
    int32_t codes[kGroup];
    for (int64_t k = 0; k < count; k += kWidth) {
        const Ints found = nearest(load(values + k) * inverse).codes;
        memcpy(codes + k, &found, sizeof found);
    }
    for (int64_t k = 0; k < count; k += kCodesDeep) {
        uint32_t word = 0;
        for (int i = 0; i < kCodesDeep; i++) word |= uint32_t(codes[k + i]) << code_shift(i);
        words[k / kCodesDeep * kPanelWidth] = word;
    }
    return best;
}

// Calls body(row as float32, its panel, its column) for every row; the rows that pad the last panel are zeros.
template <class T, class Body>
void for_each_row(const T* weight, int64_t width, int64_t depth, const Body& body) {
    const int64_t num_panels = (width + kPanelWidth - 1) / kPanelWidth;
    parallel_ranges(num_panels * kPanelWidth, 1, [&](int64_t begin, int64_t end) {
        static thread_local Scratch scratch;
        float* wide = scratch.reserve<float>(depth);
        for (int64_t row = begin; row < end; row++) {
            for (int64_t k = 0; k < depth; k += kWidth) {
                store(wide + k, row < width ? load(weight + row * depth + k) : Floats{});
            }
            body(wide, row / kPanelWidth, row % kPanelWidth);
        }
    });
}

template <class Panels, class T, class Code>
void quantise_int8(const T* weight, Code* codes, float* scales, int64_t width, int64_t depth) {
    for_each_row(weight, width, depth, [&](const float* row, int64_t panel, int64_t column) {
        scales[panel * kPanelWidth + column] =
            quantise_int8<Panels>(row, depth, int(column), codes + panel * depth * kPanelWidth);
    });
}

template <class T>
void quantise_int4(const T* weight, uint32_t* codes, BFloat16* scales, int64_t width, int64_t depth) {
    const Int4Panels all{codes, scales, depth};
    for_each_row(weight, width, depth, [&](const float* row, int64_t panel, int64_t column) {
        uint32_t* words = codes + panel * all.num_words() + column;
        for (int64_t group = 0; group < all.num_groups(); group++) {
            const int64_t first = group * kGroup;
            scales[(panel * all.num_groups() + group) * kPanelWidth + column] =
                quantise_int4(row + first, std::min<int64_t>(kGroup, depth - first),
                              words + first / kCodesDeep * kPanelWidth);
        }
    });
}

}  // namespace

// weight: [width, depth], depth a multiple of 32; codes and scales as quantised.h lays them out, for width rounded up
// to 16; quantise_bytes is int8 in the layout of integer_products.h. Rows that pad the last panel are zero.
#define QUANTISE(name, T)                                                                                             \
    EXPORT void quantise_int8_##name(const T* weight, int8_t* codes, float* scales, int64_t width, int64_t depth) {   \
        quantise_int8<Int8Panels>(weight, codes, scales, width, depth);                                               \
    }                                                                                                                 \
    EXPORT void quantise_bytes_##name(const T* weight, uint8_t* codes, float* scales, int64_t width, int64_t depth) { \
        quantise_int8<BytePanels>(weight, codes, scales, width, depth);                                               \
    }                                                                                                                 \
    EXPORT void quantise_int4_##name(const T* weight, uint32_t* codes, BFloat16* scales, int64_t width,               \
                                     int64_t depth) {                                                                 \
        quantise_int4(weight, codes, scales, width, depth);                                                           \
    }

QUANTISE(bfloat16, BFloat16)
QUANTISE(float32, float)
