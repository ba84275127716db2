// The number of threads, huge pages, and measurements of the speed of memory and arithmetic.

#include <vector>

#include "panels.h"
#include "parallel.h"
#include "scratch.h"
#include "tiles.h"
#include "vector.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

EXPORT void set_num_threads(int threads) { num_threads.store(threads < 1 ? 1 : threads); }

// Requests huge pages for memory that will be read sequentially: fewer address translations.
EXPORT void advise_huge_pages(void* memory, int64_t size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t kPage = 4096;
    const uintptr_t begin = (uintptr_t(memory) + kPage - 1) / kPage * kPage;
    const uintptr_t end = (uintptr_t(memory) + uintptr_t(size)) / kPage * kPage;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
    (void)memory, (void)size;
#endif
}

// Reads `count` elements once with all threads, four streams each (a single stream does not use the full bandwidth),
// and returns a value that depends on all of them, so that the compiler cannot remove the reads. The lower bound of the
// time of kernels that are limited by memory.
EXPORT float read_all(const float* elements, int64_t count) {
    std::atomic<int> total{0};
    parallel_ranges(count / (4 * kWidth), 1, [&](int64_t begin, int64_t end) {
        const int64_t quarter = count / 4;
        Floats sums[4] = {};
        for (int64_t i = begin * kWidth; i < end * kWidth; i += kWidth) {
            for (int stream = 0; stream < 4; stream++) {
                __builtin_prefetch(elements + stream * quarter + i + 1024);
                sums[stream] += load(elements + stream * quarter + i);
            }
        }
        total += int(sum(sums[0] + sums[1] + sums[2] + sums[3]) != 0);
    });
    return float(total);
}

// Multiplies panels in the first-level cache, `rounds` times on every thread, and returns the number of multiplications
// and additions per thread. The lower bound of the time of kernels that are limited by arithmetic, with vectors.
template <class A, class T>
int64_t multiply_all(int64_t rounds) {
    constexpr int64_t depth = 128;
    on_every_thread([&](int, int) {
        std::vector<A> a(kMaxRows * depth);
        std::vector<T> b(kMaxPanels * kPanelWidth * depth);
        Floats total{};
        for (int64_t round = 0; round < rounds; round++) {
            Sums<kMaxRows, kMaxPanels> sums;
            multiply<kMaxRows, kMaxPanels>(a.data(), depth, b.data(), kPanelWidth * depth, depth, NoPrefetch{},
                                           sums);
            for (const auto& row : sums.at) {
                for (const Floats& each : row) total += each;
            }
        }
        static volatile float sink;
        sink = sum(total);
    });
    return rounds * 2 * kMaxRows * kMaxPanels * kPanelWidth * depth;
}

EXPORT int64_t multiply_all_float32(int64_t rounds) { return multiply_all<float, float>(rounds); }
EXPORT int64_t multiply_all_bfloat16(int64_t rounds) { return multiply_all<Operand, BFloat16>(rounds); }

#if defined(TILES)
// The same for tiles, which stay in registers: the peak of the unit.
template <class Product>
int64_t multiply_tiles_of(int64_t rounds) {
    constexpr int64_t steps = 64;
    std::atomic<int64_t> operations{0};
    on_every_thread([&](int, int) { operations = multiply_tile_registers<Product>(rounds * steps); });
    return operations;
}

// The same for tiles that are loaded from the first-level cache. With a busy hyperthread on the same core this takes two
// to four times as long, which the loop in registers does not show.
EXPORT int64_t multiply_cached_tiles_bfloat16(int64_t rounds) {
    constexpr int64_t steps = 8, depth = steps * kTileDepth;
    std::atomic<int64_t> operations{0};
    on_every_thread([&](int, int) {
        static thread_local Scratch memory;
        BFloat16* a = memory.reserve<BFloat16>(2 * kTileBlock * depth);
        float sums[kTileBlock][2 * kPanelWidth];
        memset(a, 0, 2 * kTileBlock * depth * sizeof(BFloat16));
        TileRegisters tiles;
        tiles.configure(kTileRows);
        for (int64_t round = 0; round < rounds; round++) {
            multiply_tiles<BFloat16Tiles>(a, kTileRowBytes, a + kTileBlock * depth, steps * kTileBytes, steps, Nothing{},
                                          kTileBlock, false,
                                          {sums, sizeof sums[0], sizeof sums[0] / 2, kTileRows * sizeof sums[0]});
        }
        operations = rounds * 2 * kTileBlock * 2 * kPanelWidth * depth;
    });
    return operations;
}

EXPORT int64_t multiply_tiles_bfloat16(int64_t rounds) { return multiply_tiles_of<BFloat16Tiles>(rounds); }
EXPORT int64_t multiply_tiles_int8(int64_t rounds) { return multiply_tiles_of<ByteTiles>(rounds); }
#endif
