// Team: the threads that replay a captured list of calls, from the first call to the last.
//
// The leader makes the calls; the other threads do their parts of the work that is shared, and wait actively between
// two pieces of work: forking and joining for each call would leave the memory idle for as long as reading a small
// layer takes. While a thread waits, it prefetches its part of the weights that are read next into its second-level
// cache.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <sched.h>

// Weights that will soon be read: `pieces` contiguous pieces, divided among the threads as parallel_ranges does.
struct Reading {
    const char* from;
    int64_t piece, pieces;  // bytes of one piece, number of pieces
};

// Prefetches a thread's part of the weights while the thread waits. One step is short, since work may arrive at any
// time.
class Fetcher {
  public:
    Fetcher(int thread, int threads) : thread_(thread), threads_(threads) {}

    void step(const Reading* reading) {
        if (reading && reading->from != known_) {
            known_ = reading->from;
            const int64_t begin = reading->pieces * thread_ / threads_;
            const int64_t end = reading->pieces * (thread_ + 1) / threads_;
            at_ = known_ + begin * reading->piece;
            left_ = (end - begin) * reading->piece;
            if (left_ > kBytes) left_ = kBytes;
            waited_ = 0;
        }
        if (left_ > 0) {
            for (int line = 0; line < kLines; line++) __builtin_prefetch(at_ + line * 64, 0, 2);
            at_ += kLines * 64;
            left_ -= kLines * 64;
        } else if (++waited_ % kPatience == 0) {
            sched_yield();  // the thread that this one waits for may need this core
        } else {
            pause();
        }
    }

  private:
    static constexpr int64_t kBytes = 256 * 1024;  // the second-level cache of 1 or 2 MiB holds other data too
    static constexpr int kLines = 8;
    static constexpr int kPatience = 2000;  // pauses, about 50 us

    static void pause() {
#if defined(__x86_64__)
        _mm_pause();
#endif
    }

    int thread_, threads_;
    const char *known_ = nullptr, *at_ = nullptr;
    int64_t left_ = 0;
    int waited_ = 0;
};

class Team;
inline thread_local Team* current_team = nullptr;  // set on the leader's thread while it can share work

class Team {
  public:
    typedef void (*Work)(void* argument, int part, int parts);

    explicit Team(int max_threads) : parts_(new Part[max_threads]) {}
    ~Team() { delete[] parts_; }

    // Called by the leader: starts sharing work among `threads` threads, including itself.
    void gather(int threads) {
        fetcher_ = Fetcher(0, threads);
        threads_.store(threads, std::memory_order_release);
        current_team = this;
    }

    // Called by the leader: sets what all threads prefetch while they wait.
    void read_next(const Reading* reading) { reading_.store(reading, std::memory_order_release); }

    // Called by the leader: runs the work once for every part, each on its own thread. If a thread has not started its
    // part when the leader has finished its own (another process may be running on its core), the leader does that part
    // too.
    void share(Work work, void* argument) {
        const int threads = threads_.load(std::memory_order_relaxed);
        work_ = work, argument_ = argument;
        for (int part = 1; part < threads; part++) parts_[part].state.store(kOpen, std::memory_order_release);
        current_team = nullptr;  // work within a part is not shared again
        work(argument, 0, threads);
        for (int part = 1; part < threads; part++) {
            if (!take(part)) continue;
            work(argument, part, threads);
            parts_[part].state.store(kDone, std::memory_order_relaxed);
        }
        for (int part = 1; part < threads; part++) {
            while (parts_[part].state.load(std::memory_order_acquire) == kTaken) fetcher_.step(reading());
        }
        current_team = this;
    }

    // Called by the leader after the last call.
    void dismiss() {
        current_team = nullptr;
        is_over_.store(true, std::memory_order_release);
    }

    // Called by every other thread: does its parts until the leader calls dismiss.
    void follow(int thread) {
        int threads;
        while (!(threads = threads_.load(std::memory_order_acquire))) sched_yield();
        Fetcher fetcher(thread, threads);
        while (!is_over_.load(std::memory_order_acquire)) {
            if (parts_[thread].state.load(std::memory_order_acquire) == kOpen && take(thread)) {
                work_(argument_, thread, threads);
                parts_[thread].state.store(kDone, std::memory_order_release);
            } else {
                fetcher.step(reading());
            }
        }
    }

  private:
    enum State { kDone, kOpen, kTaken };

    struct alignas(64) Part {  // one cache line each: polling one must not slow down writing another
        std::atomic<State> state{kDone};
    };

    // work_ and argument_ are read afterwards: they do not change until the part is done.
    bool take(int part) {
        State open = kOpen;
        return parts_[part].state.compare_exchange_strong(open, kTaken, std::memory_order_acq_rel);
    }

    const Reading* reading() const { return reading_.load(std::memory_order_acquire); }

    Part* parts_;            // [threads], the leader's unused
    Fetcher fetcher_{0, 1};  // the leader's
    // Read by the other threads: in another cache line than what the leader writes while it waits.
    alignas(64) Work work_ = nullptr;
    void* argument_ = nullptr;
    std::atomic<int> threads_{0};
    std::atomic<const Reading*> reading_{nullptr};
    std::atomic<bool> is_over_{false};
};
