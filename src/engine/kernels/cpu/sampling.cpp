// Passes over the logits of a vocabulary: apply penalties, sample a token, sum the weights, find the top tokens, count the
// logits above a bound. The references are in ../sample_tokens.py, ../sample_top_p.py, ../softmax_mass.py,
// ../top_tokens.py, ../count_above.py, ../sample_among.py and ../penalise.py; arithmetic is float32 for every type.

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "captured_graph.h"
#include "parallel.h"
#include "scratch.h"
#include "vector.h"

namespace {

constexpr int64_t kMinElementsPerThread = 16384;  // with fewer, waking a second thread costs more than it saves
constexpr int64_t kRun = 1024;  // logits whose weights are summed in float32 before they are added to a double

int64_t min_rows_per_thread(int64_t elements_per_row) { return 1 + kMinElementsPerThread / elements_per_row; }

ALWAYS_INLINE bool any(Ints mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#else
    int32_t all = 0;
    for (int i = 0; i < kWidth; i++) all |= mask[i];
    return all != 0;
#endif
}

// Like load_up_to, with -infinity in the lanes from `count` on.
template <class T>
ALWAYS_INLINE Floats load_logits(const T* from, int64_t count) {
    Floats values = load_up_to(from, count);
    for (int64_t i = count; i < kWidth; i++) values[i] = -INFINITY;
    return values;
}

template <class T>
float largest(const T* logits, int64_t size) {
    Floats top = broadcast(-INFINITY);
    for_each_vector(size, [&](int64_t i, int64_t count) { top = maximum(load_logits(logits + i, count), top); });
    float value = top[0];
    for (int i = 1; i < kWidth; i++) value = top[i] > value ? top[i] : value;
    return value;
}

template <class T>
int64_t first_of(const T* logits, int64_t size, float value) {
    int64_t i = 0;
    while (i < size && !any(load_logits(logits + i, size - i < kWidth ? size - i : kWidth) == value)) i += kWidth;
    for (; i < size; i++) {
        if (load_partial(logits + i, 1)[0] == value) return i;
    }
    return 0;  // all logits are NaN
}

// 31 mixed bits for every (key, token id): the hash of ../noise.py.
ALWAYS_INLINE Ints hash(Bits ids, uint32_t first_key, uint32_t second_key) {
    Bits bits = (ids * 0x9e3779b9u) ^ first_key;
    bits ^= bits >> 16;
    bits = bits * 0x7feb352du + second_key;
    bits ^= bits >> 15;
    bits *= 0x846ca68bu;
    return (Ints)bits ^ ((Ints)bits >> 16);  // the sign bits shifted in clear bit 31
}

// The tokens before `id` in descending order of logits, ascending order of ids for equal logits.
struct Before {
    float value = -INFINITY;  // includes all tokens
    int32_t id = 0;

    ALWAYS_INLINE Ints holds(Floats values, Bits ids) const {
        return (values > value) | ((values == value) & ((Ints)ids < id));
    }
};

ALWAYS_INLINE Bits first_ids(int64_t begin) {
    Bits ids;
    for (int i = 0; i < kWidth; i++) ids[i] = uint32_t(begin + i);
    return ids;
}

// The ids of columns that are all tokens in their order.
struct EveryToken {
    ALWAYS_INLINE Bits of(Bits columns, int64_t, int64_t) const { return columns; }
};

// The ids of columns that are some tokens.
struct ListedTokens {
    const int32_t* ids;

    ALWAYS_INLINE Bits of(Bits, int64_t first, int64_t count) const {
        Bits found{};
        memcpy(&found, ids + first, size_t(count) * sizeof(int32_t));
        return found;
    }
};

// The penalties of each row, documented in ../penalise.py.
struct Penalties {
    const int64_t *slots, *lengths;
    const int32_t *token_table, *counts;
    const float *repetitions, *frequencies, *presences;
    int64_t table_width;

    // All new values are computed before any is written: a token can be in the sequence several times.
    void apply(float* logits, int64_t size, int64_t row) const {
        static thread_local Scratch scratch;
        const int64_t length = lengths[row];
        const int32_t *ids = token_table + slots[row] * table_width, *seen = counts + slots[row] * size;
        float* changed = scratch.reserve<float>(length);
        for (int64_t i = 0; i < length; i++) {
            const float value = logits[ids[i]];
            const float scaled = value > 0 ? value / repetitions[row] : value * repetitions[row];
            const int32_t count = seen[ids[i]];
            changed[i] = scaled - (frequencies[row] * float(count) + (count > 0 ? presences[row] : 0));
        }
        for (int64_t i = 0; i < length; i++) logits[ids[i]] = changed[i];
    }
};

// Calls body(row, its logits) for every row. Penalties are applied to a copy of the row: 600 KB for 152k tokens, which
// stay in the core's cache while the body reads them.
template <class T, class Body>
void for_each_row(const T* logits, int64_t rows, int64_t vocab_size, const Penalties* penalties, const Body& body) {
    parallel_ranges(rows, min_rows_per_thread(vocab_size), [&](int64_t begin, int64_t end) {
        static thread_local Scratch scratch;
        for (int64_t row = begin; row < end; row++) {
            const T* own = logits + row * vocab_size;
            if (!penalties || !penalties->lengths[row]) {
                body(row, own);
                continue;
            }
            float* changed = scratch.reserve<float>(vocab_size);
            for_each_vector(vocab_size, [&](int64_t i, int64_t count) {
                store_up_to(changed + i, load_up_to(own + i, count), count);
            });
            penalties->apply(changed, vocab_size, row);
            body(row, static_cast<const float*>(changed));
        }
    });
}

// The weights of a row: exp((logit - top) / temperature), or 0 if that is less than min_p.
struct Weights {
    float top, temperature, min_p;

    ALWAYS_INLINE Floats of(Floats values) const {
        const Floats weights = exponential((values - top) / temperature);
        return weights < min_p ? Floats{} : weights;
    }
};

// Calls body(offset, size) for one run after another.
template <class Body>
ALWAYS_INLINE void for_each_run(int64_t size, const Body& body) {
    for (int64_t begin = 0; begin < size; begin += kRun) body(begin, std::min(kRun, size - begin));
}

// The largest logit of every run, and of all of them.
struct Maxima {
    const float* of_run;
    float top;
};

template <class T>
Maxima maxima(const T* logits, int64_t size) {
    static thread_local Scratch scratch;
    float* of_run = scratch.reserve<float>((size + kRun - 1) / kRun);
    float top = -INFINITY;
    for_each_run(size, [&](int64_t begin, int64_t length) {
        const float most = of_run[begin / kRun] = largest(logits + begin, length);
        top = most > top ? most : top;
    });
    return {of_run, top};
}

struct Sampled {
    int64_t id;
    double mass;  // of all tokens that min_p allows
};

// The sampled token is the one with the largest weight / noise. noise = -log(1 - u) >= u, so a weight of at most best * u
// cannot win, and its logarithm is not needed: it is computed for a few dozen of 152k tokens. If not even the largest
// weight of the run can win, the weights are computed only if their mass is needed.
template <bool kNeedsMass, class T, class Tokens = EveryToken>
Sampled sample_before(const T* logits, int64_t size, const Maxima& found, const Weights& weight, const uint32_t* keys,
                      Before bound, Tokens tokens = {}) {
    float best = 0;
    int64_t chosen = 0;
    double mass = 0;
    for_each_run(size, [&](int64_t begin, int64_t length) {
        // Slightly more, because the last bits of the exponential are not monotonic.
        const float most = 1.0001f * weight.of(broadcast(found.of_run[begin / kRun]))[0];
        Floats sums{};
        Bits ids = first_ids(begin);
        for_each_vector(length, [&](int64_t i, int64_t count) {
            const Ints hashed = hash(tokens.of(ids, begin + i, count), keys[0], keys[1]);
            const Floats bits = __builtin_convertvector(hashed, Floats);
            const Floats uniform = bits * 0x1p-31f + 0x1p-32f;
            const Floats needed = best * uniform;
            if (kNeedsMass || any(needed < most)) {
                const Floats values = load_logits(logits + begin + i, count);
                Floats weights = weight.of(values);
                if (kNeedsMass) sums += weights;
                weights = bound.holds(values, ids) ? weights : Floats{};
                if (any(weights > needed)) {
                    for (int lane = 0; lane < kWidth; lane++) {
                        if (!(weights[lane] > best * uniform[lane])) continue;
                        const float score = weights[lane] / -std::log1p(-std::fmin(uniform[lane], 1 - 0x1p-24f));
                        if (score > best) best = score, chosen = begin + i + lane;
                    }
                }
            }
            ids += kWidth;
        });
        if (kNeedsMass) mass += sum(sums);
    });
    return {chosen, mass};
}

constexpr int64_t kNone = -1;  // the result if every logit is -infinity or NaN

template <class T>
int64_t sample_row(const T* logits, int64_t size, float temperature, float min_p, const uint32_t* keys) {
    if (temperature == 0) {
        const float top = largest(logits, size);
        return top > -INFINITY ? first_of(logits, size, top) : kNone;
    }
    const Maxima found = maxima(logits, size);
    if (!(found.top > -INFINITY)) return kNone;
    return sample_before<false>(logits, size, found, {found.top, temperature, min_p}, keys, Before{}).id;
}

template <class T>
double mass_before(const T* logits, int64_t size, const Maxima& found, const Weights& weight, Before bound) {
    double mass = 0;
    for_each_run(size, [&](int64_t begin, int64_t length) {
        if (found.of_run[begin / kRun] < bound.value) return;
        Floats sums{};
        Bits ids = first_ids(begin);
        for_each_vector(length, [&](int64_t i, int64_t count) {
            const Floats values = load_logits(logits + begin + i, count);
            const Ints is_before = bound.holds(values, ids);
            ids += kWidth;
            if (any(is_before)) sums += is_before ? weight.of(values) : Floats{};
        });
        mass += sum(sums);
    });
    return mass;
}

// Noise is a function of the token, so a token that is sampled from a superset of the nucleus and is in the nucleus is the
// token that sampling from the nucleus gives. A sampled token outside of it comes after all tokens of the nucleus, so the
// next sample is taken from the tokens before it.
template <class T>
int64_t sample_top_p_row(const T* logits, int64_t size, float temperature, float min_p, float top_p,
                         const uint32_t* keys) {
    const Maxima found = maxima(logits, size);
    if (!(found.top > -INFINITY)) return kNone;
    const Weights weight{found.top, temperature, min_p};
    const Sampled first = sample_before<true>(logits, size, found, weight, keys, Before{});
    int64_t id = first.id;
    while (true) {
        const Before bound{load_partial(logits + id, 1)[0], int32_t(id)};
        const double before = mass_before(logits, size, found, weight, bound);
        if (!(before >= top_p * first.mass && before > 0)) return id;  // also for NaN
        id = sample_before<false>(logits, size, found, weight, keys, bound).id;
    }
}

template <class T>
void sample_top_p(const T* logits, const float* temperatures, const float* min_ps, const float* top_ps,
                  const uint32_t* keys, const Penalties* penalties, int64_t* chosen, int64_t rows, int64_t vocab_size) {
    for_each_row(logits, rows, vocab_size, penalties, [&](int64_t row, auto* own) {
        chosen[row] = sample_top_p_row(own, vocab_size, temperatures[row], min_ps[row], top_ps[row], keys + 2 * row);
    });
}

template <class T>
void sample_tokens(const T* logits, const float* temperatures, const float* min_ps, const uint32_t* keys,
                   const Penalties* penalties, int64_t* chosen, int64_t rows, int64_t vocab_size) {
    for_each_row(logits, rows, vocab_size, penalties, [&](int64_t row, auto* own) {
        chosen[row] = sample_row(own, vocab_size, temperatures[row], min_ps[row], keys + 2 * row);
    });
}

template <class T>
double mass_of_row(const T* logits, int64_t size, const Weights& weight) {
    double mass = 0;
    for_each_run(size, [&](int64_t begin, int64_t length) {
        Floats sums{};
        for_each_vector(length, [&](int64_t i, int64_t count) {
            sums += weight.of(load_logits(logits + begin + i, count));
        });
        mass += sum(sums);
    });
    return mass;
}

template <class T>
void softmax_mass(const T* logits, const float* temperatures, const float* min_ps, float* tops, double* masses,
                  int64_t rows, int64_t vocab_size) {
    parallel_ranges(rows, min_rows_per_thread(vocab_size), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const T* values = logits + row * vocab_size;
            tops[row] = largest(values, vocab_size);
            masses[row] = mass_of_row(values, vocab_size, {tops[row], temperatures[row], min_ps[row]});
        }
    });
}

struct Entry {
    float value;
    int32_t id;
};

bool comes_first(const Entry& a, const Entry& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

// The row is divided into at least `count` segments. The count-th largest of their maxima is at most the count-th largest
// logit, so a second pass collects the logits that are not below it, and only those are sorted.
template <class T>
void top_of_row(const T* logits, int64_t size, int64_t count, float* values, int64_t* ids) {
    float least = -INFINITY;
    const int64_t width = size / (2 * count) / kWidth * kWidth;
    if (width) {
        std::vector<float> maxima;
        for (int64_t begin = 0; begin < size; begin += width) {
            maxima.push_back(largest(logits + begin, std::min(width, size - begin)));
        }
        std::nth_element(maxima.begin(), maxima.begin() + count - 1, maxima.end(), std::greater<float>());
        least = maxima[size_t(count - 1)];
    }
    std::vector<Entry> entries;
    for_each_vector(size, [&](int64_t i, int64_t lanes) {
        const Floats logit = load_logits(logits + i, lanes);
        if (least > -INFINITY && !any(logit >= least)) return;
        for (int64_t lane = 0; lane < lanes; lane++) {
            const float value = logit[lane] == logit[lane] ? logit[lane] : -INFINITY;
            if (value >= least) entries.push_back({value, int32_t(i + lane)});
        }
    });
    std::nth_element(entries.begin(), entries.begin() + count - 1, entries.end(), comes_first);
    std::sort(entries.begin(), entries.begin() + count, comes_first);
    for (int64_t i = 0; i < count; i++) values[i] = entries[size_t(i)].value, ids[i] = entries[size_t(i)].id;
}

// How one row is sampled: Choice in ../sample_among.py.
struct Choice {
    float temperature, min_p, top_p;
    int32_t top_k;
};

// The column that is sampled. All that the choice excludes comes after what it allows, in descending order of logits: a
// sample is taken from all tokens before a bound, which moves until the sample is in the nucleus.
template <class T>
int64_t sample_among_row(const T* logits, int64_t size, const Choice& choice, const uint32_t* keys, ListedTokens tokens) {
    if (choice.temperature == 0) {
        const float top = largest(logits, size);
        return top > -INFINITY ? first_of(logits, size, top) : kNone;
    }
    const Maxima found = maxima(logits, size);
    if (!(found.top > -INFINITY)) return kNone;
    const Weights weight{found.top, choice.temperature, choice.min_p};
    Before bound;
    if (choice.top_k > 0 && choice.top_k < size) {
        std::vector<float> values(size_t(choice.top_k));
        std::vector<int64_t> columns(size_t(choice.top_k));
        top_of_row(logits, size, choice.top_k, values.data(), columns.data());
        bound = {values.back(), int32_t(columns.back() + 1)};
    }
    int64_t column = sample_before<false>(logits, size, found, weight, keys, bound, tokens).id;
    if (choice.top_p >= 1) return column;
    const double mass = mass_before(logits, size, found, weight, bound);
    while (true) {
        const Before own{load_partial(logits + column, 1)[0], int32_t(column)};
        const double before = mass_before(logits, size, found, weight, own);
        if (!(before >= choice.top_p * mass && before > 0)) return column;  // also for NaN
        column = sample_before<false>(logits, size, found, weight, keys, own, tokens).id;
    }
}

template <class T>
void sample_among(const T* logits, const float* temperatures, const float* min_ps, const float* top_ps,
                  const int32_t* top_ks, const uint32_t* keys, const int32_t* token_ids, int64_t* chosen, int64_t rows,
                  int64_t num_tokens) {
    for_each_row(logits, rows, num_tokens, nullptr, [&](int64_t row, auto* own) {
        const Choice choice{temperatures[row], min_ps[row], top_ps[row], top_ks[row]};
        const int64_t column = sample_among_row(own, num_tokens, choice, keys + 2 * row, ListedTokens{token_ids});
        chosen[row] = token_ids[column == kNone ? 0 : column];
    });
}

template <class T>
void top_tokens(const T* logits, const Penalties* penalties, float* values, int64_t* ids, int64_t rows,
                int64_t vocab_size, int64_t count) {
    for_each_row(logits, rows, vocab_size, penalties, [&](int64_t row, auto* own) {
        top_of_row(own, vocab_size, count, values + row * count, ids + row * count);
    });
}

template <class T>
void count_above(const T* logits, const float* bounds, int64_t* counts, int64_t rows, int64_t vocab_size) {
    parallel_ranges(rows, min_rows_per_thread(vocab_size), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const T* values = logits + row * vocab_size;
            Ints above{};
            for_each_vector(vocab_size, [&](int64_t i, int64_t count) {
                above -= load_logits(values + i, count) > bounds[row];  // true is -1
            });
            counts[row] = 0;
            for (int i = 0; i < kWidth; i++) counts[row] += above[i];
        }
    });
}

}  // namespace

#define EXPORT_FOR(T, suffix)                                                                                        \
    EXPORT void sample_tokens_##suffix(const T* logits, const float* temperatures, const float* min_ps,              \
                                       const uint32_t* keys, const Penalties* penalties, int64_t* chosen,            \
                                       int64_t rows, int64_t vocab_size) {                                           \
        sample_tokens(logits, temperatures, min_ps, keys, penalties, chosen, rows, vocab_size);                      \
    }                                                                                                                \
    EXPORT void sample_top_p_##suffix(const T* logits, const float* temperatures, const float* min_ps,               \
                                      const float* top_ps, const uint32_t* keys, const Penalties* penalties,         \
                                      int64_t* chosen, int64_t rows, int64_t vocab_size) {                           \
        sample_top_p(logits, temperatures, min_ps, top_ps, keys, penalties, chosen, rows, vocab_size);               \
    }                                                                                                                \
    EXPORT void sample_among_##suffix(const T* logits, const float* temperatures, const float* min_ps,               \
                                      const float* top_ps, const int32_t* top_ks, const uint32_t* keys,              \
                                      const int32_t* token_ids, int64_t* chosen, int64_t rows, int64_t num_tokens) { \
        sample_among(logits, temperatures, min_ps, top_ps, top_ks, keys, token_ids, chosen, rows, num_tokens);       \
    }                                                                                                                \
    CAPTURABLE(sample_among_##suffix)                                                                                \
    EXPORT void softmax_mass_##suffix(const T* logits, const float* temperatures, const float* min_ps, float* tops,  \
                                      double* masses, int64_t rows, int64_t vocab_size) {                            \
        softmax_mass(logits, temperatures, min_ps, tops, masses, rows, vocab_size);                                  \
    }                                                                                                                \
    EXPORT void top_tokens_##suffix(const T* logits, const Penalties* penalties, float* values, int64_t* ids,        \
                                    int64_t rows, int64_t vocab_size, int64_t count) {                               \
        top_tokens(logits, penalties, values, ids, rows, vocab_size, count);                                         \
    }                                                                                                                \
    EXPORT void count_above_##suffix(const T* logits, const float* bounds, int64_t* counts, int64_t rows,            \
                                     int64_t vocab_size) {                                                           \
        count_above(logits, bounds, counts, rows, vocab_size);                                                       \
    }

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)
