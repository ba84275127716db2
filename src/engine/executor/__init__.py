"""The executors of an engine, and `build`, which chooses one and makes the engine. They import torch when called.

`local` has executors of one process, `ranks` of rank 0. `launcher` is the seam for processes that a launcher has
started. `process` is what executors are derived from, `prepared` and `scheduler` what they are made of.
"""
