"""The loop that runs an engine: plans, queues of steps, results, and messages of its clients. No torch."""
