// The rotary embedding of one head, in float32.
#pragma once

#include "vector.h"

struct Rotation {
    const float *cosines, *sines;  // [half]
    int half;                      // number of rotated pairs, 0 for none
};

inline void rotate(float* head, const Rotation& rotation, bool is_interleaved) {
    if (is_interleaved) {
        for (int i = 0; i < rotation.half; i++) {
            const float a = head[2 * i], b = head[2 * i + 1];
            head[2 * i] = a * rotation.cosines[i] - b * rotation.sines[i];
            head[2 * i + 1] = b * rotation.cosines[i] + a * rotation.sines[i];
        }
        return;
    }
    float *first = head, *second = head + rotation.half;
    for_each_vector(rotation.half, [&](int64_t i, int64_t count) {
        const Floats a = load_up_to(first + i, count), b = load_up_to(second + i, count);
        const Floats cosine = load_up_to(rotation.cosines + i, count), sine = load_up_to(rotation.sines + i, count);
        store_up_to(first + i, a * cosine - b * sine, count);
        store_up_to(second + i, b * cosine + a * sine, count);
    });
}
