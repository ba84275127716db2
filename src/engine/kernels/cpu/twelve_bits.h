// bfloat16 weights compressed to 12 bits without loss, and the products over them.
//
// The exponents of a panel's weights are close together: 15 consecutive exponents cover all but about one weight in a
// thousand. A weight is stored as a byte of sign and mantissa and a 4-bit choice of the exponent: 0 for exponent 0
// (zeros and subnormals), i for the i-th of the 15. The other weights are exceptions: stored as zero and listed after
// the panels. Unpacking writes them back, so that products and the order of their sums are those of plain panels
// (panels.h).
//
// A panel is a head of 64 bytes and a unit of 192 bytes for every 8 k:
//   2 x [4][2][4][2] bytes of sign and mantissa: four outputs, two pairs of k, in the order in which unpacking
//   interleaves them;
//   64 bytes of choices, those of the first 64 weights in the lower halves.
#pragma once

#include "linear.h"

#if defined(__AVX512F__)  // with AVX2, unpacking takes as long as reading what it saves
#define TWELVE_BITS 1

constexpr int64_t kUnitBytes = kUnitElements * 3 / 2, kHeadBytes = 64;

// A weight that 12 bits cannot represent. `index`: of the element in the unpacked panel.
struct Exception {
    uint32_t index, bits;
};
constexpr uint32_t kEndOfList = UINT32_MAX;  // the last entry of a panel's list

// The exponent of each choice: its upper seven bits, and its lowest bit as the top bit of a byte.
struct PanelHead {
    uint8_t upper[16], lowest[16];
    int64_t first;  // index of the panel's first exception in the list of all panels
    uint8_t unused[24];
};
static_assert(sizeof(PanelHead) == kHeadBytes);

struct TwelveBitPanels {
    static constexpr bool kUnpacksWhileMultiplying = true;
    static constexpr int kMaxSinglePanelRows = 12;
    static constexpr int kMaxBlockRows = 8;  // whose sums all fit in registers
    static constexpr PrefetchMode kPrefetch = PrefetchMode::kOnce;
    const char* panels;
    const Exception* exceptions;
    int64_t depth;

    int64_t panel_bytes() const { return kHeadBytes + depth / kUnitDepth * kUnitBytes; }
    TwelveBitPanels from(int64_t panel) const { return {panels + panel * panel_bytes(), exceptions, depth}; }
    const char* address() const { return panels; }
    const PanelHead& head() const { return *reinterpret_cast<const PanelHead*>(panels); }
    const char* unit(int64_t index) const { return panels + kHeadBytes + index * kUnitBytes; }
    const Exception* first_exception() const { return exceptions + head().first; }
};

typedef uint8_t Bytes __attribute__((vector_size(kWidth * 4)));

ALWAYS_INLINE Bytes repeat(const uint8_t* table) {
    return (Bytes)_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table));
}
ALWAYS_INLINE Bytes look_up(Bytes table, Bytes choices) {  // by the lower four bits
#if defined(__AVX512VBMI__)
    return (Bytes)_mm512_permutexvar_epi8((__m512i)choices, (__m512i)table);
#else
    return (Bytes)_mm512_shuffle_epi8((__m512i)table, (__m512i)(choices & 0x0f));
#endif
}
ALWAYS_INLINE Bytes merge_bits(Bytes rest, uint8_t mask, Bytes exponent) {  // (rest & mask) | exponent
    return (Bytes)_mm512_ternarylogic_epi64((__m512i)exponent, (__m512i)rest, _mm512_set1_epi8(char(mask)), 0xf8);
}
// Interleaves the bytes of a and b, of the lower or upper half of every 16 bytes.
ALWAYS_INLINE Bits lower_halves(Bytes a, Bytes b) { return (Bits)_mm512_unpacklo_epi8((__m512i)a, (__m512i)b); }
ALWAYS_INLINE Bits upper_halves(Bytes a, Bytes b) { return (Bits)_mm512_unpackhi_epi8((__m512i)a, (__m512i)b); }

// The elements of a unit in the order of a plain panel, without the exceptions.
struct Unit {
    Bits pairs[kUnitDepth / 2];
};

ALWAYS_INLINE Unit read_unit(const PanelHead& head, const char* from) {
    const Bytes upper = repeat(head.upper), lowest = repeat(head.lowest);
    Bytes choices;
    memcpy(&choices, from + 2 * kLine, sizeof choices);
    Unit unit;
    for (int half = 0; half < 2; half++) {
        Bytes elements;
        memcpy(&elements, from + half * kLine, sizeof elements);
        const Bytes chosen = half ? (Bytes)((Bits)choices >> 4) : choices;
        const Bytes first = merge_bits(elements, 0x7f, look_up(lowest, chosen));
        const Bytes second = merge_bits(elements, 0x80, look_up(upper, chosen));
        unit.pairs[2 * half] = lower_halves(first, second);
        unit.pairs[2 * half + 1] = upper_halves(first, second);
    }
    return unit;
}

// Writes the exceptions with an index below `end` to the unit that ends there. Returns the first of the later ones.
__attribute__((noinline, cold)) inline const Exception* apply_exceptions(BFloat16* unit, const Exception* next,
                                                                       uint32_t end) {
    for (; next->index < end; next++) unit[next->index % kUnitElements].bits = uint16_t(next->bits);
    return next;
}

ALWAYS_INLINE const Exception* apply_exceptions(Unit& unit, const Exception* next, uint32_t end) {
    BFloat16 elements[kUnitElements];  // a copy: taking the address of the unit would keep it in memory
    memcpy(elements, &unit, sizeof unit);
    next = apply_exceptions(elements, next, end);
    memcpy(&unit, elements, sizeof unit);
    return next;
}

// As described in panels.h.
template <int Rows, int Panels, class Prefetch, class A>
ALWAYS_INLINE void multiply(const A* a, int64_t a_stride, TwelveBitPanels b, int64_t depth, Prefetch prefetch,
                            Sums<Rows, Panels>& sums) {
    const Exception* next[Panels];
    for (int p = 0; p < Panels; p++) next[p] = b.from(p).first_exception();
    for (int64_t k = 0; k < depth; k += kUnitDepth) {
        const uint32_t end = uint32_t(k + kUnitDepth) * kPanelWidth;
        Unit units[Panels];
        for (int p = 0; p < Panels; p++) {
            const TwelveBitPanels panel = b.from(p);
            const char* from = panel.unit(k / kUnitDepth);
            for (int line = 0; line < 3; line++) prefetch.prefetch(from + line * kLine, p);
            units[p] = read_unit(panel.head(), from);
            if (__builtin_expect(next[p]->index < end, 0)) next[p] = apply_exceptions(units[p], next[p], end);
        }
#pragma GCC unroll 4
        for (int i = 0; i < kUnitDepth / 2; i++) {
            Bits pairs[Panels];
            for (int p = 0; p < Panels; p++) pairs[p] = units[p].pairs[i];
            add_products<Rows, Panels>(a + k + 2 * i, a_stride, pairs, sums);
        }
    }
}

// Unpacks one output of a panel.
inline void unpack_row(TwelveBitPanels panel, int column, BFloat16* out) {
    const PanelHead& head = panel.head();
    const uint8_t* unit = reinterpret_cast<const uint8_t*>(panel.unit(0));
    for (int64_t k = 0; k < panel.depth; k += kUnitDepth, unit += kUnitBytes) {
        for (int i = 0; i < kUnitDepth; i++) {
            const int64_t index = column / 4 * 16 + i % 4 / 2 * 8 + column % 4 * 2 + i % 2;
            const uint8_t rest = unit[i / 4 * kLine + index], choice = unit[2 * kLine + index] >> i / 4 * 4 & 0x0f;
            const uint8_t lower = (rest & 0x7f) | head.lowest[choice], upper = (rest & 0x80) | head.upper[choice];
            out[k + i].bits = uint16_t(lower | upper << 8);
        }
    }
    for (const Exception* next = panel.first_exception(); next->index != kEndOfList; next++) {
        const int64_t k = next->index / (2 * kPanelWidth) * 2 + next->index % 2;
        if (int(next->index % (2 * kPanelWidth) / 2) == column) out[k].bits = uint16_t(next->bits);
    }
}

// Unpacks one unit to its position in a plain panel, without the exceptions: see apply_all_exceptions.
ALWAYS_INLINE void unpack_unit(const TwelveBitPanels& panel, int64_t index, BFloat16* to) {
    const char* from = panel.unit(index);
    for (int line = 0; line < 3; line++) __builtin_prefetch(from + line * kLine + 2 * panel.panel_bytes());
    const Unit unit = read_unit(panel.head(), from);
    to += index * kUnitElements;
    for (int i = 0; i < kUnitDepth / 2; i++) memcpy(to + i * 2 * kPanelWidth, &unit.pairs[i], sizeof unit.pairs[i]);
}

inline void apply_all_exceptions(const TwelveBitPanels& panel, BFloat16* to) {
    for (const Exception* next = panel.first_exception(); next->index != kEndOfList; next++) {
        to[next->index].bits = uint16_t(next->bits);
    }
}

// With more rows, unpacking once for all of them is less work. Where there are tiles it is the limit of plain panels,
// since vectors and tiles add in different orders, and a product must not depend on how its weight is stored.
#if defined(TILES)
constexpr int64_t max_direct_rows(const TwelveBitPanels&) { return kMaxVectorRows; }
#elif defined(STOKER_PAIR_PRODUCTS)
constexpr int64_t max_direct_rows(const TwelveBitPanels&) { return TwelveBitPanels::kMaxSinglePanelRows; }
#else
constexpr int64_t max_direct_rows(const TwelveBitPanels&) { return 4; }
#endif
#endif
