// bfloat16 weights in 12 bits, exactly, and the products over them.
//
// The exponents of a panel's weights lie close together: 15 neighbouring ones cover all but one in some thousand. A
// weight is kept as a byte of sign and mantissa and 4 bits that choose the exponent: 0 for exponent 0 (zeros and
// subnormals), i for the i-th neighbour. The few others are kept as zero and listed behind the panels; whoever unpacks
// weights puts them in their places, so that products and their order are those of plain panels (panels.h).
//
// Of a panel: a head of 64 bytes, then a unit of 192 bytes for every 8 k:
//   2 x [4][2][4][2] bytes of sign and mantissa, four outputs, two pairs of k, as unpacking puts them side by side;
//   64 bytes of choices, those of the first 64 weights in the lower halves.
#pragma once

#include "linear.h"

#if defined(__AVX512F__)  // with AVX2, unpacking takes as long as reading what it saves
#define TWELVE_BITS 1

constexpr int64_t kUnitBytes = kUnitNumbers * 3 / 2, kHeadBytes = 64;

// A weight that its 12 bits do not tell. `place` counts the numbers of the unpacked panel.
struct Exception {
    uint32_t place, bits;
};
constexpr uint32_t kNoPlace = UINT32_MAX;  // ends the list of a panel

// Of the exponent of each choice: the upper seven bits, and the lowest as the top bit of a byte.
struct PanelHead {
    uint8_t upper[16], lowest[16];
    int64_t first;  // of its exceptions, counted from the first of all
    uint8_t unused[24];
};
static_assert(sizeof(PanelHead) == kHeadBytes);

struct TwelveBitPanels {
    static constexpr bool kUnpacksBetween = true;
    static constexpr int kRowsAlone = 8;
    static constexpr int kRowsAtOnce = 8;  // of which all stays in registers
    static constexpr Fetching kFetching = Fetching::kAhead;
    const char* panels;
    const Exception* exceptions;
    int64_t depth;

    int64_t panel_bytes() const { return kHeadBytes + depth / kUnitDepth * kUnitBytes; }
    TwelveBitPanels from(int64_t panel) const { return {panels + panel * panel_bytes(), exceptions, depth}; }
    const char* address() const { return panels; }
    const PanelHead& head() const { return *reinterpret_cast<const PanelHead*>(panels); }
    const char* unit(int64_t number) const { return panels + kHeadBytes + number * kUnitBytes; }
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
ALWAYS_INLINE Bytes merge(Bytes number, uint8_t mask, Bytes exponent) {  // (number & mask) | exponent
    return (Bytes)_mm512_ternarylogic_epi64((__m512i)exponent, (__m512i)number, _mm512_set1_epi8(char(mask)), 0xf8);
}
// Bytes of a and b by turns, of the lower or upper half of every 16 bytes.
ALWAYS_INLINE Bits lower_halves(Bytes a, Bytes b) { return (Bits)_mm512_unpacklo_epi8((__m512i)a, (__m512i)b); }
ALWAYS_INLINE Bits upper_halves(Bytes a, Bytes b) { return (Bits)_mm512_unpackhi_epi8((__m512i)a, (__m512i)b); }

// The numbers of a unit as in a plain panel, but for exceptions.
struct Unit {
    Bits pairs[kUnitDepth / 2];
};

ALWAYS_INLINE Unit read_unit(const PanelHead& head, const char* from) {
    const Bytes upper = repeat(head.upper), lowest = repeat(head.lowest);
    Bytes choices;
    memcpy(&choices, from + 2 * kLine, sizeof choices);
    Unit unit;
    for (int half = 0; half < 2; half++) {
        Bytes numbers;
        memcpy(&numbers, from + half * kLine, sizeof numbers);
        const Bytes chosen = half ? (Bytes)((Bits)choices >> 4) : choices;
        const Bytes first = merge(numbers, 0x7f, look_up(lowest, chosen));
        const Bytes second = merge(numbers, 0x80, look_up(upper, chosen));
        unit.pairs[2 * half] = lower_halves(first, second);
        unit.pairs[2 * half + 1] = upper_halves(first, second);
    }
    return unit;
}

// Puts exceptions into the unit that ends before number `end` of its panel. Returns the first behind it.
__attribute__((noinline, cold)) inline const Exception* put_exceptions(BFloat16* unit, const Exception* next,
                                                                       uint32_t end) {
    for (; next->place < end; next++) unit[next->place % kUnitNumbers].bits = uint16_t(next->bits);
    return next;
}

ALWAYS_INLINE const Exception* correct(Unit& unit, const Exception* next, uint32_t end) {
    BFloat16 numbers[kUnitNumbers];  // not the unit itself, which would have to lie in memory always
    memcpy(numbers, &unit, sizeof unit);
    next = put_exceptions(numbers, next, end);
    memcpy(&unit, numbers, sizeof unit);
    return next;
}

// As in panels.h.
template <int Rows, int Panels, class Fetch, class A>
ALWAYS_INLINE void multiply(const A* a, int64_t a_stride, TwelveBitPanels b, int64_t depth, Fetch fetch,
                            Sums<Rows, Panels>& sums) {
    const Exception* next[Panels];
    for (int p = 0; p < Panels; p++) next[p] = b.from(p).first_exception();
    for (int64_t k = 0; k < depth; k += kUnitDepth) {
        const uint32_t end = uint32_t(k + kUnitDepth) * kPanelWidth;
        Unit units[Panels];
        for (int p = 0; p < Panels; p++) {
            const TwelveBitPanels panel = b.from(p);
            const char* from = panel.unit(k / kUnitDepth);
            for (int line = 0; line < 3; line++) fetch.fetch(from + line * kLine, p);
            units[p] = read_unit(panel.head(), from);
            if (__builtin_expect(next[p]->place < end, 0)) next[p] = correct(units[p], next[p], end);
        }
#pragma GCC unroll 4
        for (int i = 0; i < kUnitDepth / 2; i++) {
            Bits pairs[Panels];
            for (int p = 0; p < Panels; p++) pairs[p] = units[p].pairs[i];
            add_products<Rows, Panels>(a + k + 2 * i, a_stride, pairs, sums);
        }
    }
}

// One output of a panel.
inline void unpack_row(TwelveBitPanels panel, int column, BFloat16* out) {
    const PanelHead& head = panel.head();
    const uint8_t* unit = reinterpret_cast<const uint8_t*>(panel.unit(0));
    for (int64_t k = 0; k < panel.depth; k += kUnitDepth, unit += kUnitBytes) {
        for (int i = 0; i < kUnitDepth; i++) {
            const int64_t place = column / 4 * 16 + i % 4 / 2 * 8 + column % 4 * 2 + i % 2;
            const uint8_t number = unit[i / 4 * kLine + place], choice = unit[2 * kLine + place] >> i / 4 * 4 & 0x0f;
            const uint8_t lower = (number & 0x7f) | head.lowest[choice], upper = (number & 0x80) | head.upper[choice];
            out[k + i].bits = uint16_t(lower | upper << 8);
        }
    }
    for (const Exception* next = panel.first_exception(); next->place != kNoPlace; next++) {
        const int64_t k = next->place / (2 * kPanelWidth) * 2 + next->place % 2;
        if (int(next->place % (2 * kPanelWidth) / 2) == column) out[k].bits = uint16_t(next->bits);
    }
}

// One unit into its place of a plain panel, but for exceptions, which `complete` adds.
ALWAYS_INLINE void unpack_unit(const TwelveBitPanels& panel, int64_t number, BFloat16* to) {
    const char* from = panel.unit(number);
    for (int line = 0; line < 3; line++) __builtin_prefetch(from + line * kLine + 2 * panel.panel_bytes());
    const Unit unit = read_unit(panel.head(), from);
    to += number * kUnitNumbers;
    for (int i = 0; i < kUnitDepth / 2; i++) memcpy(to + i * 2 * kPanelWidth, &unit.pairs[i], sizeof unit.pairs[i]);
}

inline void complete(const TwelveBitPanels& panel, BFloat16* to) {
    for (const Exception* next = panel.first_exception(); next->place != kNoPlace; next++) {
        to[next->place].bits = uint16_t(next->bits);
    }
}

// More rows than that pay for one unpacking.
#if defined(STOKER_PAIR_PRODUCTS)
constexpr int64_t max_direct_rows(const TwelveBitPanels&) { return TwelveBitPanels::kRowsAtOnce; }
#else
constexpr int64_t max_direct_rows(const TwelveBitPanels&) { return 4; }
#endif
#endif
