// Codes of a checkpoint's files in the order of panels (grouped.h), in one pass: bytes of the file, a byte for each code of
// 16 outputs in the first-level cache, words of panels.
#pragma once

#include "grouped.h"
#include "packing.h"

enum CodeKind : int64_t {
    kCodeBytes,     // as panels have them
    kSignedBytes,   // two's complement, without -128; panels have sign and magnitude
    kNibblePairs,   // two codes in a byte, the first in its lower half
    kNibbleHalves,  // runs of bytes: the codes of the lower halves, then those of the upper halves
    kQ6K,           // blocks of GGUF's Q6_K
    kDeepWords,     // [depth / 8][width] words of 8 codes, the first in the lowest bits
};

// What grouped_panels.py writes: how a file has the codes of a matrix. Rows consist of blocks of `elements` codes in `bytes`
// bytes, of which `head` come before the codes; `run`: bytes of a run of halves.
struct CodeForm {
    int64_t kind, row_bytes, elements, bytes, head, run;
};

constexpr int64_t kChunk = 256;  // codes of an output that are converted at once: whole blocks of every form

struct ChunkOfCodes {
    alignas(kLine) uint8_t codes[kPanelWidth][kChunk] = {};
};

// In registers of a fixed size: a compiler that must assume that `to` overlaps `from` takes twenty times as long.
template <int Run>
ALWAYS_INLINE void read_halves(const uint8_t* from, uint8_t* to) {
    typedef uint8_t Bytes __attribute__((vector_size(Run)));
    Bytes pairs;
    memcpy(&pairs, from, Run);
    const Bytes low = pairs & 15, high = pairs >> 4;
    memcpy(to, &low, Run);
    memcpy(to + Run, &high, Run);
}

ALWAYS_INLINE void read_q6k(const uint8_t* block, uint8_t* to) {
    typedef uint8_t Bytes __attribute__((vector_size(32)));
    for (int64_t half = 0; half < 2; half++, to += 128) {
        Bytes low[2], high;
        memcpy(low, block + half * 64, sizeof low);
        memcpy(&high, block + 128 + half * 32, sizeof high);
        const Bytes codes[4] = {(low[0] & 15) | (high & 3) << 4, (low[1] & 15) | (high >> 2 & 3) << 4,
                                low[0] >> 4 | (high >> 4 & 3) << 4, low[1] >> 4 | high >> 6 << 4};
        memcpy(to, codes, sizeof codes);
    }
}

// Codes k to k + count of a row that is stored by itself.
inline void read_row(const CodeForm& form, const uint8_t* row, int64_t k, int64_t count, uint8_t* to) {
    if (form.kind == kCodeBytes) return void(memcpy(to, row + k, count));
    if (form.kind == kNibblePairs) {
        for (int64_t i = 0; i < count / 2; i++) {
            const uint8_t pair = row[k / 2 + i];
            to[2 * i] = pair & 15, to[2 * i + 1] = pair >> 4;
        }
        return;
    }
    for (int64_t done = 0; done < count; done += form.elements, to += form.elements) {
        const uint8_t* block = row + (k + done) / form.elements * form.bytes + form.head;
        const int64_t elements = std::min(form.elements, count - done);
        if (form.kind == kQ6K) {
            read_q6k(block, to);
        } else if (form.kind == kSignedBytes) {
            for (int64_t i = 0; i < elements; i++) to[i] = block[i] & 128 ? uint8_t(128 - block[i]) : block[i];
        } else if (form.run == 32) {
            for (int64_t i = 0; i < form.elements; i += 64) read_halves<32>(block + i / 2, to + i);
        } else {
            for (int64_t i = 0; i < form.elements; i += 32) read_halves<16>(block + i / 2, to + i);
        }
    }
}

// Codes k to k + count of outputs `first` to first + outputs.
inline void read_chunk(const CodeForm& form, const uint8_t* content, int64_t first, int64_t outputs, int64_t k,
                       int64_t count, ChunkOfCodes& chunk) {
    if (form.kind != kDeepWords) {
        for (int64_t output = 0; output < outputs; output++) {
            read_row(form, content + (first + output) * form.row_bytes, k, count, chunk.codes[output]);
        }
        return;
    }
    for (int64_t i = 0; i < count; i += 8) {
        const uint8_t* words = content + (k + i) / 8 * form.row_bytes + first * sizeof(uint32_t);
        for (int64_t output = 0; output < outputs; output++) {
            uint32_t word;
            memcpy(&word, words + output * sizeof word, sizeof word);
            uint64_t codes = (word | uint64_t(word) << 16) & 0x0000ffff0000ffff;
            codes = (codes | codes << 8) & 0x00ff00ff00ff00ff;
            codes = (codes | codes << 4) & 0x0f0f0f0f0f0f0f0f;
            memcpy(chunk.codes[output] + i, &codes, sizeof codes);
        }
    }
}

struct WordsOfCodes {
    alignas(kLine) uint32_t words[16][kPanelWidth];  // [4 k][output]: a byte for each code
};

ALWAYS_INLINE void transpose_chunk(const ChunkOfCodes& chunk, int64_t k, WordsOfCodes& to) {
#if defined(__AVX512F__)
    __m512i words[16];
    for (int i = 0; i < 16; i++) words[i] = _mm512_load_si512(chunk.codes[i] + k);
    transpose(words);
    for (int i = 0; i < 16; i++) _mm512_store_si512(to.words[i], words[i]);
#else
    for (int column = 0; column < kPanelWidth; column++) {
        for (int i = 0; i < 16; i++) memcpy(&to.words[i][column], chunk.codes[column] + k + 4 * i, 4);
    }
#endif
}

// Two codes of 6 bits, for the even and for the odd bytes, in the halves of a word.
ALWAYS_INLINE uint32_t join_six_bits(uint32_t bytes) {
    return (bytes & 63) | (bytes >> 10 & 63 << 6) | (bytes & 63 << 8) << 8 | (bytes >> 2 & 63 << 22);
}

// The first `count` codes of the chunk, a multiple of the format's step.
template <int CodeBits>
void put_chunk(const ChunkOfCodes& chunk, int64_t count, char* to) {
    for (int64_t k = 0; k < count; k += 64) {
        WordsOfCodes found;
        transpose_chunk(chunk, k, found);
        const int64_t steps = std::min<int64_t>(64, count - k) / 4;
        if constexpr (CodeBits == 4) {
            for (int64_t i = 0; i < steps; i += 2, to += kLine) {
                uint32_t line[kPanelWidth];
                for (int c = 0; c < kPanelWidth; c++) {
                    const uint32_t a = found.words[i][c], b = found.words[i + 1][c];
                    const uint32_t low = a | a >> 12, high = b | b >> 12;
                    line[c] = (low & 0xff) | (high & 0xff) << 8 | (low & 0xff00) << 8 | (high & 0xff00) << 16;
                }
                memcpy(to, line, kLine);
            }
        } else if constexpr (CodeBits == 6) {
            for (int64_t i = 0; i < steps; i += 4) {
                for (int word = 0; word < 3; word++, to += kLine) {
                    uint32_t line[kPanelWidth];
                    for (int c = 0; c < kPanelWidth; c++) {
                        const uint32_t rest = join_six_bits(found.words[i + 3][c]) >> 4 * word & 0x000f000f;
                        line[c] = join_six_bits(found.words[i + word][c]) | rest << 12;
                    }
                    memcpy(to, line, kLine);
                }
            }
        } else {
            for (int64_t i = 0; i < steps; i++, to += kLine) {
#if defined(__AVX512BW__) && defined(STOKER_PAIR_PRODUCTS)
                const __m512i order = _mm512_broadcast_i32x4(
                    _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
                _mm512_storeu_si512(to, _mm512_shuffle_epi8(_mm512_load_si512(found.words[i]), order));
#else
                for (int64_t byte = 0; byte < 4; byte++) {
                    char line[kPanelWidth];
                    for (int c = 0; c < kPanelWidth; c++) line[c] = char(found.words[i][c] >> 8 * byte);
                    memcpy(to + Int8Panels::index(byte, 0), line, kPanelWidth);
                }
#endif
            }
        }
    }
}
