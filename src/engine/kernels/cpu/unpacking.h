// Linear layers over weights in a compressed format: codes (quantised.h) and 12 bits (twelve_bits.h).
//
// Few rows multiply weights that are unpacked in registers. For more rows, two panels at a time are unpacked to
// bfloat16 panels in the second-level cache, once, and every block of rows reads those. With kUnpacksWhileMultiplying
// the next two panels are unpacked, some units at a time, between the products of the current two, so that neither
// memory nor the multipliers are idle. This needs an unpacking that uses few registers beside the 27 of the product:
// with int8 and int4 it took 1.25 to 3 times as long.
//
// A weight format defines unpack_unit(panel, unit index, start of the plain panel), apply_all_exceptions(panel, plain
// panel) for elements that units do not hold, and max_direct_rows(panels).
#pragma once

#include "linear.h"

// Unpacks two units after every `every` lines that are read of the current panels. First all units of one panel, then
// those of the other: one sequence of addresses is read faster than two interleaved ones.
template <class Weights>
struct UnpackNext {
    Weights panel;
    BFloat16* to;
    int64_t unit, units;  // the next unit, and the number of units of a panel
    int every, wait;

    ALWAYS_INLINE void prefetch(const void*, int) const {}
    ALWAYS_INLINE void advance() {
        if (--wait == 0) {
            wait = every;
            if (unit == units) panel = panel.from(1), to += units * kUnitElements, unit = 0;
            unpack_unit(panel, unit++, to);
            unpack_unit(panel, unit++, to);
        }
    }
};

// Unpacks some units with every step of the tiles. There is nothing to do if `left` is 0.
template <class Weights>
struct UnpackPair {
    Weights panel;
    BFloat16* to;
    int64_t unit, units, left;  // the next unit; the number of units of a panel, and of those left in both

    bool is_done() const { return left == 0; }

    ALWAYS_INLINE void unpack_one() {
        if (left == 0) return;
        if (unit == units) panel = panel.from(1), to += units * kUnitElements, unit = 0;
        unpack_unit(panel, unit++, to);
        left--;
    }

    // Calls multiply_block(meanwhile). steps: of the tiles while these panels are unpacked, this block's and others'.
    template <class Body>
    ALWAYS_INLINE void unpack_during(int64_t steps, const Body& multiply_block) {
        const auto unpack = [&](auto count) {
            multiply_block([&](const char*, const char*) {
                for (int i = 0; i < count(); i++) unpack_one();
            });
        };
        const int64_t needed = (2 * units + steps - 1) / steps;  // at most 8, those of one block
        if (needed <= 1) return unpack(std::integral_constant<int, 1>{});
        if (needed <= 2) return unpack(std::integral_constant<int, 2>{});
        if (needed <= 4) return unpack(std::integral_constant<int, 4>{});
        unpack(std::integral_constant<int, 8>{});
    }
};

// Plain panels in the cache, and the compressed panels that follow.
template <class Weights>
struct UnpackedPanels {
    static constexpr int kMaxBlockRows = kMaxRows, kMaxSinglePanelRows = 0;
    static constexpr PrefetchMode kPrefetch = PrefetchMode::kUnpack;
    const BFloat16* elements;
    int64_t size;
    Weights next;
    BFloat16* to;  // where to unpack those; null if there are none

    UnpackedPanels from(int64_t panel) const { return {elements + panel * size, size, next, to}; }
    int64_t num_units() const { return size / kUnitElements; }
    int64_t panel_bytes() const { return size * int64_t(sizeof(BFloat16)); }
    // unit: an even index into the units of both panels. A panel has an even number of units.
    UnpackNext<Weights> unpack_from(int64_t unit, int64_t every) const {
        const int lines = to ? int(every) : 0;  // 0: nothing is unpacked
        const int64_t panel = unit / num_units();
        return {next.from(panel), to + panel * size, unit % num_units(), num_units(), lines, lines};
    }
    UnpackPair<Weights> unpack_pair() const { return {next, to, 0, num_units(), to ? 2 * num_units() : 0}; }
};

template <int Rows, int Panels, class Prefetch, class A, class Weights>
ALWAYS_INLINE void multiply(const A* a, int64_t a_stride, UnpackedPanels<Weights> b, int64_t depth, Prefetch prefetch,
                            Sums<Rows, Panels>& sums) {
    multiply<Rows, Panels>(a, a_stride, b.elements, b.size, depth, prefetch, sums);
}

// Unpacks the first `count` panels, starting at a unit that is counted from the first panel.
template <class Weights>
void unpack(Weights weights, int64_t count, int64_t unit, BFloat16* to) {
    const int64_t size = weights.depth * kPanelWidth, units = size / kUnitElements;
    for (int64_t p = 0; p < count; p++) {
        for (int64_t u = std::max<int64_t>(0, unit - p * units); u < units; u++) {
            unpack_unit(weights.from(p), u, to + p * size);
        }
        apply_all_exceptions(weights.from(p), to + p * size);
    }
}

// Calls body(first panel, plain panels) for every two panels of `weights`, which start at panel `panel` of the layer.
// blocks: the number of blocks of rows that unpack the next two panels while they multiply.
template <class Weights, class Body>
void for_each_pair(Weights weights, int64_t panel, int64_t end, int64_t blocks, const Body& body) {
    static thread_local Scratch scratch;
    const int64_t size = weights.depth * kPanelWidth;
    const auto count = [&] { return std::min<int64_t>(2, std::max<int64_t>(0, end - panel)); };
    if constexpr (Weights::kUnpacksWhileMultiplying) {
        const int64_t units = size / kUnitElements;
        BFloat16 *elements = scratch.reserve<BFloat16>(4 * size), *to = elements + 2 * size;
        unpack(weights, count(), 0, elements);
        for (; panel < end; std::swap(elements, to)) {
            const int64_t first = panel;
            panel += 2;
            weights = weights.from(2);
            const bool is_pair = count() == 2;
            body(first, UnpackedPanels<Weights>{elements, size, weights, is_pair ? to : nullptr});
            unpack(weights, count(), is_pair ? 2 * (units / blocks * blocks) : 0, to);
        }
    } else {
        BFloat16* elements = scratch.reserve<BFloat16>(2 * size);
        for (; panel < end; panel += 2, weights = weights.from(2)) {
            unpack(weights, count(), 0, elements);
            body(panel, PlainPanels<BFloat16, true>{elements, size});
        }
    }
}

// Calls body(first panel, end panel, plain panels) for every `most` panels.
template <class Weights, class Body>
void for_each_group(Weights weights, int64_t panel, int64_t end, int64_t most, const Body& body) {
    static thread_local Scratch scratch;
    const int64_t size = weights.depth * kPanelWidth;
    BFloat16* elements = scratch.reserve<BFloat16>(most * size);
    for (; panel < end; panel += most, weights = weights.from(most)) {
        const int64_t last = std::min(end, panel + most);
        unpack(weights, last - panel, 0, elements);
        body(panel, last, PlainPanels<BFloat16, true>{elements, size});
    }
}

template <class T, class Weights>
void multiply_unpacked(const Layer<T>& layer, const T* x, int64_t rows, Weights weights, int64_t panel, int64_t end,
                       T* y) {
#if defined(TILES)
    if constexpr (std::is_same_v<T, BFloat16>) return multiply_by_tiles(layer, x, rows, weights, panel, end, y);
#endif
    const int64_t blocks = std::min(num_row_blocks<kMaxRows>(rows), kPrefetchingBlocks);
    const auto wide = operands(x, rows, layer.depth);
    for_each_pair(weights, panel, end, blocks, [&](int64_t first, auto panels) {
        multiply_panels(layer, wide, rows, panels, first, std::min(first + 2, end), y);
    });
}

template <class T, class Weights>
void multiply_chunk(const Layer<T>& layer, const T* x, int64_t rows, Weights weights, int64_t begin, int64_t end,
                    T* y) {
    if (rows > max_direct_rows(weights)) return multiply_unpacked(layer, x, rows, weights, begin, end, y);
    multiply_panels(layer, operands(x, rows, layer.depth), rows, weights, begin, end, y);
}
