// Activations of feed-forward blocks. The reference of each is in ../activation.py.
#pragma once

#include "vector.h"

// In the order of ACTIVATIONS in ../activation.py.
enum Activation { kSilu, kGelu, kGeluTanh, kRelu, kRelu2 };

ALWAYS_INLINE Floats sigmoid(Floats x) { return 1.0f / (exponential(-x) + 1.0f); }

// x times the probability that a standard normal number is less than x. The probability of the tail beyond u = |x| is
// exp(-u^2 / 2) times a polynomial in 1 / (1 + 0.23 u), fitted to it for u < 14 with a relative error of 5e-8.
ALWAYS_INLINE Floats gelu(Floats x) {
    const Floats size = maximum(x, -x), t = 1.0f / (size * 0.23f + 1.0f);
    Floats tail = t * -7.84675129e-2f + 2.90414379e-1f;
    tail = tail * t - 2.781274193e-1f;
    tail = tail * t + 3.01473242e-1f;
    tail = tail * t - 3.292045523e-2f;
    tail = tail * t + 1.195141471e-1f;
    tail = tail * t + 8.576289928e-2f;
    tail = tail * t + 9.237845876e-2f;
    tail = tail * t - 2.776253985e-5f;
    tail = tail * exponential(size * size * -0.5f);
    return x * (x > 0.0f ? 1.0f - tail : tail);
}

template <Activation kActivation>
ALWAYS_INLINE Floats activated(Floats x) {
    switch (kActivation) {
        case kSilu: return x / (exponential(-x) + 1.0f);
        case kGelu: return gelu(x);
        // (1 + tanh(z)) / 2 is sigmoid(2 z), with z = sqrt(2 / pi) * (x + 0.044715 x^3)
        case kGeluTanh: return x * sigmoid(x * (x * x * 0.044715f + 1.0f) * 1.5957691216057308f);
        case kRelu: return maximum(x, Floats{});
        case kRelu2: return maximum(x, Floats{}) * maximum(x, Floats{});
    }
}
