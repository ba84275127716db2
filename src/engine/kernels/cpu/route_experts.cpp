// Routing: the experts of each token and their weights, from the logits of the router. ../route_experts.py has the
// reference and describes the variants.

#include <algorithm>
#include <cmath>
#include <limits>

#include "captured_graph.h"
#include "parallel.h"
#include "scratch.h"
#include "softplus.h"
#include "vector.h"

namespace {

// The orders are those of SCORINGS and GROUP_SCORES in route_experts.py.
enum class Scoring : int { kSoftmax, kSigmoid, kSoftmaxOfChosen, kSqrtSoftplus, kSparseMixer };
enum class GroupScore : int { kMaximum, kSumOfTwo };

constexpr int64_t kRowsPerThread = 16;  // at least
constexpr float kLeastSum = 1e-20f;     // added before dividing by a sum of scores

struct Routing {
    int64_t num_experts, per_token, groups, groups_per_token;
    Scoring scoring;
    GroupScore group_score;
    bool renormalises;
    float scale, tolerance;
};

// The indices of the largest values, in descending order; of equal ones the lower index is first.
class Top {
  public:
    Top(int32_t* ids, float* values, int64_t size) : ids_(ids), values_(values), size_(size) {}

    void add(int32_t id, float value) {
        if (count_ == size_ && !(value > values_[size_ - 1])) return;
        int64_t at = count_ < size_ ? count_++ : size_ - 1;
        for (; at > 0 && value > values_[at - 1]; at--) ids_[at] = ids_[at - 1], values_[at] = values_[at - 1];
        ids_[at] = id, values_[at] = value;
    }

    // Values from begin to end, which are padded to a whole register.
    void add_all(const float* from, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i += kWidth) {
            if (count_ == size_ && !is_any_above(load(from + i), values_[size_ - 1])) continue;
            for (int64_t j = i; j < std::min(end, i + kWidth); j++) add(int32_t(j), from[j]);
        }
    }

  private:
    int32_t* ids_;
    float* values_;
    int64_t size_, count_ = 0;
};

// exponential() gives a finite value for NaN on some levels.
ALWAYS_INLINE Floats exponential_or_nan(Floats x) { return x == x ? exponential(x) : x; }

// Replaces the scores of a row by those of a softmax. Padding is written too.
void softmax(float* scores, int64_t count) {
    float most = scores[0];
    for (int64_t i = 1; i < count; i++) most = std::max(most, scores[i]);
    Floats sums{};
    for_each_vector(count, [&](int64_t i, int64_t left) {
        store(scores + i, exponential_or_nan(load(scores + i) - most));
        sums += load_up_to(scores + i, left);
    });
    const Floats inverse = broadcast(1 / sum(sums));
    for_each_vector(count, [&](int64_t i, int64_t) { store(scores + i, load(scores + i) * inverse); });
}

// The weight of the best of the scores that are not -infinity: its softmax over those that are nearly as large.
float weight_of_best(const float* scores, int64_t count, float best, float tolerance) {
    float total = 0;
    for (int64_t i = 0; i < count; i++) {
        const bool is_far = best - scores[i] > tolerance * std::max(std::abs(scores[i]), best);
        if (!is_far) total += std::exp(scores[i] - best);
    }
    return 1 / total;
}

struct Buffers {
    Scratch scores, choice, best, group_scores, group_ids;
};

Buffers& buffers_of_thread() {
    static thread_local Buffers buffers;
    return buffers;
}

// The scores of a row, and a register of padding after them.
template <class T>
void score(const T* logits, const Routing& routing, float* scores) {
    const int64_t count = routing.num_experts;
    for_each_vector(count, [&](int64_t i, int64_t left) { store(scores + i, load_up_to(logits + i, left)); });
    if (routing.scoring == Scoring::kSoftmax) softmax(scores, count);
    if (routing.scoring == Scoring::kSigmoid) {
        for_each_vector(count, [&](int64_t i, int64_t) {
            store(scores + i, 1.0f / (exponential_or_nan(-load(scores + i)) + 1.0f));
        });
    }
    if (routing.scoring == Scoring::kSqrtSoftplus) {
        for_each_vector(count, [&](int64_t i, int64_t) {
            const Floats x = load(scores + i);
            store(scores + i, x == x ? softplus(x) : x);
        });
        for (int64_t i = 0; i < count; i++) scores[i] = std::sqrt(scores[i]);
    }
}

// The weights of the experts of a row.
void weigh(const float* scores, const int32_t* ids, const Routing& routing, float* weights) {
    const int64_t k = routing.per_token;
    float total = 0;
    for (int64_t i = 0; i < k; i++) weights[i] = scores[ids[i]];
    if (routing.scoring == Scoring::kSoftmaxOfChosen) {
        const float most = *std::max_element(weights, weights + k);
        for (int64_t i = 0; i < k; i++) weights[i] = std::exp(weights[i] - most);
    }
    for (int64_t i = 0; i < k; i++) total += weights[i];
    const bool divides = routing.renormalises || routing.scoring == Scoring::kSoftmaxOfChosen;
    const float factor = divides ? routing.scale / (total + kLeastSum) : routing.scale;
    for (int64_t i = 0; i < k; i++) weights[i] *= factor;
}

template <class T>
void route(const T* logits, const float* bias, const Routing& routing, int32_t* ids, float* weights) {
    Buffers& buffers = buffers_of_thread();
    const int64_t count = routing.num_experts, k = routing.per_token, padded = count + kWidth;
    float* scores = buffers.scores.reserve<float>(padded);
    score(logits, routing, scores);
    const float* choice = scores;
    if (bias) {
        float* sums = buffers.choice.reserve<float>(padded);
        for_each_vector(count, [&](int64_t i, int64_t left) {
            store(sums + i, load(scores + i) + load_up_to(bias + i, left));
        });
        choice = sums;
    }
    float* best = buffers.best.reserve<float>(k);
    Top chosen(ids, best, k);
    if (routing.groups == 1) {
        chosen.add_all(choice, 0, count);
    } else {
        const int64_t size = count / routing.groups, kept = routing.groups_per_token;
        int32_t* group_ids = buffers.group_ids.reserve<int32_t>(kept + 2);
        float* group_scores = buffers.group_scores.reserve<float>(kept + 2);
        float* two = group_scores + kept;
        Top groups(group_ids, group_scores, kept);
        for (int64_t group = 0; group < routing.groups; group++) {
            Top in_group(group_ids + kept, two, std::min<int64_t>(2, size));
            for (int64_t i = group * size; i < (group + 1) * size; i++) in_group.add(int32_t(i), choice[i]);
            const bool is_sum = routing.group_score == GroupScore::kSumOfTwo && size > 1;
            groups.add(int32_t(group), is_sum ? two[0] + two[1] : two[0]);
        }
        std::sort(group_ids, group_ids + kept);  // so that of equal experts the lower index is first
        for (int64_t i = 0; i < kept; i++) {
            for (int64_t e = group_ids[i] * size; e < (group_ids[i] + 1) * size; e++) chosen.add(int32_t(e), choice[e]);
        }
    }
    if (routing.scoring == Scoring::kSparseMixer) {
        for (int64_t i = 0; i < k; i++) {
            float& taken = scores[ids[i]];
            weights[i] = weight_of_best(scores, count, taken, routing.tolerance) * routing.scale;
            taken = -std::numeric_limits<float>::infinity();
        }
        return;
    }
    weigh(scores, ids, routing, weights);
}

}  // namespace

// logits: [rows, num_experts]; bias: [num_experts] or null; ids, weights: [rows, per_token].
#define EXPORT_FOR(T, suffix)                                                                                        \
    EXPORT void route_experts_##suffix(const T* logits, const float* bias, int32_t* ids, float* weights,             \
                                       int64_t rows, int64_t num_experts, int64_t per_token, int64_t groups,         \
                                       int64_t groups_per_token, int scoring, int group_score, int renormalises,     \
                                       float scale, float tolerance) {                                               \
        const Routing routing{num_experts,      per_token,               groups,            groups_per_token,        \
                              Scoring(scoring), GroupScore(group_score), renormalises != 0, scale,                   \
                              tolerance};                                                                            \
        parallel_ranges(rows, kRowsPerThread, [&](int64_t begin, int64_t end) {                                      \
            for (int64_t row = begin; row < end; row++) {                                                            \
                route(logits + row * num_experts, bias, routing, ids + row * per_token, weights + row * per_token);  \
            }                                                                                                        \
        });                                                                                                          \
    }                                                                                                                \
    CAPTURABLE(route_experts_##suffix)                                                                               \
    EXPORT void weigh_experts_##suffix(const T* logits, const int32_t* ids, float* weights, int64_t rows,            \
                                       int64_t num_experts, int64_t per_token, int scoring, int renormalises,        \
                                       float scale) {                                                                \
        const Routing routing{num_experts,      per_token,           1,                 1,                           \
                              Scoring(scoring), GroupScore::kMaximum, renormalises != 0, scale, 0};                  \
        parallel_ranges(rows, kRowsPerThread, [&](int64_t begin, int64_t end) {                                      \
            float* scores = buffers_of_thread().scores.reserve<float>(num_experts + kWidth);                         \
            for (int64_t row = begin; row < end; row++) {                                                            \
                score(logits + row * num_experts, routing, scores);                                                  \
                weigh(scores, ids + row * per_token, routing, weights + row * per_token);                            \
            }                                                                                                        \
        });                                                                                                          \
    }                                                                                                                \
    CAPTURABLE(weigh_experts_##suffix)

EXPORT_FOR(float, float32)
EXPORT_FOR(BFloat16, bfloat16)

// A router that multiplies in float32 reads this copy of x.
EXPORT void to_float32(const BFloat16* x, float* y, int64_t count) {
    parallel_ranges(count / kWidth + 1, 4096, [&](int64_t begin, int64_t end) {
        for_each_vector(std::min(count, end * kWidth) - begin * kWidth, [&](int64_t i, int64_t left) {
            const int64_t at = begin * kWidth + i;
            store_up_to(y + at, load_up_to(x + at, left), left);
        });
    });
}
CAPTURABLE(to_float32)

// Ids of experts as indices among `count` own ones, of which the first is `first` and each other one `step` after the one
// before; -1 for experts of other processes.
EXPORT void own_experts(const int32_t* ids, int32_t* out, int64_t size, int64_t first, int64_t step, int64_t count) {
    for (int64_t i = 0; i < size; i++) {
        const int64_t distance = ids[i] - first;
        const bool is_own = distance >= 0 && distance % step == 0 && distance / step < count;
        out[i] = is_own ? int32_t(distance / step) : -1;
    }
}
CAPTURABLE(own_experts)

// As own_experts, of experts that processes have copies of. places: those of the copies of all experts, one after the
// other, of which expert e has starts[e] to starts[e + 1]; a token goes to the copy of its row, and is counted there. This
// process has the `count` places that begin with `first`. counts: of all places.
EXPORT void own_places(const int32_t* ids, int32_t* out, int64_t rows, int64_t per_token, const int32_t* starts,
                       const int32_t* places, int64_t* counts, int64_t first, int64_t count) {
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = row * per_token; i < (row + 1) * per_token; i++) {
            const int32_t start = starts[ids[i]], copies = starts[ids[i] + 1] - start;
            const int64_t place = places[start + row % copies];
            counts[place]++;
            out[i] = place >= first && place < first + count ? int32_t(place - first) : -1;
        }
    }
}
CAPTURABLE(own_places)
