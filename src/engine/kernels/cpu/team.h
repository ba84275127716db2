// Team: the threads of a program, which stay together from its first call to its last.
//
// The leader goes through the calls; the others do their parts of those that are shared, and between two of them wait
// awake, as forking and joining would leave the memory idle for as long as a small layer takes to read. What a thread
// does while it waits is fetch its part of the weights that come next into its second-level cache.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <sched.h>

// Weights that will soon be read, each thread its own part of them: `pieces` behind each other, cut as parallel_ranges
// cuts them.
struct Reading {
    const char* from;
    int64_t piece, pieces;  // bytes of one, how many
};

// Brings a thread's part of the weights nearer while the thread waits. One step is short, since the thread may be
// wanted at any time.
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
            sched_yield();  // the thread that this one waits for may need its core
        } else {
            pause();
        }
    }

  private:
    static constexpr int64_t kBytes = 256 * 1024;  // of 1 or 2 MiB of second-level cache, where other things are needed too
    static constexpr int kLines = 8;
    static constexpr int kPatience = 2000;  // pauses: some 50 us

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
inline thread_local Team* current_team = nullptr;  // set in the leader while it may share work

class Team {
  public:
    typedef void (*Work)(void* argument, int part, int parts);

    explicit Team(int most) : parts_(new Part[most]) {}
    ~Team() { delete[] parts_; }

    // By the leader: from now on it shares its work with so many others, less one.
    void gather(int threads) {
        fetcher_ = Fetcher(0, threads);
        threads_.store(threads, std::memory_order_release);
        current_team = this;
    }

    // By the leader: what all fetch while they wait.
    void read_next(const Reading* reading) { reading_.store(reading, std::memory_order_release); }

    // By the leader: has the work done once for every part, each by its own thread. A thread that did not come yet,
    // since another process has its core, is not waited for: the leader does its part.
    void share(Work work, void* argument) {
        const int threads = threads_.load(std::memory_order_relaxed);
        work_ = work, argument_ = argument;
        for (int part = 1; part < threads; part++) parts_[part].state.store(kOpen, std::memory_order_release);
        current_team = nullptr;  // a part is not shared again
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

    // By the leader, at last.
    void dismiss() {
        current_team = nullptr;
        is_over_.store(true, std::memory_order_release);
    }

    // By every other thread: does its parts until the leader has no more.
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

    struct alignas(64) Part {  // a line each, so that waiting for one does not slow down who writes another
        std::atomic<State> state{kDone};
    };

    // What it is a part of is looked at afterwards: until the part is done, the leader does not go on.
    bool take(int part) {
        State open = kOpen;
        return parts_[part].state.compare_exchange_strong(open, kTaken, std::memory_order_acq_rel);
    }

    const Reading* reading() const { return reading_.load(std::memory_order_acquire); }

    Part* parts_;            // [threads], the leader's unused
    Fetcher fetcher_{0, 1};  // the leader's
    // What the others look at, in another line than what the leader writes while it waits.
    alignas(64) Work work_ = nullptr;
    void* argument_ = nullptr;
    std::atomic<int> threads_{0};
    std::atomic<const Reading*> reading_{nullptr};
    std::atomic<bool> is_over_{false};
};
