"""Steps in several processes: rank 0, which plans and samples, leads the other ranks through the same steps.

On rank 0, `processes` and `followers` are the others as it sees them, `group_runner` computes steps together with them,
`leading_sampler` and `leading_devices` send them what they need, and `worker_calls` has calls of workers. `place` and
`following_sampler` are on the others.
"""
