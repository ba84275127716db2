// Scratch memory of one thread: grows to the largest size that was requested, and is reused by the next call.
#pragma once

#include <cstdint>
#include <cstdlib>

class Scratch {
  public:
    ~Scratch() { free(memory_); }

    // Room for `count` elements, aligned to a cache line; the contents are undefined.
    template <class T>
    T* reserve(int64_t count) {
        const size_t needed = (count * sizeof(T) + 63) / 64 * 64;
        if (needed > size_) {
            free(memory_);
            memory_ = aligned_alloc(64, needed);
            if (!memory_) abort();
            size_ = needed;
        }
        return static_cast<T*>(memory_);
    }

  private:
    void* memory_ = nullptr;
    size_t size_ = 0;
};
