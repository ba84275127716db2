"""The loop of an engine: it takes messages, plans a step, submits it, and sends the results. No torch.

`engine_core` plans and submits, `engine_loop` runs it, and `dispatch` knows which client has sent which request. The
step queues execute plans at once (`step_queue`), in a thread, or on a device; what executes one is on the floors above.
"""
