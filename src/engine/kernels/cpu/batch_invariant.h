// kBatchInvariant: a row's results are bitwise the same whatever else is in the batch (`model.batch_invariant`).
//
// Such kernels are in libraries that are compiled with STOKER_BATCH_INVARIANT: neither the order of a sum nor a rounding
// may depend on the number of rows. Only sources that include this file are compiled twice (build.py), so no other file
// may read the macro.
#pragma once

#if defined(STOKER_BATCH_INVARIANT)
constexpr bool kBatchInvariant = true;
#else
constexpr bool kBatchInvariant = false;
#endif
