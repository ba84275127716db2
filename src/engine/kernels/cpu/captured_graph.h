// Captured graphs: lists of native calls, captured once and replayed without Python (captured_graph.cpp).
//
// A function that can be captured is exported a second time as <function>_replay, which reads its arguments from an
// array of 8-byte values.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "vector.h"

template <class T>
ALWAYS_INLINE T argument_as(uint64_t argument) {  // captured_graph.py stores it; little-endian machines only
    static_assert(sizeof(T) <= sizeof argument, "an argument is a scalar or a pointer");
    T value;
    memcpy(&value, &argument, sizeof value);
    return value;
}

// Returns what the function returns: 0 on success.
template <class... Arguments, size_t... I>
ALWAYS_INLINE int call_with(int (*function)(Arguments...), const uint64_t* arguments, std::index_sequence<I...>) {
    return function(argument_as<Arguments>(arguments[I])...);
}

template <class... Arguments, size_t... I>
ALWAYS_INLINE int call_with(void (*function)(Arguments...), const uint64_t* arguments, std::index_sequence<I...>) {
    function(argument_as<Arguments>(arguments[I])...);
    return 0;
}

template <class Result, class... Arguments>
ALWAYS_INLINE int call_with(Result (*function)(Arguments...), const uint64_t* arguments) {
    return call_with(function, arguments, std::index_sequence_for<Arguments...>{});
}

#define CAPTURABLE(function) \
    EXPORT int function##_replay(const uint64_t* arguments) { return call_with(function, arguments); }
