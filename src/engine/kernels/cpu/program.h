// Programs: lists of calls that were noted once and are made again without Python (program.cpp).
//
// Each function that may be in one is exported a second time, taking its arguments from a row of 8-byte words.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "vector.h"

template <class T>
ALWAYS_INLINE T from_word(uint64_t word) {  // as library.py packs them, on little-endian machines
    static_assert(sizeof(T) <= sizeof word, "arguments are numbers or pointers");
    T value;
    memcpy(&value, &word, sizeof value);
    return value;
}

// Returns what the function does: 0 if all is well.
template <class... Arguments, size_t... I>
ALWAYS_INLINE int call_with_words(int (*function)(Arguments...), const uint64_t* words, std::index_sequence<I...>) {
    return function(from_word<Arguments>(words[I])...);
}

template <class... Arguments, size_t... I>
ALWAYS_INLINE int call_with_words(void (*function)(Arguments...), const uint64_t* words, std::index_sequence<I...>) {
    function(from_word<Arguments>(words[I])...);
    return 0;
}

template <class Result, class... Arguments>
ALWAYS_INLINE int call_with_words(Result (*function)(Arguments...), const uint64_t* words) {
    return call_with_words(function, words, std::index_sequence_for<Arguments...>{});
}

#define IN_PROGRAMS(function) \
    EXPORT int function##_words(const uint64_t* words) { return call_with_words(function, words); }
