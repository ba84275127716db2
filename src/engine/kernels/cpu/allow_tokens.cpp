// Logits of tokens that a grammar does not allow become -inf. The reference is in ../allow_tokens.py.

#include <algorithm>
#include <limits>

#include "parallel.h"
#include "vector.h"

namespace {

constexpr int64_t kBits = 32;

template <class T>
constexpr T kForbidden = -std::numeric_limits<T>::infinity();
template <>
constexpr BFloat16 kForbidden<BFloat16> = {0xff80};  // the upper half of -inf

// Words that allow all of their tokens, which are most of them inside a string, are not written.
template <class T>
void allow_row(T* logits, const uint32_t* mask, int64_t vocab_size) {
    const T forbidden = kForbidden<T>;
    for (int64_t begin = 0; begin < vocab_size; begin += kBits) {
        const uint32_t word = *mask++;
        const int64_t count = std::min(kBits, vocab_size - begin);
        if (word == ~0u) continue;
        if (word == 0) {
            std::fill_n(logits + begin, count, forbidden);
            continue;
        }
        for (int64_t bit = 0; bit < count; bit++) {
            if (!(word >> bit & 1)) logits[begin + bit] = forbidden;
        }
    }
}

template <class T>
void allow_tokens(T* logits, const int64_t* rows, const uint32_t* masks, int64_t num_rows, int64_t num_words,
                  int64_t vocab_size) {
    parallel_ranges(num_rows, min_rows_per_thread(vocab_size), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) allow_row(logits + rows[i] * vocab_size, masks + i * num_words, vocab_size);
    });
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                         \
    EXPORT void allow_tokens_##suffix(T* logits, const int64_t* rows, const uint32_t* masks, int64_t num_rows,        \
                                      int64_t num_words, int64_t vocab_size) {                                        \
        allow_tokens(logits, rows, masks, num_rows, num_words, vocab_size);                                           \
    }

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
