"""Steps in several processes: rank 0, which plans and samples, leads the other ranks through the same steps.

On rank 0, `processes` and `followers` are the others as it sees them; `leading_runner` and `leading_devices` send them
the steps, `worker_calls` the calls of workers. On the others: `place` and `following_sampler`. With `launched`, all
ranks were started by a launcher, and each plans for itself.
"""
