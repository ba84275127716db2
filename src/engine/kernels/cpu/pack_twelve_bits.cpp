// Packs bfloat16 weights into 12 bits (twelve_bits.h), once, while the model loads.

#include <cstddef>

#include "packing.h"
#include "twelve_bits.h"

#if defined(TWELVE_BITS)
namespace {

constexpr int kExponents = 256, kChoices = 15;

int exponent_of(BFloat16 value) { return value.bits >> 7 & 0xff; }

struct Window {
    uint8_t first;    // of 15 consecutive exponents
    int64_t outside;  // number of elements with other exponents
};

// The window with the fewest elements outside.
Window best_window(const BFloat16* rows, int64_t count) {
    uint32_t counts[2][kExponents] = {};  // two: consecutive elements often have the same exponent
    for (int64_t i = 0; i < count; i += 2) {
        counts[0][exponent_of(rows[i])]++;
        counts[1][exponent_of(rows[i + 1])]++;
    }
    for (int e = 0; e < kExponents; e++) counts[0][e] += counts[1][e];
    int64_t inside = 0;
    for (int e = 1; e <= kChoices; e++) inside += counts[0][e];
    int64_t most_inside = inside;
    int best = 1;
    for (int first = 2; first + kChoices <= kExponents; first++) {
        inside += int64_t(counts[0][first + kChoices - 1]) - counts[0][first - 1];
        if (inside > most_inside) best = first, most_inside = inside;
    }
    return {uint8_t(best), count - counts[0][0] - most_inside};
}

// 32 elements in lanes of 16 bits, ready to be packed into bytes.
struct Halves {
    __m512i rests, choices;
    uint32_t outside;  // one bit per exception; its rest and choice are zero
};

ALWAYS_INLINE Halves halves_of(const BFloat16* elements, int first) {
    const __m512i bits = _mm512_loadu_si512(elements), zero = _mm512_setzero_si512();
    const __m512i exponent = _mm512_and_si512(_mm512_srli_epi16(bits, 7), _mm512_set1_epi16(0xff));
    const __m512i choice = _mm512_sub_epi16(exponent, _mm512_set1_epi16(short(first - 1)));
    const __mmask32 is_some = _mm512_cmpneq_epi16_mask(exponent, zero);
    const __mmask32 is_inside = _mm512_cmple_epu16_mask(_mm512_sub_epi16(choice, _mm512_set1_epi16(1)),
                                                        _mm512_set1_epi16(kChoices - 1));
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi16(bits, 8), _mm512_set1_epi16(0x80));
    const __m512i rest = _mm512_or_si512(_mm512_and_si512(bits, _mm512_set1_epi16(0x7f)), sign);
    return {_mm512_maskz_mov_epi16(__mmask32(is_inside | ~is_some), rest),
            _mm512_maskz_mov_epi16(__mmask32(is_inside & is_some), choice), uint32_t(is_some & ~is_inside)};
}

// Packs one panel and appends its exceptions. Returns the end of their list.
Exception* pack_panel(const BFloat16* elements, int64_t count, int first, char* to, Exception* exceptions) {
    PanelHead head{};
    for (int choice = 1; choice <= kChoices; choice++) {
        head.upper[choice] = uint8_t((first + choice - 1) >> 1);
        head.lowest[choice] = uint8_t((first + choice - 1) << 7);
    }
    memcpy(to, &head, sizeof head);
    to += kHeadBytes;
    for (int64_t start = 0; start < count; start += kUnitElements, to += kUnitBytes) {
        __m512i choices[2];
        for (int half = 0; half < 2; half++) {
            const int64_t begin = start + half * kUnitElements / 2;
            const Halves low = halves_of(elements + begin, first), high = halves_of(elements + begin + 32, first);
            _mm512_storeu_si512(to + half * kLine, _mm512_packus_epi16(low.rests, high.rests));
            choices[half] = _mm512_packus_epi16(low.choices, high.choices);
            for (uint64_t outside = low.outside | uint64_t(high.outside) << 32; outside; outside &= outside - 1) {
                const int64_t index = begin + __builtin_ctzll(outside);
                *exceptions++ = {uint32_t(index), elements[index].bits};
            }
        }
        _mm512_storeu_si512(to + 2 * kLine, _mm512_or_si512(choices[0], _mm512_slli_epi16(choices[1], 4)));
    }
    *exceptions++ = {kEndOfList, 0};
    return exceptions;
}

}  // namespace

// weight: [width, depth], depth a multiple of 8. survey: for every panel of 16 rows the first of the 15 consecutive
// exponents with the fewest elements outside, and the number of those. pack: `starts` are the panels' positions in the
// common list of exceptions, which follows the last panel; each panel's list has one more entry, which marks its end.
EXPORT void survey_twelve_bits(const BFloat16* weight, uint8_t* first, int64_t* outside, int64_t width,
                               int64_t depth) {
    parallel_ranges((width + kPanelWidth - 1) / kPanelWidth, 1, [&](int64_t begin, int64_t end) {
        for (int64_t panel = begin; panel < end; panel++) {
            const int64_t row = panel * kPanelWidth, rows = std::min<int64_t>(kPanelWidth, width - row);
            const Window window = best_window(weight + row * depth, rows * depth);
            first[panel] = window.first;
            outside[panel] = window.outside;
        }
    });
}

EXPORT void pack_twelve_bits(const BFloat16* weight, const uint8_t* first, const int64_t* starts, char* panels,
                             int64_t width, int64_t depth) {
    const TwelveBitPanels all{panels, nullptr, depth};
    const int64_t count = (width + kPanelWidth - 1) / kPanelWidth;
    Exception* exceptions = reinterpret_cast<Exception*>(panels + count * all.panel_bytes());
    parallel_ranges(count, 1, [&](int64_t begin, int64_t end) {
        static thread_local Scratch scratch;
        BFloat16* elements = scratch.reserve<BFloat16>(depth * kPanelWidth);
        for (int64_t panel = begin; panel < end; panel++) {
            const int64_t row = panel * kPanelWidth;
            pack_columns([&](int i) { return weight + (row + i) * depth; },
                         int(std::min<int64_t>(kPanelWidth, width - row)), depth, depth, elements);
            char* to = panels + panel * all.panel_bytes();
            pack_panel(elements, depth * kPanelWidth, first[panel], to, exceptions + starts[panel]);
            memcpy(to + offsetof(PanelHead, first), &starts[panel], sizeof starts[panel]);
        }
    });
}
#endif
