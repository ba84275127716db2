#pragma once

#include <cmath>

#include "vector.h"

ALWAYS_INLINE float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// log(1 + exp(x)) within a few roundings also where it is small: log1p(e) is 2 atanh(e / (2 + e)), as a series.
ALWAYS_INLINE Floats softplus(Floats x) {
    const Floats e = exponential(-maximum(x, -x));
    const Floats z = e / (e + 2.0f), s = z * z;  // z is at most 1/3
    Floats series = s * (1.0f / 15) + 1.0f / 13;
    series = series * s + 1.0f / 11;
    series = series * s + 1.0f / 9;
    series = series * s + 1.0f / 7;
    series = series * s + 1.0f / 5;
    series = series * s + 1.0f / 3;
    return maximum(x, Floats{}) + (series * s + 1.0f) * (z + z);
}
