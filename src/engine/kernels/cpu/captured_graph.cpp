// Replays a captured graph: the native calls of one decode step, made by one team of threads.

#include "parallel.h"
#include "vector.h"

struct Call {
    int (*function)(const uint64_t* arguments);
    const uint64_t* arguments;
    Reading next;  // weights that are read after this call; `from` is null if there are none
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
        if (call.function(call.arguments)) region.failed = i + 1;
    }
    team.dismiss();
}

}  // namespace

// Stops at the first call that fails and returns its position, counted from 1; returns 0 if all succeed.
EXPORT int replay_graph(const Call* calls, int count) {
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
        else lead(region, omp_get_num_threads());  // the runtime may start fewer than asked for
    };
    GOMP_parallel(body, &region, unsigned(wanted), 0);
    return region.failed;
}
