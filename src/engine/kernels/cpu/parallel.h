// Threads of the OpenMP runtime that torch has already loaded, started through its C entry points.
//
// Not compiled with -fopenmp: that would link a second runtime beside torch's (two thread pools that busy-wait against
// each other), and clang would need another runtime than gcc. libgomp offers GOMP_parallel, and the LLVM and Intel
// runtimes offer it for compatibility.
#pragma once

#include "team.h"

extern "C" {
void GOMP_parallel(void (*body)(void*), void* argument, unsigned num_threads, unsigned flags);
int omp_get_thread_num();
int omp_get_num_threads();
}

inline std::atomic<int> num_threads{1};  // of all parallel regions of this library; set from Python

// Calls body(thread, num_threads) once for every thread. In a team (team.h) the leader may make another thread's call.
template <class Body>
void on_every_thread(const Body& body) {
    if (Team* team = current_team) {
        const auto work = [](void* argument, int part, int parts) {
            (*static_cast<const Body*>(argument))(part, parts);
        };
        return team->share(work, const_cast<Body*>(&body));
    }
    const int wanted = num_threads.load(std::memory_order_relaxed);
    if (wanted == 1) {
        body(0, 1);
        return;
    }
    const auto call = [](void* argument) {
        (*static_cast<const Body*>(argument))(omp_get_thread_num(), omp_get_num_threads());
    };
    GOMP_parallel(call, const_cast<Body*>(&body), unsigned(wanted), 0);
}

// Divides [0, count) into one contiguous range per thread and calls body(begin, end). If a thread's range would be
// shorter than `min_per_thread`, waking the threads costs more than it saves, and the caller does everything.
template <class Body>
void parallel_ranges(int64_t count, int64_t min_per_thread, const Body& body) {
    if (count < 2 * min_per_thread) {
        if (count) body(int64_t(0), count);
        return;
    }
    on_every_thread([&](int thread, int threads) {
        const int64_t begin = count * thread / threads, end = count * (thread + 1) / threads;
        if (begin < end) body(begin, end);
    });
}

// Calls body(task) for every task. A thread that has finished takes the next task: for tasks of unequal length.
template <class Body>
void parallel_tasks(int64_t count, const Body& body) {
    std::atomic<int64_t> next{0};
    on_every_thread([&](int, int) {
        for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(task);
    });
}

// With fewer elements, waking a second thread (about 2 us) costs more than it saves.
constexpr int64_t kMinElementsPerThread = 8192;

constexpr int64_t min_rows_per_thread(int64_t elements_per_row) { return 1 + kMinElementsPerThread / elements_per_row; }
