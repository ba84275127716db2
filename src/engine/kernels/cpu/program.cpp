// Carries out a program: the calls of a decode step, noted once, with one team of threads for all of them.

#include "parallel.h"
#include "vector.h"

struct Call {
    int (*function)(const uint64_t* words);
    const uint64_t* words;
    Reading next;  // weights that are read after this call; from null for none
};

struct Region {
    const Call* calls;
    int count;
    Team team;
    int failed = 0;
};

namespace {

void lead(Region& region, int threads) {
    Team& team = region.team;
    team.gather(threads);
    for (int i = 0; i < region.count && !region.failed; i++) {
        const Call& call = region.calls[i];
        if (call.next.from) team.read_next(&call.next);
        if (call.function(call.words)) region.failed = i + 1;
    }
    team.dismiss();
}

}  // namespace

// Returns the number of the first call that failed, counted from 1, after which none is made; 0 if all is well.
EXPORT int run_program(const Call* calls, int count) {
    const int wanted = num_threads.load(std::memory_order_relaxed);
    Region region{calls, count, Team(wanted)};
    if (wanted == 1) {
        lead(region, 1);
        return region.failed;
    }
    const auto body = [](void* argument) {
        Region& region = *static_cast<Region*>(argument);
        const int thread = omp_get_thread_num();
        if (thread) region.team.follow(thread);
        else lead(region, omp_get_num_threads());  // as many as the runtime gave
    };
    GOMP_parallel(body, &region, unsigned(wanted), 0);
    return region.failed;
}
