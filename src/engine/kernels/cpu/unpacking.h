// Linear layers over panels that are not plain numbers: codes (quantised.h) and 12 bits (twelve_bits.h).
//
// Few rows multiply what is unpacked in registers. For more rows two panels become bfloat16 panels in the second-level
// cache, once, and every block of rows reads those. With kUnpacksBetween, who multiplies also makes the next two, a
// unit of both at a time between products, so that neither the reading of memory nor the multipliers wait. That needs an
// unpacking of few registers, beside the 27 of the product: with int8 and int4 it took 1.25 to 3 times as long.
//
// Weights offer: unpack_unit(panel, number of the unit, where the plain panel begins), complete(panel, plain panel) for
// what units leave out, and max_direct_rows(panels).
#pragma once

#include "linear.h"

// Two units every so many lines that are read of the panels before: of two panels, one after the other, since one run of
// addresses comes faster than two by turns.
template <class Weights>
struct UnpackNext {
    Weights panel;
    BFloat16* to;
    int64_t unit, units;  // where it is, and how many a panel has
    int every, wait;

    ALWAYS_INLINE void fetch(const void*, int) const {}
    ALWAYS_INLINE void advance() {
        if (--wait == 0) {
            wait = every;
            if (unit == units) panel = panel.from(1), to += units * kUnitNumbers, unit = 0;
            unpack_unit(panel, unit++, to);
            unpack_unit(panel, unit++, to);
        }
    }
};

// Plain panels in the cache, and those behind them that come next.
template <class Weights>
struct UnpackedPanels {
    static constexpr int kRowsAtOnce = kMaxRows, kRowsAlone = 0;
    static constexpr Fetching kFetching = Fetching::kUnpack;
    const BFloat16* numbers;
    int64_t size;
    Weights next;
    BFloat16* to;  // null if there are none

    UnpackedPanels from(int64_t panel) const { return {numbers + panel * size, size, next, to}; }
    int64_t num_units() const { return size / kUnitNumbers; }
    int64_t panel_bytes() const { return size * int64_t(sizeof(BFloat16)); }
    // unit: counted through both panels, and even, as the units of a panel are.
    UnpackNext<Weights> unpack_from(int64_t unit, int64_t every) const {
        const int lines = to ? int(every) : 0;  // 0 for nothing at all
        const int64_t panel = unit / num_units();
        return {next.from(panel), to + panel * size, unit % num_units(), num_units(), lines, lines};
    }
};

template <int Rows, int Panels, class Fetch, class A, class Weights>
ALWAYS_INLINE void multiply(const A* a, int64_t a_stride, UnpackedPanels<Weights> b, int64_t depth, Fetch fetch,
                            Sums<Rows, Panels>& sums) {
    multiply<Rows, Panels>(a, a_stride, b.numbers, b.size, depth, fetch, sums);
}

// The first panels as plain ones, from a unit on, counted through all of them.
template <class Weights>
void unpack(Weights weights, int64_t count, int64_t unit, BFloat16* to) {
    const int64_t size = weights.depth * kPanelWidth, units = size / kUnitNumbers;
    for (int64_t p = 0; p < count; p++) {
        for (int64_t u = std::max<int64_t>(0, unit - p * units); u < units; u++) {
            unpack_unit(weights.from(p), u, to + p * size);
        }
        complete(weights.from(p), to + p * size);
    }
}

// Calls body(first panel, plain panels) for every two of `weights`, which begin at number `panel` of the layer.
// blocks: how many blocks of rows make the next two meanwhile.
template <class Weights, class Body>
void for_each_unpacked_pair(Weights weights, int64_t panel, int64_t end, int64_t blocks, const Body& body) {
    static thread_local Scratch scratch;
    const int64_t size = weights.depth * kPanelWidth;
    const auto count = [&] { return std::min<int64_t>(2, std::max<int64_t>(0, end - panel)); };
    if constexpr (Weights::kUnpacksBetween) {
        const int64_t units = size / kUnitNumbers;
        BFloat16 *numbers = scratch.numbers<BFloat16>(4 * size), *to = numbers + 2 * size;
        unpack(weights, count(), 0, numbers);
        for (; panel < end; std::swap(numbers, to)) {
            const int64_t first = panel;
            panel += 2;
            weights = weights.from(2);
            const bool is_pair = count() == 2;
            body(first, UnpackedPanels<Weights>{numbers, size, weights, is_pair ? to : nullptr});
            unpack(weights, count(), is_pair ? 2 * (units / blocks * blocks) : 0, to);
        }
    } else {
        BFloat16* numbers = scratch.numbers<BFloat16>(2 * size);
        for (; panel < end; panel += 2, weights = weights.from(2)) {
            unpack(weights, count(), 0, numbers);
            body(panel, PlainPanels<BFloat16, true>{numbers, size});
        }
    }
}

template <class T, class Weights>
void multiply_unpacked(const Layer<T>& layer, const T* x, int64_t rows, Weights weights, int64_t panel, int64_t end,
                       T* y) {
#if defined(TILES)
    if constexpr (std::is_same_v<T, BFloat16>) {
        TileRegisters tiles;
        float* sums = tile_sums(rows);
        for_each_unpacked_pair(weights, panel, end, 1, [&](int64_t first, auto panels) {
            if (first + 2 <= end) return multiply_pair_by_tiles(layer, x, rows, panels, first, tiles, sums, y);
            tiles.release();
            multiply_panels(layer, operands(x, rows * layer.depth), rows, panels, first, end, y);
        });
        return;
    }
#endif
    const int64_t blocks = std::min(num_row_blocks<kMaxRows>(rows), kFetchingBlocks);
    const auto* wide = operands(x, rows * layer.depth);
    for_each_unpacked_pair(weights, panel, end, blocks, [&](int64_t first, auto panels) {
        multiply_panels(layer, wide, rows, panels, first, std::min(first + 2, end), y);
    });
}

// y = x W^T + bias over all panels of a layer.
template <class T, class Weights>
void linear_over(const Layer<T>& layer, const T* x, Weights all, int64_t rows, T* y) {
    for_each_chunk(layer, x, rows, y, [&](const T* x, int64_t rows, int64_t begin, int64_t end, T* y) {
        const Weights weights = all.from(begin);
        if (rows > max_direct_rows(weights)) return multiply_unpacked(layer, x, rows, weights, begin, end, y);
        multiply_panels(layer, operands(x, rows * layer.depth), rows, weights, begin, end, y);
    });
}
