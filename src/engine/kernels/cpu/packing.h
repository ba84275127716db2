// Packs matrices into panels (panels.h): weights once, keys and values of a prefill tile by tile.
#pragma once

#include "panels.h"

constexpr int kMaxPackedWidth = 512;  // of pack_rows

#if defined(__AVX512F__)
// Transposes a square of 16 x 16 words of 32 bits.
ALWAYS_INLINE void transpose(__m512i (&words)[16]) {
    __m512i t[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(words[2 * i], words[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(words[2 * i], words[2 * i + 1]);
    }
    __m512i u[16];
    for (int i = 0; i < 4; i++) {
        for (int half = 0; half < 2; half++) {
            u[4 * i + 2 * half] = _mm512_unpacklo_epi64(t[4 * i + half], t[4 * i + half + 2]);
            u[4 * i + 2 * half + 1] = _mm512_unpackhi_epi64(t[4 * i + half], t[4 * i + half + 2]);
        }
    }
    // u[4 i + j] now holds column 4 l + j of rows 4 i .. 4 i + 3 in its 128-bit lane l: gather the lanes.
    for (int j = 0; j < 4; j++) {
        const __m512i a = _mm512_shuffle_i32x4(u[j], u[4 + j], 0x44);
        const __m512i b = _mm512_shuffle_i32x4(u[8 + j], u[12 + j], 0x44);
        const __m512i c = _mm512_shuffle_i32x4(u[j], u[4 + j], 0xee);
        const __m512i d = _mm512_shuffle_i32x4(u[8 + j], u[12 + j], 0xee);
        words[j] = _mm512_shuffle_i32x4(a, b, 0x88);
        words[4 + j] = _mm512_shuffle_i32x4(a, b, 0xdd);
        words[8 + j] = _mm512_shuffle_i32x4(c, d, 0x88);
        words[12 + j] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
}
#endif

// Packs `rows` rows of `depth` elements as the first columns of one panel of `padded_depth`; the remaining columns up
// to 16 are zero. Used for keys (a panel is 16 keys) and weights (a panel is 16 outputs). row(i) returns the i-th row.
template <class Row>
ALWAYS_INLINE void pack_columns(const Row& row, int rows, int64_t depth, int64_t padded_depth, float* panel) {
    int64_t done = 0;
#if defined(__AVX512F__)
    for (; done + 16 <= depth; done += 16) {
        __m512i words[16];
        for (int i = 0; i < 16; i++) words[i] = i < rows ? _mm512_loadu_si512(row(i) + done) : __m512i{};
        transpose(words);
        for (int i = 0; i < 16; i++) _mm512_storeu_si512(panel + (done + i) * kPanelWidth, words[i]);
    }
#endif
    for (int column = 0; column < kPanelWidth; column++) {
        for (int64_t k = done; k < padded_depth; k++) {
            panel[k * kPanelWidth + column] = column < rows && k < depth ? row(column)[k] : 0;
        }
    }
}

template <class Row>
ALWAYS_INLINE void pack_columns(const Row& row, int rows, int64_t depth, int64_t padded_depth, BFloat16* panel) {
    uint32_t* pairs = reinterpret_cast<uint32_t*>(panel);
    int64_t k = 0;
#if defined(__AVX512F__)
    // 16 pairs of 16 rows are a 16 x 16 square of 32-bit words, transposed in registers.
    for (; k + 32 <= depth; k += 32) {
        __m512i words[16];
        if (rows == 16) {  // the usual case, without a branch for each row
            for (int i = 0; i < 16; i++) words[i] = _mm512_loadu_si512(row(i) + k);
        } else {
            for (int i = 0; i < 16; i++) words[i] = i < rows ? _mm512_loadu_si512(row(i) + k) : __m512i{};
        }
        transpose(words);
        for (int i = 0; i < 16; i++) _mm512_storeu_si512(pairs + (k / 2 + i) * kPanelWidth, words[i]);
    }
#endif
    for (int column = 0; column < kPanelWidth; column++) {
        for (int64_t rest = k; rest < padded_depth; rest += 2) {
            uint32_t pair = 0;
            if (column < rows && rest < depth) memcpy(&pair, row(column) + rest, sizeof pair);
            pairs[rest / 2 * kPanelWidth + column] = pair;
        }
    }
}

// Packs `width` elements (a multiple of 16) of each of `rows` rows as the rows of panels of `panel_size`; the rows from
// there to `padded_rows` are zero. Used for values, where the depth of the product is the number of keys. row(i)
// returns the start of the i-th row.
template <class Row>
ALWAYS_INLINE void pack_rows(const Row& row, int rows, int padded_rows, int width, float* panels, int64_t panel_size) {
    for (int i = 0; i < padded_rows; i++) {
        for (int d = 0; d < width; d += kWidth) {
            float* to = panels + d / kPanelWidth * panel_size + i * kPanelWidth + d % kPanelWidth;
            store(to, i < rows ? load(row(i) + d) : Floats{});
        }
    }
}

template <class Row>
ALWAYS_INLINE void pack_rows(const Row& row, int rows, int padded_rows, int width, BFloat16* panels,
                             int64_t panel_size) {
    static constexpr BFloat16 zeros[kMaxPackedWidth] = {};
    for (int i = 0; i < padded_rows; i += 2) {
        const BFloat16 *even = i < rows ? row(i) : zeros, *odd = i + 1 < rows ? row(i + 1) : zeros;
        BFloat16* to = panels + i * kPanelWidth;
        for (int d = 0; d < width; d += kPanelWidth, to += panel_size) {
#if defined(__AVX512F__)
            const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(even + d)));
            const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(odd + d)));
            _mm512_storeu_si512(to, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
#else
            for (int column = 0; column < kPanelWidth; column++) {
                to[2 * column] = even[d + column];
                to[2 * column + 1] = odd[d + column];
            }
#endif
        }
    }
}
