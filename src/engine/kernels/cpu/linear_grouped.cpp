// Grouped weights (grouped.h): y = x W^T + bias, x and y float32 or bfloat16, sums float32; and their packing.
//
// Few rows are multiplied by codes that are converted in registers, more rows by the unpacked weights (unpacking.h).

#include "captured_graph.h"
#include "linear_grouped.h"
#include "pack_codes.h"
#include "quantised_rows.h"

GROUPED_FUNCTIONS(extern, BFloat16, 4)
GROUPED_FUNCTIONS(extern, BFloat16, 6)
GROUPED_FUNCTIONS(extern, BFloat16, 8)
GROUPED_FUNCTIONS(extern, float, 4)
GROUPED_FUNCTIONS(extern, float, 6)
GROUPED_FUNCTIONS(extern, float, 8)

namespace {

template <class Body>
ALWAYS_INLINE auto with_bits(const GroupedFormat& format, const Body& body) {
    return format.bits == 4   ? body(std::integral_constant<int, 4>{})
           : format.bits == 6 ? body(std::integral_constant<int, 6>{})
                              : body(std::integral_constant<int, 8>{});
}

// Rows of x with their elements in the order of the weight's. The memory belongs to the calling thread.
// for_ranges: calls a function for ranges of the rows.
template <class T, class Ranges>
const T* in_order(const T* x, int64_t rows, int64_t depth, const int32_t* order, const Ranges& for_ranges) {
    if (!order) return x;
    static thread_local Scratch scratch;
    T* copy = scratch.reserve<T>(rows * depth);
    for_ranges([&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            for (int64_t k = 0; k < depth; k++) copy[row * depth + k] = x[row * depth + order[k]];
        }
    });
    return copy;
}

// Some panels, in one thread.
template <class T>
void panels_grouped(const Weight& weight, const T* x, int64_t rows, int64_t begin, int64_t end, T* y) {
    const auto& format = *static_cast<const GroupedFormat*>(weight.scales);
    const auto layer = weight.layer<T>();
    const T* ordered = in_order(x, rows, layer.depth, format.order, [&](const auto& copy) { copy(0, rows); });
    with_bits(format, [&](auto bits) {
        panels_over_grouped<T, bits()>(layer, ordered, weight.panels, format, rows, begin, end, y);
    });
}

template <class T>
void linear_grouped(const T* x, const void* panels, const GroupedFormat& format, const T* bias, T* y, int64_t rows,
                    int64_t width, int64_t depth) {
    const bool streams = format.stride == width && is_streamed(y, rows, width);
    const Layer<T> layer{bias, nullptr, width, depth, streams, format.stride};
    const T* ordered =
        in_order(x, rows, depth, format.order, [&](const auto& copy) { parallel_ranges(rows, 8, copy); });
    with_bits(format, [&](auto bits) { linear_over_grouped<T, bits()>(layer, ordered, panels, format, rows, y); });
}

// Level of a code in 4 or 6 bits, or of sign and magnitude.
ALWAYS_INLINE float level_of(const GroupedFormat& format, uint32_t code) {
    if (format.bits < 8) return format.levels[code];
    return code & 128 ? -format.levels[code & 127] : format.levels[code];
}

template <int CodeBits>
void unpack_row(GroupedPanels<CodeBits> weights, int64_t row, float* to) {
    const GroupedFormat& format = *weights.format;
    const GroupedPanels<CodeBits> panel = weights.from(row / kPanelWidth);
    const int column = int(row % kPanelWidth);
    const auto number = [&](const char* from, int64_t type) {
        return widen_one_number(from + column * bytes_of_number(type), type);
    };
    for (int64_t first = 0; first < weights.depth; first += format.block) {
        const GroupedBlock block{panel.panels + first / format.block * panel.block_bytes()};
        for (int64_t group = 0; group < format.block / format.group; group++) {
            const auto outer = [&](int which) {
                return format.outer ? number(block.outers(format, which), format.outer) : 1;
            };
            const float scale = number(block.scales(format, group), format.scale) * outer(0);
            float offset = 0;
            if (format.offset == kZeros) offset = number(block.offsets(format, group), kBFloat16) * scale;
            if (format.offset == kMinima) offset = number(block.offsets(format, group), format.scale) * outer(1);
            for (int64_t own = 0, k = group * format.group; own < format.group; own++, k++) {
                const float value = level_of(format, code_at<CodeBits>(block.at, k, column)) * scale - offset;
                to[format.order ? format.order[first + k] : first + k] = value;
            }
        }
    }
}

// Copies the numbers of each group of 16 outputs, [width][groups] of `bytes` each; outputs past the last keep zeros.
template <int64_t Bytes>
void copy_numbers(const char* from, char* to, int64_t groups, int64_t count, int64_t outputs) {
    for (int64_t output = 0; output < outputs; output++) {
        for (int64_t group = 0; group < count; group++) {
            memcpy(to + (group * kPanelWidth + output) * Bytes, from + (output * groups + group) * Bytes, Bytes);
        }
    }
}

void put_numbers(const char* from, char* to, int64_t bytes, int64_t groups, int64_t first, int64_t count,
                 int64_t outputs) {
    from += first * bytes;
    if (bytes == 1) return copy_numbers<1>(from, to, groups, count, outputs);
    if (bytes == 2) return copy_numbers<2>(from, to, groups, count, outputs);
    copy_numbers<4>(from, to, groups, count, outputs);
}

}  // namespace

// The bytes of all panels.
EXPORT int64_t grouped_bytes(const GroupedFormat* format, int64_t width, int64_t depth) {
    const int64_t panels = (width + kPanelWidth - 1) / kPanelWidth;
    return panels * (depth / format->block) * GroupedBlock::bytes(*format);
}

// content: codes, as `form` says; scales, offsets: [width][depth / group]; outers: [width][depth / block], two of them if
// there are minima. Unused ones are null. to: grouped_bytes.
EXPORT void pack_grouped(const GroupedFormat* format_at, const CodeForm* form, const uint8_t* content,
                         const char* scales, const char* offsets, const char* outer, const char* outer_minima, char* to,
                         int64_t width, int64_t depth) {
    const GroupedFormat& format = *format_at;
    const int64_t blocks = depth / format.block, groups = format.block / format.group;
    const int64_t block_bytes = GroupedBlock::bytes(format);
    const int64_t panels = (width + kPanelWidth - 1) / kPanelWidth;
    const int64_t codes_bytes = GroupedBlock::codes_bytes(format);
    parallel_ranges(panels, 1, [&](int64_t begin, int64_t end) {
        ChunkOfCodes chunk;
        for (int64_t panel = begin; panel < end; panel++) {
            const int64_t first = panel * kPanelWidth, outputs = std::min<int64_t>(kPanelWidth, width - first);
            if (outputs < kPanelWidth) chunk = {};
            for (int64_t n = 0; n < blocks; n++) {
                char* at = to + (panel * blocks + n) * block_bytes;
                const GroupedBlock block{at};
                memset(at + codes_bytes, 0, block_bytes - codes_bytes);
                with_bits(format, [&](auto bits) {
                    for (int64_t k = 0; k < format.block; k += kChunk) {
                        const int64_t count = std::min(kChunk, format.block - k);
                        read_chunk(*form, content, first, outputs, n * format.block + k, count, chunk);
                        put_chunk<bits()>(chunk, count, at + k * 2 * bits());
                    }
                });
                const auto put = [&](const char* from, const char* place, int64_t bytes, int64_t per_block) {
                    if (from) {
                        put_numbers(from + first * blocks * per_block * bytes, at + (place - at), bytes,
                                    blocks * per_block, n * per_block, per_block, outputs);
                    }
                };
                const int64_t offset_type = format.offset == kZeros ? int64_t(kBFloat16) : format.scale;
                put(scales, block.scales(format, 0), bytes_of_number(format.scale), groups);
                put(offsets, block.offsets(format, 0), bytes_of_number(offset_type), groups);
                put(outer, block.outers(format, 0), bytes_of_number(format.outer), 1);
                put(outer_minima, block.outers(format, 1), bytes_of_number(format.outer), 1);
            }
        }
    });
}

// x: [rows, depth]; y: [rows, stride of the format], of which `width` are written; bias: [width] or null; depth is a
// multiple of 32. unpack_rows: as in linear_int4.cpp.
#define EXPORT_FOR(T, suffix)                                                                                        \
    EXPORT void linear_grouped_##suffix(const T* x, const void* panels, const GroupedFormat* format, const T* bias, \
                                        T* y, int64_t rows, int64_t width, int64_t depth) {                         \
        linear_grouped(x, panels, *format, bias, y, rows, width, depth);                                            \
    }                                                                                                               \
    EXPORT void panels_grouped_##suffix(const Weight& weight, const T* x, int64_t rows, int64_t begin, int64_t end, \
                                        T* y) {                                                                     \
        panels_grouped(weight, x, rows, begin, end, y);                                                             \
    }                                                                                                               \
    EXPORT int unpack_rows_grouped_##suffix(const void* panels, const GroupedFormat* format, const int64_t* rows,   \
                                            T* out, int64_t count, int64_t width, int64_t depth) {                  \
        return with_bits(*format, [&](auto bits) {                                                                  \
            const GroupedPanels<bits()> all{static_cast<const char*>(panels), format, depth};                       \
            return unpack_rows(rows, out, count, width, depth,                                                      \
                               [&](int64_t row, float* to) { unpack_row(all, row, to); });                          \
        });                                                                                                         \
    }                                                                                                               \
    CAPTURABLE(linear_grouped_##suffix)                                                                             \
    CAPTURABLE(unpack_rows_grouped_##suffix)

EXPORT_FOR(BFloat16, bfloat16)
EXPORT_FOR(float, float32)
